"""An audit of everything that a run trained on: read from its store alone, compared with its trajectories."""

from __future__ import annotations

from collections import Counter

import msgspec

from agentgym.config import AlgorithmConfig
from agentgym.samples import samples_from
from agentgym.store import Store, StoredSample


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, and what was found wrong."""

    samples: int
    trained: int
    tokens_trained: int
    rejected: dict[str, int]
    problems: tuple[str, ...]


def audit(store: Store, algorithm: AlgorithmConfig) -> Audit:
    """Check each sample: ids as served and sampled, masks, versions, log-probs, and that none was trained on twice."""
    problems: list[str] = []
    rejected: Counter[str] = Counter()
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    trained = tokens = total = 0
    known = {entry["version"]: entry for entry in store.versions()}
    for stored in store.samples():
        total += 1
        problems += _shape_problems(stored) + _source_problems(store, stored, algorithm)
        if stored.rejected:
            rejected[stored.rejected] += 1
        if stored.consumed_step is None:
            if not stored.rejected:
                problems.append(f"{stored.sample.id}: neither trained on nor rejected")
            continue
        trained += 1
        tokens += sum(stored.sample.mask)
        seen[stored.sample.trajectory_id, stored.sample.ids] += 1
        problems += _version_problems(stored, known)
    problems += [f"{id}: trained on {number} times" for (id, _), number in seen.items() if number > 1]
    return Audit(
        samples=total, trained=trained, tokens_trained=tokens, rejected=dict(rejected), problems=tuple(problems)
    )


def _shape_problems(stored: StoredSample) -> list[str]:
    sample = stored.sample
    lengths = {len(sample.ids), len(sample.mask), len(sample.logprobs), len(sample.versions)}
    if len(lengths) != 1:
        return [f"{sample.id}: ids, mask, log-probs and versions differ in length"]
    inside = {position for span in sample.spans for position in range(span.start, span.end)}
    found = []
    if any(mask and position not in inside for position, mask in enumerate(sample.mask)):
        found.append(f"{sample.id}: a token outside the responses is trained on")
    if len(stored.advantages) != len(sample.spans):
        found.append(f"{sample.id}: {len(stored.advantages)} advantages for {len(sample.spans)} responses")
    if any(position not in inside and version != -1 for position, version in enumerate(sample.versions)):
        found.append(f"{sample.id}: a served token carries a version")
    return found


def _source_problems(store: Store, stored: StoredSample, algorithm: AlgorithmConfig) -> list[str]:
    """The sample must be exactly what its trajectory makes: prompt ids as served, responses as sampled."""
    sample = stored.sample
    trajectory = store.trajectory(sample.trajectory_id)
    if trajectory is None:
        return [f"{sample.id}: its trajectory is not in the store"]
    turns = {turn.index: turn.completion for turn in trajectory.turns}
    for span in sample.spans:
        completion = turns[span.turn]
        if sample.ids[: span.start] != completion.prompt_ids or sample.ids[span.start : span.end] != completion.ids:
            return [f"{sample.id}: turn {span.turn} is not what was served and sampled"]
        if sample.logprobs[span.start : span.end] != completion.logprobs:
            return [f"{sample.id}: turn {span.turn} has other log-probs than the engine gave"]
    if sample not in samples_from(trajectory, algorithm)[0]:
        return [f"{sample.id}: its mask differs from what the config says"]
    return []


def _version_problems(stored: StoredSample, known: dict[int, dict[str, float]]) -> list[str]:
    sample = stored.sample
    versions = {version for version, mask in zip(sample.versions, sample.mask, strict=True) if mask}
    found = [f"{sample.id}: sampled by the unknown version {version}" for version in versions - known.keys()]
    if any(version in known and known[version]["step"] >= stored.step for version in versions):
        found.append(f"{sample.id}: sampled by weights that step {stored.step} had yet to make")
    return found
