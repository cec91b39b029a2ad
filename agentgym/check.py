"""Public conformance checks: `check_env` for an environment, `check_tasks` for a task set.

An oracle scores full marks, doing nothing scores none, a reset with a seed repeats itself, and what comes back is
what the contract says.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from agentgym.env import Env
from agentgym.errors import TaskError, UsageError
from agentgym.registry import ENVIRONMENTS, TASK_SETS
from agentgym.task import TaskSet
from agentgym.types import Message, Observation, StepResult, Struct, Task
from agentgym.wrapping import make_env, wrap

MAX_IDLE_STEPS = 100  # an episode must end, also for a policy that says nothing
EPISODE_TIMEOUT_S = 120.0
NOTHING = Message(role="assistant")

T = TypeVar("T")


class Failure(Struct, frozen=True, kw_only=True):
    """One thing that is not as it must be."""

    check: str  # "oracle", "noop", "reset", "contract", "ids", "splits"
    task_id: str  # empty: on whatever task
    why: str

    def __str__(self) -> str:
        return f"{self.check} on {self.task_id}: {self.why}" if self.task_id else f"{self.check}: {self.why}"


class Report(Struct, frozen=True, kw_only=True):
    """What a check found; `print(report)` says it in sentences."""

    name: str
    checked: int  # tasks that were played
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __str__(self) -> str:
        found = _number(len(self.failures), "failure") if self.failures else "no failures"
        lines = [f"{self.name}: {_number(self.checked, 'task')} played, {found}"]
        return "\n".join([*lines, *(f"  {failure}" for failure in self.failures)])

    def raise_for_failures(self) -> None:
        """Raise TaskError, naming the first failure, if there are any."""
        if self.failures:
            raise TaskError(f"{self.name}: {_number(len(self.failures), 'failure')}; first: {self.failures[0]}")


class Breach(Exception):
    """The environment broke its contract so that its episode cannot go on."""


def check_env(
    env: Env | type[Env] | str,
    tasks: Sequence[Task] | TaskSet | str | None = None,
    *,
    seed: int = 0,
    limit: int | None = 16,
    wrappers: Sequence[Any] = (),
    **options: Any,
) -> Report:
    """Check an environment on tasks made for it: whatever it does wrong is in the report.

    Args:
        env: a registered name, a class, or an environment.
        tasks: a task set, its name, or tasks; by default the first registered set for the environment's name.
        limit: tasks that are played, spread evenly over the training split.
        wrappers: what is put around it, as `env.wrappers` of a config names them.
        options: the environment's keyword arguments, where it is given by name or class.

    Raises:
        UsageError: there is no such environment, it takes no such options, or there are no tasks for it.

    Example:
        print(agentgym.check_env("terminal", max_steps=4))  # terminal: 16 tasks played, no failures
    """
    name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    given = task_set_for(name) if tasks is None else TASK_SETS.make(tasks) if isinstance(tasks, str) else tasks
    listed = spread(given if isinstance(given, Sequence) else given.tasks("train"), limit)
    if not listed:
        raise UsageError(f"check_env({name!r}): there are no tasks to check it on")
    begun = time.monotonic()
    if isinstance(env, str):
        failures = run(_play_all(listed, lambda task: make_env(env, options, wrappers), 4, seed))
    elif isinstance(env, type):
        failures = run(_play_all(listed, lambda task: wrap(env(**options), wrappers), 4, seed))
    else:
        failures = run(_play_one_by_one(listed, wrap(env, wrappers), seed))
    return Report(name=name, checked=len(listed), failures=failures, seconds=time.monotonic() - begun)


def task_set_for(env: str) -> TaskSet:
    """The first registered task set for the environment of this name that needs no arguments."""
    ENVIRONMENTS.load(env)
    wanting: list[str] = []
    for name in TASK_SETS.factories:  # in the order of registration: what ships goes first
        if (getattr(TASK_SETS.load(name), "env", "") or env) == env:
            try:
                made: TaskSet = TASK_SETS.make(name)
            except UsageError:
                wanting.append(name)
                continue
            if made.env == env:
                return made
    have = f"; {', '.join(wanting)} cannot be made without arguments" if wanting else ""
    raise UsageError(f"no task set for the environment {env!r}: name one, or give tasks{have}")


def check_tasks(
    tasks: TaskSet | str,
    *,
    limit: int | None = None,
    splits: Sequence[str] = ("train", "test"),
    options: dict[str, Any] | None = None,
    env_options: dict[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    concurrency: int = 8,
) -> Report:
    """Check a task set: its ids and splits, and each task (`limit` of each split, spread evenly) in its environment.

    Args:
        options: the task set's keyword arguments where it is given by name.
        env_options: the environment's.
        wrappers: what is put around it, as `env.wrappers` of a config names them.
        concurrency: episodes at once.
    """
    made: TaskSet = TASK_SETS.make(tasks, **(options or {})) if isinstance(tasks, str) else tasks
    name = tasks if isinstance(tasks, str) else made.name or type(made).__name__
    begun = time.monotonic()
    listed = {split: made.tasks(split) for split in splits}
    failures = list(_check_lists(listed))
    chosen = [task for split in splits for task in spread(listed[split], limit)]
    failures += run(_play_all(chosen, lambda task: make_env(task.env, env_options, wrappers), concurrency, None))
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
            try:
                env = make(task)
            except UsageError:
                raise
            except Exception as error:
                return [_failure(task, f"making it raised {_said(error)}")]
            return [*await _check_task(env, task, seed), *await _check_close(env, task)]

    played = await asyncio.gather(*map(play, tasks))
    return _once(failure for one in played for failure in one)


async def _play_one_by_one(tasks: Sequence[Task], env: Env, seed: int) -> tuple[Failure, ...]:
    found = [failure for task in tasks for failure in await _check_task(env, task, seed)]
    return _once([*found, *await _check_close(env, tasks[-1])])


def _once(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Each failure once, in order."""
    return tuple(dict.fromkeys(failures))


async def _check_task(env: Env, task: Task, seed: int | None) -> list[Failure]:
    found: list[tuple[str, str]] = []
    try:
        async with asyncio.timeout(EPISODE_TIMEOUT_S):
            await _play_task(env, task, task.seed if seed is None else seed, found)
    except TimeoutError:
        found.append(("contract", f"no end within {EPISODE_TIMEOUT_S:.0f} s"))
    except Breach as breach:
        found.append(("contract", str(breach)))
    listed = [Failure(check=check, task_id=task.id, why=why) for check, why in found]
    if not isinstance(env, Env):
        listed.append(
            Failure(check="contract", task_id="", why=f"{type(env).__name__} is not derived from agentgym.Env")
        )
    return listed


async def _check_close(env: Env, task: Task) -> list[Failure]:
    """The contract: safe to call twice."""
    try:
        async with asyncio.timeout(EPISODE_TIMEOUT_S):
            await _call(env, "close")
            await _call(env, "close")
    except TimeoutError:
        return [_failure(task, f"close does not end within {EPISODE_TIMEOUT_S:.0f} s")]
    except Breach as breach:
        return [_failure(task, str(breach))]
    return []


async def _play_task(env: Env, task: Task, seed: int, found: list[tuple[str, str]]) -> None:
    """One episode of silence and one of the oracle's; what is not as it must be goes into `found`."""
    first = await _reset(env, task, seed)
    last = await _play(env, [], found)
    if isinstance(last.reward, int | float) and last.reward > 0:
        found.append(("noop", f"doing nothing is rewarded {last.reward}"))
    again = await _reset(env, task, seed)
    problems = _observation_breaches(first) or _observation_breaches(again)
    found += [("contract", f"reset: {problem}") for problem in problems]
    if not problems and first != again:
        found.append(("reset", "a reset with the same seed gives another observation"))
    solution = await _oracle(env, task)
    if not solution:
        found.append(("oracle", "no oracle is known"))
    last = await _play(env, solution, found)
    if solution and last.reward != 1.0:
        failed = last.info.get("failed", []) if isinstance(last.info, dict) else []
        why = "; ".join(map(str, failed)) or "no reason given"
        found.append(("oracle", f"the oracle is rewarded {last.reward}: {why}"))


async def _reset(env: Env, task: Task, seed: int) -> Any:
    """The observation of a reset."""
    came = await _call(env, "reset", seed=seed, options={"task": task})
    if not isinstance(came, tuple) or len(came) != 2:
        raise Breach(f"reset returned {_shape(came)} instead of (observation, info)")
    return came[0]


async def _oracle(env: Env, task: Task) -> list[Message]:
    solution = list(await _call(env, "oracle", task) or ()) if hasattr(env, "oracle") else []
    for message in solution:
        if not isinstance(message, Message):
            raise Breach(f"oracle returned a {type(message).__name__} among its messages, not a Message")
    return solution


async def _call(env: Env, name: str, *args: Any, **kwargs: Any) -> Any:
    """What a method of the contract comes to. Raises Breach if it is missing, takes other arguments, is not async or raises."""
    method = getattr(env, name, None)
    if not callable(method):
        raise Breach(f"there is no method {name}")
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([*(type(arg).__name__ for arg in args), *(f"{key}=..." for key in kwargs)])
        raise Breach(f"{name}({given}) is how it is called, and it cannot be: {error}") from error
    try:
        made = method(*args, **kwargs)
        if inspect.isawaitable(made):
            return await made
    except Exception as error:
        raise Breach(f"{name} raised {_said(error)}") from error
    raise Breach(f"{name} is not async: write `async def {name}`")


async def _play(env: Env, script: Sequence[Message], found: list[tuple[str, str]]) -> StepResult:
    """Say `script`, then nothing, until the episode ends; breaches of the contract go into `found`."""
    for said in range(len(script) + MAX_IDLE_STEPS):
        came = await _call(env, "step", script[said] if said < len(script) else NOTHING)
        if not isinstance(came, tuple) or len(came) != 5:
            wanted = "(observation, reward, terminated, truncated, info)"
            raise Breach(f"step returned {_shape(came)} instead of {wanted}")
        result = StepResult(*came)
        found += [("contract", f"step: {problem}") for problem in _breaches(result)]
        if result.terminated or result.truncated:
            return result
    found.append(("contract", f"no end after {MAX_IDLE_STEPS} empty messages"))
    return result


def _breaches(result: StepResult) -> list[str]:
    problems = _observation_breaches(result.observation)
    if type(result.reward) is not float or not math.isfinite(result.reward):
        problems.append(f"the reward {result.reward!r} is not a finite float")
    if type(result.terminated) is not bool or type(result.truncated) is not bool:
        problems.append("terminated and truncated are not both bool")
    if not isinstance(result.info, dict):
        return [*problems, f"info is a {type(result.info).__name__}, not a dict"]
    try:
        msgspec.json.encode(result.info)
    except (TypeError, ValueError, UnicodeError) as error:
        problems.append(f"info is not plain data: {error}")
    return problems


def _observation_breaches(observation: Any) -> list[str]:
    if not isinstance(observation, Observation):
        return [f"the observation is a {type(observation).__name__}, not an Observation"]
    if not isinstance(observation.messages, tuple):
        return [f"the observation's messages are a {type(observation.messages).__name__}, not a tuple"]
    odd = [message for message in observation.messages if not isinstance(message, Message)]
    return [f"the observation holds a {type(odd[0]).__name__} instead of a Message"] if odd else []


def _failure(task: Task, why: str) -> Failure:
    return Failure(check="contract", task_id=task.id, why=why)


def _shape(came: Any) -> str:
    return f"{len(came)} values" if isinstance(came, tuple) else f"a {type(came).__name__}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
