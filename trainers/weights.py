"""Weights as files: the Hugging Face folder that an inference engine loads."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from agentgym.errors import InfrastructureError

NOT_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".index.json")
OURS = ("config.json", "state.json")  # written here; the state of a checkpoint stays with the checkpoint


def other_files(source: Path) -> dict[str, bytes]:
    """The files of a model folder that are neither weights nor config: tokenizer, chat template and the like.

    Read once at the start: the folder may be a checkpoint that is deleted while its run goes on.
    """
    return {
        path.name: path.read_bytes()
        for path in source.iterdir()
        if path.is_file() and path.name not in OURS and not path.name.endswith(NOT_WEIGHTS)
    }


def write_folder(
    directory: Path, weights: dict[str, Tensor], config: Any, others: dict[str, bytes], dtype: torch.dtype
) -> None:
    """Write weights, config and the `others` files as the Hugging Face folder `directory`.

    It is written beside and renamed, so that nobody reads half of it; what was there before is replaced.

    Raises:
        InfrastructureError: the disk is full or not writable.
    """
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        narrow = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}
        save_file(narrow, partial / "model.safetensors", metadata={"format": "pt"})
        described = {**config.to_dict(), "dtype": str(dtype).removeprefix("torch.")}
        (partial / "config.json").write_text(json.dumps(described, indent=2, default=str))
        for name, content in others.items():
            (partial / name).write_bytes(content)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    except OSError as error:
        raise InfrastructureError(f"weights cannot be written to {directory}: {error}: free some space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
