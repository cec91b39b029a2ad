"""The supervised warm start: cross-entropy on the trained tokens of demonstrations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentgym.trainers.batch import MicroBatch, unscored
from agentgym.types import Sample, ScoredSample

Update = Callable[[Sequence[ScoredSample]], float]  # one optimiser step on a batch; returns its loss
Progress = Callable[[int, int], None]  # optimiser steps done, and to do


def supervised(
    samples: Sequence[Sample], update: Update, *, batch_size: int, epochs: int, seed: int, progress: Progress
) -> dict[str, float]:
    """Pass `epochs` times over the samples in an order that `seed` fixes; one optimiser step per batch.

    Returns:
        The number of steps and the mean loss per token of the first and the last of them.
    """
    chosen = [unscored(sample) for sample in samples if any(sample.mask)]
    shuffler = random.Random(seed)
    batches = [
        [chosen[index] for index in order[start : start + batch_size]]
        for order in (shuffler.sample(range(len(chosen)), len(chosen)) for _ in range(epochs))
        for start in range(0, len(chosen), batch_size)
    ]
    losses = []
    for batch in batches:
        losses.append(update(batch))
        progress(len(losses), len(batches))
    if not losses:
        return {"sft_steps": 0.0}
    return {"sft_steps": float(len(losses)), "sft_loss_first": losses[0], "sft_loss_last": losses[-1]}


def cross_entropy(batch: MicroBatch, logprob_N: Tensor) -> Tensor:
    """This micro-batch's part of the mean negative log-prob over the trained tokens of the whole batch."""
    weight_N = batch.tokens.weight_N
    return -(torch.where(weight_N > 0, logprob_N, 0.0) * weight_N).sum()
