"""The real engine: its gradient, that it learns, its files, its exact resume; on one rank and on two."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym.errors import LearnerError, UsageError
from agentgym.trainers.process import LearnerProcess
from agentgym.types import ScoredSample
from tests.trainers.conftest import make_sample, reference_gradient, small_config

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(180)]

Start = Callable[..., Any]


@pytest.fixture
async def start(tiny: Path, tmp_path: Path) -> Any:
    """Start learners on the tiny model; they are closed at the end."""
    started: list[LearnerProcess] = []

    async def starter(*overrides: str, model: Path = tiny) -> LearnerProcess:
        learner = LearnerProcess(small_config(tiny, *overrides), model=model, folder=tmp_path)
        started.append(learner)
        await learner.start()
        return learner

    yield starter
    for learner in started:
        await learner.close()


def first_moment(engine: Path) -> torch.Tensor:
    """AdamW's exp_avg of all ranks (ZeRO 1 and 2 cut one flat vector into equal parts): 0.1 x the first gradient."""
    parts = sorted(engine.glob("state/*optim_states.pt"))
    states = [torch.load(part, weights_only=False)["optimizer_state_dict"]["base_optimizer_state"] for part in parts]
    states = [state.get("state", state) for state in states]
    return torch.cat([state[0]["exp_avg"].flatten() for state in states])


def weights(folder: Path) -> torch.Tensor:
    tensors = load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(torch.linalg.norm(found.double() - expected.double()) / torch.linalg.norm(expected.double()))


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


async def test_one_rank(start: Start, tiny: Path, batch: list[ScoredSample], tmp_path: Path) -> None:
    learner = await start("trainer.learning_rate=1e-2")
    samples = [scored.sample for scored in batch]

    before = await learner.logprobs(samples)
    assert [[value is not None for value in row] for row in before] == [[bool(m) for m in s.mask] for s in samples]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    sample = samples[3]
    expected = torch.log_softmax(model(torch.tensor([sample.ids])).logits[0] / sample.temperature, -1)
    for t, value in enumerate(before[3]):
        assert value is None or value == pytest.approx(expected[t - 1, sample.ids[t]].item(), abs=1e-4)

    metrics = await learner.step(batch)
    await learner.save(tmp_path / "first")
    gradient = first_moment(tmp_path / "first") * 10
    reference = reference_gradient(tiny, batch)
    assert distance(gradient[: len(reference)], reference) <= 1e-5
    assert metrics["grad_norm"] == pytest.approx(float(torch.linalg.norm(reference)), rel=1e-5)
    gaps = [
        abs(ours - theirs)
        for row, s in zip(before, samples, strict=True)
        for ours, theirs in zip(row, s.logprobs, strict=True)
        if ours is not None and theirs is not None
    ]
    assert metrics["gap_mean"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-5)
    assert metrics["gap_max"] == pytest.approx(max(gaps), abs=1e-4)
    n_trained = sum(sum(s.mask) for s in samples)
    assert metrics["tokens_trained"] == n_trained
    assert metrics["missing_logprob_share"] == pytest.approx(1 / n_trained)
    assert (metrics["clip_share"], metrics["ratio_mean"], metrics["updates"]) == (0.0, 1.0, 1.0)

    for _ in range(8):
        await learner.step(batch)
    after = await learner.logprobs(samples)
    moved = [
        sum((after[i][t] - before[i][t]) for t in range(span.start, span.end)) * advantage
        for i, scored in enumerate(batch[:-1])
        for span, advantage in zip(scored.sample.spans, scored.advantages, strict=True)
        if None not in (before[i][t] for t in range(span.start, span.end))
    ]
    assert sum(moved) > 0.5  # what was better than expected has become likelier, what was worse less likely

    await learner.publish(tmp_path / "published")
    await learner.publish(tmp_path / "published")  # in place of what is there
    AutoTokenizer.from_pretrained(tmp_path / "published")
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.float32)
    expected = torch.log_softmax(served(torch.tensor([sample.ids])).logits[0] / sample.temperature, -1)
    for t, value in enumerate(after[3]):
        assert value is None or value == pytest.approx(expected[t - 1, sample.ids[t]].item(), abs=1e-4)
    assert hidden(tmp_path) == []

    nan = msgspec.structs.replace(batch[1], advantages=(math.nan,))
    with pytest.raises(LearnerError, match=r"not finite.*learning_rate"):
        await learner.step([nan, *batch[2:]])
    await learner.publish(tmp_path / "unharmed")
    assert torch.equal(weights(tmp_path / "unharmed"), weights(tmp_path / "published"))
    assert math.isfinite((await learner.step(batch))["grad_norm"])

    assert (await learner.step([batch[-1]]))["updates"] == 0.0  # nothing to train on: no step at all
    with pytest.raises(UsageError, match="ranks=1"):
        (tmp_path / "first" / "layout.json").write_text('{"trainer.ranks": 2, "trainer.zero_stage": 1}')
        await learner.load(tmp_path / "first")


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_two_ranks_have_the_gradient_of_one(
    start: Start, tiny: Path, batch: list[ScoredSample], tmp_path: Path, stage: int
) -> None:
    learner = await start("trainer.ranks=2", f"trainer.zero_stage={stage}")
    samples = [scored.sample for scored in batch]
    assert [sum(v is not None for v in row) for row in await learner.logprobs(samples)] == [
        sum(s.mask) for s in samples
    ]
    await learner.step(batch)
    await learner.save(tmp_path / "engine")
    reference = reference_gradient(tiny, batch)
    assert distance(first_moment(tmp_path / "engine")[: len(reference)] * 10, reference) <= 1e-5


async def test_stage_three_on_two_ranks_with_a_reference_resumes_exactly(
    start: Start, batch: list[ScoredSample], tmp_path: Path
) -> None:
    settings = ("trainer.ranks=2", "trainer.zero_stage=3", "algorithm.kl_coef=0.1", "trainer.updates_per_batch=2")
    learner = await start(*settings)
    await learner.sft([scored.sample for scored in batch], batch_size=4, learning_rate=1e-3)
    metrics = await learner.step(batch)
    assert metrics["updates"] == 2.0 and metrics["approx_kl"] > 0.0
    await learner.save(tmp_path / "engine")
    expected = await learner.step(batch)
    assert expected["kl_reference"] > 0.0
    await learner.publish(tmp_path / "straight")
    await learner.close()

    again = await start(*settings)
    await again.load(tmp_path / "engine")
    found = await again.step(batch)
    await again.publish(tmp_path / "resumed")
    assert torch.equal(weights(tmp_path / "resumed"), weights(tmp_path / "straight"))
    for name in ("loss", "kl_reference", "grad_norm", "learning_rate"):
        assert found[name] == expected[name]


async def test_warm_start_then_a_fresh_optimiser_and_an_exact_resume(
    start: Start, tiny: Path, batch: list[ScoredSample], tmp_path: Path
) -> None:
    settings = ("trainer.warmup_steps=4", "trainer.learning_rate=1e-3")
    learner = await start(*settings)
    samples = [make_sample(name, name, 6, (8,)) for name in range(8)]
    told: list[tuple[int, int]] = []
    metrics = await learner.sft(
        samples, batch_size=4, epochs=20, learning_rate=5e-3, progress=lambda done, total: told.append((done, total))
    )
    assert metrics["sft_loss_last"] < metrics["sft_loss_first"] - 1.0
    assert told == [(done, 40) for done in range(1, 41)]

    await learner.publish(tmp_path / "warm")
    first = await learner.step(batch)
    assert first["learning_rate"] == pytest.approx(1e-3 / 4)  # the warm-up counts RL's own steps
    await learner.save(tmp_path / "engine")
    gradient = first_moment(tmp_path / "engine") * 10  # nothing of the demonstrations' momentum is in it
    reference = reference_gradient(tmp_path / "warm", batch)
    assert distance(gradient[: len(reference)], reference) <= 1e-5

    second = await learner.step(batch)
    await learner.publish(tmp_path / "straight")
    await learner.close()
    again = await start(*settings, model=tmp_path / "warm")
    shutil.rmtree(tmp_path / "warm")  # as a checkpoint that is pruned while the run goes on
    await again.load(tmp_path / "engine")
    resumed = await again.step(batch)
    await again.publish(tmp_path / "resumed")
    assert torch.equal(weights(tmp_path / "resumed"), weights(tmp_path / "straight"))
    AutoTokenizer.from_pretrained(tmp_path / "resumed")
    assert resumed["loss"] == second["loss"] and resumed["learning_rate"] == second["learning_rate"]
