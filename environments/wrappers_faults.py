"""Stochastic faults, to train policies that live with a world that sometimes fails.

They are part of the environment: told to the policy in an observation and to the record in `info["fault"]`, never an
InfrastructureError, which would cost the episode its reward.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal

from agentgym.env import Env, Info
from agentgym.environments.wrappers import Wrapper, over
from agentgym.errors import UsageError
from agentgym.types import Message, Observation, StepResult, Task, ToolSpec

Fault = Literal["", "error", "lost"]
ERROR = "Error: the system is busy and has not carried this out. Try again."
LOST = "(the output was lost on its way; what you asked for may have been done)"
MAX_DELAY_S = 30.0  # far below the deadline of a step, which is for failures of the machine


class Faults(Wrapper):
    """Some steps fail: which ones depends on `seed`, the episode's own seed and the step's number, on nothing else.

    The episodes of a group have one seed and meet the same faults. A step that ends the episode loses nothing.

    Args:
        error: share of steps that are not carried out; the policy is told to try again.
        lost: share of steps that are carried out, and whose output is lost.
        delay: share of steps that are `delay_s` late, whatever else befalls them.
        most_in_a_row: errors; the next step is carried out.
    """

    def __init__(
        self,
        env: Env,
        *,
        error: float = 0.05,
        lost: float = 0.05,
        delay: float = 0.0,
        delay_s: float = 1.0,
        seed: int = 0,
        most_in_a_row: int = 2,
    ) -> None:
        super().__init__(env)
        if min(error, lost, delay) < 0 or error + lost > 1 or delay > 1:
            raise UsageError("faults: error, lost and delay are shares: none below 0, error + lost and delay at most 1")
        if not 0 <= delay_s <= MAX_DELAY_S or most_in_a_row < 1:
            raise UsageError(f"faults: delay_s is between 0 and {MAX_DELAY_S:g}, most_in_a_row at least 1")
        self.error, self.lost, self.delay, self.delay_s = error, lost, delay, delay_s
        self.seed, self.most_in_a_row = seed, most_in_a_row
        self.episode: str | None = None
        self.tools: tuple[ToolSpec, ...] = ()
        self.steps = 0

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        observation, info = await super().reset(seed=seed, options=options)
        task = (options or {}).get("task")
        self.episode = episode_of(self.seed, seed, task)
        self.tools, self.steps = observation.tools, 0
        return observation, info

    async def step(self, action: Message) -> StepResult:
        fault, late = self.drawn(self.steps)
        self.steps += 1
        if late:
            await asyncio.sleep(self.delay_s)
        info: Info = {"delayed_s": self.delay_s} if late else {}
        if fault == "error":
            said = _answers(action, ERROR)
            return StepResult(Observation(messages=said, tools=self.tools), 0.0, False, False, {**info, "fault": fault})
        result = await super().step(action)
        self.tools = result.observation.tools
        if fault == "lost" and not over(result):
            said = _answers(action, LOST)
            observation = Observation(messages=said, tools=self.tools)
            return result._replace(observation=observation, info={**result.info, **info, "fault": fault})
        return result._replace(info={**result.info, **info}) if info else result

    async def oracle(self, task: Task) -> list[Message]:
        """The oracle's messages, each as often as it takes to have it carried out."""
        kept = self.episode
        self.episode = kept or episode_of(self.seed, task.seed, task)
        messages: list[Message] = []
        for message in await super().oracle(task):
            while self.drawn(len(messages))[0] == "error":
                messages.append(message)
            messages.append(message)
        self.episode = kept
        return messages

    def drawn(self, step: int) -> tuple[Fault, bool]:
        """What befalls step number `step` of the episode, and whether it is late."""
        first = max(0, step - self.most_in_a_row)
        run = 0  # errors in a row before it; what came before `first` cannot matter once one step went well
        while first > 0 and self._raw(first)[0] == "error":
            first -= 1
        for earlier in range(first, step):
            run = run + 1 if self._raw(earlier)[0] == "error" and run < self.most_in_a_row else 0
        fault, late = self._raw(step)
        return ("" if fault == "error" and run >= self.most_in_a_row else fault), late

    def _raw(self, step: int) -> tuple[Fault, bool]:
        draw = random.Random(f"{self.episode}/{step}")
        share, late = draw.random(), draw.random() < self.delay
        fault: Fault = "error" if share < self.error else "lost" if share < self.error + self.lost else ""
        return fault, late


def episode_of(seed: int, episode_seed: int | None, task: Any) -> str:
    """What the draws of an episode are seeded with."""
    return f"{seed}/{episode_seed}/{task.id if isinstance(task, Task) else ''}"


def _answers(action: Message, text: str) -> tuple[Message, ...]:
    """`text` as what came back: an answer to each call, or the user's message."""
    if not action.tool_calls:
        return (Message(role="user", content=text),)
    return tuple(Message(role="tool", content=text, tool_call_id=call.id, name=call.name) for call in action.tool_calls)
