"""The judge that takes the environment's word: scores from its own evidence, without a model.

The first row that applies decides (docs/learning.md has the same table):

    info["score"]            -1, 0 or 1: itself; null: unscored; anything else: unscored
    info["parse_error"]      -1
    outcome, at the last turn  +1 from 1 up, -1 from 0 down, 0 between
    info["solved"]           +1 or -1
    reward of the step       its sign, unless it is 0
    info["timed_out"]        -1
    info["exit_code"]        -1 unless it is 0; 0: it ran, which is no progress yet
    nothing of these         unscored
"""

from __future__ import annotations

import math
from typing import Any

from agentgym.judge import Vote
from agentgym.policies.judge import HintingJudge, Verdict
from agentgym.types import Exchange


class VerifierJudge(HintingJudge):
    """One vote, from the environment's own evidence."""

    kind = "verifier"

    async def verdict(self, exchange: Exchange) -> Verdict:
        vote, reason = evidence(exchange)
        return Verdict(votes=(vote,), reason=reason)


def evidence(exchange: Exchange) -> tuple[Vote, str]:
    """What the environment's evidence says of a turn, and if nothing the reason why."""
    info = exchange.info
    if "score" in info:
        return _given(info["score"])
    if info.get("parse_error"):
        return -1, ""
    if exchange.last and exchange.outcome is not None and not math.isnan(exchange.outcome):
        return (1 if exchange.outcome >= 1 else -1 if exchange.outcome <= 0 else 0), ""
    if isinstance(info.get("solved"), bool):
        return (1 if info["solved"] else -1), ""
    if exchange.reward > 0 or exchange.reward < 0:
        return (1 if exchange.reward > 0 else -1), ""
    if info.get("timed_out") is True:
        return -1, ""
    code = info.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool):
        return (-1 if code else 0), ""
    return None, "the environment gives no evidence for this turn"


def _given(score: Any) -> tuple[Vote, str]:
    if score is None:
        return None, "the environment cannot tell"
    if isinstance(score, int | float) and not isinstance(score, bool) and score in (-1, 0, 1):
        return int(score), ""
    return None, f"info['score'] is {str(score)[:40]!r}, not -1, 0 or 1"
