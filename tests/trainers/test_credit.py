"""Advantages against golden numbers, and the rules about who counts."""

from typing import Any

import numpy as np
import pytest

from agentgym.trainers.credit import ESTIMATORS, RunningBaseline, group_advantages, step_wise


@pytest.mark.golden("group_advantages")
@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_group_advantages(case: dict[str, Any], estimator: str) -> None:
    assert group_advantages(case["rewards"], estimator) == pytest.approx(case[estimator], abs=1e-6)


@pytest.mark.golden("step_wise")
def test_step_wise(case: dict[str, Any]) -> None:
    outcomes = [trajectory["outcome"] for trajectory in case["trajectories"]]
    scores = [trajectory["steps"] for trajectory in case["trajectories"]]
    for singleton, expected in (("group", "advantages"), ("raw", "advantages_singleton_raw")):
        found = step_wise(outcomes, scores, singleton=singleton)  # type: ignore[arg-type]
        for row, expected_row in zip(found, case[expected], strict=True):
            assert row == pytest.approx(expected_row, abs=1e-6)


@pytest.mark.golden("running_baseline")
def test_running_baseline(case: dict[str, Any]) -> None:
    baseline = RunningBaseline(case["user_needs"])
    found = [baseline.advantage(user, score) for user, score in case["events"]]
    assert found == pytest.approx(case["advantages"], abs=1e-6)


def in_groups(case: dict[str, Any], estimator: str) -> list[float | None]:
    scores, groups = np.array(case["scores"]), np.array(case["groups"])
    return [value for group in sorted(set(groups)) for value in group_advantages(scores[groups == group], estimator)]


@pytest.mark.golden("grpo_no_std")
def test_without_the_standard_deviation_grpo_is_dr_grpo(case: dict[str, Any]) -> None:
    assert in_groups(case, "dr_grpo") == pytest.approx(case["expected"], abs=1e-6)


@pytest.mark.golden("rloo")
def test_rloo_in_groups(case: dict[str, Any]) -> None:
    assert in_groups(case, "rloo") == pytest.approx(case["expected"], abs=1e-6)


@pytest.mark.golden("grpo_low_variance")
def test_nearly_tied_rewards_keep_their_spread(case: dict[str, Any]) -> None:
    found = np.abs(np.array(in_groups(case, "grpo"), dtype=float))
    assert found == pytest.approx(case["expected_abs_approx"], abs=5e-3)


def test_a_rejected_member_does_not_shift_the_mean() -> None:  # B49
    assert group_advantages([1.0, 0.0, None], "dr_grpo") == [0.5, -0.5, None]
    assert group_advantages([None, None], "grpo") == [None, None]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_no_spread_is_exactly_zero(estimator: str) -> None:
    """0.1 + 0.1 + 0.1 is not 0.3: a group whose members are equal must not train on the rounding error."""
    assert group_advantages([0.1] * 3, estimator) == [0.0, 0.0, 0.0]
    assert group_advantages([0.7], estimator) == [0.0]  # B48: seen and counted by whoever drops groups


def test_an_unscored_turn_enters_no_bucket() -> None:
    found = step_wise([1.0, 0.0, None], [[0.0, None], [0.0, 1.0], [1.0]])
    assert found[0][1] is None
    assert found[2][0] == pytest.approx(found[0][0])  # a missing outcome counts 0
    values = np.array([1.0, 0.0, 1.0, 1.0])  # all turns of the group, for the bucket of one
    assert found[1][1] == pytest.approx((1.0 - values.mean()) / (values.std() + 1e-6))
