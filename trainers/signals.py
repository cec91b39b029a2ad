"""What there is to say about the episodes of a step, how they were judged, and what their turns are trained by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from agentgym.collect import Collected
from agentgym.judge import vote_entropy
from agentgym.samples import repetition
from agentgym.trainers.assemble import TERMS, Assembled
from agentgym.types import Judgement, ScoredSample, Trajectory, Turn

SOLVED = 1.0  # an outcome of full marks


def collection_metrics(collected: Collected, assembled: Assembled) -> dict[str, float]:
    """What the episodes of a step were like; shares are of responses or of episodes, in [0, 1]."""
    trajectories = collected.trajectories
    outcomes = [member.outcome for member in trajectories if member.outcome is not None]
    turns = [turn for member in trajectories for turn in member.turns]
    completions = [turn.completion for turn in turns]
    reasons = Counter(reason for _, reason in assembled.rejected)
    metrics = {
        "reward_mean": _mean(outcomes),
        "reward_std": float(np.std(outcomes)) if outcomes else 0.0,
        "groups": len(collected.groups),
        "groups_dropped": len(collected.dropped),
        "episodes": len(trajectories),
        "turns_mean": _mean([len(member.turns) for member in trajectories]),
        "response_length": _mean([len(completion.ids) for completion in completions]),
        "truncated_share": _mean([completion.finish_reason == "length" for completion in completions]),
        "repetition_share": _mean([repetition(completion.ids) for completion in completions]),
        "mixed_share": _mean([completion.mixed for completion in completions]),
        "parse_error_share": _mean([bool(turn.info.get("parse_error")) for turn in turns]),
        "infrastructure_share": _mean([member.status == "infrastructure" for member in trajectories]),
        "task_error_share": _mean([member.status == "task" for member in trajectories]),
        "samples": len(assembled.ready),
        "samples_rejected": len(assembled.rejected),
    }
    for reason, number in reasons.items():
        metrics[f"rejected/{reason.replace(' ', '_')}"] = number
    return metrics | judging_metrics(collected) | turn_metrics(assembled)


def judging_metrics(collected: Collected) -> dict[str, float]:
    """How the turns of a step were judged; empty where nobody judges. Shares are of turns with an outcome, in [0, 1].

    `judge_agreement` compares the judge with the verifier where that says something of the turn itself, and
    `judge_right_plus` and `judge_right_minus` are how often its +1 and its -1 were right.
    """
    pairs = [
        (judgement, verifier_says(member, turn))
        for group in (*collected.groups, *collected.dropped)
        for member, judgements in zip(group.trajectories, group.judgements, strict=False)
        for turn, judgement in zip(member.turns, judgements, strict=False)
    ]
    if not pairs:
        return {}
    judged = [judgement for judgement, _ in pairs]
    scores = [judgement.score for judgement in judged if judgement.score is not None]
    accepted = sum(len(judgement.hints) for judgement in judged)
    refused = Counter(reason for judgement in judged for reason in judgement.refused_hints)
    metrics = {
        "turns_judged": float(len(judged)),
        "scored_share": len(scores) / len(judged),
        "score_mean": _mean(scores),
        "hinted_share": _mean([bool(judgement.hints) for judgement in judged]),
        "hints_accepted": float(accepted),
        "hint_acceptance": accepted / max(1, accepted + refused.total()),
        "vote_entropy": _mean([vote_entropy(judgement.votes) for judgement in judged if judgement.votes]),
        "judge_seconds": _mean([judgement.seconds for judgement in judged]),
    }
    for reason, number in refused.items():
        metrics[f"hints_refused/{_key(reason)}"] = number
    for reason, number in Counter(_key(j.reason) for j in judged if j.score is None).items():
        metrics[f"unscored/{reason}"] = number
    return metrics | _agreement(pairs)


def _agreement(pairs: Sequence[tuple[Judgement, int | None]]) -> dict[str, float]:
    """How often judge and verifier say the same; left out where there is nothing to compare."""
    both = [(np.sign(judged.score), says) for judged, says in pairs if judged.score is not None and says is not None]
    found = {"judge_agreement": [judge == says for judge, says in both]}
    for sign, name in ((1, "judge_right_plus"), (-1, "judge_right_minus")):
        found[name] = [says == sign for judge, says in both if judge == sign]
    return {name: _mean(right) for name, right in found.items() if right}


def verifier_says(member: Trajectory, turn: Turn) -> int | None:
    """The environment's own opinion of a turn: its `score`, or what the outcome says of the last one; None: none."""
    score = turn.info.get("score")
    if not isinstance(score, bool) and score in (-1, 0, 1):
        return int(score)
    if turn is not member.turns[-1] or member.outcome is None:
        return None
    return 1 if member.outcome >= SOLVED else -1 if member.outcome <= 0 else 0


def turn_metrics(assembled: Assembled) -> dict[str, float]:
    """How many turns are trained by what; each counts once."""
    fates = Counter(fate if fate in TERMS else "neither" for found in assembled.fates.values() for fate in found)
    return {f"turns/{_key(fate)}": float(number) for fate, number in sorted(fates.items())}


def staleness(samples: Sequence[ScoredSample], made_by: dict[int, int]) -> dict[str, float]:
    """How many weights behind the newest those were that sampled the trained tokens; `made_by`: version to step.

    The same weights count once: they get a new version number when a run is resumed, and a step may make none.
    """
    rank = {step: index for index, step in enumerate(sorted(set(made_by.values())))}
    behind = [
        len(rank) - 1 - rank[made_by[version]]
        for scored in samples
        for version, mask in zip(scored.sample.versions, scored.sample.mask, strict=True)
        if mask
    ]
    return {"staleness_mean": _mean(behind), "staleness_max": float(max(behind, default=0))}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _key(reason: str) -> str:
    """A reason as part of the name of a metric: its first words, without what is particular to one case."""
    return reason.partition(":")[0].strip()[:40].replace(" ", "_") or "no_reason"
