"""What is said of a step's judging: shares, agreement, entropy, and reasons, by hand-counted examples."""

import math

import pytest

from agentgym.collect import Collected
from agentgym.config import AlgorithmConfig
from agentgym.trainers.assemble import assemble
from agentgym.trainers.signals import collection_metrics, judging_metrics, verifier_says
from agentgym.types import Judgement, Trajectory, Turn
from tests.fakes import completion
from tests.trainers.test_assemble import HINT, group, judged, member


def turn(index: int, **info) -> Turn:
    return Turn(index=index, completion=completion((1,), (2,)), info=info)


def episode(outcome: float, *turns: Turn) -> Trajectory:
    return Trajectory(
        id="t", task_id="k", group_id="g", env="e", seed=0, status="completed", outcome=outcome, turns=turns
    )  # fmt: skip


def test_the_verifier_says_what_the_environment_scored_or_how_it_ended():
    whole = episode(0.5, turn(0), turn(1, score=-1), turn(2, score=1), turn(3))
    assert [verifier_says(whole, each) for each in whole.turns] == [None, -1, 1, 0]
    for outcome, says in ((1.0, 1), (0.0, -1), (0.4, 0)):
        assert verifier_says(episode(outcome, alone := turn(0)), alone) == says
    for nonsense in ("1", True, 7, None):
        assert verifier_says(episode(1.0, first := turn(0, score=nonsense), turn(1)), first) is None


def test_the_signals_of_judging_are_counted_by_hand():
    """Six turns: the judge says +1 +1 -1 -1 nothing +1, the verifier says +1 -1 -1 +1 -1 nothing."""
    scores, truth = (1, 1, -1, -1, None, 1), (1, -1, -1, 1, -1, None)
    turns = [turn(k) if says is None else turn(k, score=says) for k, says in enumerate(truth)]
    whole = episode(0.0, *turns, turn(6, score=0))
    votes = ((1, 1, 1), (1, 1, -1), (-1,), (-1, None), (None, None), ())
    judgements = tuple(
        Judgement(
            trajectory_id="t", turn=k, judge="llm", score=score, votes=vote, seconds=2.0,
            hints=("h" * 12,) if k < 2 else (), refused_hints=("too short", "a duplicate") if k == 0 else (),
            reason="" if score is not None else "no valid vote: time-out of x",
        )
        for k, (score, vote) in enumerate(zip(scores, votes, strict=True))
    )  # fmt: skip
    found = judging_metrics(Collected(groups=(group(whole, judgements=(judgements,)),)))
    two_to_one = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert found == pytest.approx({
        "turns_judged": 6, "scored_share": 5 / 6, "score_mean": 1 / 5, "hinted_share": 2 / 6, "hints_accepted": 2,
        "hint_acceptance": 0.5, "vote_entropy": two_to_one / 5, "judge_seconds": 2.0,
        "hints_refused/too_short": 1, "hints_refused/a_duplicate": 1, "unscored/no_valid_vote": 1,
        "judge_agreement": 2 / 4, "judge_right_plus": 1 / 2, "judge_right_minus": 1 / 2,
    })  # fmt: skip


def test_dropped_groups_count_and_a_run_without_a_judge_says_nothing():
    members = (member("a", 0.0), member("b", 0.0))
    flat = group(*members, judgements=(judged("a", -1), judged("b", -1)))
    assert judging_metrics(Collected(groups=(), dropped=(flat,)))["turns_judged"] == 2
    assert judging_metrics(Collected(groups=(group(*members),))) == {}


def test_turns_are_counted_once_by_what_trains_them():
    made = group(
        member("a", 1.0, 4), member("b", 0.0), judgements=(judged("a", 1, None, 0, None, hinted={0: HINT, 1: HINT}), judged("b", -1))
    )  # fmt: skip
    collected = Collected(groups=(made,))
    found = collection_metrics(collected, assemble(collected, AlgorithmConfig(estimator="step_wise", w_opd=1.0)))
    assert {key: value for key, value in found.items() if key.startswith("turns/")} == {
        "turns/hint_and_score": 1, "turns/hint_only": 1, "turns/score_only": 2, "turns/neither": 1
    }  # fmt: skip
    assert found["turns_judged"] == 5
