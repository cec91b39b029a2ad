"""Tool calls: the policy calls the tools that the task names, talks to the user, and is judged by what it leaves behind.

A task's `data` holds

    tools     where the tools come from (see `tools.py`)
    expect    what must hold in the end (see `toolcall_verify.py`); the policy never sees it
    then      further messages of the user: each comes when the policy has answered the one before without a call
    until     "answer" (default), or "calls": the first message whose calls can be made ends the episode
    max_steps how many messages it takes at most
    user      what a simulated user says if asked: {"facts": [{"about": "a regular expression", "says": "..."}]}
    solution  the oracle's messages: a text, or a list of calls such as {"name": "add", "arguments": {"a": 1}}

    {"tools": [{"class": "office:Desk", "options": {"seed": 3}}],
     "expect": [{"kind": "state", "value": {"mails": []}}],
     "solution": [[{"name": "delete_mail", "arguments": {"id": 1}}], "Done."]}
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from agentgym.env import Env, Info
from agentgym.environments.tool_values import printable
from agentgym.environments.toolcall_verify import Evidence, Made, verify
from agentgym.environments.tools import Toolbox, ToolResult, sources_from
from agentgym.errors import TaskError, UsageError
from agentgym.registry import TOOL_FORMATS
from agentgym.types import Message, Observation, StepResult, Task, ToolCall

SYSTEM = "You help a user by means of tools. Call them as needed; when everything is done, tell the user the result."
EMPTY = "your message is empty: call a tool, or say something to the user"
MAX_STEPS = 12
MAX_HEARD = 4000  # characters of a message in which a simulated user looks for questions
NOTHING_TO_ADD = "I have nothing to add to that. Please go on with what you know."
MAX_VAIN_QUESTIONS = 2  # that a simulated user answers with nothing


class ToolCallEnv(Env):
    """Tools, a user and a verifier.

    The episode ends when the policy speaks without calling a tool and the user has no more to say, or at `max_steps`;
    then the state is judged, and that step's reward is the outcome. A malformed or wrong call is answered with what is
    wrong, is counted, and ends nothing.

    Args:
        max_steps: messages the policy may write; 0: as many as the task says, or 12.
        max_calls: calls that are made of one message; further ones are refused.
        max_parse_errors: malformed messages in a row that end the episode; 0: they never do.
        tool_timeout_s: seconds one call may take.
        step_timeout_s: seconds that all calls of one message may take.
        max_result_chars: of a result that the policy reads; head and tail are kept.
        system_prompt: replaces the first message; empty for none. A task may have its own in `data`.
        text_format: how a message that is nothing but text makes calls (by hand, by Gymnasium); empty: not at all.
    """

    name = "toolcall"

    def __init__(
        self,
        *,
        max_steps: int = 0,
        max_calls: int = 16,
        max_parse_errors: int = 0,
        tool_timeout_s: float = 20.0,
        step_timeout_s: float = 60.0,
        max_result_chars: int = 4000,
        system_prompt: str | None = None,
        text_format: str = "hermes",
    ) -> None:
        if max_calls < 1 or tool_timeout_s <= 0 or step_timeout_s <= 0 or max_result_chars < 2:
            raise UsageError(f"{self.name}: max_calls, the timeouts and max_result_chars must be > 0")
        if max_steps < 0 or max_parse_errors < 0:
            raise UsageError(f"{self.name}: max_steps and max_parse_errors must not be negative")
        self.max_steps, self.max_calls, self.max_parse_errors = max_steps, max_calls, max_parse_errors
        self.tool_timeout_s, self.step_timeout_s = tool_timeout_s, step_timeout_s
        self.max_result_chars, self.system_prompt = max_result_chars, system_prompt
        self.format: Any = TOOL_FORMATS.make(text_format) if text_format else None
        self.box: Toolbox | None = None
        self.task: Task | None = None
        self.ended = True

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError(f'{self.name}: reset needs options={{"task": Task}}')
        await self.close()
        self.then = list(task.data.get("then", ()))
        self.user = SimulatedUser(task.data.get("user"))
        self.box = Toolbox(
            sources_from(task.data.get("tools", ())), timeout_s=self.tool_timeout_s, max_chars=self.max_result_chars
        )
        await self.box.start()
        self.task, self.ended = task, False
        self.until = task.data.get("until", "answer")
        self.limit = self.max_steps or int(task.data.get("max_steps", MAX_STEPS))
        self.steps = self.malformed = self.in_a_row = 0
        self.made: list[list[Made]] = [[]]
        self.said: list[str] = []
        self.states: list[list[Any]] = []
        system = task.data.get("system", SYSTEM) if self.system_prompt is None else self.system_prompt
        messages = [Message(role="system", content=system)] if system else []
        messages.append(Message(role="user", content=task.instruction))
        return Observation(messages=tuple(messages), tools=self.box.specs), {"task": task.id}

    async def step(self, action: Message) -> StepResult:
        if self.task is None or self.box is None:
            raise UsageError(f"{self.name}: step before reset, or after close")
        if self.ended:
            return StepResult(Observation(messages=()), 0.0, True, False, {"ended": True})
        self.steps += 1
        calls, errors, said = self._read(action)
        messages: list[Message] = []
        info: Info = {}
        end = ""
        if calls or errors:
            messages, info = await self._act(calls, errors)
        elif reply := self._hear(said):
            messages = [Message(role="user", content=reply)]
        else:
            end = "answer"
        self.in_a_row = self.in_a_row + 1 if info.get("parse_error") else 0
        if self.until == "calls" and any(not one["error"] for one in info.get("calls", ())):
            end = "calls"
        if not end and 0 < self.max_parse_errors <= self.in_a_row:
            end = "parse_errors"
        end = end or ("max_steps" if self.steps >= self.limit else "")
        observation = Observation(messages=tuple(messages), tools=self.box.specs)
        if not end:
            return StepResult(observation, 0.0, False, False, info)
        reward, judged = await self._judge(said if end == "answer" else "")
        return StepResult(observation, reward, True, False, {**info, "end": end, "steps": self.steps, **judged})

    async def close(self) -> None:
        self.task = None
        box, self.box = self.box, None
        if box is not None:
            await box.close()

    async def oracle(self, task: Task) -> list[Message]:
        return [_message(said, index) for index, said in enumerate(task.data.get("solution", ()))]

    def _read(self, action: Message) -> tuple[tuple[ToolCall, ...], tuple[str, ...], str]:
        """The calls of a message, what is wrong with malformed ones, and what it says besides."""
        calls, errors, content = action.tool_calls, action.call_errors, action.content
        if not (calls or errors) and self.format is not None and self.box is not None:
            parsed = self.format.parse(content, self.box.specs)
            calls, errors, content = parsed.calls, parsed.errors, parsed.content
        said = answer_in(content)
        return calls, errors if calls or errors or said else (EMPTY,), said

    async def _act(self, calls: tuple[ToolCall, ...], errors: tuple[str, ...]) -> tuple[list[Message], Info]:
        """Make the calls of one message; what comes back, and plain data about it."""
        began = time.monotonic()
        made = [await self._call(call, index, began) for index, call in enumerate(calls)]
        self.made[-1] += made
        messages = [_tool_message(one.call, one.result) for one in made]
        messages += [Message(role="user", content=f"Not understood: {error}.") for error in errors]
        wrong = [*errors, *(one.result.content.removeprefix("error: ") for one in made if one.result.misspelt)]
        told = [{"name": printable(one.call.name)[:200], "error": one.result.error, "seconds": one.result.seconds} for one in made]  # fmt: skip
        info: Info = {"calls": told} if told else {}
        if told:
            info["exit_code"] = int(any(one.result.error for one in made))
        if any(one.result.error == "timeout" for one in made):
            info["timed_out"] = True
        if wrong:
            self.malformed += len(wrong)
            info |= {"parse_error": "; ".join(wrong)[:1000], "parse_errors": self.malformed}
        return messages, info

    async def _call(self, call: ToolCall, index: int, began: float) -> Made:
        assert self.box is not None
        left = began + self.step_timeout_s - time.monotonic()
        if index >= self.max_calls:
            refused = f"error: not made: a message may hold {self.max_calls} calls"
        elif left <= 0:
            refused = f"error: not made: the calls before it took {self.step_timeout_s:g} s"
        else:
            return Made(call=call, result=await self.box.call(call, min(left, self.tool_timeout_s)))
        return Made(call=call, result=ToolResult(id=call.id, name=call.name, content=refused, error="refused"))

    def _hear(self, said: str) -> str:
        """What the user answers; empty if the conversation is over."""
        if reply := self.user.reply(said):
            return reply
        if not self.then:
            return ""
        self._end_turn(said)
        return str(self.then.pop(0))

    def _end_turn(self, said: str) -> None:
        assert self.box is not None
        self.said.append(said)
        self.states.append(self.box.state())
        self.made.append([])

    async def _judge(self, answer: str) -> tuple[float, Info]:
        assert self.task is not None
        self.ended = True
        self._end_turn(answer)
        evidence = Evidence(
            answer=answer,
            made=tuple(tuple(turn) for turn in self.made[:-1]),
            said=tuple(self.said),
            states=tuple(self.states),
            errors=self.malformed,
            tools=tuple(self.task.data.get("tools", ())),
            max_chars=self.max_result_chars,
        )
        try:
            verdicts = await verify(self.task.data.get("expect", ()), evidence)
        except TaskError as error:
            raise TaskError(f"task {self.task.id}: {error}") from error
        solved = all(verdict.ok for verdict in verdicts)
        return float(solved), {
            "solved": solved,
            "failed": [printable(verdict.why) for verdict in verdicts if not verdict.ok],
            "verdicts": [{"kind": one.kind, "ok": one.ok, "why": printable(one.why)} for one in verdicts],
            "n_calls": len(evidence.calls),
            "parse_errors": self.malformed,
            "tool_errors": sum(bool(one.result.error) for one in evidence.calls),
        }


class SimulatedUser:
    """A user who knows some facts, and tells one when it is asked about; by rules alone, always the same.

    A question that is about nothing it knows is answered with that, a few times; anything else ends the conversation.
    """

    ASKING = re.compile(r"\?|\b(please|tell me|let me know|need to know|which|what|specify|provide|confirm)\b", re.I)

    def __init__(self, given: Any) -> None:
        try:
            facts = (given or {}).get("facts", ())
            self.facts = [(re.compile(fact["about"], re.I), str(fact["says"])) for fact in facts]
        except (AttributeError, KeyError, TypeError, re.error) as error:
            raise TaskError(f"the simulated user is malformed: {type(error).__name__}: {error}") from error
        self.told: set[int] = set()
        self.in_vain = 0

    def reply(self, said: str) -> str:
        """What the user says to the policy's words; empty if they need no answer."""
        if not self.facts or not self.ASKING.search(said):
            return ""
        asked = [index for index, (about, _) in enumerate(self.facts) if about.search(said[:MAX_HEARD])]
        if not set(asked) - self.told:
            self.in_vain += 1
            if self.in_vain > MAX_VAIN_QUESTIONS:
                return ""
        self.told |= set(asked)
        return " ".join(self.facts[index][1] for index in asked) or NOTHING_TO_ADD


def answer_in(content: str) -> str:
    """What a message says, without its thinking."""
    answer = content.rpartition("</think>")[2].strip()
    return "" if answer.startswith("<think>") else answer


def _tool_message(call: ToolCall, result: ToolResult) -> Message:
    return Message(role="tool", content=result.content, tool_call_id=call.id, name=call.name)


def _message(said: Any, index: int) -> Message:
    """A message of the oracle: a text, or a list of calls."""
    if isinstance(said, str):
        return Message(role="assistant", content=said)
    calls = tuple(
        ToolCall(
            id=f"oracle_{index}_{n}",
            name=call["name"],
            arguments=json.dumps(call.get("arguments", {}), ensure_ascii=False),
        )
        for n, call in enumerate(said)
    )
    return Message(role="assistant", tool_calls=calls)
