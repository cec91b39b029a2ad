"""What a difference between two checkpoints is worth: intervals, paired tests, and what a sample could have shown.

Outcomes are given per task, as a sequence in the same order for both sides or as a mapping from task id; each task
has one number or a sequence of attempts, whose mean counts. Shape suffix: T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np

from agentgym.errors import UsageError

TaskOutcomes: TypeAlias = Mapping[str, float | Sequence[float]] | Iterable[float | Sequence[float]]

_EXACT_TASKS = 16  # sign flips of up to so many differing tasks are all tried
_CHUNK = 1_000_000  # resampled values in memory at once


class PairedDifference(NamedTuple):
    """Mean of b - a over tasks with its 95% interval (low, high), as fractions."""

    difference: float
    interval: tuple[float, float]


def wilson_95(successes: int, n: int) -> tuple[float, float]:
    """Wilson's score interval at 95% of a success rate, (low, high); (0, 1) without any data (Wilson, 1927)."""
    if not 0 <= successes <= n:
        raise UsageError(f"wilson_95: {successes} successes out of {n}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.975)
    rate, scale = successes / n, 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that at least one of k attempts succeeds, from c successes in n (2107.03374, equation 1).

    Raises:
        UsageError: k is beyond n (nothing unbiased can be said then), or c is.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise UsageError(f"pass_at_k: needs 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided exact p-value that a and b succeed equally often, from the tasks that only one of them solved."""
    if only_a < 0 or only_b < 0:
        raise UsageError(f"mcnemar_exact: counts cannot be negative, got {only_a} and {only_b}")
    n, few = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, i) for i in range(few + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_bootstrap(a: TaskOutcomes, b: TaskOutcomes, *, seed: int = 0, n: int = 10_000) -> PairedDifference:
    """How much better b is than a, with the percentile interval of n resamples of the tasks.

    Where every task differs alike, resampling them says nothing: the interval is then as wide as the share of tasks
    that may differ otherwise without this sample having shown one (Wilson's bound), by the most that they may differ.

    Raises:
        UsageError: the two sides do not have the same tasks, or have none.
    """
    differences_T = _differences(a, b)
    mean = float(differences_T.mean())
    if np.ptp(differences_T) == 0.0:
        unseen = 1.0 - wilson_95(len(differences_T), len(differences_T))[0]
        return PairedDifference(mean, (mean - unseen * (mean + 1.0), mean + unseen * (1.0 - mean)))
    return PairedDifference(mean, bootstrap_mean(differences_T, seed=seed, n=n))


def bootstrap_mean(values_T: Sequence[float] | np.ndarray, *, seed: int = 0, n: int = 10_000) -> tuple[float, float]:
    """95% percentile interval (low, high) of the mean over tasks; it always holds the mean itself."""
    values_T = np.asarray(values_T, dtype=float)
    tasks, rng, mean = len(values_T), np.random.default_rng(seed), float(values_T.mean())
    rows = max(1, _CHUNK // tasks)
    means = [
        values_T[rng.integers(tasks, size=(min(rows, n - start), tasks))].mean(axis=1) for start in range(0, n, rows)
    ]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return min(float(low), mean), max(float(high), mean)


def paired_permutation(a: TaskOutcomes, b: TaskOutcomes, *, seed: int = 0, n: int = 100_000) -> float:
    """Two-sided p-value that a and b are exchangeable: the sign of each task's difference is flipped.

    Exact where at most 16 tasks differ; else n random flips, the observed one included, so never below 1 / (n + 1).
    With one attempt per task it is McNemar's exact test.
    """
    differences_T = _differences(a, b)
    differences_T = differences_T[differences_T != 0]
    tasks = len(differences_T)
    observed = abs(differences_T.sum()) - 1e-9
    if tasks <= _EXACT_TASKS:
        signs = 1 - 2 * (np.arange(2**tasks)[:, None] >> np.arange(tasks) & 1)
        return float((np.abs(signs @ differences_T) >= observed).mean())
    rng, rows, hits = np.random.default_rng(seed), max(1, _CHUNK // tasks), 0
    for start in range(0, n, rows):
        signs = rng.integers(2, size=(min(rows, n - start), tasks)) * 2 - 1
        hits += int((np.abs(signs @ differences_T) >= observed).sum())
    return (hits + 1) / (n + 1)


def minimum_detectable_difference(
    n_tasks: int, *, attempts: int = 1, rate: float = 0.5, sd: float | None = None, power: float = 0.8
) -> float:
    """The true paired difference that n_tasks tasks show with this power (two-sided, 5%).

    `sd` is the standard deviation over tasks of the per-task difference. Without it the two sides are taken as
    independent with success `rate`, which is cautious: sd = sqrt(2 rate (1 - rate) / attempts).
    """
    if n_tasks < 1 or attempts < 1:
        raise UsageError(f"minimum_detectable_difference: got {n_tasks} tasks and {attempts} attempts")
    if sd is None:
        sd = math.sqrt(2 * rate * (1 - rate) / attempts)
    normal = NormalDist()
    return (normal.inv_cdf(0.975) + normal.inv_cdf(power)) * sd / math.sqrt(n_tasks)


def _differences(a: TaskOutcomes, b: TaskOutcomes) -> np.ndarray:
    """b - a per task, shape (T,)."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() != b.keys():
        raise UsageError(f"the two sides differ in {len(a.keys() ^ b.keys())} tasks: they cannot be paired")
    names = list(a) if isinstance(a, Mapping) else None
    means_a, means_b = _means(a, names), _means(b, names)
    if len(means_a) != len(means_b) or not means_a:
        raise UsageError(f"paired comparison of {len(means_a)} with {len(means_b)} tasks")
    return np.array(means_b) - np.array(means_a)


def _means(outcomes: TaskOutcomes, names: list[str] | None) -> list[float]:
    """The mean of each task's attempts; of a mapping in the order of `names`."""
    per_task = [outcomes[name] for name in names or outcomes] if isinstance(outcomes, Mapping) else outcomes
    return [float(np.mean(attempts)) for attempts in per_task]
