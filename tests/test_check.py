from collections.abc import Sequence
from typing import Any

import pytest

import agentgym
from agentgym.check import spread
from agentgym.env import Env, Info
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import TaskError, UsageError
from agentgym.registry import ENVIRONMENTS, TASK_SETS
from agentgym.task import TaskSet
from agentgym.types import Message, Observation, StepResult, Task


def task(name: str = "t", split: str = "train", **data: Any) -> Task:
    return Task(
        id=name,
        env="terminal",
        instruction=f"Make {name}.",
        split=split,
        data={"expect": [{"kind": "text", "path": "f", "text": "1"}], "solution": ["echo 1 > f"], **data},
    )


class Given(TaskSet):
    """A task set of given tasks."""

    name = "given"

    def __init__(self, train: Sequence[Task], test: Sequence[Task] = ()) -> None:
        self.listed = {"train": train, "test": test}

    def tasks(self, split: str) -> Sequence[Task]:
        return self.listed[split]


def checks(report: Any) -> list[tuple[str, str]]:
    return [(failure.check, failure.task_id) for failure in report.failures]


def test_good_tasks_pass() -> None:
    report = agentgym.check_tasks(Given([task("a")], [task("b", "test")]))
    assert (report.ok, report.checked, report.name) == (True, 2, "given") and report.seconds > 0
    report.raise_for_failures()


def test_each_fault_of_a_task_is_named() -> None:
    bad = [
        task("wrong", solution=["echo 2 > f"]),
        task("free", files={"f": "1"}),
        task("unsolved", solution=[]),
        task("broken", expect=[{"kind": "nosuch", "path": "f"}]),
    ]
    report = agentgym.check_tasks(Given([task("good"), *bad]))
    assert checks(report) == [("oracle", "wrong"), ("noop", "free"), ("oracle", "unsolved"), ("contract", "broken")]
    assert "f holds '2\\n' instead of '1'" in report.failures[0].why and "TaskError" in report.failures[3].why
    with pytest.raises(TaskError, match="4 failures; first: oracle on wrong"):
        report.raise_for_failures()


def test_shared_ids_and_instances_are_found() -> None:
    one = task("a")
    report = agentgym.check_tasks(
        Given([one, one], [Task(id="b", env="terminal", instruction=one.instruction, data=one.data)])
    )
    assert checks(report) == [("ids", "a"), ("splits", "b")]


class Bad(Env):
    """Breaks the contract in as many ways as it can."""

    def __init__(self) -> None:
        self.resets = 0

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        self.resets += 1
        return Observation(messages=(Message(role="user", content=str(self.resets)),)), {}

    async def step(self, action: Message) -> StepResult:
        return StepResult("text", 1, 1, False, {"odd": object()})  # type: ignore[arg-type]

    async def close(self) -> None:
        pass


class Endless(Bad):
    """Never ends."""

    async def step(self, action: Message) -> StepResult:
        return StepResult(Observation(messages=()), 0.0, False, False, {})


def test_a_bad_environment_is_caught() -> None:
    found = [failure.why for failure in agentgym.check_env(Bad(), [task()]).failures]
    for part in ("observation is a str", "1 is not a finite float", "not both bool", "not plain data",
                 "doing nothing is rewarded", "another observation", "no oracle"):  # fmt: skip
        assert any(part in why for why in found), part
    assert any("no end after" in failure.why for failure in agentgym.check_env(Endless(), [task()]).failures)


class Good(Bad):
    """One step, rewarded for any word."""

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        return Observation(messages=()), {}

    async def step(self, action: Message) -> StepResult:
        return StepResult(Observation(messages=()), float(bool(action.content)), True, False, {})

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content="yes")]


class StepRaises(Good):
    async def step(self, action: Message) -> StepResult:
        raise ValueError("no such door")


class ResetRaises(Good):
    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        raise KeyError("word")


class CloseRaises(Good):
    async def close(self) -> None:
        raise ExceptionGroup("two", [ValueError("1"), ValueError("2")])


class OracleRaises(Good):
    async def oracle(self, task: Task) -> list[Message]:
        raise TimeoutError


class SyncReset(Good):
    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Any:
        return Observation(messages=()), {}


class SyncStep(Good):
    def step(self, action: Message) -> Any:
        return StepResult(Observation(messages=()), 0.0, True, False, {})


class SyncClose(Good):
    def close(self) -> Any:
        pass


class FourValues(Good):
    async def step(self, action: Message) -> Any:
        return Observation(messages=()), 0.0, True, {}


class OneValue(Good):
    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> Any:
        return Observation(messages=())


class NoOptions(Good):
    async def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return Observation(messages=()), {}


class TextObservation(Good):
    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> Any:
        return "Say yes.", {}


class Dicts(Good):
    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> Any:
        return Observation(messages=({"role": "user"},)), {}  # type: ignore[arg-type]


class NoInfo(Good):
    async def step(self, action: Message) -> Any:
        return Observation(messages=()), float(bool(action.content)), True, False, None


class Unmade(Good):
    def __init__(self) -> None:
        raise OSError("no display")


class Duck:
    """Derived from nothing, and without an oracle."""

    reset, step, close = Good.reset, Good.step, Good.close


def test_an_environment_that_keeps_its_contract_is_clean() -> None:
    report = agentgym.check_env(Good, [task()])
    assert report.ok and str(report) == "Good: 1 task played, no failures"


@pytest.mark.parametrize(
    ("env", "whys"),
    [
        (StepRaises, ["step raised ValueError: no such door"]),
        (ResetRaises, ["reset raised KeyError: 'word'"]),
        (CloseRaises, ["close raised ExceptionGroup: two (2 sub-exceptions)"]),
        (OracleRaises, ["oracle raised TimeoutError"]),
        (SyncReset, ["reset is not async: write `async def reset`"]),
        (SyncStep, ["step is not async: write `async def step`"]),
        (SyncClose, ["close is not async: write `async def close`"]),
        (FourValues, ["step returned 4 values instead of (observation, reward, terminated, truncated, info)"]),
        (OneValue, ["reset returned a Observation instead of (observation, info)"]),
        (NoOptions, ["reset(seed=..., options=...) is how it is called, and it cannot be: got an unexpected keyword argument 'options'"]),
        (TextObservation, ["reset: the observation is a str, not an Observation"]),
        (Dicts, ["reset: the observation holds a dict instead of a Message"]),
        (NoInfo, ["step: info is a NoneType, not a dict"]),
        (Unmade, ["making it raised OSError: no display"]),
        (Duck, ["no oracle is known", "Duck is not derived from agentgym.Env"]),
    ],
)  # fmt: skip
def test_each_breach_of_the_contract_is_a_finding(env: Any, whys: list[str]) -> None:
    report = agentgym.check_env(env, [task()])
    assert [failure.why for failure in report.failures] == whys
    assert str(report).splitlines()[0].endswith(f"1 task played, {len(whys)} failure{'s' * (len(whys) > 1)}")
    assert str(report).splitlines()[1].endswith(whys[0])


def test_an_environment_that_is_given_made_has_its_close_checked_too() -> None:
    report = agentgym.check_env(CloseRaises(), [task("a"), task("b")])
    assert [(failure.check, failure.task_id) for failure in report.failures] == [("contract", "b")]


def test_without_tasks_the_first_registered_set_for_the_environment_is_taken() -> None:
    report = agentgym.check_env("terminal", limit=2)
    assert (report.ok, report.checked) == (True, 2)
    with pytest.raises(UsageError, match="unknown environment 'Good'"):
        agentgym.check_env(Good())
    with pytest.raises(UsageError, match=r"unknown environment 'termnal'.*did you mean 'terminal'"):
        agentgym.check_env("termnal", [task()])
    with pytest.raises(UsageError, match="max_stepz"):
        agentgym.check_env("terminal", [task(), task("b")], max_stepz=1)


def test_environments_by_name_and_by_instance() -> None:
    assert agentgym.check_env(TerminalEnv(max_steps=1), [task()], seed=3).ok
    report = agentgym.check_env("terminal", "terminal/basics", limit=8, max_steps=2)
    assert (report.ok, report.checked, report.name) == (True, 8, "terminal")
    with pytest.raises(UsageError, match="no tasks"):
        agentgym.check_env("terminal", [])


async def test_it_also_works_where_an_event_loop_runs() -> None:
    assert agentgym.check_tasks(Given([task("a")])).ok


def test_a_limit_is_spread_evenly() -> None:
    tasks = [task(str(number)) for number in range(10)]
    assert [one.id for one in spread(tasks, 4)] == ["0", "2", "5", "7"]
    assert spread(tasks, None) == spread(tasks, 10) == tasks


class NeedsPath(Given):
    env = "pathless"


def test_a_task_set_that_needs_arguments_is_not_chosen_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ENVIRONMENTS, TASK_SETS):
        monkeypatch.setattr(registry, "_factories", registry.factories)
    agentgym.register("pathless", Good)
    agentgym.register_tasks("pathless/given", NeedsPath)
    with pytest.raises(UsageError, match="pathless/given cannot be made without arguments"):
        agentgym.check_env("pathless")
