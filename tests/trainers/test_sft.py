"""The order and number of supervised steps, and their loss."""

import pytest
import torch

from agentgym.trainers.batch import plan, unscored
from agentgym.trainers.sft import cross_entropy, supervised
from agentgym.types import ScoredSample
from tests.trainers.conftest import make_sample


def test_every_demonstration_once_per_epoch_in_an_order_that_the_seed_fixes() -> None:
    samples = [make_sample(name, name, 3, (2,)) for name in range(7)]

    def run(seed: int) -> tuple[list[list[str]], dict[str, float], list[tuple[int, int]]]:
        seen: list[list[str]] = []
        told: list[tuple[int, int]] = []

        def update(batch: list[ScoredSample]) -> float:
            seen.append([scored.sample.id for scored in batch])
            return 1.0 / len(seen)

        metrics = supervised(
            samples, update, batch_size=3, epochs=2, seed=seed, progress=lambda done, total: told.append((done, total))
        )
        return seen, metrics, told

    seen, metrics, told = run(1)
    assert [len(batch) for batch in seen] == [3, 3, 1, 3, 3, 1]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(name for batch in epoch for name in batch) == sorted(sample.id for sample in samples)
    assert seen[:3] != seen[3:] and run(1)[0] == seen and run(2)[0] != seen
    assert told == [(done, 6) for done in range(1, 7)]
    assert metrics == {"sft_steps": 6.0, "sft_loss_first": 1.0, "sft_loss_last": pytest.approx(1 / 6)}


def test_cross_entropy_is_the_mean_over_the_tokens_of_the_whole_batch() -> None:
    samples = [unscored(make_sample(name, name, 3, (length,))) for name, length in enumerate((2, 6))]
    batches = plan(samples, micro_batch_tokens=9)
    assert len(batches) == 2
    total = sum(cross_entropy(batch, -batch.target_N.float()) for batch in batches)
    targets = [float(token) for scored in samples for token in scored.sample.ids[3:]]
    assert float(torch.as_tensor(total)) == pytest.approx(sum(targets) / len(targets))
