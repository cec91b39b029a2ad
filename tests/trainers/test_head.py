"""Token log-probs without logits: equal to log_softmax with gradients, in every precision."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from agentgym.errors import UsageError
from agentgym.trainers import head
from agentgym.trainers.head import TokenScorer, token_logprobs

N, D, V = 37, 16, 101


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    target = torch.randint(V, (N,), generator=generator)
    return hidden, weight, target, torch.where(torch.arange(N) % 2 == 0, 1.0, 0.7)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("chunk", [7, V, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_equals_log_softmax_with_gradients(
    dtype: torch.dtype, tolerance: float, chunk: int, with_entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK_LOGITS", chunk * N)
    monkeypatch.setattr(head, "MIN_CHUNK", 1)
    hidden, weight, target, temperature = inputs(dtype)
    temperature = temperature.to(dtype)
    up = torch.linspace(-1, 1, N, dtype=dtype)

    logprob, entropy = token_logprobs(hidden, weight, target, temperature)
    loss = (logprob * up).sum() + (entropy * up.flip(0)).sum() * with_entropy
    found = torch.autograd.grad(loss if with_entropy else (logprob * up).sum(), [hidden, weight])

    full = torch.log_softmax(hidden @ weight.T / temperature[:, None], -1)
    expected_logprob, expected_entropy = full[torch.arange(N), target], -(full.exp() * full).sum(-1)
    expected_loss = (expected_logprob * up).sum() + (expected_entropy * up.flip(0)).sum() * with_entropy
    expected = torch.autograd.grad(expected_loss, [hidden, weight])
    assert torch.allclose(logprob, expected_logprob, atol=tolerance, rtol=tolerance)
    assert torch.allclose(entropy, expected_entropy, atol=tolerance, rtol=tolerance)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.linalg.norm(ours - theirs) <= tolerance * torch.linalg.norm(theirs)


def test_under_autocast_products_are_narrow_and_the_softmax_is_wide() -> None:
    hidden, weight, target, temperature = inputs(torch.float32)
    exact, _ = token_logprobs(hidden, weight, target, temperature)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprob, _ = token_logprobs(hidden, weight, target, temperature)
    gradients = torch.autograd.grad(logprob.sum(), [hidden, weight])
    assert logprob.dtype == torch.float32 and all(g.dtype == torch.float32 for g in gradients)
    assert 0 < (logprob - exact).abs().max() < 0.2


def test_an_unlikely_token_keeps_its_logprob() -> None:
    """Its probability underflows in float32; its log-prob must not become -inf."""
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [500.0]])
    logprob, entropy = token_logprobs(hidden, weight, torch.tensor([0]), torch.ones(1))
    assert logprob.item() == pytest.approx(-500.0)
    assert entropy.item() == pytest.approx(0.0)


def test_under_autocast_the_entropy_is_as_exact_as_float32() -> None:
    """Autocast would take the sums to bfloat16 too."""
    hidden, weight, target, _ = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, entropy = token_logprobs(hidden, weight, target, torch.ones(N))
    full = torch.log_softmax((hidden.bfloat16() @ weight.bfloat16().T).float(), -1)
    assert torch.allclose(entropy, -(full.exp() * full).sum(-1), atol=1e-5)


def test_the_scorer_equals_the_model(tiny: Path) -> None:
    ids = torch.arange(40).reshape(2, 20)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    expected = torch.log_softmax(model(ids).logits, -1)
    scorer = TokenScorer(model, bf16=False)
    sources = torch.tensor([3, 3, 18, 25])  # one position may predict several tokens
    targets = torch.tensor([7, 9, 19, 26])
    positions = torch.arange(20).expand(2, 20)
    logprob, _ = scorer(ids, positions, None, sources, targets, torch.ones(4))
    assert torch.allclose(logprob, expected.flatten(0, 1)[sources, targets], atol=1e-5)


def test_a_model_whose_logits_are_rescaled_is_refused() -> None:
    config = LlamaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    config.final_logit_softcapping = 30.0
    with pytest.raises(UsageError, match="final_logit_softcapping"):
        TokenScorer(LlamaForCausalLM(config), bf16=False)


@pytest.mark.parametrize("seed", range(40))
def test_the_likeliest_are_those_of_a_sort_by_value_and_id(seed: int) -> None:
    """Many are equal, some are minus infinity or no numbers, and there may be fewer than asked for."""
    generator = torch.Generator().manual_seed(seed)
    v, k = int(torch.randint(1, 30, (1,), generator=generator)), int(torch.randint(1, 8, (1,), generator=generator))
    values = torch.randint(-3, 4, (9, v), generator=generator).float()
    values[torch.rand(9, v, generator=generator) < 0.1] = -math.inf
    if seed % 3 == 0:
        values[torch.rand(9, v, generator=generator) < 0.2] = math.nan
    ids, top = head.top_k(torch.arange(v).expand(9, v), values, k)
    for row, (found, told) in enumerate(zip(ids.tolist(), top, strict=True)):
        keys = torch.where(values[row].isnan(), -math.inf, values[row]).tolist()
        assert found == sorted(range(v), key=lambda id: (-keys[id], id))[:k]
        assert torch.equal(told.nan_to_num(7.0), values[row, found].nan_to_num(7.0))


@pytest.mark.parametrize("chunk", [7, 30, 1000])
def test_the_likeliest_of_all_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "CHUNK_LOGITS", chunk * N)
    monkeypatch.setattr(head, "MIN_CHUNK", 1)
    hidden, weight, target, _ = inputs(torch.float64)
    hidden, weight = hidden.detach().round(), weight.detach().round()  # exact sums: equals are equal in any chunk
    temperature = torch.where(torch.arange(N) % 2 == 0, 1.0, 0.5)
    weight[50:60] = weight[20:30]
    full = torch.log_softmax(hidden @ weight.T / temperature[:, None].double(), -1)
    chosen, ids, top = head.top_logprobs(hidden, weight, target[:, None], temperature.double(), 9)
    assert torch.allclose(chosen[:, 0], full[torch.arange(N), target], atol=1e-12)
    for row in range(N):
        logits = (weight @ hidden[row]).tolist()
        assert ids[row].tolist() == sorted(range(V), key=lambda id: (-logits[id], id))[:9]
    assert torch.allclose(top, full.gather(1, ids), atol=1e-12)
