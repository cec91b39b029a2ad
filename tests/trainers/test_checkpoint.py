"""Checkpoints: whole or not there."""

import json
from pathlib import Path

import pytest

from agentgym.errors import InfrastructureError, UsageError
from agentgym.trainers import checkpoint


def write(root: Path, step: int) -> Path:
    with checkpoint.writing(root, step, {"step": step, "position": 8 * step}) as folder:
        (folder / "engine").mkdir()
        (folder / "engine" / "weights").write_text("w")
    return checkpoint.folder_of(root, step)


def test_what_was_written_is_found(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    for step in (5, 10, 1_000_000):
        write(tmp_path, step)
    assert checkpoint.latest(tmp_path) == tmp_path / "step-1000000"
    assert checkpoint.read_state(tmp_path / "step-000010") == {"step": 10, "position": 80}
    assert (tmp_path / "step-000010" / "engine" / "weights").read_text() == "w"


def test_a_half_written_checkpoint_is_never_picked(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with pytest.raises(RuntimeError), checkpoint.writing(tmp_path, 10, {}) as folder:
        (folder / "weights").write_text("half")
        assert checkpoint.latest(tmp_path) == tmp_path / "step-000005"
        raise RuntimeError
    (tmp_path / "step-000015").mkdir()  # a copy that was interrupted
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000005"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_writing_again_replaces(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with checkpoint.writing(tmp_path, 5, {"again": True}):
        pass
    assert checkpoint.read_state(tmp_path / "step-000005") == {"again": True}
    assert not (tmp_path / "step-000005" / "engine").exists()


def test_prune_keeps_the_newest_and_sweeps_what_was_interrupted(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        write(tmp_path, step)
    (tmp_path / ".step-000020.partial").mkdir()
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000010", "step-000015"]


@pytest.mark.parametrize(("written", "age"), [(checkpoint.FORMAT + 1, "a newer"), (checkpoint.FORMAT - 1, "an older")])
def test_another_format_says_so(tmp_path: Path, written: int, age: str) -> None:
    folder = write(tmp_path, 5)
    (folder / "state.json").write_text(json.dumps({"format": written, "state": {}}))
    with pytest.raises(UsageError, match=age):
        checkpoint.read_state(folder)


def test_damage_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path, 5)
    (folder / "state.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        checkpoint.read_state(folder)


def test_a_disk_that_cannot_be_written_is_an_infrastructure_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="step 5"):
        write(tmp_path / "file", 5)
