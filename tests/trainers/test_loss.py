"""The loss against golden numbers, a plain reference with gradients, and the masks that others got wrong."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agentgym.config import load_config
from agentgym.trainers.loss import (
    LossSettings,
    TokenBatch,
    cispo,
    clipped_surrogate,
    kl_k3,
    policy_loss,
    sample_weights,
    sequence_log_ratio,
    truncated_importance,
)

PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])


def close(found: Tensor, expected: Any, tolerance: float) -> bool:
    return torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=0.0, atol=tolerance)


@pytest.mark.golden("clipped_surrogate")
@PRECISIONS
def test_clipped_surrogate(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    advantages, old, current = (torch.tensor(case[key], dtype=dtype) for key in ("advantages", "old", "current"))
    found = clipped_surrogate(advantages, current - old, clip_low=case["clip_low"], clip_high=case["clip_high"])
    assert close(found, case["loss_per_token"], tolerance)


@pytest.mark.golden("gspo")
@PRECISIONS
def test_gspo(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    old, current = (torch.tensor(case[key], dtype=dtype) for key in ("old", "current"))
    mask, span = torch.ones(len(old), dtype=torch.bool), torch.zeros(len(old), dtype=torch.long)
    log_ratio = sequence_log_ratio(current - old, mask, span)
    assert close(log_ratio.exp(), [case["ratio"]] * len(old), tolerance)
    advantages = torch.full_like(old, case["advantage"])
    found = clipped_surrogate(advantages, log_ratio, clip_low=case["clip_low"], clip_high=case["clip_high"])
    assert close(found, case["loss_per_token"], tolerance)


@pytest.mark.golden("cispo")
@PRECISIONS
def test_cispo(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    published = "expected_sum" in case
    names = ("adv", "old", "new") if published else ("advantages", "old", "current")
    advantages, old, current = (torch.tensor(case[key], dtype=dtype) for key in names)
    low, high = (case["eps"], case["eps"]) if published else (case["clip_low"], case["clip_high"])
    found = cispo(advantages, current - old, current, clip_low=low, clip_high=high)
    if published:  # given to three decimals
        assert close(found.sum(), case["expected_sum"], 1e-3)
    else:
        assert close(found, case["loss_per_token"], tolerance)


@pytest.mark.golden("cispo_clip_slime")
def test_cispo_clips_the_ratio_and_keeps_the_gradient(case: dict[str, Any]) -> None:
    advantages, old = torch.tensor(case["adv"]).double(), torch.tensor(case["logp"]).double()
    for clip in case["cases"]:
        log_ratio, clamped = torch.tensor(clip["ratios"]).double().log(), torch.tensor(clip["clamped"]).double()
        current = old.clone().requires_grad_()
        loss = cispo(advantages, log_ratio, current, clip_low=clip["lo"], clip_high=clip["hi"])
        assert torch.allclose(loss, -clamped * advantages * old)
        (gradient,) = torch.autograd.grad(loss.sum(), current)
        assert torch.allclose(gradient, -clamped * advantages)


@pytest.mark.golden("kl_k3")
@PRECISIONS
def test_kl_k3(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    current, reference = (torch.tensor(case[key], dtype=dtype) for key in ("current", "reference"))
    assert close(kl_k3(current, reference), case["kl_per_token"], tolerance)


@pytest.mark.golden("kl_estimators")
def test_nan_in_a_masked_slot_stays_out_of_the_kl(case: dict[str, Any]) -> None:
    current, reference = torch.tensor(case["logp"]).double(), torch.tensor([float(x) for x in case["ref"]]).double()
    weights = torch.tensor(case["mask"]).double()
    found = torch.where(weights > 0, kl_k3(current, reference), 0.0) * weights
    assert close(found, case["expected"]["k3"], 1e-6)


@pytest.mark.golden("truncated_importance")
@PRECISIONS
def test_truncated_importance(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    old, behaviour = torch.tensor(case["old"], dtype=dtype), torch.tensor(case["behaviour"], dtype=dtype)
    old.requires_grad_()
    found = truncated_importance(old, behaviour, case["cap"])
    assert close(found, case["weights"], tolerance)
    assert not found.requires_grad


def test_an_importance_cap_of_zero_turns_the_weight_off() -> None:
    assert truncated_importance(torch.tensor([1.0]), torch.tensor([5.0]), 0.0).tolist() == [1.0]


def aggregate(losses: list[list[float]], masks: list[list[int]], aggregation: str, max_length: int) -> float:
    weights = sample_weights(torch.tensor([sum(mask) for mask in masks]), aggregation, max_length)
    pairs = zip(losses, masks, weights.tolist(), strict=True)
    return sum(w * sum(x for x, m in zip(row, mask, strict=True) if m) for row, mask, w in pairs)


@pytest.mark.golden("aggregation")
@pytest.mark.parametrize("name", ["token_mean", "sample_mean", "sum_over_max_length"])
def test_aggregation(case: dict[str, Any], name: str) -> None:
    found = aggregate(case["losses"], case["masks"], name, case["max_length"])
    assert found == pytest.approx(case[name], abs=1e-6)


@pytest.mark.golden("seq_mean_skips_fully_masked")
def test_a_fully_masked_sample_leaves_the_denominator(case: dict[str, Any]) -> None:
    assert aggregate(case["loss"], case["mask"], "sample_mean", 8) == pytest.approx(case["expected"])


@pytest.mark.golden("token_mean_dp")
def test_token_mean_over_micro_batches_is_the_global_mean(case: dict[str, Any]) -> None:
    found = aggregate(case["loss"], case["mask"], "token_mean", 8)
    assert found == pytest.approx(case["expected_token_mean"], abs=1e-6)
    parts = case["grad_accum"]
    losses, masks = parts["mb0"] + parts["mb1"], parts["m0"] + parts["m1"]
    assert aggregate(losses, masks, "token_mean", 8) == pytest.approx(parts["expected"])


@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean", "sum_over_max_length"])
def test_an_all_masked_batch_weighs_nothing(aggregation: str) -> None:  # B52
    assert sample_weights(torch.tensor([0, 0]), aggregation, 8).tolist() == [0.0, 0.0]


def token_batch(n: int = 6, missing: tuple[int, ...] = ()) -> tuple[TokenBatch, Tensor, Tensor, Tensor]:
    """Tokens of two responses (4 and n - 4), and log-probs current, old and reference."""
    generator = torch.Generator().manual_seed(3)
    values = [-2 * torch.rand(n, generator=generator, dtype=torch.float64) for _ in range(4)]
    behaviour, current, old, reference = values
    behaviour[list(missing)] = math.nan
    rl_mask = ~behaviour.isnan()
    tokens = TokenBatch(
        target_N=torch.zeros(n, dtype=torch.long),
        missing_N=~rl_mask,
        opd_weight_N=torch.zeros(n, dtype=torch.float64),
        advantages_N=torch.where(torch.arange(n) < 4, 0.7, -1.3).double(),
        behaviour_N=behaviour,
        rl_mask_N=rl_mask,
        rl_weight_N=torch.full((n,), 1.0 / int(rl_mask.sum()), dtype=torch.float64),
        weight_N=torch.full((n,), 1.0 / n, dtype=torch.float64),
        span_N=(torch.arange(n) >= 4).long(),
    )
    return tokens, current.requires_grad_(), old, reference


@pytest.mark.parametrize("missing", [(), (1, 4)])
@pytest.mark.parametrize("ratio", ["token", "sequence", "cispo"])
def test_loss_and_gradient_equal_a_reference_written_out(ratio: str, missing: tuple[int, ...]) -> None:
    tokens, current, old, reference = token_batch(missing=missing)
    entropy = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    settings = LossSettings(ratio=ratio, kl_coef=0.1, entropy_coef=0.01)
    loss, _ = policy_loss(settings, tokens, current, old, entropy, reference)
    (gradient,) = torch.autograd.grad(loss, current)

    kept = [t for t in range(6) if t not in missing]
    x = [value.detach().clone().requires_grad_() for value in current]
    expected = torch.zeros((), dtype=torch.float64)
    for t in kept:
        span = [s for s in kept if (s < 4) == (t < 4)]
        mean = sum(x[s] - old[s] for s in span) / len(span)
        rho = torch.exp(mean if ratio == "sequence" else x[t] - old[t])
        clipped, a = rho.clamp(0.8, 1.28), tokens.advantages_N[t]
        term = -clipped.detach() * a * x[t] if ratio == "cispo" else torch.maximum(-a * rho, -a * clipped)
        weight = min(math.exp(old[t] - tokens.behaviour_N[t]), 2.0)
        expected = expected + term * weight / len(kept)
    for t in range(6):
        d = reference[t] - x[t]
        expected = expected + (0.1 * (torch.exp(d) - d - 1) - 0.01 * entropy[t]) / 6
    gradients = torch.autograd.grad(expected, x)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    assert torch.allclose(gradient, torch.stack(gradients), rtol=0, atol=1e-12)


def test_a_missing_behaviour_logprob_is_a_mask_and_never_a_zero() -> None:
    tokens, current, old, _ = token_batch(missing=(2,))
    loss, sums = policy_loss(LossSettings(), tokens, current, old, torch.zeros(6).double())
    (gradient,) = torch.autograd.grad(loss, current)
    assert gradient[2] == 0 and gradient.isfinite().all()  # B53: 0 * nan
    assert all(value.isfinite() for value in sums.values())
    gaps = [abs(old[t] - tokens.behaviour_N[t]).item() for t in range(6) if t != 2]
    assert sums["gap_mean"].item() == pytest.approx(sum(gaps))
    assert sums["gap_max"].item() == pytest.approx(max(gaps))


def test_an_absurd_ratio_gives_no_nan() -> None:
    tokens, current, old, _ = token_batch()
    far = (current.detach() + 1000.0).float().requires_grad_()
    zero = TokenBatch(**{**vars(tokens), "advantages_N": torch.zeros(6)})
    loss, _ = policy_loss(LossSettings(), zero, far, old.float(), torch.zeros(6))
    assert loss.item() == 0.0


def test_metrics_count_where_the_clip_stops_the_gradient() -> None:
    tokens, _, old, _ = token_batch()
    current = old + torch.tensor([0.5, -0.5, 0.1, 0.0, 0.5, -0.5]).double()  # advantages: 4 times 0.7, 2 times -1.3
    current.requires_grad_()
    loss, sums = policy_loss(LossSettings(), tokens, current, old, torch.zeros(6).double())
    (gradient,) = torch.autograd.grad(loss, current)
    assert sums["clip_share"].item() == int((gradient == 0).sum()) == 2
    _, outside = policy_loss(LossSettings(ratio="cispo"), tokens, current, old, torch.zeros(6).double())
    assert outside["clip_share"].item() == 4


def test_settings_follow_the_preset() -> None:
    settings = LossSettings.of(load_config(None, ["algorithm.preset=gspo", "model.max_length=512"]))
    assert (settings.ratio, settings.aggregation, settings.max_length) == ("sequence", "sample_mean", 512)
    assert settings.clip_high == pytest.approx(4e-4)
