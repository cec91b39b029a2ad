"""From groups of trajectories to scored samples: what each turn is worth, and what it is trained by.

A turn counts once: by its advantage (the RL term), by its hints (the OPD term), by both, or by neither; then its tokens
are masked, and why is told. A group is worth keeping if any of its turns has a non-zero advantage or an accepted hint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

import msgspec

from agentgym.collect import Collected
from agentgym.config import AlgorithmConfig
from agentgym.samples import samples_from, untrained_reason
from agentgym.trainers.credit import ESTIMATORS, group_advantages, step_wise
from agentgym.types import WITH_OUTCOME, Group, Judgement, Sample, ScoredSample, Trajectory, Turn

NO_SPREAD, NO_HINT, UNSCORED = "group without spread", "no hint", "unscored"  # why a turn has no term of the loss

Advantages = list[float | None]  # one per turn of a trajectory


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one step: those to train on, and those rejected with the reason.

    `fates` says for each sample (by id) and each of its spans what the turn is trained by ("hint and score", "hint
    only", "score only"), or why it is not.
    """

    ready: tuple[ScoredSample, ...]
    rejected: tuple[tuple[ScoredSample, str], ...]
    fates: dict[str, tuple[str, ...]] = {}


def advantages_of(group: Group, algorithm: AlgorithmConfig) -> list[Advantages]:
    """The advantage of each turn of each member, None where it has none.

    A member without an outcome has none, and does not count for the others either.
    """
    return ESTIMATES[algorithm.estimator](group, algorithm)


def by_outcome(group: Group, algorithm: AlgorithmConfig) -> list[Advantages]:
    """Outcomes are compared, and a turn has its episode's advantage."""
    members = group.trajectories
    per_member = group_advantages([member.outcome for member in members], algorithm.estimator)
    return [[advantage] * len(member.turns) for member, advantage in zip(members, per_member, strict=True)]


def by_turn(group: Group, algorithm: AlgorithmConfig) -> list[Advantages]:
    """Turns are compared by outcome and score; an unscored turn has no advantage."""
    members = group.trajectories
    judged = group.judgements or ((),) * len(members)
    scores = [_scores(member, judgements) for member, judgements in zip(members, judged, strict=True)]
    outcomes = [member.outcome for member in members]
    singleton = cast(Literal["group", "raw"], algorithm.singleton)
    return step_wise(outcomes, scores, step_coef=algorithm.step_coef, singleton=singleton)


# What `algorithm.estimator` names
ESTIMATES: dict[str, Callable[[Group, AlgorithmConfig], list[Advantages]]] = {
    **dict.fromkeys(ESTIMATORS, by_outcome),
    "step_wise": by_turn,
}


def is_useful(group: Group, algorithm: AlgorithmConfig) -> bool:
    """Whether there is anything to learn from a group: a non-zero advantage, or an accepted hint, of any turn."""
    hinted = any(judgement.hinted for judgements in group.judgements for judgement in judgements)
    return bool(algorithm.w_opd and hinted) or bool(algorithm.w_rl and _spread(advantages_of(group, algorithm)))


def assemble(collected: Collected, algorithm: AlgorithmConfig) -> Assembled:
    """Score every sample of `collected`; each is either ready or rejected, none is left out."""
    ready: list[ScoredSample] = []
    rejected: list[tuple[ScoredSample, str]] = []
    fates: dict[str, tuple[str, ...]] = {}
    for group in (*collected.groups, *collected.dropped):
        advantages_G = advantages_of(group, algorithm)
        judged = group.judgements or ((),) * len(group.trajectories)
        credit = Credit(algorithm=algorithm, spread=_spread(advantages_G))
        for member, advantages, judgements in zip(group.trajectories, advantages_G, judged, strict=True):
            for scored, found in credit.given(member, advantages, judgements):
                fates[scored.sample.id] = found
                if any(scored.sample.mask):
                    ready.append(scored)
                else:
                    rejected.append((scored, found[0]))
    return Assembled(ready=tuple(ready), rejected=tuple(rejected), fates=fates)


class Credit(msgspec.Struct, frozen=True, kw_only=True):
    """How the turns of one group are credited; `spread`: any of them has a non-zero advantage."""

    algorithm: AlgorithmConfig
    spread: bool

    def given(
        self, member: Trajectory, advantages: Sequence[float | None], judgements: Sequence[Judgement]
    ) -> list[tuple[ScoredSample, tuple[str, ...]]]:
        """The samples of a member, what is not trained on masked, with the fate of each of their turns.

        Turns of a group without spread that are trained by hints have no part in the mean of the RL term.
        """
        turns = {turn.index: turn for turn in member.turns}
        values = dict(zip(turns, advantages, strict=True))
        hints: dict[int, Judgement] = {}
        if self.algorithm.w_opd and member.status in WITH_OUTCOME:
            hints = {judgement.turn: judgement for judgement in judgements if judgement.hinted}
        found = []
        for sample in samples_from(member, self.algorithm)[0]:
            spans = [span.turn for span in sample.spans]
            fates = tuple(self._fate(member, turns[k], values[k], k in hints) for k in spans)
            trained = [fate in TERMS for fate in fates]
            told = [hints[k] if fate in HINTED else None for k, fate in zip(spans, fates, strict=True)]
            hinted = tuple(judgement.hinted if judgement else () for judgement in told)
            taught = tuple(judgement.taught if judgement else () for judgement in told)
            scored = ScoredSample(
                sample=_masked(sample, trained),
                advantages=tuple(values[k] if self.spread or not any(trained) else None for k in spans),
                hinted=hinted if any(hinted) else (),
                taught=taught if any(taught) else (),
            )
            found.append((scored, fates))
        return found

    def _fate(self, member: Trajectory, turn: Turn, advantage: float | None, hint: bool) -> str:
        """What a turn is trained by, or why it is not."""
        if member.status not in WITH_OUTCOME:
            return member.status
        score = bool(self.algorithm.w_rl) and self.spread and advantage is not None
        if not (score or hint):
            return NO_HINT if not self.algorithm.w_rl else UNSCORED if advantage is None else NO_SPREAD
        reason = untrained_reason(turn.completion, self.algorithm)
        return reason or TERM[score, hint]


TERM = {(True, True): "hint and score", (False, True): "hint only", (True, False): "score only"}
TERMS, HINTED = set(TERM.values()), {"hint and score", "hint only"}


def _scores(member: Trajectory, judgements: Sequence[Judgement]) -> list[float | None]:
    """The score of each turn of a member that has an outcome."""
    scores = {judgement.turn: judgement.score for judgement in judgements}
    counted = member.status in WITH_OUTCOME
    return [scores.get(turn.index) if counted else None for turn in member.turns]


def _spread(advantages_G: Sequence[Advantages]) -> bool:
    return any(advantage for advantages in advantages_G for advantage in advantages)


def _masked(sample: Sample, trained: Sequence[bool]) -> Sample:
    """The sample with the tokens masked of each span that is not trained on."""
    mask = list(sample.mask)
    for span, kept in zip(sample.spans, trained, strict=True):
        if not kept:
            mask[span.start : span.end] = [0] * (span.end - span.start)
    return sample if tuple(mask) == sample.mask else msgspec.structs.replace(sample, mask=tuple(mask))
