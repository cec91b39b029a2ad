"""Log-probs of given tokens from hidden states, without ever holding the logits of a whole batch.

Only the N trained positions reach the head, and the vocabulary V is taken in chunks: forward keeps two numbers per
token, backward computes each chunk's logits again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agentgym.errors import UsageError

CHUNK_LOGITS = 2**22  # logits at once: 16 MiB in float32, which caches hold
MIN_CHUNK = 1024  # columns: less is slow
RESCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # heads that do more than a matrix product


class TokenLogprobs(torch.autograd.Function):
    """Log-probs and entropies (both N, float32) of `target_N` under softmax(hidden @ weight.T).

    Matrix products run in the type of `hidden` and `weight`, all else in float32 (float64 if they are). With
    z = hidden @ weight.T, d logprob / dz = onehot - p and d entropy / dz = -p (log p + entropy).
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        """Chunk by chunk: the running maximum of z, sum of e = exp(z - maximum) and sum of e (z - maximum)."""
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        chosen_N, sum_N, weighted_N = (hidden_ND.new_zeros(len(hidden_ND), dtype=wide) for _ in range(3))
        highest_N = torch.full_like(sum_N, torch.finfo(wide).min)
        for part in _chunks(len(hidden_ND), len(weight_VD)):
            z = (hidden_ND @ weight_VD[part].T).to(wide)
            rows, columns = _within(target_N, part)
            chosen_N[rows] = z[rows, columns]
            before_N, highest_N = highest_N, torch.maximum(highest_N, z.amax(-1))
            shift_N = before_N - highest_N
            e = torch.exp(z.sub_(highest_N[:, None]))
            shrink_N = torch.exp(shift_N)
            weighted_N = shrink_N * (weighted_N + torch.where(sum_N > 0, shift_N * sum_N, 0.0)) + z.mul_(e).sum(-1)
            sum_N = shrink_N * sum_N + e.sum(-1)
        normaliser_N = highest_N + sum_N.log()
        entropy_N = sum_N.log() - weighted_N / sum_N
        ctx.save_for_backward(hidden_ND, weight_VD, target_N, normaliser_N, entropy_N)
        ctx.set_materialize_grads(False)
        return chosen_N - normaliser_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """Computes each chunk's logits again."""
        hidden_ND, weight_VD, target_N, normaliser_N, entropy_N = ctx.saved_tensors
        of_logprob_N, of_entropy_N = grads
        if of_logprob_N is None:
            of_logprob_N = torch.zeros_like(normaliser_N)
        grad_hidden = torch.zeros_like(hidden_ND, dtype=normaliser_N.dtype)
        grad_weight = torch.empty_like(weight_VD)
        for part in _chunks(len(hidden_ND), len(weight_VD)):
            z = (hidden_ND @ weight_VD[part].T).to(normaliser_N.dtype)
            log_p = z.sub_(normaliser_N[:, None])
            if of_entropy_N is None:
                grad_z = log_p.exp_().mul_(-of_logprob_N[:, None])
            else:
                p = log_p.exp()
                of_z = log_p.add_(entropy_N[:, None]).mul_(-of_entropy_N[:, None]).sub_(of_logprob_N[:, None])
                grad_z = of_z.mul_(p)
            rows, columns = _within(target_N, part)
            grad_z[rows, columns] += of_logprob_N[rows]
            narrow = grad_z.to(hidden_ND.dtype)
            grad_hidden += narrow @ weight_VD[part]
            torch.mm(narrow.T, hidden_ND, out=grad_weight[part])
        return grad_hidden.to(hidden_ND.dtype), grad_weight, None


def _chunks(n: int, vocabulary: int) -> list[slice]:
    size = max(MIN_CHUNK, CHUNK_LOGITS // max(1, n))
    return [slice(start, start + size) for start in range(0, vocabulary, size)]


def _within(target_N: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Which rows have their target in this part of the vocabulary, and where in it."""
    rows = ((target_N >= part.start) & (target_N < part.stop)).nonzero()[:, 0]
    return rows, target_N[rows] - part.start


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, temperature_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, both with gradients, at a temperature per token.

    Under autocast the matrix products take autocast's type, as a linear layer's would.
    """
    device = hidden_ND.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
    with torch.autocast(device, enabled=False):
        cooled_ND = hidden_ND / temperature_N[:, None]  # the same as dividing the logits, and V / D times cheaper
        found: tuple[Tensor, Tensor] = TokenLogprobs.apply(cooled_ND.to(dtype), weight_VD.to(dtype), target_N)
    return found


class TokenHead(nn.Module):
    """Takes the place of a model's `lm_head` and shares its weight.

    The work is done inside this module's forward so that ZeRO-3 gathers the weight for it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def forward(self, hidden_ND: Tensor, target_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
        """As `token_logprobs`."""
        return token_logprobs(hidden_ND, self.weight, target_N, temperature_N)


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
        target_N: Tensor,
        temperature_N: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The token `target_N` is predicted from position `source_N` of the flattened B x T."""
        if mask_B1TT is not None:  # attention misreads a mask of another type than its own
            mask_B1TT = mask_B1TT.to(torch.bfloat16 if self.bf16 else self.model.dtype)
        with torch.autocast(ids_BT.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            hidden_BTD = self.model.base_model(
                input_ids=ids_BT, position_ids=position_BT, attention_mask=mask_B1TT, use_cache=False
            ).last_hidden_state
            hidden_ND = hidden_BTD.flatten(0, 1)[source_N]
            logprob_N, entropy_N = self.model.lm_head(hidden_ND, target_N, temperature_N)
        return logprob_N, entropy_N
