"""The judge contract: whoever turns what came back after a turn into a score, and into hints.

A judge never raises for what is in an exchange: a turn that it cannot judge is unscored, with the reason.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from agentgym.types import Exchange, Judgement

Vote = int | None  # +1, 0, -1; None: not valid


class Judge(ABC):
    """Judges exchanges, many at once."""

    @abstractmethod
    async def __call__(self, exchange: Exchange) -> Judgement:
        """Score one turn and collect hints for it; cancelling frees whatever was asked."""

    async def close(self) -> None:
        """Free everything; safe to call twice."""


def majority_vote(votes: Sequence[Vote]) -> int | None:
    """The most frequent valid vote; a tie for the first place is 0, no valid vote is None.

    Example:
        majority_vote([1, 1, -1])  # 1
        majority_vote([1, -1])  # 0
    """
    counts = Counter(vote for vote in votes if vote is not None).most_common(2)
    if not counts:
        return None
    return 0 if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]


def vote_entropy(votes: Sequence[Vote]) -> float:
    """Entropy of the valid votes in nats: 0 where they agree, ln 3 at most; 0 without a valid vote."""
    counts = Counter(vote for vote in votes if vote is not None)
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values()) + 0.0 if total else 0.0
