"""Log-probs of given tokens from hidden states, without ever holding the logits of a whole batch.

Only the N trained positions reach the head, and the vocabulary V is taken in chunks: forward keeps two numbers per
token, backward computes each chunk's logits again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agentgym.errors import UsageError

CHUNK_LOGITS = 2**22  # logits at once: 16 MiB in float32, which caches hold
MIN_CHUNK = 1024  # columns: less is slow
RESCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # heads that do more than a matrix product


class Scan(NamedTuple):
    """What one pass over the vocabulary finds for N positions."""

    chosen_NK: Tensor  # the logits of the targets
    normaliser_N: Tensor  # log of the sum of exp
    entropy_N: Tensor
    top_ids_NM: Tensor  # the M likeliest tokens, the likeliest first; of equals the lower id first
    top_NM: Tensor  # their logits


def scan(hidden_ND: Tensor, weight_VD: Tensor, targets_NK: Tensor, top: int = 0) -> Scan:
    """Chunk by chunk: the running maximum of z, sum of e = exp(z - maximum) and sum of e (z - maximum)."""
    wide = torch.promote_types(hidden_ND.dtype, torch.float32)
    chosen_NK = hidden_ND.new_zeros(targets_NK.shape, dtype=wide)
    sum_N, weighted_N = (hidden_ND.new_zeros(len(hidden_ND), dtype=wide) for _ in range(2))
    highest_N = torch.full_like(sum_N, torch.finfo(wide).min)
    best_ids, best = targets_NK.new_zeros(len(hidden_ND), 0), chosen_NK.new_zeros(len(hidden_ND), 0)
    for part in _chunks(len(hidden_ND), len(weight_VD)):
        z = (hidden_ND @ weight_VD[part].T).to(wide)
        rows, columns, tokens = _within(targets_NK, part)
        chosen_NK[rows, columns] = z[rows, tokens]
        if top:
            ids = torch.arange(part.start, part.start + z.shape[1], device=z.device).expand(len(z), -1)
            best_ids, best = top_k(torch.cat([best_ids, ids], 1), torch.cat([best, z], 1), top)
        before_N, highest_N = highest_N, torch.maximum(highest_N, z.amax(-1))
        shift_N = before_N - highest_N
        e = torch.exp(z.sub_(highest_N[:, None]))
        shrink_N = torch.exp(shift_N)
        weighted_N = shrink_N * (weighted_N + torch.where(sum_N > 0, shift_N * sum_N, 0.0)) + z.mul_(e).sum(-1)
        sum_N = shrink_N * sum_N + e.sum(-1)
    return Scan(chosen_NK, highest_N + sum_N.log(), sum_N.log() - weighted_N / sum_N, best_ids, best)


def top_k(ids_NV: Tensor, values_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ids and values of the `k` highest per row, falling; of equal ones the lower id. `ids_NV` rise in each row,
    or stand already in the order that is wanted of equals.

    `torch.topk` takes any of equals, and logits in bf16 are often equal: rows where the last one in has an equal outside
    are done again.
    """
    k = min(k, values_NV.shape[1])
    best, columns = values_NV.topk(min(k + 1, values_NV.shape[1]), -1)
    doubtful_N = best.isnan().any(-1) | (best[:, k - 1] == best[:, k:].amax(-1) if best.shape[1] > k else False)
    columns = columns[:, :k].contiguous()
    if doubtful_N.any():
        columns[doubtful_N] = _first_of_equals(values_NV[doubtful_N], k)
    ids, by_id = ids_NV.gather(1, columns).sort(-1)
    columns = columns.gather(1, by_id)
    falling = _without_nan(values_NV.gather(1, columns)).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, falling), values_NV.gather(1, columns.gather(1, falling))


def _first_of_equals(values_NV: Tensor, k: int) -> Tensor:
    """The columns of the `k` highest per row, of equal ones the first, nan as the lowest."""
    keys_NV = _without_nan(values_NV)
    threshold_N1 = keys_NV.topk(k, -1).values[:, -1:]
    above, equal = keys_NV > threshold_N1, keys_NV == threshold_N1
    kept = above | (equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    return kept.nonzero()[:, 1].view(len(values_NV), k)


def _without_nan(values: Tensor) -> Tensor:
    return values.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))


class TokenLogprobs(torch.autograd.Function):
    """Log-probs (N x K) of `targets_NK` and entropies (N) under softmax(hidden @ weight.T), float32.

    Matrix products run in the type of `hidden` and `weight`, all else in float32 (float64 if they are). With
    z = hidden @ weight.T, d logprob / dz = onehot - p and d entropy / dz = -p (log p + entropy).
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps two numbers per token."""
        found = scan(hidden_ND, weight_VD, targets_NK)
        ctx.save_for_backward(hidden_ND, weight_VD, targets_NK, found.normaliser_N, found.entropy_N)
        ctx.set_materialize_grads(False)
        return found.chosen_NK - found.normaliser_N[:, None], found.entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """Computes each chunk's logits again."""
        hidden_ND, weight_VD, targets_NK, normaliser_N, entropy_N = ctx.saved_tensors
        of_logprob_NK, of_entropy_N = grads
        if of_logprob_NK is None:
            of_logprob_NK = torch.zeros_like(targets_NK, dtype=normaliser_N.dtype)
        of_all_N = of_logprob_NK.sum(-1)
        grad_hidden = torch.zeros_like(hidden_ND, dtype=normaliser_N.dtype)
        grad_weight = torch.empty_like(weight_VD)
        for part in _chunks(len(hidden_ND), len(weight_VD)):
            z = (hidden_ND @ weight_VD[part].T).to(normaliser_N.dtype)
            log_p = z.sub_(normaliser_N[:, None])
            if of_entropy_N is None:
                grad_z = log_p.exp_().mul_(-of_all_N[:, None])
            else:
                p = log_p.exp()
                of_z = log_p.add_(entropy_N[:, None]).mul_(-of_entropy_N[:, None]).sub_(of_all_N[:, None])
                grad_z = of_z.mul_(p)
            rows, columns, tokens = _within(targets_NK, part)
            grad_z.index_put_((rows, tokens), of_logprob_NK[rows, columns], accumulate=True)
            narrow = grad_z.to(hidden_ND.dtype)
            grad_hidden += narrow @ weight_VD[part]
            torch.mm(narrow.T, hidden_ND, out=grad_weight[part])
        return grad_hidden.to(hidden_ND.dtype), grad_weight, None


def _chunks(n: int, vocabulary: int) -> list[slice]:
    size = max(MIN_CHUNK, CHUNK_LOGITS // max(1, n))
    return [slice(start, start + size) for start in range(0, vocabulary, size)]


def _within(targets_NK: Tensor, part: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows and columns have a target in this part of the vocabulary, and where in it."""
    rows, columns = ((targets_NK >= part.start) & (targets_NK < part.stop)).nonzero(as_tuple=True)
    return rows, columns, targets_NK[rows, columns] - part.start


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, targets: Tensor, temperature_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target (N, or N x K) and entropy of each distribution (N), with gradients, at a temperature each.

    Under autocast the matrix products take autocast's type, as a linear layer's would.
    """
    with _cooled(hidden_ND, weight_VD, temperature_N) as (hidden, weight):
        found: tuple[Tensor, Tensor] = TokenLogprobs.apply(hidden, weight, targets.view(len(targets), -1))
    return found[0].view(targets.shape), found[1]


@torch.no_grad()
def top_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, targets_NK: Tensor, temperature_N: Tensor, top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Without gradients: log-probs of the targets (N x K), and ids and log-probs (N x M) of the `top` likeliest."""
    with _cooled(hidden_ND, weight_VD, temperature_N) as (hidden, weight):
        found = scan(hidden, weight, targets_NK, top)
    normaliser_N1 = found.normaliser_N[:, None]
    return found.chosen_NK - normaliser_N1, found.top_ids_NM, found.top_NM - normaliser_N1


@contextmanager
def _cooled(hidden_ND: Tensor, weight_VD: Tensor, temperature_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Hidden states at their temperature, and the weight, in the type of the matrix products."""
    device = hidden_ND.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
    with torch.autocast(device, enabled=False):
        cooled_ND = hidden_ND / temperature_N[:, None]  # the same as dividing the logits, and V / D times cheaper
        yield cooled_ND.to(dtype), weight_VD.to(dtype)


class TokenHead(nn.Module):
    """Takes the place of a model's `lm_head` and shares its weight.

    The work is done inside this module's forward so that ZeRO-3 gathers the weight for it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def forward(self, hidden_ND: Tensor, targets: Tensor, temperature_N: Tensor, top: int = 0) -> tuple[Tensor, ...]:
        """As `token_logprobs`, or with `top` as `top_logprobs`."""
        if top:
            return top_logprobs(hidden_ND, self.weight, targets, temperature_N, top)
        return token_logprobs(hidden_ND, self.weight, targets, temperature_N)


class TokenScorer(nn.Module):
    """A causal language model as the engine runs it: sequences in, log-probs and entropies of chosen tokens out."""

    model: Any
    bf16: bool

    def __init__(self, model: Any, *, bf16: bool) -> None:
        super().__init__()
        head = model.get_output_embeddings()
        rescaled = [name for name in RESCALED if getattr(model.config, name, None) not in (None, 1, 1.0)]
        if rescaled or not isinstance(head, nn.Linear) or head.bias is not None or head is not model.lm_head:
            what = f"{rescaled[0]} in its config" if rescaled else "an output head that is no plain linear layer"
            raise UsageError(f"model.path: {type(model).__name__} has {what}: it cannot be trained")
        model.lm_head = TokenHead(head)
        self.model = model
        self.bf16 = bf16

    def forward(
        self,
        ids_BT: Tensor,
        position_BT: Tensor,
        mask_B1TT: Tensor | None,
        source_N: Tensor,
        targets: Tensor,
        temperature_N: Tensor,
        top: int = 0,
    ) -> tuple[Tensor, ...]:
        """The tokens `targets` (N, or N x K) are predicted from position `source_N` of the flattened B x T."""
        if mask_B1TT is not None:  # attention misreads a mask of another type than its own
            mask_B1TT = mask_B1TT.to(torch.bfloat16 if self.bf16 else self.model.dtype)
        with torch.autocast(ids_BT.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            hidden_BTD = self.model.base_model(
                input_ids=ids_BT, position_ids=position_BT, attention_mask=mask_B1TT, use_cache=False
            ).last_hidden_state
            hidden_ND = hidden_BTD.flatten(0, 1)[source_N]
            found: tuple[Tensor, ...] = self.model.lm_head(hidden_ND, targets, temperature_N, top)
        return found
