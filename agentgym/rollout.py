"""One episode: policy and environment take turns until it ends. The only place that catches what escapes them.

A bad episode is data: whatever happens, a Trajectory with a status and a reason comes out, and the environment is
closed. Only cancellation passes through.
"""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from agentgym.config import RolloutConfig
from agentgym.env import Env
from agentgym.errors import DeadlineError, InfrastructureError, TaskError
from agentgym.policy import ContextOverflow, Policy, Session
from agentgym.types import (
    Message,
    Observation,
    Prompt,
    Sampling,
    Status,
    StepResult,
    Task,
    ToolSpec,
    Trajectory,
    Turn,
)

_encode = msgspec.msgpack.Encoder().encode  # raises for what cannot be stored: that ends the episode, not the run


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
    on_stuck: Callable[[str], None] = lambda reason: None,
) -> Trajectory:
    """Run one episode from reset to close and return what happened.

    `on_stuck` is told, once, of a wait that is long over its deadline and resists being cancelled: only the end of the
    process ends it.
    """
    episode = _Episode(request, policy, settings, policy_timeout_s, on_stuck)
    try:
        status, reason, outcome = await episode.play(make_env)
    except TaskError as error:
        status, reason, outcome = "task", _one_line(error), None
    except asyncio.CancelledError as error:
        if episode.deadline.cancelled:
            raise
        status, reason, outcome = "infrastructure", _one_line(error), None
    except (Exception, SystemExit) as error:  # a fault of an environment, a policy or this machine is never a reward
        status, reason, outcome = "infrastructure", _one_line(error), None
    finally:
        episode.deadline.cancel()
    return episode.trajectory(status, reason, outcome)


def failed(request: EpisodeRequest, status: Status, reason: str, **info: Any) -> Trajectory:
    """The trajectory of an episode of which nothing is left but why it ended."""
    return Trajectory(
        id=request.id, task_id=request.task.id, group_id=request.group_id, env=request.task.env, seed=request.seed,
        status=status, reason=reason, started=time.time(), info=info,
    )  # fmt: skip


class _Episode:
    def __init__(
        self,
        request: EpisodeRequest,
        policy: Policy,
        settings: RolloutConfig,
        policy_timeout_s: float,
        on_stuck: Callable[[str], None],
    ) -> None:
        self.request = request
        self.policy = policy
        self.settings = settings
        self.policy_timeout_s = policy_timeout_s
        self.messages: tuple[Message, ...] = ()
        self.turns: list[Turn] = []
        self.tools: tuple[ToolSpec, ...] = ()
        self.session = Session(request.id)
        self.deadline = Deadline(settings.close_timeout_s, on_stuck)
        self.close_error = ""
        self.started = time.time()
        self.clock = time.monotonic()

    async def play(self, make_env: Callable[[Task], Env]) -> tuple[Status, str, float | None]:
        env = make_env(self.request.task)
        try:
            try:
                return await self._turns(env)
            except BaseException as error:
                self.deadline.settle(error)
                raise
        finally:
            await self._close(env)

    async def _turns(self, env: Env) -> tuple[Status, str, float | None]:
        task = self.request.task
        self.deadline.arm("reset", self.settings.reset_timeout_s)
        observation, _ = await env.reset(seed=task.seed, options={"task": task})
        await self.policy.begin(self.session, env, task)
        self.messages = _checked(observation)
        self.tools = observation.tools
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
        seed = zlib.crc32(b"%d/%d" % (self.request.seed, index)) & 0x7FFFFFFF
        sampling = msgspec.structs.replace(self.request.sampling, seed=seed)
        prompt = Prompt(messages=self.messages, tools=observation.tools)
        self.deadline.arm("policy call", self.policy_timeout_s)
        completion = await self.policy(prompt, session=self.session, sampling=sampling)
        said = completion.message
        self.messages = (*self.messages, said)
        self.deadline.arm("step", self.settings.step_timeout_s)
        result = StepResult(*await env.step(said))
        self.deadline.disarm()
        came_back = _checked(result.observation)
        info = plain(result.info) if result.info else {}
        self.messages += came_back
        self.turns.append(
            Turn(index=index, completion=completion, next_state=came_back, reward=_reward(result.reward), info=info)
        )
        return result

    async def _close(self, env: Env) -> None:
        try:
            try:
                self.deadline.arm("close", self.settings.close_timeout_s)
                await env.close()
                self.deadline.disarm()
            except BaseException as error:
                self.deadline.settle(error)
                raise
        except (Exception, SystemExit) as error:  # the episode's result stands; what could not be closed is told
            self.close_error = _one_line(error)

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
            messages=self.messages,
            tools=self.tools,
            started=self.started,
            seconds=time.monotonic() - self.clock,
            info=info,
        )


class Deadline:
    """One timer for all that a task waits for, one thing after another: when time is up it cancels the task.

    Arming it again is cheap, because the timer is left where it is as long as it comes early enough. Work that swallows
    the cancellation, or takes longer than `again_s` to clean up after it, is cancelled again; what it returns then does
    not count.

    Example:
        deadline.arm("step", 120)
        try:
            result = await env.step(action)
            deadline.disarm()
        except BaseException as error:
            deadline.settle(error)  # raises DeadlineError if it was the deadline that ended the wait
            raise
    """

    STUCK = 3  # cancellations in vain

    def __init__(self, again_s: float, on_stuck: Callable[[str], None] = lambda reason: None) -> None:
        self.again_s = again_s
        self.on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()  # cancellations that others asked for before
        self._timer: asyncio.TimerHandle | None = None
        self._what, self._seconds, self._at = "", 0.0, math.inf
        self._fired = 0

    def arm(self, what: str, seconds: float) -> None:
        """From now on `what` may take `seconds`. Raises DeadlineError if what came before took too long."""
        if self._fired:
            self.disarm()
        self._what, self._seconds = what, seconds
        self._at = at = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._ring)
        elif self._timer.when() > at:
            self._timer.cancel()
            self._timer = self._loop.call_at(at, self._ring)

    def disarm(self) -> None:
        """Nothing is waited for. Raises DeadlineError if what came before took too long."""
        self._at = math.inf
        if self._fired:
            self._take_back()
            raise self._error()

    def settle(self, error: BaseException) -> None:
        """Raise DeadlineError from `error` if the deadline caused it, and nobody else cancelled the task as well."""
        self._at = math.inf
        if self._fired and (self._take_back() <= self._cancelling or not isinstance(error, asyncio.CancelledError)):
            raise self._error() from error

    @property
    def cancelled(self) -> bool:
        """Whether somebody else cancelled the task."""
        return self._task.cancelling() > self._cancelling

    def cancel(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        at = self._at
        if at is math.inf:
            return
        if self._loop.time() >= at:
            self._fired += 1
            self._task.cancel()
            if self._fired == self.STUCK:
                self.on_stuck(f"{self._error()} and cannot be cancelled")
            at = self._loop.time() + self.again_s
        self._timer = self._loop.call_at(at, self._ring)

    def _take_back(self) -> int:
        """Take back our cancellations; returns how many of the task are left."""
        fired, self._fired = self._fired, 0
        for _ in range(fired):
            self._task.uncancel()
        return self._task.cancelling()

    def _error(self) -> DeadlineError:
        return DeadlineError(f"{self._what} took longer than {self._seconds:g} s")


def plain(value: Any) -> Any:
    """`value` as plain data that the store can hold; what is not is replaced by its repr."""
    data = msgspec.to_builtins(value, enc_hook=repr, str_keys=True)
    _encode(data)
    return data


def _checked(observation: Observation) -> tuple[Message, ...]:
    """The messages of an observation. Raises TypeError or ValueError for what no store could hold."""
    messages = tuple(observation.messages)
    for message in messages:
        if not isinstance(message, Message) or type(message.content) is not str:
            raise TypeError(f"an observation holds {message!r:.80}, which is no message of text")
    _encode(messages)
    return messages


def _reward(value: Any) -> float:
    """A reward as a number; raises TaskError for one that is none to learn from."""
    reward = float(value)
    if not math.isfinite(reward):
        raise TaskError(f"the reward of a step is {reward}")
    return reward


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, InfrastructureError | TaskError) and text else f"{type(error).__name__}: {text}"
