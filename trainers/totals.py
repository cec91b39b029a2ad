"""Metrics of a training step: sums over micro-batches and ranks, made into means."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from agentgym.trainers.batch import MicroBatch

LOSSES = ("loss", "rl_loss", "opd_loss")  # per update
COUNTS = ("opd_tokens", "opd_masked")


class Totals:
    """Sums over the micro-batches of a step, made into means over all ranks at its end."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.gap_max = 0.0

    def add(self, batch: MicroBatch, loss: Tensor, sums: dict[str, Tensor]) -> None:
        """Count one micro-batch."""
        found = {name: value.item() for name, value in sums.items()}
        self.gap_max = max(self.gap_max, found.pop("gap_max", 0.0))
        found["loss"] = loss.item()
        found["tokens_trained"] = int((batch.tokens.weight_N > 0).sum())
        found["tokens_rl"] = int(batch.tokens.rl_mask_N.sum())
        found["missing_logprob_share"] = int(batch.tokens.missing_N.sum())
        for name, value in found.items():
            self.sums[name] += value

    def metrics(self, device: torch.device, *, updates: int) -> dict[str, float]:
        """Means per token, the loss per update, and counts."""
        names = sorted(self.sums)
        values = torch.tensor([self.sums[name] for name in names], dtype=torch.float64, device=device)
        highest = torch.tensor(self.gap_max, dtype=torch.float64, device=device)
        dist.all_reduce(values)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        found = dict(zip(names, values.tolist(), strict=True))
        n_trained, n_rl = found.pop("tokens_trained", 0.0), found.pop("tokens_rl", 0.0)
        counts = {name: found.pop(name) for name in COUNTS if name in found}
        over = dict.fromkeys(LOSSES, float(updates)) | {
            "entropy": n_trained,
            "kl_reference": n_trained,
            "missing_logprob_share": n_trained,
            "opd_overlap": counts.get("opd_tokens", 0.0),
            "opd_gap": counts.get("opd_tokens", 0.0),
            "opd_sign_agreement": found.pop("opd_sign_both", 0.0),
        }
        means = {name: value / max(1.0, over.get(name, n_rl)) for name, value in found.items()}
        return {**means, "gap_max": highest.item(), "tokens_trained": n_trained, **counts}
