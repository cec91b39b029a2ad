"""Whether a folder of weights fits the model that is served, known before anything is touched."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from agentgym.errors import UsageError

Shapes = dict[str, tuple[int, ...]]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder.

    Raises:
        UsageError: there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"no weights (*.safetensors) in {folder}")
    return files


def shapes(folder: Path) -> Shapes:
    """Shape by name of all weights in `folder`, read from the files' headers; a written-out tied head is left out.

    Raises:
        UsageError: a file is damaged or cut short.
    """
    found: Shapes = {}
    for path in weight_files(folder):
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            if path.stat().st_size != 8 + length + end:
                raise ValueError("cut short")
        except (ValueError, KeyError, struct.error, OverflowError, MemoryError) as error:
            raise UsageError(f"{path} is no whole safetensors file: {error}") from error
        found |= {name: tuple(entry["shape"]) for name, entry in header.items()}
    found.pop("lm_head.weight", None)
    return found


def check_fit(folder: Path, served: Shapes) -> None:
    """Check that the weights in `folder` can replace those of the shapes `served`.

    Raises:
        UsageError: a weight is missing, unknown or of another shape.
    """
    given = shapes(folder)
    for name in sorted(given.keys() | served.keys()):
        if given.get(name) != served.get(name):
            raise UsageError(
                f"the weights in {folder} are of another model: {name} has shape {given.get(name)}, expected {served.get(name)}"
            )
