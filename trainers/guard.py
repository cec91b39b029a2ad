"""Guard rails (algorithms.md section 7): values that stop a run instead of letting it train on nonsense."""

from __future__ import annotations

from collections import Counter

from agentgym.collect import TaskStream
from agentgym.config import GuardConfig
from agentgym.errors import GuardError
from agentgym.pool import RolloutPool, training_sampling
from agentgym.run import Run
from agentgym.samples import samples_from
from agentgym.trainers.process import LearnerProcess

PROBE_GROUPS, PROBE_SIZE = 4, 4
REMEDIES = {"truncated": " (raise rollout.max_tokens, or set algorithm.truncation=penalise)"}


def check_guards(step: int, metrics: dict[str, float], guard: GuardConfig) -> None:
    """Raise GuardError if a metric of `step` is beyond its threshold; a metric that is missing is not checked."""
    limits = {
        "kl": (guard.max_kl, "lower trainer.learning_rate or trainer.updates_per_batch"),
        "truncated_share": (guard.max_truncated, "raise rollout.max_tokens"),
        "infrastructure_share": (guard.max_infrastructure, "see the reasons in `agentgym status`"),
    }
    for name, (limit, remedy) in limits.items():
        if metrics.get(name, 0.0) > limit:
            raise GuardError(f"step {step}: {name} is {metrics[name]:.4g}, above guard.max {limit:g}: {remedy}")
    if metrics.get("entropy", guard.min_entropy) < guard.min_entropy:
        raise GuardError(
            f"step {step}: entropy is {metrics['entropy']:.4g}, below guard.min_entropy={guard.min_entropy:g}: "
            "lower trainer.learning_rate, or set algorithm.entropy_coef"
        )


def check_gap(when: str, gap_mean: float, guard: GuardConfig) -> None:
    """Raise GuardError if the engine serves other numbers than the trainer computes."""
    if not gap_mean <= guard.gap_mean:  # also not a number
        raise GuardError(
            f"{when}: trainer and engine differ by {gap_mean:.4g} in log-prob per token, more than "
            f"guard.gap_mean={guard.gap_mean:g}: they do not run the same weights or the same precision"
        )


async def measure_gap(run: Run, pool: RolloutPool, learner: LearnerProcess, stream: TaskStream) -> dict[str, float]:
    """|trainer - engine| log-prob per token, mean and max, over fresh episodes that are not trained on.

    Raises:
        GuardError: the mean is above `guard.gap_mean`, or no episode has a token to compare.
    """
    probe = TaskStream(stream.tasks, stream.seed + 1)
    sampling = training_sampling(run.config.rollout)
    samples, why = [], Counter[str]()
    for index in range(PROBE_GROUPS):
        group = await pool.group(f"gap-L{run.life}-{index}", next(probe), run.config.seed, sampling, PROBE_SIZE)
        for member in group.trajectories:
            made, reasons = samples_from(member, run.config.algorithm)
            samples += [sample for sample in made if any(sample.mask)]
            why.update(reasons or ([member.reason] if not made else []))
    if not samples:
        reason, number = why.most_common(1)[0] if why else ("nothing was said", PROBE_GROUPS * PROBE_SIZE)
        raise GuardError(
            "the gap between trainer and engine cannot be measured, no probe episode has a token to train on: "
            f"{number} of {PROBE_GROUPS * PROBE_SIZE}: {reason}{REMEDIES.get(reason, '')}"
        )
    computed = await learner.logprobs(samples)
    gaps = [
        abs(ours - theirs)
        for sample, logprobs in zip(samples, computed, strict=True)
        for ours, theirs, mask in zip(logprobs, sample.logprobs, sample.mask, strict=True)
        if mask and theirs is not None and ours is not None
    ]
    metrics = {
        "gap_mean": sum(gaps) / max(1, len(gaps)),
        "gap_max": max(gaps, default=0.0),
        "gap_tokens": float(len(gaps)),
    }
    run.log(f"gap between trainer and engine: {metrics}")
    check_gap("fresh episodes", metrics["gap_mean"], run.config.guard)
    return metrics
