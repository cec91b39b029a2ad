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


def write_folder(directory: Path, weights: dict[str, Tensor], config: Any, source: Path, dtype: torch.dtype) -> None:
    """Write model, config and the other files of `source` (tokenizer, chat template) as the folder `directory`.

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
        for path in source.iterdir():
            if path.is_file() and path.name not in OURS and not path.name.endswith(NOT_WEIGHTS):
                shutil.copyfile(path, partial / path.name)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    except OSError as error:
        raise InfrastructureError(f"weights cannot be written to {directory}: {error}: free some space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
