"""Micro-batches: the layout may not change a single gradient, and every token keeps its own advantage."""

import math
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentgym.errors import UsageError
from agentgym.trainers.batch import MicroBatch, plan, split_updates
from agentgym.trainers.head import TokenScorer
from agentgym.trainers.loss import LossSettings, policy_loss
from agentgym.types import ScoredSample
from tests.trainers.conftest import make_sample, reference_gradient


def gradient(tiny: Path, batches: list[MicroBatch], dtype: torch.dtype, ratio: str = "token") -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=dtype, attn_implementation="sdpa")
    scorer = TokenScorer(model, bf16=False)
    for batch in batches:
        logprob, entropy = scorer(*batch.inputs)
        loss, _ = policy_loss(LossSettings(ratio=ratio), batch.tokens, logprob, logprob.detach(), entropy)
        loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in scorer.parameters()])


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(torch.linalg.norm(found.double() - expected.double()) / torch.linalg.norm(expected.double()))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("budget", [32, 100, 4096])
def test_gradient_equals_a_plain_reference(tiny: Path, batch: list[ScoredSample], budget: int, share: bool) -> None:
    expected = reference_gradient(tiny, batch)
    batches = plan(batch, micro_batch_tokens=budget, share_prefixes=share)
    assert distance(gradient(tiny, batches, torch.float64), expected) <= 1e-6
    assert distance(gradient(tiny, batches, torch.float32), expected) <= 1e-5


@pytest.mark.parametrize("ratio", ["token", "sequence", "cispo"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean", "sum_over_max_length"])
def test_gradient_does_not_depend_on_the_layout(
    tiny: Path, batch: list[ScoredSample], aggregation: str, ratio: str
) -> None:
    layouts = [(4096, 1, False), (32, 1, False), (64, 3, True), (4096, 2, True)]  # budget, ranks, sharing
    found = [
        gradient(
            tiny,
            plan(batch, micro_batch_tokens=budget, world=world, aggregation=aggregation, share_prefixes=share),
            torch.float32,
            ratio,
        )
        for budget, world, share in layouts
    ]
    assert all(distance(other, found[0]) <= 1e-5 for other in found[1:])


def test_prompts_are_shared_where_that_saves_tokens(batch: list[ScoredSample]) -> None:
    shared = plan(batch, micro_batch_tokens=4096)
    apart = plan(batch, micro_batch_tokens=4096, share_prefixes=False)
    assert shared[0].mask_B1TT is not None and apart[0].mask_B1TT is None
    assert sum(b.ids_BT.numel() for b in shared) < sum(b.ids_BT.numel() for b in apart)
    assert sum(len(b.target_N) for b in shared) == sum(len(b.target_N) for b in apart)


def test_a_branch_sees_the_prefix_and_itself() -> None:
    samples = [ScoredSample(sample=make_sample(i, 0, 3, (2,)), advantages=(1.0,)) for i in range(2)]
    (made,) = plan(samples, micro_batch_tokens=64)
    assert made.position_BT.tolist() == [[0, 1, 2, 3, 4, 3, 4]]
    seen = (made.mask_B1TT[0, 0] == 0).int().tolist()
    assert seen[4] == [1, 1, 1, 1, 1, 0, 0]
    assert seen[6] == [1, 1, 1, 0, 0, 1, 1]
    assert made.source_N.tolist() == [2, 3, 2, 5]


@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-5), (True, 0.05)])
def test_what_comes_later_cannot_change_an_earlier_logprob(tiny: Path, bf16: bool, tolerance: float) -> None:
    """Packed rows contaminate silently: other branches and padding must not be seen."""
    scorer = TokenScorer(AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32), bf16=bf16)

    def first_logprobs(other: int, longer: int) -> torch.Tensor:
        samples = [make_sample(0, 0, 10, (5,)), make_sample(other, 0, 10, (5,)), make_sample(9, 7, 10, (longer,))]
        scored = [ScoredSample(sample=sample, advantages=(1.0,)) for sample in samples]
        (made,) = plan(scored, micro_batch_tokens=4096)
        assert made.mask_B1TT is not None
        return scorer(*made.inputs)[0][made.sample_N == 0]

    assert torch.allclose(first_logprobs(1, 5), first_logprobs(2, 5), atol=1e-6)
    assert torch.allclose(first_logprobs(1, 5), first_logprobs(2, 40), atol=tolerance)
    (alone,) = plan([ScoredSample(sample=make_sample(0, 0, 10, (5,)), advantages=(1.0,))], micro_batch_tokens=64)
    assert torch.allclose(first_logprobs(1, 5), scorer(*alone.inputs)[0], atol=tolerance)


def test_each_turn_gets_its_own_advantage() -> None:  # B54
    sample = make_sample(0, 0, 4, (2, 1, 3))
    (made,) = plan([ScoredSample(sample=sample, advantages=(0.1, 0.2, 0.3))], micro_batch_tokens=64)
    assert made.tokens.advantages_N.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.3, 0.3])
    assert made.tokens.span_N.tolist() == [0, 0, 1, 2, 2, 2]
    trained = [token for token, kept in zip(sample.ids, sample.mask, strict=True) if kept]
    assert made.target_N.tolist() == trained


def test_micro_batches_keep_to_the_budget_and_ranks_in_step(batch: list[ScoredSample]) -> None:
    made = plan(batch, micro_batch_tokens=40, world=4)
    assert len(made) % 4 == 0
    assert all(b.ids_BT.numel() <= 40 for b in made)
    owners = [index for b in made for index in b.sample_N[b.tokens.weight_N > 0].tolist()]
    trained = {index: sum(scored.sample.mask) for index, scored in enumerate(batch) if any(scored.sample.mask)}
    assert {index: owners.count(index) for index in set(owners)} == trained


def test_weights_count_the_same_tokens_above_and_below_the_line(batch: list[ScoredSample]) -> None:  # B52
    made = plan(batch, micro_batch_tokens=64)
    assert sum(float(b.tokens.weight_N.sum()) for b in made) == pytest.approx(1.0)
    assert sum(float(b.tokens.rl_weight_N[b.tokens.rl_mask_N].sum()) for b in made) == pytest.approx(1.0)
    missing = [b.tokens.behaviour_N[~b.tokens.rl_mask_N] for b in made]
    assert sum(len(values) for values in missing) == 1 and all(math.isnan(v) for vs in missing for v in vs.tolist())


def test_nothing_to_train_on_makes_no_micro_batch(batch: list[ScoredSample]) -> None:
    assert plan([batch[-1]], micro_batch_tokens=64, world=2) == []
    assert plan([], micro_batch_tokens=64) == []


def test_blank_learns_nothing_and_counts_nothing(batch: list[ScoredSample]) -> None:
    blank = plan(batch, micro_batch_tokens=4096)[0].blank()
    logprob = torch.full((len(blank.target_N),), -1.0, requires_grad=True)
    settings = LossSettings(kl_coef=0.1, entropy_coef=0.1)
    nan = torch.full_like(logprob, math.nan)  # B53: whatever stands there must not leak
    loss, sums = policy_loss(settings, blank.tokens, logprob, logprob.detach(), nan.detach(), nan.detach())
    (found,) = torch.autograd.grad(loss, logprob)
    assert loss.item() == 0.0 and not found.any()
    assert all(value.item() == 0.0 for value in sums.values())


def test_updates_share_out_every_group(batch: list[ScoredSample]) -> None:
    parts = split_updates(batch, 2)
    assert sorted(scored.sample.id for part in parts for scored in part) == sorted(s.sample.id for s in batch)
    assert {scored.sample.group_id for scored in parts[0]} == {scored.sample.group_id for scored in parts[1]}
    assert len(split_updates(batch[:1], 3)) == 1


def test_a_token_without_context_or_span_is_refused() -> None:
    sample = make_sample(0, 0, 2, (2,))
    first = msgspec.structs.replace(sample, mask=(1, 0, 1, 1), logprobs=(-1.0, None, -1.0, -1.0))
    with pytest.raises(UsageError, match="first token"):
        plan([ScoredSample(sample=first, advantages=(1.0,))], micro_batch_tokens=64)
    stray = msgspec.structs.replace(sample, mask=(0, 1, 1, 1))
    with pytest.raises(UsageError, match="no span"):
        plan([ScoredSample(sample=stray, advantages=(1.0,))], micro_batch_tokens=64)
