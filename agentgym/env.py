"""The environment contract: Gymnasium's reset, step and close, async, speaking messages and never tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from agentgym.types import Message, Observation, StepResult, Task

Info = dict[str, Any]


class Env(ABC):
    """One environment; it runs one episode at a time, and many after one another.

    Raise `TaskError` if the task or its verifier is broken and `InfrastructureError` if the machine is; what the
    policy does wrong is answered with an observation or with the end of the episode. The outcome of an episode is the
    sum of its steps' rewards: an environment with a verifier rewards the last step and gives 0 before.

    Example:
        env = agentgym.make("terminal", max_steps=4)
        observation, info = await env.reset(seed=1, options={"task": task})
        observation, reward, terminated, truncated, info = await env.step(Message(role="assistant", content="..."))
        await env.close()
    """

    @abstractmethod
    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        """Begin the episode of `options["task"]`; the same seed gives the same observation."""

    @abstractmethod
    async def step(self, action: Message) -> StepResult:
        """Answer the policy's message (tool calls parsed) with what comes back from the world."""

    @abstractmethod
    async def close(self) -> None:
        """Free everything; safe to call twice and after a failure."""

    async def oracle(self, task: Task) -> list[Message]:
        """The messages that solve `task`, for checks and demonstrations; empty if none is known."""
        return []
