"""The office tasks: made from a seed, split by hash, solved by their oracle."""

import pytest

import agentgym
from agentgym.errors import UsageError
from agentgym.tasks.shop import ShopTasks
from agentgym.tasks.shop_families import FAMILIES
from tests.environments.gui_pages_for_tests import needs_browser


def test_the_same_seed_makes_the_same_tasks_and_splits_share_none():
    made = ShopTasks(n_train=200, n_test=80)
    train, test = made.tasks("train"), made.tasks("test")
    assert train == ShopTasks(n_train=200).tasks("train") and len(test) == 80
    assert ShopTasks(n_train=200, seed=1).tasks("train") != train
    assert not {task.instruction for task in train} & {task.instruction for task in test}
    assert len({task.id for task in (*train, *test)}) == 280
    assert {task.family for task in train} == FAMILIES.keys() and {task.level for task in train} == {1, 2, 3}
    assert train[:50] == ShopTasks(n_train=50).tasks("train")


def test_levels_are_wishes():
    for task in ShopTasks(n_train=120).tasks("train"):
        assert task.instruction.count("\n") == task.level - 1
        assert task.data["changes"] or "answer" in task.data


@pytest.mark.parametrize(
    "options", [{"families": ["bye"]}, {"levels": [4]}, {"levels": []}, {"n_train": -1}, {"families": []}]
)
def test_impossible_options(options):
    with pytest.raises(UsageError):
        ShopTasks(**options)
    with pytest.raises(UsageError, match="unknown split"):
        ShopTasks().tasks("dev")


def test_too_many_of_one_kind_are_refused():
    with pytest.raises(UsageError, match="ask for fewer"):
        ShopTasks(families=["cheapest"], levels=[1], n_train=500).tasks("train")


@needs_browser
def test_oracles_score_full_marks_and_doing_nothing_none():
    agentgym.check_tasks(ShopTasks(n_train=39, n_test=0), limit=13, concurrency=3).raise_for_failures()


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_oracles_of_the_office():
    agentgym.check_tasks(ShopTasks(n_train=117, n_test=39), concurrency=4).raise_for_failures()
