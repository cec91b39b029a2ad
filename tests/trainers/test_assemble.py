"""What each turn is worth and what it is trained by: outcomes, scores, hints, masks, and which groups are kept."""

import math

import pytest

from agentgym.collect import Collected
from agentgym.config import AlgorithmConfig
from agentgym.store_scores import TRAINED
from agentgym.trainers.assemble import TERMS, Assembled, advantages_of, assemble, is_useful
from agentgym.types import Group, Judgement, Trajectory, Turn
from tests.fakes import completion

HYBRID = {"estimator": "step_wise", "w_opd": 1.0}
HINT = ((7, 7, 7),)  # the teacher's prompt for one hint


def member(id: str, outcome: float | None, turns: int = 1, status: str = "completed", merge: bool = True, **changes):
    made, ids = [], (1,)
    for k in range(turns):
        body = completion(ids, (10 + k, 20 + k), **changes)
        made.append(Turn(index=k, completion=body))
        ids = (*ids, *body.ids, 5) if merge else (9, k)
    return Trajectory(
        id=id, task_id="k", group_id="g", env="e", seed=0, status=status, outcome=outcome, turns=tuple(made)
    )  # fmt: skip


def judged(id: str, *scores: float | None, hinted: dict[int, tuple] | None = None) -> tuple[Judgement, ...]:
    hinted = hinted or {}
    return tuple(
        Judgement(
            trajectory_id=id, turn=k, judge="scripted", score=score, hints=("do it another way",) * len(hinted.get(k, ())),
            hinted=hinted.get(k, ()), reason="" if score is not None else "no valid vote",
        )
        for k, score in enumerate(scores)
    )  # fmt: skip


def group(*members: Trajectory, judgements: tuple = ()) -> Group:
    return Group(id="g", task_id="k", trajectories=members, judgements=judgements)


def assembled(made: Group, **algorithm) -> Assembled:
    return assemble(Collected(groups=(made,)), AlgorithmConfig(**algorithm))


@pytest.mark.golden("step_wise")
def test_step_wise_advantages_reach_the_spans_of_their_turns(case):
    members = [member(f"t{n}", entry["outcome"], len(entry["steps"])) for n, entry in enumerate(case["trajectories"])]
    judgements = tuple(judged(f"t{n}", *entry["steps"]) for n, entry in enumerate(case["trajectories"]))
    made = group(*members, judgements=judgements)
    for singleton, key in (("group", "advantages"), ("raw", "advantages_singleton_raw")):
        algorithm = AlgorithmConfig(estimator="step_wise", singleton=singleton)
        for found, wanted in zip(advantages_of(made, algorithm), case[key], strict=True):
            assert found == pytest.approx(wanted, abs=1e-6)
    found = assembled(made, estimator="step_wise")
    spread = any(abs(a) > 0 for row in case["advantages"] for a in row)
    assert len(found.ready) == (len(members) if spread else 0)
    for scored, wanted in zip(found.ready, case["advantages"], strict=spread):
        assert scored.advantages == pytest.approx(wanted, abs=1e-6)


def test_an_outcome_goes_to_every_turn_judged_or_not():
    members = (member("a", 1.0, 2), member("b", 0.0, 1))
    for judgements in ((), (judged("a", None, 1.0), judged("b", -1.0))):
        found = assembled(group(*members, judgements=judgements))
        assert [scored.advantages for scored in found.ready] == [
            pytest.approx((math.sqrt(0.5),) * 2, abs=1e-5), pytest.approx((-math.sqrt(0.5),), abs=1e-5)
        ]  # fmt: skip
        assert found.fates == {"a/0": ("score only", "score only"), "b/0": ("score only",)}
        assert all(scored.hinted == () for scored in found.ready)


def test_an_unscored_turn_has_no_rl_term_and_is_masked_and_the_reason_is_told():
    made = group(
        member("a", 1.0, 2), member("b", 0.0, 2), judgements=(judged("a", 1, None), judged("b", -1, None))
    )  # fmt: skip
    found = assembled(made, estimator="step_wise")
    (a, b) = found.ready
    assert a.advantages == (pytest.approx(1.0, abs=1e-5), None)
    assert b.advantages == (pytest.approx(-1.0, abs=1e-5), None)
    assert a.sample.mask == (0, 1, 1, 0, 0, 0), "the tokens of the turn that is not trained are masked"
    assert found.fates["a/0"] == ("score only", "unscored")


def test_hint_and_score_hint_only_score_only_or_neither_each_counts_once():
    first, second = member("a", 1.0, 4), member("b", 0.0, 1)
    made = group(
        first, second, judgements=(judged("a", 1, None, 0, None, hinted={0: HINT, 1: HINT * 2}), judged("b", -1))
    )
    found = assembled(made, **HYBRID)
    assert found.fates["a/0"] == ("hint and score", "hint only", "score only", "unscored")
    scored = found.ready[0]
    assert scored.hinted == (HINT, HINT * 2, (), ())
    assert [value is None for value in scored.advantages] == [False, True, False, True]
    starts = [span.start for span in scored.sample.spans]
    assert [scored.sample.mask[start] for start in starts] == [1, 1, 1, 0]
    assert set(TERMS) == set(TRAINED)


def test_hints_count_only_where_distillation_is_on():
    made = group(member("a", 0.0), member("b", 0.0), judgements=(judged("a", -1, hinted={0: HINT}), judged("b", -1)))
    assert not is_useful(made, AlgorithmConfig(estimator="step_wise"))
    found = assembled(made, estimator="step_wise")
    assert found.ready == ()
    assert [reason for _, reason in found.rejected] == ["group without spread"] * 2


def test_a_group_in_which_everybody_failed_is_kept_for_its_hints():
    made = group(member("a", 0.0), member("b", 0.0), judgements=(judged("a", -1, hinted={0: HINT}), judged("b", -1)))
    assert is_useful(made, AlgorithmConfig(**HYBRID))
    found = assembled(made, **HYBRID)
    ((scored),) = found.ready
    assert (scored.sample.id, scored.hinted, scored.advantages) == ("a/0", (HINT,), (None,))
    assert found.fates == {"a/0": ("hint only",), "b/0": ("group without spread",)}
    assert [(rejected.sample.id, reason) for rejected, reason in found.rejected] == [("b/0", "group without spread")]


def test_a_group_is_dropped_only_if_no_turn_has_an_advantage_or_a_hint():
    flat = group(member("a", 1.0, 2), member("b", 1.0, 2), judgements=(judged("a", 1, 0), judged("b", 1, 0)))
    one = group(member("a", 1.0, 2), member("b", 1.0, 2), judgements=(judged("a", 1, 0), judged("b", 1, 1)))
    for weights in ({}, {"w_opd": 1.0}):
        assert not is_useful(flat, AlgorithmConfig(estimator="step_wise", **weights))
        assert is_useful(one, AlgorithmConfig(estimator="step_wise", **weights)), "one later turn is enough"
    assert not is_useful(one, AlgorithmConfig(estimator="grpo")), "outcomes alone have no spread"
    assert not is_useful(one, AlgorithmConfig(estimator="step_wise", w_rl=0.0, w_opd=1.0)), "no RL term, no hint"
    assert not is_useful(group(member("a", 1.0), member("b", 0.0)), AlgorithmConfig(w_rl=0.0, w_opd=1.0))


def test_distillation_alone_trains_turns_with_hints_and_tells_why_the_others_are_not():
    made = group(
        member("a", 1.0, 2), member("b", 0.0, 1), judgements=(judged("a", 1, 1, hinted={1: HINT}), judged("b", -1))
    )
    found = assembled(made, w_rl=0.0, w_opd=1.0)
    assert found.fates == {"a/0": ("no hint", "hint only"), "b/0": ("no hint",)}
    (scored,) = found.ready
    assert scored.hinted == ((), HINT)
    assert scored.sample.mask == (0, 0, 0, 0, 1, 1)


def test_a_failure_of_infrastructure_shifts_nobody_and_is_never_trained():
    lost = member("lost", None, 1, status="infrastructure")
    made = group(
        member("a", 1.0), member("b", 0.0), lost,
        judgements=(judged("a", 1), judged("b", -1), judged("lost", -1, hinted={0: HINT})),
    )  # fmt: skip
    found = assembled(made, **HYBRID)
    assert [scored.advantages[0] for scored in found.ready] == pytest.approx([1.0, -1.0], abs=1e-5)
    ((scored, reason),) = found.rejected
    assert (scored.advantages, scored.hinted, reason) == ((None,), (), "infrastructure")


@pytest.mark.parametrize(
    ("changes", "reason"), [({"finish_reason": "length"}, "truncated"), ({"finish_reason": "abort"}, "aborted")]
)
def test_what_must_not_be_trained_is_not_trained_whatever_was_said_of_it(changes, reason):
    made = group(
        member("a", 1.0, **changes), member("b", 0.0), judgements=(judged("a", 1, hinted={0: HINT}), judged("b", -1))
    )  # fmt: skip
    found = assembled(made, **HYBRID)
    assert [scored.sample.id for scored in found.ready] == ["b/0"]
    assert [(scored.sample.id, why) for scored, why in found.rejected] == [("a/0", reason)]
    assert found.rejected[0][0].hinted == ()


def test_an_empty_response_is_rejected_and_told():
    empty = Trajectory(
        id="a", task_id="k", group_id="g", env="e", seed=0, status="completed", outcome=1.0,
        turns=(Turn(index=0, completion=completion((1,), ())),),
    )  # fmt: skip
    found = assembled(group(empty, member("b", 0.0), judgements=(judged("a", 1), judged("b", -1))), **HYBRID)
    assert [(scored.sample.id, why) for scored, why in found.rejected] == [("a/0", "empty")]


def test_a_group_of_one_is_standardised_over_its_own_turns_or_dropped():
    alone = member("a", 0.0, 3)
    several = group(alone, judgements=(judged("a", 1, 0, -1),))
    assert advantages_of(several, AlgorithmConfig(estimator="step_wise"))[0] == pytest.approx(
        [1.2247, 0.0, -1.2247], abs=1e-3
    )
    assert not is_useful(group(member("a", 1.0), judgements=(judged("a", 1),)), AlgorithmConfig(estimator="step_wise"))


def test_a_broken_prefix_makes_samples_that_keep_the_hints_of_their_own_turns():
    made = group(
        member("a", 1.0, 2, merge=False), member("b", 0.0, 2, merge=False),
        judgements=(judged("a", 1, 1, hinted={1: HINT}), judged("b", -1, -1)),
    )  # fmt: skip
    found = assembled(made, **HYBRID)
    assert {scored.sample.id: scored.hinted for scored in found.ready} == {
        "a/0": (), "a/1": (HINT,), "b/0": (), "b/1": ()
    }  # fmt: skip


def test_without_a_judge_step_wise_has_nothing_to_train_on():
    found = assembled(group(member("a", 1.0), member("b", 0.0)), estimator="step_wise")
    assert [reason for _, reason in found.rejected] == ["unscored"] * 2
