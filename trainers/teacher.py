"""The teacher in the learner's own engine: the same response under the prompt with each hint, one forward pass a candidate.

Runs next to `old`, before the first update, without gradients, at the response's temperature. What is kept of a
position is the top-k and a few more log-probs, never its logits. What a teacher outside of the learner said comes with the
samples instead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor

from agentgym.config import Config
from agentgym.trainers.batch import MicroBatch, plan
from agentgym.trainers.opd import MODES, OpdTokens, Views
from agentgym.types import Sample, ScoredSample, Taught, TokenSpan

Forward = Callable[..., tuple[Tensor, ...]]  # a TokenScorer, or an engine around one; without gradients
LONGEST = Callable[[int], int]  # the largest of a number over all ranks


@dataclass(frozen=True)
class Candidate:
    """One hint for one response: where its tokens are in a micro-batch of the student, and the teacher's sequence."""

    batch: int  # which micro-batch
    rows: Tensor  # of its N tokens
    scored: ScoredSample
    taught: Taught | None  # what a teacher outside of the learner said


@dataclass(frozen=True)
class Opinion:
    """The teacher's view of one candidate's M tokens."""

    sampled_M: Tensor
    at_student_MK: Tensor
    top_ids_MK: Tensor
    top_MK: Tensor


class Distiller:
    """Makes what the OPD term needs for the micro-batches of one update.

    Args:
        student: scores with the weights in training.
        teacher: scores with the teacher's; the same for a teacher that is the student with a hint.
        longest: ranks of ZeRO-3 make the same number of forward passes; None where they need not.
    """

    def __init__(self, config: Config, student: Forward, teacher: Forward, longest: LONGEST | None = None) -> None:
        self.config, self.student, self.teacher, self.longest = config, student, teacher, longest
        self.outside = config.teacher.kind == "http"
        self.counts: Counter[str] = Counter()  # candidates, dropped ones, this rank's forward passes for them

    def admitted(self, samples: Sequence[ScoredSample]) -> list[ScoredSample]:
        """The samples without the prompts that leave no room for their response, which are counted as dropped.

        To be called before `plan`: a turn without a prompt has no term, and must not count in the weights of those that do.
        """
        return [self._admitted(scored) if scored.hinted else scored for scored in samples]

    def _admitted(self, scored: ScoredSample) -> ScoredSample:
        hinted, taught = [], []
        for index, (span, prompts) in enumerate(zip(scored.sample.spans, scored.hinted, strict=True)):
            room = self.config.model.max_length - (span.end - span.start)
            said = scored.taught[index] if scored.taught else ()
            kept = [h for h, prompt in enumerate(prompts) if len(prompt) <= room and (said or not self.outside)]
            self.counts["opd_hints"] += len(kept)
            self.counts["opd_dropped"] += len(prompts) - len(kept)
            hinted.append(tuple(prompts[h] for h in kept))
            taught.append(tuple(said[h] for h in kept if said))
        if not any(hinted):
            return msgspec.structs.replace(scored, hinted=(), taught=())
        return msgspec.structs.replace(scored, hinted=tuple(hinted), taught=tuple(taught) if any(taught) else ())

    @torch.no_grad()
    def prepared(
        self, batches: Sequence[MicroBatch], samples: Sequence[ScoredSample], *, keep_old: bool = False
    ) -> list[MicroBatch]:
        """The micro-batches of `samples` with their distillation, where they have any; `keep_old`: and with `old_N`."""
        if not any(any(scored.hinted) for scored in samples):
            return list(batches)
        k = self.config.algorithm.opd_k
        old = [self._old(batch, k) if batch.distilled or self.longest else None for batch in batches]
        candidates = list(self._candidates(batches, samples))
        opinions = self._ask(candidates, [seen[1] if seen else None for seen in old], batches)
        grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, candidate in enumerate(candidates):
            grouped[candidate.batch, int(candidate.rows[0])].append(index)
        at_teacher = self._old_at_teacher(batches, candidates, opinions, grouped)
        found = [OpdTokens.empty(len(batch.target_N), self.width).to(batch.ids_BT.device) for batch in batches]
        for members in grouped.values():
            first = candidates[members[0]]
            batch, seen = batches[first.batch], old[first.batch]
            assert seen is not None
            theirs = [opinions[index] for index in members]
            terms = self._terms(batch, first.rows, seen, theirs, at_teacher[first.batch])
            found[first.batch].put(first.rows, terms)
        kept = [
            replace(batch, old_N=seen[0]) if keep_old and seen else batch
            for batch, seen in zip(batches, old, strict=True)
        ]
        return [replace(batch, opd=found[b]) if batch.distilled else batch for b, batch in enumerate(kept)]

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last time."""
        counts, self.counts = self.counts, Counter()
        return {name: float(number) for name, number in counts.items()}

    @property
    def width(self) -> int:
        """K: tokens at each position."""
        return 1 if self.config.algorithm.opd == "token" else self.config.algorithm.opd_k

    def _old(self, batch: MicroBatch, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The student's log-probs of the sampled tokens, and its top-k, in the layout in which it will learn."""
        logprob_N1, ids_NK, top_NK = self.student(*batch.inputs_for(batch.target_N[:, None]), k)
        return logprob_N1[:, 0], ids_NK, top_NK

    def _candidates(self, batches: Sequence[MicroBatch], samples: Sequence[ScoredSample]) -> Iterator[Candidate]:
        for b, batch in enumerate(batches):
            if not batch.distilled:
                continue
            for number, (index, span) in enumerate(batch.spans):
                scored = samples[index]
                prompts = scored.hinted[span] if scored.hinted else ()
                rows = (batch.tokens.span_N == number).nonzero()[:, 0]
                for h, prompt in enumerate(prompts if len(rows) else ()):
                    made = hinted_sample(scored.sample, scored.sample.spans[span], prompt, name=f"{span}/{h}")
                    taught = scored.taught[span][h] if self.outside else None
                    yield Candidate(b, rows, ScoredSample(sample=made, advantages=(None,)), taught)

    def _ask(
        self, candidates: Sequence[Candidate], student_ids: Sequence[Tensor | None], batches: Sequence[MicroBatch]
    ) -> list[Opinion]:
        """What the teacher thinks of each candidate."""
        if self.outside:
            return [_told(candidate, student_ids[candidate.batch]) for candidate in candidates]
        planned = plan(
            [candidate.scored for candidate in candidates],
            micro_batch_tokens=self.config.trainer.micro_batch_tokens,
            share_prefixes=False,
        )
        opinions: dict[int, Opinion] = {}
        k = self.config.algorithm.opd_k
        for asked in planned:
            targets = asked.target_N[:, None].repeat(1, 1 + k)
            members = {int(index): (asked.sample_N == index).nonzero()[:, 0] for index in asked.sample_N.unique()}
            for index, mine in members.items():
                candidate = candidates[index]
                ids = student_ids[candidate.batch]
                assert ids is not None
                sampled = batches[candidate.batch].target_N[candidate.rows].cpu()
                assert asked.target_N[mine].equal(sampled), "the teacher scores other tokens than the student sampled"
                targets[mine, 1:] = ids[candidate.rows].cpu()
            asked = asked.to(batches[0].ids_BT.device)
            logprobs, top_ids, top = self.teacher(*asked.inputs_for(targets.to(asked.ids_BT.device)), k)
            self.counts["opd_forwards"] += 1
            for index, mine in members.items():
                opinions[index] = Opinion(logprobs[mine, 0], logprobs[mine, 1:], top_ids[mine], top[mine])
        for _ in range((self.longest(len(planned)) - len(planned)) if self.longest else 0):
            self.teacher(*batches[0].inputs_for(batches[0].target_N[:, None]), k)
        return [opinions[index] for index in range(len(candidates))]

    def _old_at_teacher(
        self,
        batches: Sequence[MicroBatch],
        candidates: Sequence[Candidate],
        opinions: Sequence[Opinion],
        grouped: dict[tuple[int, int], list[int]],
    ) -> list[Tensor | None]:
        """The student's log-probs (N x H x K) of each candidate's top-k; only its own support asks for a pass more."""
        algorithm = self.config.algorithm
        if (algorithm.opd, algorithm.opd_support) != ("hybrid_topk", "teacher"):
            return [None] * len(batches)
        h = max(map(len, grouped.values()), default=1)
        wanted = [batch.target_N.new_zeros(len(batch.target_N), h, algorithm.opd_k) for batch in batches]
        for members in grouped.values():
            for place, index in enumerate(members):
                candidate = candidates[index]
                wanted[candidate.batch][candidate.rows, place] = opinions[index].top_ids_MK
        return [
            self.student(*batch.inputs_for(ids_NHK.flatten(1)))[0].view(ids_NHK.shape)
            if batch.distilled or self.longest
            else None
            for batch, ids_NHK in zip(batches, wanted, strict=True)
        ]

    def _terms(
        self,
        batch: MicroBatch,
        rows: Tensor,
        old: tuple[Tensor, Tensor, Tensor],
        opinions: Sequence[Opinion],
        at_teacher_NHK: Tensor | None,
    ) -> OpdTokens:
        """The terms of one response's tokens."""
        algorithm, h = self.config.algorithm, len(opinions)
        views = Views(
            sampled_N=batch.target_N[rows],
            old_N=old[0][rows],
            student_ids_NK=old[1][rows],
            student_NK=old[2][rows],
            teacher_HN=torch.stack([opinion.sampled_M for opinion in opinions]),
            teacher_ids_HNK=torch.stack([opinion.top_ids_MK for opinion in opinions]),
            teacher_HNK=torch.stack([opinion.top_MK for opinion in opinions]),
            teacher_at_student_HNK=torch.stack([opinion.at_student_MK for opinion in opinions]),
            student_at_teacher_HNK=None if at_teacher_NHK is None else at_teacher_NHK[rows, :h].transpose(0, 1),
        )
        mode = MODES[algorithm.opd]
        return mode(views, select=algorithm.opd_select, support=algorithm.opd_support, clip=algorithm.opd_clip)


def _told(candidate: Candidate, student_ids_NK: Tensor | None) -> Opinion:
    """What a teacher outside of the learner said of the trained tokens; nan where it said nothing."""
    taught, sample = candidate.taught, candidate.scored.sample
    assert taught is not None and student_ids_NK is not None
    (span,) = sample.spans
    kept = [t for t in range(span.end - span.start) if sample.mask[span.start + t]]
    ids_MK = student_ids_NK[candidate.rows]
    device, told = ids_MK.device, [taught.logprobs[t] for t in kept]
    nan_MK = torch.full(ids_MK.shape, float("nan"), device=device)
    sampled_M = torch.tensor([float("nan") if value is None else value for value in told], device=device)
    if not taught.top_ids:
        return Opinion(sampled_M, nan_MK, torch.full_like(ids_MK, -1), nan_MK)
    top_ids_MK = torch.tensor([taught.top_ids[t] for t in kept], device=device)
    top_MK = torch.tensor([taught.top[t] for t in kept], device=device)
    same_MKK = ids_MK[:, :, None] == top_ids_MK[:, None, :]
    at_student_MK = torch.where(same_MKK, top_MK[:, None, :], 0.0).sum(-1)
    return Opinion(sampled_M, torch.where(same_MKK.any(-1), at_student_MK, nan_MK), top_ids_MK, top_MK)


def hinted_sample(sample: Sample, span: TokenSpan, prompt: tuple[int, ...], *, name: str) -> Sample:
    """The response of `span` after another prompt, with the same mask and temperature."""
    begin, ids = len(prompt), sample.ids[span.start : span.end]
    return Sample(
        id=f"{sample.id}/{name}",
        trajectory_id=sample.trajectory_id,
        group_id=f"{sample.id}/{name}",
        ids=(*prompt, *ids),
        mask=(*(0 for _ in prompt), *sample.mask[span.start : span.end]),
        logprobs=(None,) * (begin + len(ids)),
        versions=(-1,) * (begin + len(ids)),
        spans=(TokenSpan(turn=span.turn, start=begin, end=begin + len(ids)),),
        temperature=sample.temperature,
    )
