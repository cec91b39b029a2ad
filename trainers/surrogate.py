"""The clipped surrogate that the RL term and distillation are both made with."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp of more than 88 is inf in float32, and 0 * inf is nan


def clipped_surrogate(
    advantages_N: Tensor, log_ratio_N: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.28
) -> Tensor:
    """max(-A rho, -A clip(rho, 1 - low, 1 + high)) per token, rho = exp(log_ratio) (PPO, 1707.06347, eq. 7)."""
    ratio_N = torch.exp(log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return torch.maximum(-advantages_N * ratio_N, -advantages_N * clipped_N)
