"""The config: read with OmegaConf, checked against the schema; `docs/config.md` is made from it.

Order of precedence: defaults below, then the algorithm's preset, then the file, then `key=value` arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentgym.errors import ConfigError
from agentgym.plugins import located
from agentgym.schema import (
    PRESETS,
    AlgorithmConfig,
    Config,
    EngineConfig,
    EnvConfig,
    EvaluationConfig,
    GatewayConfig,
    GuardConfig,
    HintsConfig,
    JudgeConfig,
    LiveConfig,
    ModelConfig,
    RolloutConfig,
    TasksConfig,
    TeacherConfig,
    TrainerConfig,
    WarmStartConfig,
    knobs,
)

CHOICES = {
    "engine.backend": ("auto", "vllm", "transformers"),
    "engine.dtype": ("bfloat16", "float32"),
    "algorithm.preset": tuple(PRESETS),
    "algorithm.estimator": ("grpo", "dr_grpo", "rloo", "step_wise"),
    "algorithm.singleton": ("group", "raw"),
    "algorithm.opd": ("hybrid_topk", "topk_kl", "token"),
    "algorithm.opd_select": ("sequence", "token"),
    "algorithm.opd_support": ("student", "teacher", "overlap"),
    "judge.kind": ("none", "verifier", "rules", "llm"),
    "hints.source": ("environment", "judge", "both"),
    "teacher.kind": ("self", "reference", "http"),
    "algorithm.ratio": ("token", "sequence", "cispo"),
    "algorithm.aggregation": ("token_mean", "sample_mean", "sum_over_max_length"),
    "algorithm.truncation": ("mask", "penalise"),
    "trainer.precision": ("bf16", "fp32"),
    "trainer.zero_stage": (0, 1, 2, 3),
}

POSITIVE = (
    "model.max_length", "engine.max_num_seqs", "engine.kv_cache_gib", "engine.start_timeout_s", "engine.request_timeout_s",
    "rollout.group_size", "rollout.groups_per_step", "rollout.concurrency", "rollout.max_tokens", "rollout.max_turns",
    "rollout.reset_timeout_s", "rollout.step_timeout_s", "rollout.close_timeout_s",
    "rollout.worker_timeout_s", "rollout.worker_memory_gib",
    "algorithm.opd_k", "algorithm.opd_clip", "judge.votes", "judge.max_tokens", "judge.timeout_s", "judge.concurrency",
    "judge.history_chars", "judge.next_state_chars", "hints.max_hints", "live.min_samples", "live.max_wait_s", "hints.max_chars", "teacher.timeout_s",
    "trainer.learning_rate", "trainer.max_grad_norm", "trainer.updates_per_batch", "trainer.micro_batch_tokens",
    "trainer.ranks", "trainer.checkpoint_every", "trainer.keep_checkpoints", "trainer.step_timeout_s",
    "warm_start.epochs", "warm_start.batch_size", "warm_start.learning_rate", "evaluation.attempts", "guard.gap_every",
    "gateway.max_body_mib", "gateway.max_messages", "gateway.max_message_chars", "gateway.body_timeout_s",
    "gateway.send_timeout_s", "gateway.session_timeout_s", "gateway.regenerate_s", "gateway.max_sessions",
)  # fmt: skip


RANGES = {
    "seed": (0, 2**31 - 1),
    "engine.port": (0, 65535),
    "gateway.port": (0, 65535),
    "gateway.max_tokens": (0, 10**9),
    "gateway.requests_per_minute": (0, 10**9),
    "gateway.concurrency": (0, 10**9),
    "gateway.retention_days": (0, 10**6),
    "engine.gpu_memory": (0.01, 1),
    "evaluation.temperature": (0, 100),
    "evaluation.n_tasks": (0, 10**9),
    "evaluation.every": (0, 10**9),
    "warm_start.examples": (0, 10**9),
    "rollout.top_p": (1e-6, 1),
    "rollout.temperature": (0, 100),
    "algorithm.clip_low": (0, 1),
    "algorithm.clip_high": (0, 10**9),
    "algorithm.importance_cap": (0, 10**9),
    "algorithm.kl_coef": (0, 10**9),
    "algorithm.entropy_coef": (0, 10**9),
    "algorithm.repetition_share": (0, 1),
    "algorithm.w_rl": (0, 10**9),
    "live.max_share": (0.01, 1),
    "live.max_age": (0, 10**9),
    "algorithm.w_opd": (0, 10**9),
    "algorithm.step_coef": (0, 10**9),
    "judge.temperature": (0, 100),
    "judge.retries": (0, 100),
    "hints.min_chars": (0, 10**9),
    "trainer.steps": (0, 10**9),
    "trainer.learning_rate": (0, 1),
    "trainer.warmup_steps": (0, 10**9),
    "trainer.weight_decay": (0, 1),
    "guard.max_truncated": (0, 1),
    "guard.max_infrastructure": (0, 1),
}

# What a run may change when it goes on; all else decides what its data mean.
RESUMABLE = (
    "trainer.", "guard.", "engine.", "gateway.", "live.", "evaluation.every", "rollout.concurrency", "rollout.workers",
    "rollout.worker_", "rollout.max_staleness", "rollout.retries", "rollout.oversample", "rollout.reset_timeout_s", "rollout.step_timeout_s",
    "rollout.close_timeout_s", "judge.timeout_s", "judge.retries", "judge.concurrency", "judge.key_env", "name", "dir", "imports",
)  # fmt: skip


def check_resumable(old: Config, new: Config) -> None:
    """Raise ConfigError, naming the key, if `new` changes what a run's data depend on."""
    for key, _, _ in knobs():
        if _get(old, key) != _get(new, key) and not key.startswith(RESUMABLE):
            raise ConfigError(
                f"{key}: the run has {_get(old, key)!r} and cannot go on with {_get(new, key)!r}: start a new run "
                "(with model.path=CHECKPOINT to go on from its weights)"
            )


def load_config(source: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a config file (or the name of one that ships in the package) and apply `key=value` overrides.

    Raises:
        ConfigError: the file is missing or malformed, or a key or value is wrong.
    """
    where = "command line"
    layers: list[tuple[str, Any]] = []
    if source is not None:
        path = find_config(str(source))
        where = str(path)
        try:
            layers.append((where, OmegaConf.load(path)))
        except Exception as error:  # yaml has many error types, all meaning the same to a user
            raise ConfigError(f"{where}: not readable as YAML: {_one_line(error)}") from error
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override!r} is not of the form key=value")
        try:
            layers.append((f"argument {override!r}", OmegaConf.from_dotlist([override])))
        except Exception as error:
            raise ConfigError(f"argument {override!r}: not readable as YAML: {_one_line(error)}") from error
    for origin, layer in layers:
        if not OmegaConf.is_dict(layer):
            raise ConfigError(f"{origin}: expected a mapping of config keys")
        _check_keys(OmegaConf.to_container(layer), Config, origin)  # type: ignore[arg-type]
        if OmegaConf.is_list(layer.get("imports")):
            layer.imports = located(layer.imports, path.parent if origin == where else Path.cwd())

    tree = OmegaConf.structured(Config)
    user = OmegaConf.merge({}, *[layer for _, layer in layers])
    preset = OmegaConf.select(user, "algorithm.preset", default="agentgym")
    if preset not in PRESETS:
        raise ConfigError(f"algorithm.preset={preset}: expected one of {', '.join(PRESETS)}")
    tree = OmegaConf.merge(tree, {"algorithm": PRESETS[preset]})
    for origin, layer in layers:
        try:
            tree = OmegaConf.merge(tree, layer)
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            key = getattr(error, "full_key", None)
            raise ConfigError(f"{origin}: {f'{key}: ' if key else ''}{_one_line(error)}") from error
    try:
        config: Config = OmegaConf.to_object(tree)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {_one_line(error)}") from error
    check_config(config)
    return config


def find_config(source: str) -> Path:
    """The file that `source` names: a path, or a config that ships in the package ("quickstart")."""
    shipped = Path(str(files("agentgym") / "configs"))
    candidates = [Path(source), shipped / source, shipped / f"{source}.yaml", shipped / Path(source).name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    names = sorted(path.stem for path in shipped.glob("*.yaml"))
    raise ConfigError(f"no config {source!r}: neither a file nor one that ships ({', '.join(names)})")


def check_config(config: Config) -> None:
    """Check choices and ranges; raises ConfigError naming the key."""
    for key, allowed in CHOICES.items():
        value = _get(config, key)
        if value not in allowed:
            raise ConfigError(f"{key}={value}: expected one of {', '.join(map(str, allowed))}")
    for key in POSITIVE:
        if not _get(config, key) > 0:
            raise ConfigError(f"{key}={_get(config, key)}: must be greater than 0")
    if config.rollout.max_staleness < 0:
        raise ConfigError("rollout.max_staleness must not be negative: 0 makes collecting and training take turns")
    for key in ("rollout.workers", "rollout.retries"):
        if _get(config, key) < 0:
            raise ConfigError(f"{key}={_get(config, key)}: must not be negative")
    for key, (low, high) in RANGES.items():
        if not low <= _get(config, key) <= high:
            raise ConfigError(f"{key}={_get(config, key)}: must be between {low:g} and {high:g}")
    if config.rollout.group_size < 2:
        raise ConfigError("rollout.group_size must be at least 2: an episode is compared with the others of its group")
    if not (config.algorithm.w_rl or config.algorithm.w_opd):
        raise ConfigError("algorithm.w_rl and algorithm.w_opd are both 0: nothing would be learned")
    if not config.rollout.temperature > 0:
        raise ConfigError("rollout.temperature must be greater than 0: greedy samples have no spread to learn from")
    if config.rollout.max_tokens >= config.model.max_length:
        raise ConfigError(
            f"rollout.max_tokens={config.rollout.max_tokens} leaves no room for a prompt in model.max_length={config.model.max_length}"
        )
    if config.trainer.micro_batch_tokens < config.model.max_length:
        raise ConfigError(
            f"trainer.micro_batch_tokens={config.trainer.micro_batch_tokens} cannot hold one sequence of model.max_length={config.model.max_length}"
        )
    _check_teaching(config)


def _check_teaching(config: Config) -> None:
    """Refuse what a teacher cannot do; who gives hints at all is checked where judges are known."""
    algorithm, teacher = config.algorithm, config.teacher
    if "{hint}" not in config.hints.template:
        raise ConfigError(f"hints.template={config.hints.template!r}: it must say where the {{hint}} goes")
    if not algorithm.w_opd or teacher.kind != "http":
        return
    if not teacher.url or not teacher.model:
        raise ConfigError(
            "teacher.kind=http needs teacher.url and teacher.model: an engine, and its name for the model"
        )
    if algorithm.opd == "hybrid_topk" and algorithm.opd_support == "student":
        raise ConfigError(
            "algorithm.opd=hybrid_topk with opd_support=student asks a teacher for log-probs of the student's likeliest tokens, "
            "which teacher.kind=http does not return: set algorithm.opd=token (or, if it tells its own likeliest tokens, "
            "opd=topk_kl or opd_support=teacher), or teacher.kind=self"
        )
    if config.rollout.temperature != 1.0:
        raise ConfigError(
            f"rollout.temperature={config.rollout.temperature:g}: a teacher.kind=http scores at temperature 1 only"
        )


def to_yaml(config: Config) -> str:
    """The resolved config as YAML; `load_config` reads it back to the same values."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _check_keys(given: dict[Any, Any], schema: Any, origin: str, prefix: str = "") -> None:
    known = {item.name: item for item in fields(schema)}
    for key, value in given.items():
        if key not in known:
            everything = [name for name, _, _ in knobs()]
            close = difflib.get_close_matches(f"{prefix}{key}", everything, n=1) or [
                name for name in everything if name.split(".")[-1] == key
            ]
            hint = f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"
            raise ConfigError(f"{origin}: unknown key '{prefix}{key}'{hint}")
        factory = known[key].default_factory
        if isinstance(factory, type) and is_dataclass(factory):
            if not isinstance(value, dict):
                raise ConfigError(f"{origin}: '{prefix}{key}' is a section, not a value")
            _check_keys(value, factory, origin, f"{prefix}{key}.")


def _get(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


__all__ = [
    "PRESETS", "AlgorithmConfig", "Config", "EngineConfig", "EnvConfig", "EvaluationConfig", "GatewayConfig", "GuardConfig", "HintsConfig", "JudgeConfig", "LiveConfig", "ModelConfig", "RolloutConfig", "TasksConfig", "TeacherConfig", "TrainerConfig", "WarmStartConfig",
    "check_config", "check_resumable", "find_config", "knobs", "load_config", "to_yaml",
]  # fmt: skip
