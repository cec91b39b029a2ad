"""The RL loss, token by token: pure torch, no model, no batch layout.

Tensors are flat over the N trained tokens of a micro-batch. A reduction is a sum with weights that were computed from
the whole global batch (`sample_weights`), so that micro-batching, packing, gradient accumulation and ranks cannot
change a gradient. What is masked is selected away with `torch.where`, never multiplied by zero (0 * nan is nan).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.config import Config
from agentgym.trainers.opd import OpdTokens, opd_loss
from agentgym.trainers.surrogate import MAX_LOG_RATIO, clipped_surrogate


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What the loss depends on; the meaning of each field is documented in the config."""

    w_rl: float = 1.0
    w_opd: float = 0.0
    opd: str = "hybrid_topk"
    vocabulary: int = 0  # tokens; only `topk_kl` with all of them asks
    ratio: str = "token"
    aggregation: str = "token_mean"
    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float = 2.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    max_length: int = 1024  # tokens; only `sum_over_max_length` divides by it

    @classmethod
    def of(cls, config: Config, *, vocabulary: int = 0) -> LossSettings:
        """The settings that a config asks for."""
        algorithm = config.algorithm
        return cls(
            w_rl=algorithm.w_rl,
            w_opd=algorithm.w_opd,
            opd=algorithm.opd,
            vocabulary=vocabulary,
            ratio=algorithm.ratio,
            aggregation=algorithm.aggregation,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            importance_cap=algorithm.importance_cap,
            kl_coef=algorithm.kl_coef,
            entropy_coef=algorithm.entropy_coef,
            max_length=config.model.max_length,
        )


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """What the loss needs to know of the N trained tokens of a micro-batch, besides the model's log-probs.

    `rl_mask_N` is false where there is no advantage or no behaviour log-prob; `behaviour_N` is nan there, and `missing_N`
    says where only the log-prob is not there. `rl_weight_N` are the weights of the RL term, `opd_weight_N` those of the
    OPD term (0 where a token has none), `weight_N` those of KL and entropy; `span_N` numbers the response of a token.
    """

    target_N: Tensor  # the sampled ids
    advantages_N: Tensor
    behaviour_N: Tensor
    rl_mask_N: Tensor
    missing_N: Tensor
    rl_weight_N: Tensor
    weight_N: Tensor
    opd_weight_N: Tensor
    span_N: Tensor


def _token_mean(counts_B: Tensor, max_length: int) -> Tensor:
    return torch.ones_like(counts_B) / counts_B.sum()


def _sample_mean(counts_B: Tensor, max_length: int) -> Tensor:
    return 1.0 / (counts_B * (counts_B > 0).sum())


def _sum_over_max_length(counts_B: Tensor, max_length: int) -> Tensor:
    return torch.full_like(counts_B, 1.0 / (len(counts_B) * max_length))


# (trained tokens of each sample of the global batch, max_length) -> the weight of each of its tokens
AGGREGATIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "token_mean": _token_mean,
    "sample_mean": _sample_mean,
    "sum_over_max_length": _sum_over_max_length,
}


def sample_weights(counts_B: Tensor, aggregation: str, max_length: int) -> Tensor:
    """The weight of each token of each sample, from the number of trained tokens `counts_B` of the global batch.

    `token_mean` averages over tokens, `sample_mean` over samples of their means (a sample with no trained token leaves
    the denominator), `sum_over_max_length` divides sums by a constant length and the number of samples (2503.20783).
    An all-masked batch gives 0.
    """
    return torch.where(counts_B > 0, AGGREGATIONS[aggregation](counts_B.double(), max_length), 0.0)


def cispo(
    advantages_N: Tensor, log_ratio_N: Tensor, current_N: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.28
) -> Tensor:
    """-detach(clip(rho, 1 - low, 1 + high)) A log pi per token: a clipped token keeps its gradient (2506.13585)."""
    ratio_N = torch.exp(log_ratio_N.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return -ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_N * current_N


def sequence_log_ratio(log_ratio_N: Tensor, mask_N: Tensor, span_N: Tensor) -> Tensor:
    """The mean of the log-ratios over a token's response, the same for each of its tokens (GSPO, 2507.18071, eq. 7).

    Its exponential is the sequence ratio s; the gradient flows through the mean.
    """
    n_spans = int(span_N.max()) + 1 if span_N.numel() else 0
    zeros_S = log_ratio_N.new_zeros(n_spans)
    sums_S = zeros_S.index_add(0, span_N, torch.where(mask_N, log_ratio_N, 0.0))
    counts_S = zeros_S.index_add(0, span_N, mask_N.to(log_ratio_N.dtype))
    return (sums_S / counts_S.clamp(min=1.0))[span_N]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How a ratio is taken and clipped."""

    # (advantages, log-ratio, current log-probs, clip_low=, clip_high=) -> the loss of each token
    loss: Callable[..., Tensor]
    # (log-ratio of each token, mask, response that it is of) -> the log-ratio that counts
    log_ratio: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda log_ratio_N, mask_N, span_N: log_ratio_N
    keeps_gradient: bool = False  # of a clipped token


def _surrogate(advantages_N: Tensor, log_ratio_N: Tensor, _: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    return clipped_surrogate(advantages_N, log_ratio_N, clip_low=clip_low, clip_high=clip_high)


RATIOS = {
    "token": Ratio(loss=_surrogate),
    "sequence": Ratio(loss=_surrogate, log_ratio=sequence_log_ratio),
    "cispo": Ratio(loss=cispo, keeps_gradient=True),
}


def truncated_importance(old_N: Tensor, behaviour_N: Tensor, cap: float) -> Tensor:
    """min(exp(old - behaviour), cap) per token, detached; ones where `cap` is 0."""
    if cap == 0:
        return torch.ones_like(old_N)
    return torch.exp(old_N - behaviour_N).clamp(max=cap).detach()


def kl_k3(current_N: Tensor, reference_N: Tensor) -> Tensor:
    """exp(reference - current) - (reference - current) - 1 per token: KL(current || reference), never negative.

    Unbiased for tokens sampled from `current` (Schulman, "Approximating KL divergence", 2020).
    """
    difference_N = reference_N - current_N
    return torch.exp(difference_N) - difference_N - 1.0


def policy_loss(
    settings: LossSettings,
    tokens: TokenBatch,
    current_N: Tensor,
    old_N: Tensor,
    entropy_N: Tensor,
    reference_N: Tensor | None = None,
    opd: OpdTokens | None = None,
    opd_current_NK: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's part of the global loss, and sums over its tokens from which the metrics are made.

    loss = w_rl * RL + w_opd * OPD + kl_coef * KL(current || reference) - entropy_coef * H; RL and OPD are two losses,
    each with the weights of its own tokens. `old_N` has no gradient. `opd_current_NK` are the log-probs of `opd.ids_NK`.
    """
    mask_N = tokens.rl_mask_N
    behaviour_N = torch.where(mask_N, tokens.behaviour_N, old_N)
    ratio = RATIOS[settings.ratio]
    log_ratio_N = ratio.log_ratio(current_N - old_N, mask_N, tokens.span_N)
    rl_N = ratio.loss(
        tokens.advantages_N, log_ratio_N, current_N, clip_low=settings.clip_low, clip_high=settings.clip_high
    )
    importance_N = truncated_importance(old_N, behaviour_N, settings.importance_cap)
    rl_loss = (torch.where(mask_N, rl_N * importance_N, 0.0) * tokens.rl_weight_N).sum()
    loss = settings.w_rl * rl_loss
    sums = {"rl_loss": rl_loss.detach()}
    if opd is not None and opd_current_NK is not None:
        opd_N = opd_loss(settings.opd, opd, opd_current_NK, vocabulary=settings.vocabulary)
        distilled = (opd_N * tokens.opd_weight_N).sum()
        loss = loss + settings.w_opd * distilled
        sums |= {"opd_loss": distilled.detach()} | opd_sums(opd, tokens, opd_current_NK.detach())
    elif settings.w_opd:  # all ranks add up the same names
        sums |= dict.fromkeys(OPD_SUMS, current_N.new_zeros(()))
    trained_N = tokens.weight_N > 0  # false everywhere in a micro-batch that only keeps ranks in step
    if reference_N is not None:
        # selected before the arithmetic: a gradient through `where` would still meet 0 * nan behind it
        reference_N = torch.where(trained_N, reference_N, current_N.detach())
        loss = loss + settings.kl_coef * (kl_k3(current_N, reference_N) * tokens.weight_N).sum()
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * (torch.where(trained_N, entropy_N, 0.0) * tokens.weight_N).sum()

    with torch.no_grad():
        ratio_N = torch.exp(log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
        of_rl = {
            "clip_share": _clipped(tokens.advantages_N, ratio_N, settings).to(ratio_N.dtype),
            "ratio_mean": ratio_N,
            "approx_kl": kl_k3(old_N, current_N),
            "kl_behaviour": kl_k3(behaviour_N, current_N),
            "importance_mean": importance_N,
            "gap_mean": (old_N - behaviour_N).abs(),
        }
        sums |= {name: torch.where(mask_N, value_N, 0.0).sum() for name, value_N in of_rl.items()}
        sums["gap_max"] = torch.where(mask_N, of_rl["gap_mean"], 0.0).max()
        sums["entropy"] = torch.where(trained_N, entropy_N, 0.0).sum()
        if reference_N is not None:
            sums["kl_reference"] = kl_k3(current_N, reference_N).sum()
    return loss, sums


OPD_SUMS = (
    "opd_loss", "opd_tokens", "opd_masked", "opd_overlap", "opd_gap", "opd_sign_both", "opd_sign_agreement",
)  # fmt: skip


def opd_sums(opd: OpdTokens, tokens: TokenBatch, current_NK: Tensor) -> dict[str, Tensor]:
    """Sums over the positions with an OPD term, for the metrics; `opd_gap` is |teacher - old|, averaged over a support.

    Where nobody asked for `old` (`topk_kl`) it is |teacher - current|, the same before the first update.
    `opd_sign_agreement` counts where RL and OPD push the sampled token the same way, of those where both push it.
    """
    mask_NK, has_N = opd.mask_NK, tokens.opd_weight_N > 0
    mask_NK = mask_NK & has_N[:, None]
    term_N = mask_NK.any(-1)
    at_sampled_NK = mask_NK & (opd.ids_NK == tokens.target_N[:, None])
    pushes_N = torch.where(at_sampled_NK, opd.advantages_NK, 0.0).sum(-1)
    both_N = tokens.rl_mask_N & (pushes_N != 0) & (tokens.advantages_N != 0)
    old_NK = torch.where(opd.old_NK.isnan(), current_NK, opd.old_NK)
    gap_NK = torch.where(mask_NK, (opd.teacher_NK - old_NK).abs(), 0.0)
    return {
        "opd_tokens": term_N.sum(),
        "opd_masked": (has_N & ~term_N).sum(),
        "opd_overlap": torch.where(term_N, opd.overlap_N, 0.0).sum(),
        "opd_gap": (gap_NK.sum(-1) / mask_NK.sum(-1).clamp(min=1)).sum(),
        "opd_sign_both": both_N.sum(),
        "opd_sign_agreement": (both_N & (pushes_N * tokens.advantages_N > 0)).sum(),
    }


def _clipped(advantages_N: Tensor, ratio_N: Tensor, settings: LossSettings) -> Tensor:
    """Where the clip bites: wherever the ratio is outside if a clipped token keeps its gradient, else where it loses it."""
    above_N, below_N = ratio_N > 1.0 + settings.clip_high, ratio_N < 1.0 - settings.clip_low
    if RATIOS[settings.ratio].keeps_gradient:
        return above_N | below_N
    return (above_N & (advantages_N > 0)) | (below_N & (advantages_N < 0))
