import json
import subprocess
import sys

import numpy as np
import pytest

from agentgym.metrics import MetricsWriter, read_metrics


def test_one_line_per_write(tmp_path):
    with MetricsWriter(tmp_path) as metrics:
        metrics.write(0, reward_mean=0.25, samples=64)
        metrics.write(1, reward_mean=np.float32(0.5), kind="train")
    assert read_metrics(tmp_path) == [
        {"step": 0, "reward_mean": 0.25, "samples": 64},
        {"step": 1, "reward_mean": 0.5, "kind": "train"},
    ]


def test_a_line_is_there_before_the_run_ends(tmp_path):
    with MetricsWriter(tmp_path) as metrics:
        metrics.write(0, loss=1.0)
        assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 0, "loss": 1.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_what_is_not_finite_is_null_in_valid_json(tmp_path, value):
    with MetricsWriter(tmp_path) as metrics:
        metrics.write(0, kl=value)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "kl": null}\n'


def test_a_resumed_run_drops_the_steps_that_were_undone(tmp_path):
    with MetricsWriter(tmp_path) as metrics:
        for step in range(5):
            metrics.write(step, loss=float(step))
    with MetricsWriter(tmp_path) as metrics:
        metrics.rewind(2)
        metrics.write(3, loss=30.0)
    assert [(line["step"], line["loss"]) for line in read_metrics(tmp_path)] == [(0, 0), (1, 1), (2, 2), (3, 30)]


def test_half_a_line_from_a_killed_run_is_dropped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n{"step": 1, "lo')
    assert read_metrics(tmp_path) == [{"step": 0, "loss": 1.0}]
    with MetricsWriter(tmp_path) as metrics:
        metrics.write(1, loss=2.0)
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 2.0]


def test_no_metrics_yet(tmp_path):
    assert read_metrics(tmp_path) == []


def test_tensorboard_reads_the_same_numbers_without_the_undone_ones(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with MetricsWriter(tmp_path) as metrics:
        for step in range(4):
            metrics.write(step, loss=float(step), note="text", kl=float("nan"))
        metrics.rewind(1)
        metrics.write(2, loss=20.0)
    events = accumulator.EventAccumulator(str(tmp_path / "events")).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 0.0), (1, 1.0), (2, 20.0)]


def test_writing_loads_no_torch(tmp_path):
    program = f"""
import sys
from agentgym.metrics import MetricsWriter
with MetricsWriter({str(tmp_path)!r}) as metrics:
    metrics.write(0, loss=1.0)
print(sorted({{"torch", "tensorflow"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
