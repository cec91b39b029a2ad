"""Log-probs of given tokens from hidden states, without ever holding the logits of a whole batch.

Only the N trained positions reach the head, and those in chunks: forward keeps two numbers per token, backward
computes each chunk's logits again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agentgym.errors import UsageError

CHUNK_LOGITS = 2**24  # logits at once: 64 MiB in float32
RESCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # heads that do more than a matrix product


class TokenLogprobs(torch.autograd.Function):
    """Log-probs and entropies (both N, float32) of `target_N` under softmax(hidden @ weight.T).

    Matrix products run in `dtype`, the softmax in float32 (float64 if `dtype` is). With z = hidden @ weight.T,
    d logprob / dz = onehot - p and d entropy / dz = -p (log p + entropy).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Chunk by chunk; keeps two numbers per token beside its inputs."""
        wide = torch.promote_types(dtype, torch.float32)
        hidden, weight = hidden_ND.to(dtype), weight_VD.to(dtype)
        logprob_N, entropy_N, normaliser_N = (hidden.new_empty(len(hidden), dtype=wide) for _ in range(3))
        for part in _chunks(len(hidden), len(weight)):
            logits = (hidden[part] @ weight.T).to(wide)
            p = torch.softmax(logits, -1)
            highest = logits.max(-1, keepdim=True)  # the likeliest token's p cannot underflow
            normaliser_N[part] = (highest.values - p.gather(-1, highest.indices).log())[:, 0]
            logprob_N[part] = logits.gather(-1, target_N[part, None])[:, 0] - normaliser_N[part]
            entropy_N[part] = normaliser_N[part] - torch.linalg.vecdot(p, logits)
        ctx.save_for_backward(hidden, weight, target_N, normaliser_N, entropy_N)
        ctx.dtypes = (hidden_ND.dtype, weight_VD.dtype)
        ctx.set_materialize_grads(False)
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        """Computes each chunk's logits again."""
        hidden, weight, target_N, normaliser_N, entropy_N = ctx.saved_tensors
        of_logprob_N, of_entropy_N = grads
        if of_logprob_N is None:
            of_logprob_N = torch.zeros_like(normaliser_N)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=ctx.dtypes[1])
        for part in _chunks(len(hidden), len(weight)):
            logits = (hidden[part] @ weight.T).to(normaliser_N.dtype)
            grad_logits = torch.softmax(logits, -1)
            scale = of_logprob_N[part, None]
            if of_entropy_N is None:
                grad_logits.mul_(-scale)
            else:
                log_p = logits.sub_(normaliser_N[part, None])
                grad_logits.mul_(log_p.add_(entropy_N[part, None]).mul_(-of_entropy_N[part, None]).sub_(scale))
            grad_logits.scatter_add_(-1, target_N[part, None], scale)
            narrow = grad_logits.to(hidden.dtype)
            grad_hidden[part] = narrow @ weight
            grad_weight += narrow.T @ hidden[part]
        return grad_hidden.to(ctx.dtypes[0]), grad_weight, None, None


def _chunks(n: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_LOGITS // vocabulary)
    return [slice(start, start + size) for start in range(0, n, size)]


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, temperature_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, both with gradients, at a temperature per token.

    Under autocast the matrix products take autocast's type, as a linear layer's would.
    """
    device = hidden_ND.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
    cooled_ND = hidden_ND / temperature_N[:, None]  # the same as dividing the logits, and V / D times cheaper
    found: tuple[Tensor, Tensor] = TokenLogprobs.apply(cooled_ND, weight_VD, target_N, dtype)
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
