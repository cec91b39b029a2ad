import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym import stats
from agentgym.errors import UsageError

outcomes_T = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


@pytest.mark.golden("pass_at_k")
def test_pass_at_k_against_reference_values(case):
    assert stats.pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["value"], abs=1e-6)


@pytest.mark.golden("wilson_95")
def test_wilson_95_against_reference_values(case):
    assert stats.wilson_95(case["successes"], case["n"]) == pytest.approx(case["interval"], abs=1e-6)


@pytest.mark.golden("mcnemar_exact")
def test_mcnemar_against_reference_values(case):
    assert stats.mcnemar_exact(case["only_a"], case["only_b"]) == pytest.approx(case["p_value"], abs=1e-6)


@pytest.mark.parametrize("n, c, k", [(2, 0, 5), (2, 3, 1), (2, 1, 0), (2, -1, 1)])
def test_pass_at_k_refuses_more_than_was_tried(n, c, k):
    with pytest.raises(UsageError, match="pass_at_k"):
        stats.pass_at_k(n, c, k)


def test_pass_at_k_is_a_probability_not_a_boolean():
    assert stats.pass_at_k(200, 1, 1) == pytest.approx(0.005)


def test_wilson_without_data_knows_nothing():
    assert stats.wilson_95(0, 0) == (0.0, 1.0)
    with pytest.raises(UsageError):
        stats.wilson_95(3, 2)


def test_bootstrap_of_a_clear_difference():
    before = [0.0] * 70 + [1.0] * 30
    after = [0.0] * 30 + [1.0] * 70
    difference, (low, high) = stats.paired_bootstrap(before, after, seed=1)
    assert difference == pytest.approx(0.4)
    assert 0.2 < low < 0.4 < high < 0.6
    assert stats.paired_bootstrap(before, after, seed=1).interval == (low, high)


@given(outcomes_T, st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_bootstrap_interval_contains_the_difference(pairs, seed):
    before, after = [a / 4 for a, _ in pairs], [b / 4 for _, b in pairs]
    difference, (low, high) = stats.paired_bootstrap(before, after, seed=seed, n=200)
    assert -1 <= low <= difference <= high <= 1


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    trials, hits = 200, 0
    for trial in range(trials):
        before, after = rng.random(60) < 0.3, rng.random(60) < 0.5
        _, (low, high) = stats.paired_bootstrap(before, after, seed=trial, n=400)
        hits += low <= 0.2 <= high
    assert 0.89 <= hits / trials <= 0.99


def test_attempts_are_averaged_within_their_task():
    single = stats.paired_bootstrap([0.5, 0.0], [1.0, 0.5], seed=3)
    attempts = stats.paired_bootstrap([[0, 1], [0, 0]], [[1, 1], [1, 0]], seed=3)
    assert attempts == single and attempts.difference == pytest.approx(0.5)


def test_tasks_are_paired_by_their_ids():
    before, after = {"x": 0.0, "y": 1.0}, {"y": 1.0, "x": 1.0}
    assert stats.paired_bootstrap(before, after).difference == pytest.approx(0.5)
    with pytest.raises(UsageError, match="2 tasks"):
        stats.paired_bootstrap(before, {"x": 1.0, "z": 1.0})
    with pytest.raises(UsageError):
        stats.paired_bootstrap([], [])


@given(st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=20, deadline=None)
def test_permutation_with_one_attempt_is_mcnemar(only_a, only_b):
    before = [1] * only_a + [0] * only_b + [1, 0]
    after = [0] * only_a + [1] * only_b + [1, 0]
    assert stats.paired_permutation(before, after) == pytest.approx(stats.mcnemar_exact(only_a, only_b))


def test_random_flips_agree_with_the_exact_value():
    before, after = [1] * 6 + [0] * 18, [0] * 6 + [1] * 18
    exact = stats.mcnemar_exact(6, 18)
    assert stats.paired_permutation(before, after, seed=1) == pytest.approx(exact, abs=4 * math.sqrt(exact / 1e5))


def test_what_the_sample_could_have_shown():
    assert stats.minimum_detectable_difference(96) == pytest.approx(2.8016 * math.sqrt(0.5) / math.sqrt(96), rel=1e-3)
    assert stats.minimum_detectable_difference(400, sd=0.5) == pytest.approx(0.07004, rel=1e-3)
    assert stats.minimum_detectable_difference(96, attempts=4) < stats.minimum_detectable_difference(96)


def test_the_detectable_difference_is_detected_four_times_in_five():
    rng, tasks = np.random.default_rng(2), 200
    difference = stats.minimum_detectable_difference(tasks, rate=0.5)
    p_values = [
        stats.paired_permutation(
            rng.random(tasks) < 0.5 - difference / 2, rng.random(tasks) < 0.5 + difference / 2, n=400, seed=trial
        )
        for trial in range(100)
    ]
    assert 0.65 <= np.mean(np.array(p_values) < 0.05) <= 0.92
