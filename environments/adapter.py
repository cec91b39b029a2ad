"""Gymnasium, both ways: any Env as a `gymnasium.Env`, and any `gymnasium.Env` whose play is text as an Env."""

from __future__ import annotations

import asyncio
import functools
import json
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory

from agentgym.check import task_set_for
from agentgym.env import Env, Info
from agentgym.errors import UsageError
from agentgym.registry import ENVIRONMENTS, TASK_SETS
from agentgym.task import TaskSet
from agentgym.types import Message, Observation, StepResult, Task

MAX_OBSERVATION = 1 << 16  # characters
MAX_ACTION = 1 << 20
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"
SAMPLE_LENGTH = 64

T = TypeVar("T")


class AnyText(Text):
    """Every text up to `max_length` characters; samples are short and printable.

    Gymnasium's own `Text` keeps its characters in a set and a dict, which for all of Unicode takes 200 MB a space.
    """

    def __init__(self, max_length: int, seed: Any = None) -> None:
        super().__init__(max_length, min_length=0, charset=PRINTABLE, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        length = self.np_random.integers(0, min(SAMPLE_LENGTH, self.max_length) + 1)
        return "".join(self.np_random.choice(list(PRINTABLE), size=length))

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length


@create_shared_memory.register(AnyText)
def _no_shared_memory(space: AnyText, n: int = 1, ctx: Any = None) -> Any:
    """Refuse: AsyncVectorEnv reads shared text once and never again, and says then what to do."""
    raise CustomSpaceError("text observations need shared_memory=False")


class GymEnv(gymnasium.Env[str, str]):
    """An Env as a `gymnasium.Env`: text in, text out, its event loop in a thread of its own.

    Which task an episode is about: `task` if it is given; else `reset(seed=s)` takes task s modulo their number, so
    that the environments of a vector, whose seeds follow one another, get different ones, and a reset without a seed
    draws one with `np_random`. `reset(options={"task": ...})` (a Task or an index) goes before all of these.

    Args:
        env: an Env, or the name of a registered one made with `env_options`.
        task: a Task, an index into the training split of `tasks`, or None for another one each episode.
        tasks: a task set, its name, or tasks; by default the first registered set for the environment's name.

    Example:
        env = gymnasium.make("agentgym/Terminal-v0", tasks="terminal/basics", max_steps=4)
        observation, info = env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step("```bash\\nls\\n```")
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        env: Env | str = "terminal",
        task: Task | int | None = None,
        tasks: TaskSet | Sequence[Task] | str | None = None,
        **env_options: Any,
    ) -> None:
        self.env: Env = ENVIRONMENTS.make(env, **env_options) if isinstance(env, str) else env
        self.tasks, self.env_name = tasks, env if isinstance(env, str) else ""
        self.task = self._at(task) if isinstance(task, int) else task
        self.observation_space = AnyText(MAX_OBSERVATION)
        self.action_space = AnyText(MAX_ACTION)
        self._loop: _LoopThread | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        """Begin an episode; `options["task"]` (a Task, or an index into the training tasks) says of what."""
        super().reset(seed=seed)
        given = dict(options or {})
        chosen = given.get("task", self.task)
        if chosen is None:
            n = len(self._training())
            chosen = seed % n if seed is not None else int(self.np_random.integers(n))
        given["task"] = chosen if isinstance(chosen, Task) else self._at(chosen)
        observation, info = self._run(self.env.reset(seed=seed, options=given))
        return as_text(observation), info

    def _training(self) -> Sequence[Task]:
        """The tasks to choose from, at least one."""
        listed: Sequence[Task] = []
        if isinstance(self.tasks, str):
            listed = _registered_tasks(self.tasks)
        elif self.tasks is not None:
            listed = self.tasks.tasks("train") if isinstance(self.tasks, TaskSet) else self.tasks
        elif self.env_name:
            listed = _tasks_for(self.env_name)
        if not listed:
            raise UsageError('no tasks: give task=..., tasks=... or reset(options={"task": Task})')
        return listed

    def _at(self, index: int) -> Task:
        listed = self._training()
        if not 0 <= index < len(listed):
            raise UsageError(f"task {index}: there are {len(listed)} training tasks, from 0")
        return listed[index]

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        observation, reward, terminated, truncated, info = self._run(
            self.env.step(Message(role="assistant", content=str(action)))
        )
        return as_text(observation), float(reward), terminated, truncated, info

    def close(self) -> None:
        """Free everything; safe to call twice."""
        if self._loop is not None:
            loop, self._loop = self._loop, None
            try:
                loop.run(self.env.close())
            finally:
                loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = _LoopThread()
        return self._loop.run(work)


class FromGymnasium(Env):
    """A `gymnasium.Env` as an Env: observations become text, and the policy's message an action.

    The environment runs in a thread of its own, so that it may block; one that never comes back is left behind. A
    task's `data["options"]` are the options of its reset. An unusable message is answered with what is
    wanted and costs nothing but the turn; `max_parse_errors` of them in a row truncate the episode.

    Args:
        env: the environment, an id for `gymnasium.make`, or a function that makes it.
        to_text: observation to text; by default text as it is, anything else as JSON.
        to_action: message to action, raising ValueError if that cannot be; by default by the action space: text as
            it is, a number for Discrete, a JSON list for arrays.
        max_parse_errors: unusable messages in a row that end the episode.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | str | Callable[[], gymnasium.Env[Any, Any]],
        *,
        to_text: Callable[[Any], str] | None = None,
        to_action: Callable[[str], Any] | None = None,
        max_parse_errors: int = 8,
    ) -> None:
        self.thread = _Thread()
        make = functools.partial(gymnasium.make, env) if isinstance(env, str) else env
        self.gym: gymnasium.Env[Any, Any] = (
            make if isinstance(make, gymnasium.Env) else self.thread.submit(make).result()
        )
        self.to_text = to_text or to_json
        self.to_action = to_action or functools.partial(parse_action, self.gym.action_space)
        self.max_parse_errors, self.parse_errors = max_parse_errors, 0
        self.closed = False

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        given = dict(options or {})
        task = given.pop("task", None)
        if isinstance(task, Task):
            given |= task.data.get("options", {})
        self.parse_errors = 0
        observation, info = await self._call(lambda: self._read(self.gym.reset(seed=seed, options=given or None)))
        said = [task.instruction] if isinstance(task, Task) and task.instruction else []
        return _user("\n".join([*said, observation])), plain(info)

    async def step(self, action: Message) -> StepResult:
        try:
            chosen = self.to_action(action.content)
        except ValueError as error:
            self.parse_errors += 1
            enough = self.parse_errors >= self.max_parse_errors
            return StepResult(_user(f"Not understood: {error}"), 0.0, False, enough, {"parse_error": str(error)})
        self.parse_errors = 0
        observation, reward, terminated, truncated, info = await self._call(lambda: self._read(self.gym.step(chosen)))
        value = float(np.asarray(reward, dtype=np.float64).reshape(-1).sum())
        return StepResult(_user(observation), value, bool(terminated), bool(truncated), plain(info))

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.thread.busy:  # with a call that nobody waits for any more: it may never end
                self.thread.submit(self.gym.close)
                self.thread.end()
                return
            try:
                await self._call(self.gym.close)
            finally:
                self.thread.end()

    def _read(self, came: tuple[Any, ...]) -> tuple[Any, ...]:
        """Text at once, in the environment's thread: it may reuse its buffers."""
        return self.to_text(came[0]), *came[1:]

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self.thread.submit(work))


class _Thread:
    """One thread that makes calls in order; the end of the process does not wait for it."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.last: Future[Any] | None = None
        self.current: Future[Any] | None = None
        threading.Thread(target=self._work, name="gymnasium", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a call is being made, or waits to be."""
        return any(call is not None and not call.done() for call in (self.current, self.last))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Make a call when those before it have ended."""
        future: Future[T] = Future()
        self.last = future
        self.jobs.put((future, work))
        return future

    def end(self) -> None:
        """End the thread after the last call."""
        self.jobs.put(None)

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue
            self.current = future
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del job, future, work  # what they hold is not kept while nothing is asked for


class Seeds(TaskSet):
    """Tasks that differ in their seed alone, which is all that a plain `gymnasium.Env` takes.

    A subclass names itself, its environment and what is to be done; seeds below `n_train` are for training, the
    `n_test` after them for tests.

    Example:
        @agentgym.register_tasks("lake/walks")
        class Walks(Seeds):
            name, env = "lake/walks", "lake"
            instruction = "Cross the lake from 0 to 15. Answer with 0 left, 1 down, 2 right or 3 up. You are at:"
    """

    instruction = ""

    def __init__(self, *, n_train: int = 512, n_test: int = 64) -> None:
        if n_train < 0 or n_test < 0:
            raise UsageError(f"{self.name}: n_train and n_test must not be negative")
        self.n_train, self.n_test = n_train, n_test

    def tasks(self, split: str) -> Sequence[Task]:
        seeds = {"train": range(self.n_train), "test": range(self.n_train, self.n_train + self.n_test)}
        if split not in seeds:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(seeds)}")
        return [
            Task(
                id=f"{self.name}/{split}/{seed}", env=self.env, instruction=self.instruction, family=self.name,
                split=split, seed=seed, data={"seed": seed},
            )
            for seed in seeds[split]
        ]  # fmt: skip


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="agentgym-env", daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return what it returns."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C in the caller: end the work too
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread."""
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def as_text(observation: Observation) -> str:
    """The messages of an observation as one text."""
    return "\n\n".join(message.content for message in observation.messages)


def to_json(observation: Any) -> str:
    """Text as it is, anything else as JSON."""
    return observation if isinstance(observation, str) else json.dumps(plain(observation))


def plain(value: Any) -> Any:
    """`value` as plain data: arrays become lists, and what cannot be data its `str`."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def parse_action(space: gymnasium.Space[Any], text: str) -> Any:
    """The action of `space` that `text` names. Raises ValueError saying what is wanted."""
    if isinstance(space, Text):
        action: Any = text
    else:
        try:
            action = json.loads(text.strip())
            if isinstance(action, list | int | float) and not isinstance(action, bool):
                action = np.asarray(action).astype(space.dtype or float, casting="same_kind")[()]
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise ValueError(f"answer with an action of {space} as JSON and nothing else") from None
    if isinstance(action, bool) or not space.contains(action):
        raise ValueError(f"{text.strip()[:80]!r} is not an action of {space}")
    return action


@functools.cache
def _registered_tasks(name: str) -> Sequence[Task]:
    made: TaskSet = TASK_SETS.make(name)
    return made.tasks("train")


@functools.cache
def _tasks_for(env: str) -> Sequence[Task]:
    return task_set_for(env).tasks("train")


def _user(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),))
