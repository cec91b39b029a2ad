"""The main job on real parts: a tiny model, the real trainer, the real engine."""

import asyncio
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from agentgym.config import Config, load_config
from agentgym.metrics import read_metrics
from agentgym.pipeline import Pipeline
from agentgym.run import Run
from agentgym.store import Store
from agentgym.trainers.audit import audit
from tests.letters import SMALL, register

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(300)]

TWELVE = ["trainer.steps=12", "trainer.checkpoint_every=4"]


@pytest.fixture(autouse=True)
def letters():
    register()


def small(folder: Path, *overrides: str) -> Config:
    return load_config(None, [*SMALL, *TWELVE, f"dir={folder}", *overrides])


def go(run: Run) -> dict:
    try:
        return asyncio.run(Pipeline(run, lambda what, done, total, remark="": None).go())
    finally:
        run.close()


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def finished(request, tmp_path_factory):
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    register()
    run = Run.create(small(tmp_path_factory.mktemp(request.param), f"engine.backend={request.param}"))
    return run.folder, go(run)


def test_the_tiny_model_learns(finished):
    folder, _ = finished
    rewards = [line["reward_mean"] for line in read_metrics(folder) if "reward_mean" in line]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


def test_engine_and_trainer_agree_after_every_update(finished):
    gaps = [(line["gap_mean"], line["gap_max"]) for line in read_metrics(finished[0]) if "gap_max" in line]
    assert len(gaps) == 12
    assert max(largest for _, largest in gaps) < 1e-3


def test_everything_trained_on_stands_the_audit(finished):
    folder, _ = finished
    store = Store(folder / "store.sqlite", read_only=True)
    found = audit(store, small(folder))
    assert found.problems == ()
    assert found.trained > 100
    assert [entry["step"] for entry in store.versions()] == list(range(13))
    assert store.consumed().keys() == set(range(1, 13))
    store.close()


def test_the_result_and_the_folder_are_whole(finished):
    folder, result = finished
    for key in ("success_base", "success_before", "success_after", "total_difference_interval", "difference_interval",
                "p_value", "n_tasks", "attempts", "seconds"):  # fmt: skip
        assert key in json.loads((folder / "result.json").read_text())
    assert result["n_tasks"] == 16
    for name in ("config.yaml", "metrics.jsonl", "report.html", "events", "checkpoints/step-000012/model.safetensors"):
        assert (folder / name).exists()
    assert not list((folder / "weights").iterdir())


def test_the_checkpoint_is_a_hugging_face_folder_with_the_trained_weights(finished):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agentgym.models import resolve_model

    folder = finished[0] / "checkpoints" / "step-000012"
    model, base = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, resolve_model("tiny")))
    AutoTokenizer.from_pretrained(folder)
    moved = (model.get_input_embeddings().weight - base.get_input_embeddings().weight).abs().max()
    assert torch.isfinite(moved) and moved > 1e-3


def test_a_stopped_run_goes_on_from_its_last_checkpoint(tmp_path):
    """Stopped between two steps it keeps what it learned; without that checkpoint it goes on from the one before."""
    config = small(tmp_path, "engine.backend=transformers", "trainer.steps=6", "warm_start.examples=16")
    config.trainer.steps = 10
    run = Run.create(config)

    async def until_step(step: int) -> None:
        reached = asyncio.Event()

        def progress(what: str, done: int, total: int, remark: str = "") -> None:
            if what == "train" and done >= step:
                reached.set()

        job = asyncio.create_task(Pipeline(run, progress).go())
        await asyncio.wait([job, asyncio.create_task(reached.wait())], return_when=asyncio.FIRST_COMPLETED)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(until_step(6))
    run.close()
    assert read_metrics(run.folder)[-1]["step"] == 6
    shutil.rmtree(run.checkpoints / "step-000006")  # as if it had been killed instead

    again = Run.open(run.folder)
    go(again)
    assert [line["step"] for line in read_metrics(run.folder)] == list(range(1, 11))
    store = Store(run.folder / "store.sqlite", read_only=True)
    assert audit(store, config).problems == ()
    lives = {(sample.consumed_step, sample.consumed_life) for sample in store.samples() if sample.consumed_step}
    assert lives == {(step, 0 if step <= 4 else 1) for step in range(1, 11)}
    assert len([entry for entry in store.versions() if entry["undone"]]) == 2
    positions = store._all("SELECT position FROM groups ORDER BY position")
    assert positions == [(position,) for position in range(len(positions))], "no task was skipped or given out twice"
    reused = [trajectory for trajectory in store.trajectories(stage="train", step=5) if trajectory.id.endswith("-L0")]
    assert len(reused) == 32, "the episodes that the checkpoint's own weights sampled were not run again"
    store.close()
