"""The distillation term against golden numbers, and where it has none."""

from typing import Any

import pytest
import torch
from torch import Tensor

from agentgym.trainers.head import top_k
from agentgym.trainers.opd import (
    OpdTokens,
    Views,
    choose,
    hybrid_topk,
    opd_loss,
    overlaps,
    token,
    topk_kl,
    topk_tail_kl,
)

PRECISIONS = [(torch.float64, 1e-6), (torch.float32, 1e-4)]


def seen(old_NV: Tensor, teachers_HNV: Tensor, k: int, sampled_N: Tensor | None = None) -> Views:
    """The views that log-probs of the whole vocabulary give."""
    n, v = old_NV.shape
    ids_NV = torch.arange(v).expand(n, v)
    sampled_N = torch.zeros(n, dtype=torch.long) if sampled_N is None else sampled_N
    student_ids, student = top_k(ids_NV, old_NV, k)
    tops = [top_k(ids_NV, teacher_NV, k) for teacher_NV in teachers_HNV]
    teacher_ids = torch.stack([ids for ids, _ in tops])
    return Views(
        sampled_N=sampled_N,
        old_N=old_NV.gather(1, sampled_N[:, None])[:, 0],
        teacher_HN=torch.stack([teacher.gather(1, sampled_N[:, None])[:, 0] for teacher in teachers_HNV]),
        student_ids_NK=student_ids,
        student_NK=student,
        teacher_ids_HNK=teacher_ids,
        teacher_HNK=torch.stack([values for _, values in tops]),
        teacher_at_student_HNK=torch.stack([teacher.gather(1, student_ids) for teacher in teachers_HNV]),
        student_at_teacher_HNK=torch.stack([old_NV.gather(1, ids) for ids in teacher_ids]),
    )


@pytest.mark.golden("hybrid_topk_opd")
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_hybrid_topk(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    old_NV, current_NV = (torch.tensor(case[name], dtype=dtype) for name in ("old", "current"))
    views = seen(old_NV, torch.tensor(case["teachers"], dtype=dtype), case["k"])
    overlap_HN = overlaps(views.student_ids_NK, views.teacher_ids_HNK)
    assert overlap_HN.tolist() == case["overlap"]
    assert choose(overlap_HN, case["select"]).tolist() == case["choice"]
    found = hybrid_topk(views, select=case["select"], support="student", clip=case["clip_difference"])
    for n, expected in enumerate(case["advantages"]):
        ours = dict(zip(found.ids_NK[n].tolist(), found.advantages_NK[n].tolist(), strict=True))
        assert ours == pytest.approx(dict(zip(expected["ids"], expected["adv"], strict=True)), abs=tolerance)
    loss_N = opd_loss("hybrid_topk", found, current_NV.gather(1, found.ids_NK), vocabulary=old_NV.shape[1])
    assert loss_N.tolist() == pytest.approx(case["loss_per_position"], abs=tolerance)


@pytest.mark.golden("topk_tail_kl")
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_topk_tail_kl(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    student_NV, teacher_NV = (torch.tensor(case[name], dtype=dtype) for name in ("student", "teacher"))
    views = seen(student_NV, teacher_NV[None], case["k"])
    found = topk_kl(views, select="sequence", support="student", clip=1.0)
    loss_N = opd_loss("topk_kl", found, student_NV.gather(1, found.ids_NK), vocabulary=student_NV.shape[1])
    assert loss_N.tolist() == pytest.approx(case["kl_per_position"], abs=tolerance)


def logprobs(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(2 * torch.randn(*shape, generator=generator, dtype=torch.float64), -1)


def test_k_of_the_whole_vocabulary_is_the_exact_kl() -> None:
    student, teacher = logprobs(3, 6), logprobs(3, 6, seed=1)
    expected = torch.nn.functional.kl_div(teacher, student, log_target=True, reduction="none").sum(-1)
    assert torch.allclose(topk_tail_kl(student, teacher, whole=True), expected)


def test_of_equal_logprobs_the_lower_id_is_in_the_set() -> None:
    ids = torch.arange(6).expand(2, 6)
    values = torch.tensor([[0.0, 1.0, 0.0, 0.0, 1.0, 0.0], [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]])
    found, _ = top_k(ids, values, 4)
    assert found.tolist() == [[1, 4, 0, 2], [0, 1, 2, 3]]


def test_of_hints_with_equal_overlap_the_first_is_chosen() -> None:
    overlap_HN = torch.tensor([[1, 3, 0], [3, 1, 2], [3, 1, 2]])
    assert choose(overlap_HN, "sequence").tolist() == [1, 1, 1]
    assert choose(overlap_HN, "token").tolist() == [1, 0, 1]


@pytest.mark.parametrize("support", ["student", "teacher", "overlap"])
def test_supports(support: str) -> None:
    old, teacher = logprobs(4, 9), logprobs(1, 4, 9, seed=3)
    views = seen(old, teacher, 4)
    found = hybrid_topk(views, select="sequence", support=support, clip=1.0)
    for n in range(4):
        student_set = set(views.student_ids_NK[n].tolist())
        teacher_set = set(views.teacher_ids_HNK[0, n].tolist())
        wanted = {"student": student_set, "teacher": teacher_set, "overlap": student_set & teacher_set}[support]
        kept = {int(id) for id, inside in zip(found.ids_NK[n], found.mask_NK[n], strict=True) if inside}
        assert kept == wanted
        ids = sorted(wanted)
        weights = torch.softmax(old[n, ids], -1)
        expected = dict(zip(ids, (weights * (teacher[0, n, ids] - old[n, ids]).clamp(-1, 1)).tolist(), strict=True))
        ours = zip(found.ids_NK[n].tolist(), found.advantages_NK[n].tolist(), found.mask_NK[n].tolist(), strict=True)
        assert {id: value for id, value, inside in ours if inside} == pytest.approx(expected)


def test_an_empty_overlap_has_no_term() -> None:
    old = torch.log_softmax(torch.tensor([[9.0, 8.0, 0.0, 0.0]]), -1)
    found = hybrid_topk(seen(old, old.flip(-1)[None], 2), select="token", support="overlap", clip=1.0)
    assert not found.mask_NK.any()
    assert opd_loss("hybrid_topk", found, found.old_NK, vocabulary=4).tolist() == [0.0]


def test_the_token_mode_takes_the_gap_at_the_sampled_ids() -> None:
    old, teacher, sampled = logprobs(3, 5), logprobs(1, 3, 5, seed=1), torch.tensor([4, 0, 2])
    found = token(seen(old, teacher, 2, sampled), select="sequence", support="student", clip=0.1)
    expected = [float(teacher[0, n, id] - old[n, id]) for n, id in enumerate(sampled)]
    assert found.advantages_NK[:, 0].tolist() == pytest.approx(expected)
    assert found.ids_NK[:, 0].tolist() == sampled.tolist()


@pytest.mark.parametrize("mode", [hybrid_topk, topk_kl, token])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_what_is_not_finite_is_masked_and_its_gradient_is_zero(mode: Any, bad: float) -> None:
    old, teacher = logprobs(3, 5), logprobs(1, 3, 5, seed=2)
    teacher[0, 1] = bad
    found: OpdTokens = mode(seen(old, teacher, 2), select="sequence", support="student", clip=1.0)
    assert found.mask_NK.any(-1).tolist() == [True, False, True]
    current = old.gather(1, found.ids_NK).clone().requires_grad_()
    loss_N = opd_loss(mode.__name__, found, current, vocabulary=5)
    loss_N.sum().backward()
    assert loss_N.isfinite().all() and loss_N[1] == 0
    assert current.grad is not None and current.grad.isfinite().all() and (current.grad[1] == 0).all()
