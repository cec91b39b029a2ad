"""Public conformance checks: `check_env` for an environment, `check_tasks` for a task set.

An oracle scores full marks, doing nothing scores none, a reset with a seed repeats itself, and what comes back is
what the contract says.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from agentgym.env import Env
from agentgym.errors import AgentgymError, TaskError, UsageError
from agentgym.registry import ENVIRONMENTS, TASK_SETS
from agentgym.task import TaskSet
from agentgym.types import Message, Observation, StepResult, Struct, Task

MAX_IDLE_STEPS = 100  # an episode must end, also for a policy that says nothing
EPISODE_TIMEOUT_S = 120.0
NOTHING = Message(role="assistant")

T = TypeVar("T")


class Failure(Struct, frozen=True, kw_only=True):
    """One thing that is not as it must be."""

    check: str  # "oracle", "noop", "reset", "contract", "ids", "splits"
    task_id: str
    why: str


class Report(Struct, frozen=True, kw_only=True):
    """What a check found."""

    name: str
    checked: int  # tasks that were played
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def raise_for_failures(self) -> None:
        """Raise TaskError, naming the first failure, if there are any."""
        if self.failures:
            first = self.failures[0]
            raise TaskError(
                f"{self.name}: {len(self.failures)} failures; first: {first.check} on {first.task_id}: {first.why}"
            )


def check_env(
    env: Env | str, tasks: Sequence[Task] | TaskSet | str, *, seed: int = 0, limit: int | None = 16, **options: Any
) -> Report:
    """Check an environment on tasks made for it. `options` are its keyword arguments where it is given by name.

    Example:
        agentgym.check_env("terminal", "terminal/basics", max_steps=4).raise_for_failures()
    """
    name = env if isinstance(env, str) else type(env).__name__
    given = tasks if not isinstance(tasks, str) else TASK_SETS.make(tasks)
    listed = spread(given.tasks("train") if isinstance(given, TaskSet) else given, limit)
    if not listed:
        raise UsageError(f"check_env({name!r}): there are no tasks to check it on")
    begun = time.monotonic()
    if isinstance(env, str):
        failures = run(_play_all(listed, lambda task: ENVIRONMENTS.make(env, **options), 4, seed))
    else:
        failures = run(_play_one_by_one(listed, env, seed))
    return Report(name=name, checked=len(listed), failures=failures, seconds=time.monotonic() - begun)


def check_tasks(
    tasks: TaskSet | str,
    *,
    limit: int | None = None,
    splits: Sequence[str] = ("train", "test"),
    options: dict[str, Any] | None = None,
    env_options: dict[str, Any] | None = None,
    concurrency: int = 8,
) -> Report:
    """Check a task set: its ids and splits, and each task (`limit` of each split, spread evenly) in its environment.

    Args:
        options: the task set's keyword arguments where it is given by name.
        env_options: the environment's.
        concurrency: episodes at once.
    """
    made: TaskSet = TASK_SETS.make(tasks, **(options or {})) if isinstance(tasks, str) else tasks
    name = tasks if isinstance(tasks, str) else made.name or type(made).__name__
    begun = time.monotonic()
    listed = {split: made.tasks(split) for split in splits}
    failures = list(_check_lists(listed))
    chosen = [task for split in splits for task in spread(listed[split], limit)]
    failures += run(
        _play_all(chosen, lambda task: ENVIRONMENTS.make(task.env, **(env_options or {})), concurrency, None)
    )
    return Report(name=name, checked=len(chosen), failures=tuple(failures), seconds=time.monotonic() - begun)


def spread(tasks: Sequence[Task], limit: int | None) -> Sequence[Task]:
    """At most `limit` tasks, at even distances."""
    if limit is None or len(tasks) <= limit:
        return tasks
    return [tasks[index * len(tasks) // limit] for index in range(limit)]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop runs already (a notebook)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _check_lists(listed: dict[str, Sequence[Task]]) -> list[Failure]:
    everything = [task for tasks in listed.values() for task in tasks]
    twice = [id for id, n in Counter(task.id for task in everything).items() if n > 1]
    failures = [Failure(check="ids", task_id=id, why="two tasks have this id") for id in twice]
    home: dict[bytes, str] = {}
    for split, tasks in listed.items():
        for task in tasks:
            other = home.setdefault(msgspec.json.encode([task.env, task.instruction, task.data], order="sorted"), split)
            if other != split:
                failures.append(Failure(check="splits", task_id=task.id, why=f"the same instance is in {other!r}"))
    return failures


async def _play_all(
    tasks: Sequence[Task], make: Callable[[Task], Env], concurrency: int, seed: int | None
) -> tuple[Failure, ...]:
    """Check each task in an environment of its own, `concurrency` at once."""
    slots = asyncio.Semaphore(concurrency)

    async def play(task: Task) -> list[Failure]:
        async with slots:
            env = make(task)
            try:
                return await _check_task(env, task, seed)
            finally:
                await env.close()
                await env.close()  # the contract: safe to call twice

    async with asyncio.TaskGroup() as group:
        played = [group.create_task(play(task)) for task in tasks]
    return tuple(failure for one in played for failure in one.result())


async def _play_one_by_one(tasks: Sequence[Task], env: Env, seed: int) -> tuple[Failure, ...]:
    try:
        found = [await _check_task(env, task, seed) for task in tasks]
        return tuple(failure for failures in found for failure in failures)
    finally:
        await env.close()


async def _check_task(env: Env, task: Task, seed: int | None) -> list[Failure]:
    seed = task.seed if seed is None else seed
    found: list[tuple[str, str]] = []
    try:
        async with asyncio.timeout(EPISODE_TIMEOUT_S):
            first, _ = await env.reset(seed=seed, options={"task": task})
            last = await _play(env, [], found)
            if last.reward > 0:
                found.append(("noop", f"doing nothing is rewarded {last.reward}"))
            again, _ = await env.reset(seed=seed, options={"task": task})
            if not isinstance(first, Observation) or first != again:
                found.append(("reset", "a reset with the same seed gives another observation"))
            solution = await env.oracle(task)
            last = await _play(env, solution, found)
            if solution and last.reward != 1.0:
                why = "; ".join(map(str, last.info.get("failed", []))) or "no reason given"
                found.append(("oracle", f"the oracle is rewarded {last.reward}: {why}"))
            if not solution:
                found.append(("oracle", "no oracle is known"))
    except TimeoutError:
        found.append(("contract", f"no end within {EPISODE_TIMEOUT_S:.0f} s"))
    except AgentgymError as error:
        found.append(("contract", f"{type(error).__name__}: {error}"))
    return [Failure(check=check, task_id=task.id, why=why) for check, why in found]


async def _play(env: Env, script: Sequence[Message], found: list[tuple[str, str]]) -> StepResult:
    """Say `script`, then nothing, until the episode ends; breaches of the contract go into `found`."""
    for said in range(len(script) + MAX_IDLE_STEPS):
        result = StepResult(*await env.step(script[said] if said < len(script) else NOTHING))
        found += [("contract", problem) for problem in _breaches(result)]
        if result.terminated or result.truncated:
            return result
    found.append(("contract", f"no end after {MAX_IDLE_STEPS} empty messages"))
    return result


def _breaches(result: StepResult) -> list[str]:
    problems = []
    if not isinstance(result.observation, Observation):
        problems.append(f"the observation is a {type(result.observation).__name__}")
    if type(result.reward) is not float or not math.isfinite(result.reward):
        problems.append(f"the reward {result.reward!r} is not a finite float")
    if type(result.terminated) is not bool or type(result.truncated) is not bool:
        problems.append("terminated and truncated are not both bool")
    try:
        msgspec.json.encode(result.info)
    except (TypeError, ValueError, UnicodeError) as error:
        problems.append(f"info is not plain data: {error}")
    return problems
