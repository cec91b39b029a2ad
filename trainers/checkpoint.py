"""Whole checkpoints: `step-000010/` is a Hugging Face folder with `engine/` (the trainer's state) and `state.json`.

A checkpoint is written under a hidden name, flushed to the disk and renamed: what has its name is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgym.errors import InfrastructureError, UsageError

FORMAT = 1  # raise it when the layout changes, so that an older agentgym says so


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` is or will be."""
    return root / f"step-{step:06d}"


@contextmanager
def writing(root: Path, step: int, state: dict[str, Any]) -> Iterator[Path]:
    """A folder to write the checkpoint of `step` into; it takes its name when the block ends without an error.

    `state` (plain data: counters, the position in the data) is kept with it.

    Raises:
        InfrastructureError: the disk is full or not writable; what was half-written is deleted.
    """
    partial = root / f".step-{step:06d}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        (partial / "state.json").write_text(json.dumps({"format": FORMAT, "step": step, "state": state}, indent=1))
        flush(partial)
        shutil.rmtree(folder_of(root, step), ignore_errors=True)
        partial.rename(folder_of(root, step))
        _flush_one(root)
    except OSError as error:
        raise InfrastructureError(f"checkpoint of step {step} in {root}: {error}: free some space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def complete(root: Path) -> list[Path]:
    """All complete checkpoints, oldest first."""
    found = [path for path in root.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    whole = [path for path in found if (path / "state.json").is_file()]
    return sorted(whole, key=lambda path: int(path.name.removeprefix("step-")))


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint; None if there is none."""
    return (complete(root) or [None])[-1]  # type: ignore[list-item]


def read_state(folder: Path) -> dict[str, Any]:
    """The `state` that a checkpoint was written with.

    Raises:
        UsageError: it was written by a version of agentgym with another layout, or is damaged.
    """
    try:
        content = json.loads((folder / "state.json").read_text())
        written, state = content["format"], content["state"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"checkpoint {folder} is damaged ({error!r}): delete it to go on from the one before"
        ) from error
    if written != FORMAT:
        age = "a newer" if written > FORMAT else "an older"
        raise UsageError(
            f"checkpoint {folder} is of {age} agentgym (format {written}, this one reads {FORMAT}): resume it with that "
            "one, or start a new run with model.path set to this folder"
        )
    return dict(state)


def prune(root: Path, keep: int) -> list[Path]:
    """Delete the oldest beyond the `keep` newest, and what was half-written; returns what was deleted."""
    surplus = complete(root)[: -max(1, keep)] + list(root.glob(".step-*"))
    for path in surplus:
        if not path.name.startswith("."):  # a deletion that is interrupted must not leave half of one behind
            hidden = path.with_name(f".{path.name}.deleted")
            path.rename(hidden)
            path = hidden
        shutil.rmtree(path, ignore_errors=True)
    return surplus


def flush(folder: Path) -> None:
    """Force a folder, with all that is in it, to the disk."""
    for path in (*folder.rglob("*"), folder):
        _flush_one(path)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
