from collections.abc import Sequence
from typing import Any

import pytest

import agentgym
from agentgym.check import spread
from agentgym.env import Env, Info
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import TaskError, UsageError
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
