import pytest

import agentgym
from agentgym.check import check_tasks
from agentgym.errors import UsageError
from agentgym.tasks.conversation import ConversationPreferences, split_of
from agentgym.tasks.conversation_users import USERS


def test_the_oracle_satisfies_every_user_and_silence_none():
    report = check_tasks("conversation/preferences")
    assert report.ok and report.checked == 448 + 112, str(report)


def test_users_take_turns_and_splits_share_nothing():
    tasks = agentgym.make_tasks("conversation/preferences")
    families = [task.family for task in tasks.tasks("train")]
    assert families[:7] == list(USERS) == families[7:14] and len(USERS) >= 6
    asked = {split: {task.instruction for task in tasks.tasks(split)} for split in ("train", "test")}
    assert not asked["train"] & asked["test"]
    assert all(split_of(text) == split for split, texts in asked.items() for text in texts)
    assert len(asked["train"]) == 448 and len(asked["test"]) == 112


def test_they_are_those_of_their_seed():
    def ids(seed: int) -> list[tuple[str, str]]:
        return [(task.id, task.instruction) for task in ConversationPreferences(n_train=40, seed=seed).tasks("train")]

    assert ids(1) == ids(1) and not {id for id, _ in ids(1)} & {id for id, _ in ids(2)}
    assert len({text for _, text in ids(1)} & {text for _, text in ids(2)}) < 4


def test_one_user_alone():
    tasks = ConversationPreferences(users=["student"], n_train=300, n_test=60)
    assert {task.family for task in tasks.tasks("train")} == {"student"}
    assert len({task.instruction for task in tasks.tasks("train")}) == 300


def test_each_user_has_hundreds_of_instances():
    for user in USERS:
        assert len(ConversationPreferences(users=[user], n_train=200, n_test=40).tasks("train")) == 200


@pytest.mark.parametrize("options", [{"users": ["studnet"]}, {"users": []}, {"n_train": -1}])
def test_what_makes_no_sense_is_refused(options):
    with pytest.raises(UsageError, match=r"conversation/preferences"):
        ConversationPreferences(**options)


def test_too_many_tasks_are_refused():
    with pytest.raises(UsageError, match="ask for fewer tasks"):
        ConversationPreferences(users=["reviewer"], n_train=5000).tasks("train")
    with pytest.raises(UsageError, match="unknown split"):
        ConversationPreferences().tasks("dev")


def test_nobody_tells_the_wish_before():
    """What is judged cannot be read in the first messages, or there would be nothing to learn."""
    for task in ConversationPreferences(n_train=70).tasks("train"):
        asked = task.instruction.lower()
        for telling in ("list", "bold", "boxed", "100 words", "at most", "warm", "encourag", "json", "dear", "german"):
            assert telling not in asked, task.id
