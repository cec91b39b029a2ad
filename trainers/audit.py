"""An audit of everything that a run trained on: its books are made anew from the trajectories and compared.

Samples, masks, advantages, rejections and consumptions all follow from the trajectories, the judgements of their turns
and the config. What the store says of them must be what they give; and what a trajectory says of its tokens must fit the
weight versions, what a judgement says must fit its trajectory.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from agentgym.collect import Collected
from agentgym.config import Config
from agentgym.judge import majority_vote
from agentgym.store import Store, StoredSample
from agentgym.trainers.assemble import assemble
from agentgym.types import Group, Judgement, Sample, ScoredSample, Trajectory


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, and what was found wrong."""

    samples: int
    trained: int
    tokens_trained: int
    rejected: dict[str, int]
    problems: tuple[str, ...]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a trajectory and the config say of a sample."""

    scored: ScoredSample
    step: int
    rejected: str | None
    fates: tuple[str, ...]


def audit(store: Store, config: Config) -> Audit:
    """Check the whole surviving history of a run."""
    stored = {entry.sample.id: entry for entry in store.samples()}
    last = max([0, *(entry.step for entry in stored.values()), *store.consumed()])
    problems: list[str] = []
    expected: dict[str, Expected] = {}
    for step in range(1, last + 1):
        groups, wrong = _groups(store, step, config.rollout.group_size)
        problems += wrong
        made = assemble(Collected(groups=groups), config.algorithm)
        for scored, reason in [*((scored, None) for scored in made.ready), *made.rejected]:
            id = scored.sample.id
            expected[id] = Expected(scored=scored, step=step, rejected=reason, fates=made.fates[id])
    problems += [f"{id}: its trajectory gives no such sample" for id in stored.keys() - expected.keys()]
    fates = store.fates()
    versions = {entry["version"]: entry for entry in store.versions()}
    for id, wanted in expected.items():
        if id not in stored:
            problems.append(f"{id}: neither trained on nor rejected: it is not in the store")
            continue
        problems += _differences(stored[id], wanted) + _shape_problems(wanted.scored.sample)
        if fates.get(id, wanted.fates) != wanted.fates:
            problems.append(f"{id}: its turns were trained by {fates[id]}, but should be by {wanted.fates}")
        if wanted.rejected is None:
            problems += _version_problems(wanted, versions)
    consumed = [entry for entry in stored.values() if entry.consumed_step is not None]
    if (marks := sum(store.consumed().values())) != len(consumed):
        problems.append(
            f"{marks} consumptions, but {len(consumed)} consumed samples: some have no sample or trajectory"
        )
    return Audit(
        samples=len(stored),
        trained=len(consumed),
        tokens_trained=sum(sum(entry.sample.mask) for entry in consumed),
        rejected=dict(Counter(entry.rejected for entry in stored.values() if entry.rejected)),
        problems=tuple(problems),
    )


def _groups(store: Store, step: int, size: int) -> tuple[tuple[Group, ...], list[str]]:
    """The groups of a step as they were assembled, and what is wrong with them."""
    members: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in store.trajectories(stage="train", step=step):
        members[trajectory.group_id].append(trajectory)
    problems = []
    for id, found in members.items():
        if len(found) != size or len({member.seed for member in found}) != size:
            problems.append(
                f"{id}: {len(found)} episodes with {len({m.seed for m in found})} seeds in a group of {size}"
            )
        if len({member.task_id for member in found}) > 1:
            problems.append(f"{id}: its episodes are of different tasks")
    groups = []
    for id, found in sorted(members.items()):
        ordered = tuple(sorted(found, key=lambda member: member.seed))
        kept = [store.judgements(member.id) for member in ordered]
        for member, judgements in zip(ordered, kept, strict=True):
            problems += _judgement_problems(member, judgements)
        judged = tuple(tuple(judgements.values()) for judgements in kept)
        groups.append(Group(id=id, task_id=found[0].task_id, trajectories=ordered, judgements=judged))
    return tuple(groups), problems


def _judgement_problems(member: Trajectory, judgements: dict[int, Judgement]) -> list[str]:
    """Where a judgement is of no turn, or contradicts its own votes."""
    found = []
    turns = {turn.index for turn in member.turns}
    for turn, judgement in judgements.items():
        where = f"{member.id}, turn {turn}"
        if turn not in turns or (judgement.trajectory_id, judgement.turn) != (member.id, turn):
            found.append(f"{where}: the judgement is of another turn, or of none")
        if judgement.score is None and not judgement.reason:
            found.append(f"{where}: unscored without a reason")
        if judgement.votes and judgement.score != majority_vote(judgement.votes):
            found.append(f"{where}: the score {judgement.score} is not the majority of {judgement.votes}")
        if judgement.hinted and len(judgement.hinted) != len(judgement.hints):
            found.append(f"{where}: {len(judgement.hints)} hints, but {len(judgement.hinted)} of the teacher's prompts")
    return found


def _differences(entry: StoredSample, wanted: Expected) -> list[str]:
    """Where the books say something else than the trajectory."""
    id, sample, made = entry.sample.id, entry.sample, wanted.scored.sample
    found = []
    for field in ("ids", "mask", "logprobs", "versions", "spans", "group_id", "trajectory_id", "temperature"):
        if getattr(sample, field) != getattr(made, field):
            found.append(f"{id}: {field} differ from what was served and sampled")
    if entry.advantages != wanted.scored.advantages:
        found.append(f"{id}: advantages {entry.advantages}, but its group gives {wanted.scored.advantages}")
    if entry.step != wanted.step:
        found.append(f"{id}: booked for step {entry.step}, collected for step {wanted.step}")
    if entry.rejected != wanted.rejected:
        found.append(f"{id}: {entry.rejected or 'not rejected'}, but should be {wanted.rejected or 'trained on'}")
    if wanted.rejected is None and entry.consumed_step is None:
        found.append(f"{id}: neither trained on nor rejected")
    if entry.consumed_step is not None and (wanted.rejected or entry.consumed_step != wanted.step):
        found.append(
            f"{id}: consumed by step {entry.consumed_step}, but it is {wanted.rejected or f'of step {wanted.step}'}"
        )
    return found


def _shape_problems(sample: Sample) -> list[str]:
    if len({len(sample.ids), len(sample.mask), len(sample.logprobs), len(sample.versions)}) != 1:
        return [f"{sample.id}: ids, mask, log-probs and versions differ in length"]
    inside = {position for span in sample.spans for position in range(span.start, span.end)}
    found = []
    if any(mask and position not in inside for position, mask in enumerate(sample.mask)):
        found.append(f"{sample.id}: a token outside the responses is trained on")
    if any(mask and sample.logprobs[position] is None for position, mask in enumerate(sample.mask)):
        found.append(f"{sample.id}: a token without a log-prob is trained on")
    return found


def _version_problems(wanted: Expected, known: dict[int, dict[str, float]]) -> list[str]:
    """Trained tokens must be of versions of the surviving history that were there before the step."""
    sample, found = wanted.scored.sample, []
    for version in {version for version, mask in zip(sample.versions, sample.mask, strict=True) if mask}:
        if version not in known:
            found.append(f"{sample.id}: sampled by the unknown version {version}")
        elif known[version]["undone"]:
            found.append(f"{sample.id}: sampled by version {version}, which was undone")
        elif known[version]["step"] >= wanted.step:
            found.append(f"{sample.id}: sampled by weights that step {wanted.step} had yet to make")
    return found
