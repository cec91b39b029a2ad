from collections import Counter

import pytest

import agentgym
from agentgym.environments.bubblewrap import why_not
from agentgym.errors import UsageError
from agentgym.tasks.families import split_of
from agentgym.tasks.terminal_basics import EASY, FAMILIES, LEVELS, TerminalBasics
from agentgym.types import Task

RENAME_1_0 = ("Rename the file crystal.txt to hotel.txt.", "flag.txt")


def test_every_cell_is_solved_by_its_oracle_and_not_by_doing_nothing() -> None:
    cells = len(FAMILIES) * len(LEVELS)
    options = {"n_train": cells, "n_test": cells}
    report = agentgym.check_tasks("terminal/basics", options=options)
    assert (report.failures, report.checked) == ((), 2 * cells)


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_are_solved_too(seed: int) -> None:
    if why_not():
        pytest.skip("slow without bubblewrap")
    options = {"n_train": 0, "n_test": len(FAMILIES) * len(LEVELS), "seed": seed}
    assert agentgym.check_tasks("terminal/basics", options=options).failures == ()


def test_the_plain_sandbox_gives_the_same_verdicts() -> None:
    report = agentgym.check_tasks("terminal/basics", limit=40, splits=["test"], env_options={"sandbox": "plain"})
    assert (report.failures, report.checked) == ((), 40)


def test_one_step_is_enough_for_the_oracle() -> None:
    report = agentgym.check_tasks("terminal/basics", limit=40, splits=["test"], env_options={"max_steps": 1})
    assert report.failures == ()


def test_splits_never_share_an_instance_whatever_the_seeds() -> None:
    train = [task for seed in range(3) for task in TerminalBasics(seed=seed).tasks("train")]
    test = [task for seed in range(3) for task in TerminalBasics(seed=seed).tasks("test")]
    assert {task.instruction for task in train}.isdisjoint(task.instruction for task in test)
    assert {split_of(task.instruction) for task in train} == {"train"}
    assert {split_of(task.instruction) for task in test} == {"test"}


def test_sizes_ids_and_balance() -> None:
    made = TerminalBasics()
    for split, n in (("train", 2048), ("test", 256)):
        tasks = made.tasks(split)
        assert len(tasks) == n == len({task.id for task in tasks}) == len({task.instruction for task in tasks})
        cells = Counter((task.family, task.level) for task in tasks)
        assert len(cells) == len(FAMILIES) * len(LEVELS) and max(cells.values()) - min(cells.values()) <= 1
        assert {task.split for task in tasks} == {split} and {task.env for task in tasks} == {"terminal"}
        assert len({task.family for task in tasks[:32]}) > 8  # shuffled


def test_the_same_arguments_give_the_same_tasks_and_ids_keep_their_meaning() -> None:
    large, again = TerminalBasics(n_train=300), TerminalBasics(n_train=300)
    assert large.tasks("train") == again.tasks("train")
    by_id = {task.id: task for task in large.tasks("train")}
    small = TerminalBasics(families=["sort"], levels=[1], n_train=4).tasks("train")
    assert [by_id[task.id] for task in small] == list(small)
    assert TerminalBasics(seed=1, n_train=300).tasks("train") != large.tasks("train")


def test_what_an_id_is_like_on_every_machine() -> None:
    (task,) = TerminalBasics(families=["rename"], levels=[1], n_train=1).tasks("train")
    (name, other) = task.data["files"]
    assert (task.id, task.instruction) == (
        "terminal/basics/train/rename-1-0",
        f"Rename the file {name} to {task.data['expect'][1]['path']}.",
    )
    assert isinstance(task, Task) and (task.instruction, other) == RENAME_1_0


def test_easy_tasks_are_one_short_command_with_names_in_the_instruction() -> None:
    for task in TerminalBasics(families=list(EASY), levels=[1], n_train=200, n_test=0).tasks("train"):
        (command,) = task.data["solution"]
        assert len(command) < 50 and "\n" not in command and task.instruction.count(".") <= 4
        paths = {path for one in task.data["expect"] for path in [one["path"]]}
        assert all(path in task.instruction for path in paths)


@pytest.mark.parametrize("family", EASY)
def test_there_are_enough_easy_instances(family: str) -> None:
    made = TerminalBasics(families=[family], levels=[1], n_train=1000, n_test=150)
    assert len(made.tasks("train")) == 1000 and len(made.tasks("test")) == 150


def test_wrong_arguments_say_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="did you mean 'rename'"):
        TerminalBasics(families=["renam"])
    with pytest.raises(UsageError, match="levels"):
        TerminalBasics(levels=[5])
    with pytest.raises(UsageError, match="split"):
        TerminalBasics().tasks("dev")
    monkeypatch.setattr(TerminalBasics, "max_misses", 20)
    with pytest.raises(UsageError, match="ask for fewer"):
        TerminalBasics(families=["permissions"], levels=[1], n_train=10**6).tasks("train")


def test_ids_of_other_seeds_are_other_ids():
    """Two evaluations are compared by task id: instances of two seeds must never pass for the same task."""
    ids = [{task.id for task in TerminalBasics(n_train=0, n_test=20, seed=seed).tasks("test")} for seed in (0, 1)]
    assert not ids[0] & ids[1]
