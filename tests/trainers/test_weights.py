"""The published folder: its type, its companions, and that it is whole or not there."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from agentgym.errors import InfrastructureError
from agentgym.trainers.weights import other_files, write_folder

WEIGHTS = {"a": torch.linspace(0, 1, 6).reshape(2, 3).T}  # not contiguous


def test_weights_are_written_in_the_serving_type_with_what_belongs_to_the_model(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors", "config.json", "state.json"):
        (source / name).write_text(name)
    others = other_files(source)
    assert sorted(others) == ["chat_template.jinja", "tokenizer.json"]
    for _ in range(2):  # the second replaces the first
        write_folder(tmp_path / "out", WEIGHTS, LlamaConfig(), others, torch.bfloat16)
    found = load_file(tmp_path / "out" / "model.safetensors")["a"]
    assert torch.equal(found, WEIGHTS["a"].bfloat16())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_folder_that_cannot_be_written_is_an_infrastructure_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="free some space"):
        write_folder(tmp_path / "file" / "out", WEIGHTS, LlamaConfig(), {}, torch.float32)
