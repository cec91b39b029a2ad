"""On-policy distillation: a teacher that knew better scores what the student really said. Pure torch, no model.

N positions, K tokens of the support at each, H candidate hints. All log-probs are over the whole vocabulary. A position
where a log-prob is not finite has no term; it is masked, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentgym.trainers.surrogate import clipped_surrogate

CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # of the ratio, whatever the RL term's are (2603.10165)
TINY = 1e-12  # the least probability of a tail


@dataclass(frozen=True, kw_only=True)
class Views:
    """What student and teacher think of N positions of one response, before the first update.

    Student's and teacher's top-k, ids by falling log-prob, ties by id; `teacher_at_student_HNK` are the teacher's
    log-probs of the student's top-k, and `student_at_teacher_HNK` the other way round (only for that support).
    """

    sampled_N: Tensor  # ids
    old_N: Tensor  # the student's log-probs of `sampled_N`
    teacher_HN: Tensor  # the teacher's
    student_ids_NK: Tensor
    student_NK: Tensor
    teacher_ids_HNK: Tensor
    teacher_HNK: Tensor
    teacher_at_student_HNK: Tensor
    student_at_teacher_HNK: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class OpdTokens:
    """What the OPD term needs at each of N positions; all without gradient. `mask_NK` is false where there is no term."""

    ids_NK: Tensor
    old_NK: Tensor
    teacher_NK: Tensor
    advantages_NK: Tensor
    mask_NK: Tensor
    overlap_N: Tensor  # |top-k of the student and top-k of the teacher| under the chosen hint

    @classmethod
    def empty(cls, n: int, k: int, dtype: torch.dtype = torch.float32) -> OpdTokens:
        """N positions without a term."""
        old_NK, teacher_NK, advantages_NK = (torch.zeros(n, k, dtype=dtype) for _ in range(3))
        return cls(
            ids_NK=torch.zeros(n, k, dtype=torch.long), old_NK=old_NK, teacher_NK=teacher_NK, advantages_NK=advantages_NK,
            mask_NK=torch.zeros(n, k, dtype=torch.bool), overlap_N=torch.zeros(n),
        )  # fmt: skip

    def put(self, positions_M: Tensor, found: OpdTokens) -> None:
        """Take over the terms of the positions `positions_M`."""
        for name, value in vars(found).items():
            getattr(self, name)[positions_M] = value.to(getattr(self, name))

    def to(self, device: torch.device) -> OpdTokens:
        """The same on another device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})


def overlaps(student_ids_NK: Tensor, teacher_ids_HNK: Tensor) -> Tensor:
    """O[h, n] = how many ids the two sets have in common."""
    return (student_ids_NK[None, :, :, None] == teacher_ids_HNK[:, :, None, :]).any(-1).sum(-1)


def choose(overlap_HN: Tensor, select: str) -> Tensor:
    """The hint of each position: that of the largest overlap in its response or at itself; of equals the first."""
    if select == "sequence":
        totals_H = overlap_HN.sum(-1)
        return torch.full_like(overlap_HN[0], int((totals_H == totals_H.max()).nonzero()[0, 0]))
    best_N = overlap_HN.max(0).values
    return (overlap_HN == best_N).long().argmax(0)  # the first of equals: argmax of 0 and 1 on a CPU may take any


def hybrid_topk(views: Views, *, select: str, support: str, clip: float) -> OpdTokens:
    """A = w clip(teacher - old, -C, C) on the support, w = softmax over it of old (2603.10165).

    The support is the student's top-k (the paper's), the teacher's under the chosen hint, or what both have in common.
    """
    overlap_HN = overlaps(views.student_ids_NK, views.teacher_ids_HNK)
    choice_N = choose(overlap_HN, select)
    n = torch.arange(len(choice_N), device=choice_N.device)
    if support == "teacher":
        assert views.student_at_teacher_HNK is not None
        ids_NK, old_NK = views.teacher_ids_HNK[choice_N, n], views.student_at_teacher_HNK[choice_N, n]
        teacher_NK = views.teacher_HNK[choice_N, n]
        inside_NK = torch.ones_like(ids_NK, dtype=torch.bool)
    else:
        ids_NK, old_NK = views.student_ids_NK, views.student_NK
        teacher_NK = views.teacher_at_student_HNK[choice_N, n]
        common_NK = (ids_NK[:, :, None] == views.teacher_ids_HNK[choice_N, n][:, None, :]).any(-1)
        inside_NK = common_NK if support == "overlap" else torch.ones_like(common_NK)
    finite_N1 = (~inside_NK | (old_NK.isfinite() & teacher_NK.isfinite())).all(-1, keepdim=True)
    mask_NK = inside_NK & finite_N1
    old_NK, teacher_NK = torch.where(mask_NK, old_NK, 0.0), torch.where(mask_NK, teacher_NK, 0.0)
    weights_NK = torch.softmax(torch.where(mask_NK, old_NK, float("-inf")), -1)
    gap_NK = (teacher_NK - old_NK).clamp(-clip, clip)
    return OpdTokens(
        ids_NK=ids_NK, old_NK=old_NK, teacher_NK=teacher_NK, mask_NK=mask_NK,
        advantages_NK=torch.where(mask_NK, weights_NK * gap_NK, 0.0), overlap_N=overlap_HN[choice_N, n],
    )  # fmt: skip


def token(views: Views, *, select: str, support: str, clip: float) -> OpdTokens:
    """A = teacher - old at the sampled ids; K is 1, and there is nothing to clip or to choose a support of."""
    choice_N, overlap_N = _chosen(views, select)
    teacher_N = views.teacher_HN[choice_N, torch.arange(len(choice_N), device=choice_N.device)]
    mask_N = views.old_N.isfinite() & teacher_N.isfinite()
    old_N, teacher_N = torch.where(mask_N, views.old_N, 0.0), torch.where(mask_N, teacher_N, 0.0)
    return OpdTokens(
        ids_NK=views.sampled_N[:, None], old_NK=old_N[:, None], teacher_NK=teacher_N[:, None],
        advantages_NK=(teacher_N - old_N)[:, None], mask_NK=mask_N[:, None], overlap_N=overlap_N,
    )  # fmt: skip


def topk_kl(views: Views, *, select: str, support: str, clip: float) -> OpdTokens:
    """The teacher's top K; `topk_tail_kl` makes the loss of it."""
    choice_N, overlap_N = _chosen(views, select)
    n = torch.arange(len(choice_N), device=choice_N.device)
    ids_NK, teacher_NK = views.teacher_ids_HNK[choice_N, n], views.teacher_HNK[choice_N, n]
    mask_NK = teacher_NK.isfinite().all(-1, keepdim=True).expand(ids_NK.shape)
    teacher_NK = torch.where(mask_NK, teacher_NK, 0.0)
    old_NK = torch.full_like(teacher_NK, float("nan"))  # nobody asks: there is no ratio
    return OpdTokens(
        ids_NK=ids_NK, old_NK=old_NK, teacher_NK=teacher_NK, mask_NK=mask_NK,
        advantages_NK=torch.zeros_like(teacher_NK), overlap_N=overlap_N,
    )  # fmt: skip


MODES = {"hybrid_topk": hybrid_topk, "topk_kl": topk_kl, "token": token}


def _chosen(views: Views, select: str) -> tuple[Tensor, Tensor]:
    """The hint of each position, and the overlap under it; the first hint where the teacher told no top-k."""
    overlap_HN = overlaps(views.student_ids_NK, views.teacher_ids_HNK)
    choice_N = choose(overlap_HN, select)
    return choice_N, overlap_HN[choice_N, torch.arange(len(choice_N), device=choice_N.device)]


def topk_tail_kl(student_NK: Tensor, teacher_NK: Tensor, *, whole: bool = False) -> Tensor:
    """KL(student || teacher) per position over the K tokens and one bin for all others; `whole`: there are no others.

    With K = V it is the exact KL.
    """
    p_NK = student_NK.exp()
    kl_N = (p_NK * (student_NK - teacher_NK)).sum(-1)
    if whole:
        return kl_N
    tail_N = (1.0 - p_NK.sum(-1)).clamp(min=TINY)
    other_N = (1.0 - teacher_NK.exp().sum(-1)).clamp(min=TINY)
    return kl_N + tail_N * (tail_N.log() - other_N.log())


def opd_loss(mode: str, opd: OpdTokens, current_NK: Tensor, *, vocabulary: int) -> Tensor:
    """The term of each position (N); 0 where there is none. `current_NK` are the log-probs of `opd.ids_NK`."""
    mask_N = opd.mask_NK.any(-1)
    current_NK = torch.where(opd.mask_NK, current_NK, current_NK.detach().nan_to_num())  # first: 0 * nan is nan
    if mode == "topk_kl":
        current_NK = torch.where(opd.mask_NK, current_NK, opd.teacher_NK)
        kl_N = topk_tail_kl(current_NK, opd.teacher_NK, whole=opd.ids_NK.shape[1] >= vocabulary)
        return torch.where(mask_N, kl_N, 0.0)
    loss_NK = clipped_surrogate(opd.advantages_NK, current_NK - opd.old_NK, clip_low=CLIP_LOW, clip_high=CLIP_HIGH)
    return torch.where(opd.mask_NK, loss_NK, 0.0).sum(-1)
