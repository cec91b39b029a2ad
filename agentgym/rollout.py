"""One episode: policy and environment take turns until it ends. The only place that catches what escapes them.

A bad episode is data: whatever happens, a Trajectory with a status and a reason comes out, and the environment is
closed. Only cancellation passes through.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from agentgym.config import RolloutConfig
from agentgym.env import Env
from agentgym.errors import DeadlineError, InfrastructureError, TaskError
from agentgym.policy import ContextOverflow, Policy, Session
from agentgym.types import Message, Observation, Prompt, Sampling, Status, StepResult, Task, Trajectory, Turn


class EpisodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An episode to run; the same request gives the same environment and the same sampling seeds."""

    id: str
    group_id: str
    task: Task
    seed: int
    sampling: Sampling


async def run_episode(
    request: EpisodeRequest,
    policy: Policy,
    make_env: Callable[[Task], Env],
    settings: RolloutConfig,
    policy_timeout_s: float = 300.0,
) -> Trajectory:
    """Run one episode from reset to close and return what happened."""
    episode = _Episode(request, policy, settings, policy_timeout_s)
    try:
        status, reason, outcome = await episode.play(make_env)
    except TaskError as error:
        status, reason, outcome = "task", _one_line(error), None
    except Exception as error:  # a fault of an environment, a policy or this machine is never a reward
        status, reason, outcome = "infrastructure", _one_line(error), None
    return episode.trajectory(status, reason, outcome)


class _Episode:
    def __init__(
        self, request: EpisodeRequest, policy: Policy, settings: RolloutConfig, policy_timeout_s: float
    ) -> None:
        self.request = request
        self.policy = policy
        self.settings = settings
        self.policy_timeout_s = policy_timeout_s
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.session = Session(request.id)
        self.started = time.time()
        self.clock = time.monotonic()

    async def play(self, make_env: Callable[[Task], Env]) -> tuple[Status, str, float | None]:
        env = make_env(self.request.task)
        try:
            return await self._turns(env)
        finally:
            await self._close(env)

    async def _turns(self, env: Env) -> tuple[Status, str, float | None]:
        task = self.request.task
        async with deadline("reset", self.settings.reset_timeout_s):
            observation, _ = await env.reset(seed=task.seed, options={"task": task})
            await self.policy.begin(self.session, env, task)
        self.messages += observation.messages
        for index in range(self.settings.max_turns):
            try:
                result = await self._turn(index, env, observation)
            except ContextOverflow:
                return "truncated", "the context is full", self.total()
            if result.terminated or result.truncated:
                reason = str(result.info.get("reason", "")) or ("terminated" if result.terminated else "truncated")
                return "completed" if result.terminated else "truncated", reason, self.total()
            observation = result.observation
        return "truncated", f"max_turns={self.settings.max_turns} reached", self.total()

    def total(self) -> float:
        """The outcome: the sum of the steps' rewards."""
        return sum(turn.reward for turn in self.turns)

    async def _turn(self, index: int, env: Env, observation: Observation) -> StepResult:
        seed = zlib.crc32(f"{self.request.seed}/{index}".encode()) & 0x7FFFFFFF
        sampling = msgspec.structs.replace(self.request.sampling, seed=seed)
        prompt = Prompt(messages=tuple(self.messages), tools=observation.tools)
        async with deadline("policy call", self.policy_timeout_s):
            completion = await self.policy(prompt, session=self.session, sampling=sampling)
        self.messages.append(completion.message)
        async with deadline("step", self.settings.step_timeout_s):
            result = StepResult(*await env.step(completion.message))
        came_back = tuple(result.observation.messages)
        self.messages += came_back
        turn = Turn(
            index=index,
            completion=completion,
            next_state=came_back,
            reward=float(result.reward),
            info=plain(result.info),
        )
        self.turns.append(turn)
        return result

    async def _close(self, env: Env) -> None:
        try:
            async with deadline("close", self.settings.close_timeout_s):
                await env.close()
        except Exception as error:  # the episode's result stands; what could not be closed is told
            self.close_error = _one_line(error)

    close_error = ""

    def trajectory(self, status: Status, reason: str, outcome: float | None) -> Trajectory:
        info: dict[str, Any] = {"close_error": self.close_error} if self.close_error else {}
        if self.session.broken:
            info["broken_prefixes"] = self.session.broken
        return Trajectory(
            id=self.request.id,
            task_id=self.request.task.id,
            group_id=self.request.group_id,
            env=self.request.task.env,
            seed=self.request.seed,
            status=status,
            reason=reason,
            outcome=outcome,
            turns=tuple(self.turns),
            messages=tuple(self.messages),
            started=self.started,
            seconds=time.monotonic() - self.clock,
            info=info,
        )


@asynccontextmanager
async def deadline(what: str, seconds: float) -> AsyncIterator[None]:
    """Raise DeadlineError naming `what` if the block takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise DeadlineError(f"{what} took longer than {seconds:g} s") from error


def plain(value: Any) -> Any:
    """`value` as plain data that the store can hold; what is not is replaced by its repr."""
    return msgspec.to_builtins(value, enc_hook=repr, str_keys=True)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, InfrastructureError | TaskError) and text else f"{type(error).__name__}: {text}"
