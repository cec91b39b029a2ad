"""A tiny model and samples to train it on."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from agentgym.config import Config, load_config
from agentgym.models import resolve_model
from agentgym.types import Sample, ScoredSample, TokenSpan

VOCABULARY = 256


@pytest.fixture(scope="session")
def tiny() -> Path:
    return resolve_model("tiny")


def make_sample(
    name: int, group: int, prompt: int, responses: Sequence[int], *, gap: int = 3, temperature: float = 1.0
) -> Sample:
    """A sample whose first `prompt` ids are its group's, then responses with `gap` ids of the world in between."""
    shared, own = random.Random(group), random.Random(1000 + name)
    ids = [shared.randrange(VOCABULARY) for _ in range(prompt)]
    mask, spans = [0] * prompt, []
    for turn, length in enumerate(responses):
        begin = len(ids) + (gap if turn else 0)
        ids += [own.randrange(VOCABULARY) for _ in range(begin + length - len(ids))]
        mask += [0] * (begin - len(mask)) + [1] * length
        spans.append(TokenSpan(turn=turn, start=begin, end=begin + length))
    return Sample(
        id=f"t{name}/0",
        trajectory_id=f"t{name}",
        group_id=f"g{group}",
        ids=tuple(ids),
        mask=tuple(mask),
        logprobs=tuple(-5.5 - own.random() if kept else None for kept in mask),
        versions=tuple(0 if kept else -1 for kept in mask),
        spans=tuple(spans),
        temperature=temperature,
    )


@pytest.fixture(scope="session")
def batch() -> list[ScoredSample]:
    """Three groups of several shapes: two turns, two temperatures, a missing log-prob, a sample with nothing to train."""
    shapes = [
        (0, 12, (5,)),
        (0, 12, (9,)),
        (0, 12, (4, 6)),
        (1, 20, (3,)),
        (1, 20, (8,)),
        (2, 7, (2, 3, 4)),
        (2, 7, (6,)),
    ]
    samples = [
        make_sample(name, group, prompt, responses, temperature=0.7 if group == 1 else 1.0)
        for name, (group, prompt, responses) in enumerate(shapes)
    ]
    first = samples[0]
    holes = (*first.logprobs[:14], None, *first.logprobs[15:])
    samples[0] = Sample(**{**{name: getattr(first, name) for name in first.__struct_fields__}, "logprobs": holes})
    last = samples[-1]
    samples[-1] = Sample(
        **{**{name: getattr(last, name) for name in last.__struct_fields__}, "mask": (0,) * len(last.ids)}
    )
    advantages = random.Random(5)
    return [
        ScoredSample(sample=sample, advantages=tuple(advantages.uniform(-1, 1) for _ in sample.spans))
        for sample in samples
    ]


def small_config(tiny: Path, *overrides: str) -> Config:
    """fp32, short sequences, micro-batches that hold only a few of them, no gradient clipping."""
    fixed = [
        f"model.path={tiny}", "model.max_length=64", "rollout.max_tokens=32", "trainer.micro_batch_tokens=64",
        "trainer.precision=fp32", "trainer.max_grad_norm=1e9", "engine.dtype=float32", "trainer.step_timeout_s=150",
    ]  # fmt: skip
    return load_config(None, [*fixed, *overrides])


def reference_gradient(tiny: Path, batch: Sequence[ScoredSample], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The gradient of the token-mean loss, sample by sample with the whole logits, flattened in the model's order."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=dtype, attn_implementation="eager")
    total = torch.zeros((), dtype=dtype)
    n = 0
    for scored in batch:
        sample = scored.sample
        logits = model(torch.tensor([sample.ids])).logits[0] / sample.temperature
        logprobs = torch.log_softmax(logits, -1)
        for span, advantage in zip(sample.spans, scored.advantages, strict=True):
            for t in range(span.start, span.end):
                behaviour = sample.logprobs[t]
                if sample.mask[t] and behaviour is not None:
                    current = logprobs[t - 1, sample.ids[t]]
                    importance = torch.exp(current.detach() - behaviour).clamp(max=2.0)
                    total = total - advantage * importance * torch.exp(current - current.detach())
                    n += 1
    gradients = torch.autograd.grad(total / n, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])
