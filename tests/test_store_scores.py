"""The tables of judging: what was paid for is kept, once, and goes with its trajectory."""

import msgspec
import pytest

from agentgym.store import Store
from agentgym.types import Judgement, Sample, TokenSpan, Trajectory, Turn
from tests.fakes import completion


def judgement(trajectory_id: str, turn: int = 0, score: float | None = 1.0, **changes) -> Judgement:
    return Judgement(trajectory_id=trajectory_id, turn=turn, judge="scripted", score=score, **changes)


def two_turns(id: str, version: int = 0, outcome: float | None = 1.0) -> Trajectory:
    turns = tuple(Turn(index=k, completion=completion((1, 2), (3, 4), versions=(version,) * 2)) for k in range(2))
    return Trajectory(
        id=id, task_id="k", group_id="g", env="e", seed=0, turns=turns, outcome=outcome,
        status="completed" if outcome is not None else "infrastructure",
    )  # fmt: skip


def two_spans(trajectory_id: str) -> Sample:
    return Sample(
        id=f"{trajectory_id}/0", trajectory_id=trajectory_id, group_id="g", ids=(1, 2, 3, 4), mask=(0, 1, 0, 1),
        logprobs=(None, -0.5, None, -0.5), versions=(-1, 0, -1, 0),
        spans=(TokenSpan(turn=0, start=1, end=2), TokenSpan(turn=1, start=3, end=4)),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store.sqlite")
    yield made
    made.close()


def test_a_judgement_comes_back_equal_and_the_first_one_stands(store):
    first = judgement(
        "t", votes=(1, None, -1), hints=("use grep -c",), refused_hints=("too short",), hinted=((1, 2, 3),), seconds=0.5
    )
    store.add_judgement(first)
    store.add_judgement(judgement("t", score=-1.0))
    store.add_judgement(judgement("t", turn=1, score=None, reason="no valid vote"))
    assert store.judgements("t") == {0: first, 1: judgement("t", turn=1, score=None, reason="no valid vote")}
    assert store.judgements("other") == {}


def test_an_answer_is_kept_under_its_question(store):
    assert store.cached("q") is None
    store.cache("q", "[1, -1]")
    store.cache("q", "[0]")
    assert store.cached("q") == "[1, -1]"


def test_every_turn_is_counted_where_it_is(store):
    for id in "abc":
        store.add_trajectory(two_turns(id), stage="train", step=1, life=0)
        store.add_trajectory(two_turns(id), stage="train", step=1, life=0)
    store.add_trajectory(two_turns("lost", outcome=None), stage="train", step=1, life=0)
    store.add_trajectory(two_turns("e"), stage="eval-base", step=0, life=0)
    assert (store.turn_counts().collected, store.turn_counts().judged) == (6, 0)
    store.add_judgement(judgement("a", 0, 1.0, hints=("look at the header",)))
    store.add_judgement(judgement("a", 1, None, reason="no valid vote"))
    store.add_judgement(judgement("b", 0, -1.0))
    store.add_sample(two_spans("a"), step=1, advantages=(0.5, None), fates=("hint and score", "unscored"))
    store.add_sample(two_spans("b"), step=1, advantages=(0.5, 0.1), fates=("score only", "score only"))
    store.consume(["a/0"], step=1, life=0)
    found = store.turn_counts()
    assert (found.collected, found.judged, found.scored, found.hinted, found.assembled) == (6, 3, 2, 1, 4)
    assert found.trained == {"hint and score": 1}
    assert found.ready == {"score only": 2}
    assert found.rejected == {"unscored": 1}
    assert found.unscored == {"no valid vote": 1}


def test_what_is_undone_takes_its_judgements_with_it_and_what_stays_is_ready_again(store):
    for step in (0, 1, 2):
        store.add_version(step=step, life=0)
    for id, version in (("stays", 0), ("goes", 1)):
        store.add_trajectory(two_turns(id, version), stage="train", step=2, life=0)
        for turn in range(2):
            store.add_judgement(judgement(id, turn))
        store.add_sample(two_spans(id), step=2, advantages=(1.0, -1.0), fates=("score only", "score only"))
    store.consume(["stays/0", "goes/0"], step=2, life=0)
    assert store.turn_counts().trained == {"score only": 4}
    store.rewind(0)
    found = store.turn_counts()
    assert (found.collected, found.scored, found.trained, found.ready) == (2, 2, {}, {"score only": 2})
    assert len(store.judgements("goes")) == 2, "what was paid for is never deleted"
    store.add_sample(two_spans("stays"), step=2, advantages=(1.0, None), fates=("score only", "unscored"))
    store.consume(["stays/0"], step=2, life=1)
    assert store.turn_counts().trained == {"score only": 1}
    assert store.turn_counts().rejected == {"unscored": 1}


def test_a_judgement_is_plain_data():
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(judgement("t")), type=Judgement) == judgement("t")
