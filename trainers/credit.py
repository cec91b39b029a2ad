"""Credit assignment: what each member of a group, each step or each reply is worth. Pure numpy, float64.

A rejected member (outcome None: infrastructure failed, task broken, cancelled) has no advantage and does not shift
the others' baseline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-6

Floats = NDArray[np.float64]
Estimator = Callable[[Floats], Floats]


def grpo(rewards_G: Floats) -> Floats:
    """(r - mean) / (std + 1e-6) with the sample standard deviation (2402.03300, eq. 3); no spread gives 0."""
    if len(rewards_G) < 2:
        return np.zeros_like(rewards_G)
    return (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + EPSILON)


def dr_grpo(rewards_G: Floats) -> Floats:
    """r - mean, without the division that favours easy and hard tasks (2503.20783)."""
    return rewards_G - rewards_G.mean()


def rloo(rewards_G: Floats) -> Floats:
    """r minus the mean of the others (2402.14740); a group of one gives 0."""
    n = len(rewards_G)
    return (rewards_G - rewards_G.mean()) * (n / (n - 1)) if n > 1 else np.zeros_like(rewards_G)


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def group_advantages(outcomes: Sequence[float | None], estimator: str = "grpo") -> list[float | None]:
    """One advantage per member of a group; None where there is no outcome.

    A group of one and a group without spread give zeros, so that whoever drops groups can see and count them.

    Example:
        group_advantages([1.0, 0.0, None], "dr_grpo")  # [0.5, -0.5, None]
    """
    accepted = [index for index, outcome in enumerate(outcomes) if outcome is not None]
    advantages: list[float | None] = [None] * len(outcomes)
    if not accepted:
        return advantages
    rewards_G = np.array([outcomes[index] for index in accepted], dtype=np.float64)
    spread = bool(np.any(rewards_G != rewards_G[0]))  # the mean of equal numbers may be off by a rounding error
    values_G = ESTIMATORS[estimator](rewards_G) if spread else np.zeros_like(rewards_G)
    for index, value in zip(accepted, values_G, strict=True):
        advantages[index] = float(value)
    return advantages


def step_wise(
    outcomes: Sequence[float | None],
    scores: Sequence[Sequence[float | None]],
    *,
    step_coef: float = 1.0,
    singleton: Literal["group", "raw"] = "group",
) -> list[list[float | None]]:
    """Advantages per turn from the outcome and a score of each turn (OpenClaw-RL, 2603.10165).

    v[n, k] = outcome_n + step_coef * score[n, k], a missing outcome counts 0, standardised over the bucket of the
    group's k-th turns (population standard deviation). A bucket of one takes mean and deviation of all turns of the
    group, or v itself with `singleton="raw"`. An unscored turn (None) has no advantage and enters no bucket.
    """
    buckets: dict[int, list[float]] = defaultdict(list)
    values: list[list[float | None]] = []
    for outcome, steps in zip(outcomes, scores, strict=True):
        values.append([None if score is None else (outcome or 0.0) + step_coef * score for score in steps])
        for k, value in enumerate(values[-1]):
            if value is not None:
                buckets[k].append(value)
    everything = [value for bucket in buckets.values() for value in bucket]

    def advantage(value: float | None, k: int) -> float | None:
        if value is None:
            return None
        if len(buckets[k]) > 1:
            return _standardised(value, buckets[k])
        return value if singleton == "raw" else _standardised(value, everything)

    return [[advantage(value, k) for k, value in enumerate(row)] for row in values]


def _standardised(value: float, bucket: Sequence[float]) -> float:
    std = float(np.std(bucket))
    return (value - float(np.mean(bucket))) / (std + EPSILON) if std > EPSILON else 0.0


class RunningBaseline:
    """Advantages for live conversations, which have no group: score minus the mean of what came before.

    That is the user's own earlier scores, or everybody's until the user has `user_needs`; 0 before any.
    """

    def __init__(self, user_needs: int = 8) -> None:
        self.user_needs = user_needs
        self._sums: dict[str | None, float] = defaultdict(float)  # None: everybody
        self._counts: dict[str | None, int] = defaultdict(int)

    def advantage(self, user: str, score: float) -> float:
        """The advantage of this score, which later ones are then compared with."""
        key = user if self._counts[user] >= self.user_needs else None
        baseline = self._sums[key] / self._counts[key] if self._counts[key] else 0.0
        for name in (user, None):
            self._sums[name] += score
            self._counts[name] += 1
        return score - baseline
