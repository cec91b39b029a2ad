"""From groups of trajectories to scored samples, and what there is to say about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from agentgym.collect import Collected
from agentgym.config import AlgorithmConfig
from agentgym.samples import repetition, samples_from
from agentgym.trainers.credit import group_advantages
from agentgym.types import Group, ScoredSample, Trajectory


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one step: those to train on, and those rejected with the reason."""

    ready: tuple[ScoredSample, ...]
    rejected: tuple[tuple[ScoredSample, str], ...]


def advantages_of(group: Group, algorithm: AlgorithmConfig) -> list[float | None]:
    """One advantage per member; None for a member without an outcome, which does not count for the others either."""
    return group_advantages([member.outcome for member in group.trajectories], algorithm.estimator)


def has_spread(group: Group, algorithm: AlgorithmConfig) -> bool:
    """Whether any member of the group has something to learn from (a non-zero advantage)."""
    return any(advantage for advantage in advantages_of(group, algorithm))


def assemble(collected: Collected, algorithm: AlgorithmConfig) -> Assembled:
    """Score every sample of `collected`; each is either ready or rejected, none is left out."""
    ready: list[ScoredSample] = []
    rejected: list[tuple[ScoredSample, str]] = []
    for group in (*collected.groups, *collected.dropped):
        advantages_G = advantages_of(group, algorithm)
        spread = any(advantages_G)
        for member, advantage in zip(group.trajectories, advantages_G, strict=True):
            samples, reasons = samples_from(member, algorithm)
            for sample in samples:
                scored = ScoredSample(sample=sample, advantages=(advantage or 0.0,) * len(sample.spans))
                reason = _rejection(member, advantage, spread, any(sample.mask), reasons)
                if reason:
                    rejected.append((scored, reason))
                else:
                    ready.append(scored)
    return Assembled(ready=tuple(ready), rejected=tuple(rejected))


def _rejection(
    member: Trajectory, advantage: float | None, spread: bool, trainable: bool, reasons: Sequence[str]
) -> str | None:
    if advantage is None:
        return member.status
    if not spread:
        return "group without spread"
    if not trainable:
        return reasons[0] if reasons else "nothing to train on"
    return None


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
    return metrics


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
