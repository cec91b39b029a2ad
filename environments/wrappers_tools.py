"""Tools told and called in text, in a format by name: for models whose chat template knows no tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentgym.env import Env, Info
from agentgym.environments.wrappers import Wrapper
from agentgym.registry import TOOL_FORMATS
from agentgym.types import Message, Observation, StepResult, Task, ToolSpec


class ToolFormat(Wrapper):
    """The tools on offer stand in the system message, calls in the policy's text, and results in a user message.

    The environment inside sees calls as it would without: parsed, with what is wrong with malformed ones.

    Args:
        format: how calls are written: `hermes`, `qwen_xml`, `llama3`, `mistral`, `json`, `openai`, or one of your own.
    """

    def __init__(self, env: Env, *, format: str = "hermes") -> None:
        super().__init__(env)
        self.format: Any = TOOL_FORMATS.make(format)
        self.tools: tuple[ToolSpec, ...] = ()

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        observation, info = await super().reset(seed=seed, options=options)
        self.tools = observation.tools
        if not self.tools:
            return observation, info
        return Observation(messages=_with_system(observation.messages, self.format.render_tools(self.tools))), info

    async def step(self, action: Message) -> StepResult:
        if self.tools and not action.tool_calls and not action.call_errors:
            parsed = self.format.parse(action.content, self.tools)
            action = msgspec.structs.replace(
                action, content=parsed.content, tool_calls=parsed.calls, call_errors=parsed.errors
            )
        result = await super().step(action)
        messages = _in_text(result.observation.messages)
        if result.observation.tools not in (self.tools, ()):
            self.tools = result.observation.tools
            messages = (*messages, Message(role="user", content=self.format.render_tools(self.tools)))
        return result._replace(observation=Observation(messages=messages))

    async def oracle(self, task: Task) -> list[Message]:
        """The oracle's messages, written out."""
        return [
            Message(role=message.role, content=self.format.render(message)) for message in await super().oracle(task)
        ]


def _with_system(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """`messages` with `text` at the end of the first system message, which is made if there is none."""
    if messages and messages[0].role == "system":
        first = msgspec.structs.replace(messages[0], content=f"{messages[0].content}\n\n{text}".strip())
        return (first, *messages[1:])
    return (Message(role="system", content=text), *messages)


def _in_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with results of tools as texts of the user, those that follow one another in one message."""
    said: list[Message] = []
    joining = False
    for message in messages:
        if message.role != "tool":
            said.append(message)
            joining = False
            continue
        result = f"Result of {message.name or 'the call'}:\n{message.content}"
        if joining:
            last = said.pop()
            result = f"{last.content}\n\n{result}"
            message = msgspec.structs.replace(message, images=last.images + message.images)
        said.append(Message(role="user", content=result, images=message.images))
        joining = True
    return tuple(said)
