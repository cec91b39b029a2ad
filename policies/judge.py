"""What judges have in common: a verdict on an exchange, and the hints that came with it, as one judgement."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import ClassVar, NamedTuple

from agentgym.config import Config
from agentgym.hints import accept, candidates
from agentgym.judge import Judge, JudgeCache, Vote, majority_vote
from agentgym.policy import Policy
from agentgym.types import Exchange, Judgement


class Verdict(NamedTuple):
    """What a judge found: votes, candidates for hints, and where no vote is valid the reason why."""

    votes: tuple[Vote, ...] = ()
    hints: tuple[str, ...] = ()
    reason: str = ""


class HintingJudge(Judge):
    """A judge whose subclass finds the verdict; hints are the environment's and its own, as `hints.source` says.

    A turn without a valid vote is unscored, and may have hints all the same.
    """

    kind: ClassVar[str]

    def __init__(self, config: Config, *, ask: Policy | None = None, cache: JudgeCache | None = None) -> None:
        self.config = config

    @abstractmethod
    async def verdict(self, exchange: Exchange) -> Verdict:
        """Votes on `exchange`, and hints for it; raises nothing for what is in it."""

    async def __call__(self, exchange: Exchange) -> Judgement:
        began = time.monotonic()
        found = await self.verdict(exchange)
        hints = self.config.hints
        kept = accept(candidates(hints.source, exchange.info, found.hints), hints, exchange.secrets)
        score = majority_vote(found.votes)
        return Judgement(
            trajectory_id=exchange.trajectory_id,
            turn=exchange.turn,
            judge=self.kind,
            votes=found.votes,
            score=None if score is None else float(score),
            hints=kept.hints,
            refused_hints=kept.refused,
            reason="" if score is not None else found.reason or "no valid vote",
            seconds=time.monotonic() - began,
        )
