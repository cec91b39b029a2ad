"""The judge contract: whoever turns what came back after a turn into a score, and into hints.

A judge never raises for what is in an exchange: a turn that it cannot judge is unscored, with the reason.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from agentgym.errors import ConfigError
from agentgym.registry import JUDGES
from agentgym.types import Exchange, Judgement

if TYPE_CHECKING:
    from agentgym.policy import Policy
    from agentgym.schema import Config

Vote = int | None  # +1, 0, -1; None: not valid


class Judge(ABC):
    """Judges exchanges, many at once."""

    @abstractmethod
    async def __call__(self, exchange: Exchange) -> Judgement:
        """Score one turn and collect hints for it; cancelling frees whatever was asked."""

    async def close(self) -> None:
        """Free everything; safe to call twice."""


class JudgeCache(Protocol):
    """Where answers that were paid for are kept: a run's store, or a `MemoryCache`. It may be called from any thread."""

    def cached(self, key: str) -> str | None:
        """What was kept under `key`, the hash of a question's whole content."""

    def cache(self, key: str, value: str) -> None:
        """Keep an answer; the first one stands."""


class MemoryCache:
    """A cache that lives as long as it is held."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def cached(self, key: str) -> str | None:
        return self.kept.get(key)

    def cache(self, key: str, value: str) -> None:
        self.kept.setdefault(key, value)


def make_judge(config: Config, *, ask: Policy | None = None, cache: JudgeCache | None = None) -> Judge | None:
    """The judge of `judge.kind`; None for `none`.

    Args:
        ask: the run's own engine, for `llm` without a `judge.url`.
        cache: keeps the answers of `llm`, so that no question is paid for twice.

    Raises:
        ConfigError: settings that cannot work: a malformed rule, a URL without a model, a key that is not there.
    """
    if config.judge.kind == "none":
        return None
    if config.judge.kind == "verifier" and config.hints.source == "judge":
        raise ConfigError("hints.source=judge: judge.kind=verifier writes no hints: set hints.source=environment")
    judge: Judge = JUDGES.load(config.judge.kind)(config, ask=ask, cache=cache)
    return judge


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
