"""The schema of the config: a tree of dataclasses, each field with its one piece of documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


def knob(default: Any, doc: str) -> Any:
    """A config field with its one piece of documentation."""
    if isinstance(default, dict | list):
        return field(default_factory=default.copy, metadata={"doc": doc})
    return field(default=default, metadata={"doc": doc})


@dataclass
class ModelConfig:
    """The model that is trained."""

    path: str = knob(
        "smollm2-135m-instruct", "a Hugging Face folder or hub id; `smollm2-135m-instruct` and `tiny` are made locally"
    )
    max_length: int = knob(1024, "context length in tokens, prompt and responses together")
    chat_template: str = knob("", "path of a Jinja chat template that replaces the model's own; empty: the model's own")
    tool_format: str = knob(
        "auto",
        "how the model writes tool calls: `hermes`, `qwen_xml`, `llama3`, `mistral`, `json`, `openai`; `auto`: as its chat template says",
    )


@dataclass
class EngineConfig:
    """The inference engine that serves it."""

    backend: str = knob("auto", "`vllm`, `transformers` (in process, slow), or `auto`: vllm where it is installed")
    dtype: str = knob("bfloat16", "`bfloat16` or `float32`")
    port: int = knob(0, "port on loopback; 0 takes a free one")
    max_num_seqs: int = knob(64, "requests decoded at once; more wait in the engine's queue")
    kv_cache_gib: float = knob(1.0, "memory for the KV cache on a CPU, in GiB")
    gpu_memory: float = knob(0.45, "share of a GPU's memory for the engine; the trainer takes what is left")
    eager: bool = knob(
        True, "no graph compilation: starts in a third of the time, decodes at about 0.7 of the speed on a CPU"
    )
    start_timeout_s: float = knob(600.0, "how long the engine may take to start")
    request_timeout_s: float = knob(300.0, "how long one completion may take")
    args: list[str] = knob([], "further command-line arguments for vLLM")


@dataclass
class TasksConfig:
    """What is to be done."""

    name: str = knob("terminal/basics", "a registered task set")
    options: dict[str, Any] = knob({}, "its keyword arguments (see `agentgym tasks show NAME`)")


@dataclass
class EnvConfig:
    """The environment in which it is done; which one, the tasks say."""

    options: dict[str, Any] = knob({}, "its keyword arguments (see `agentgym envs show NAME`)")
    wrappers: list[Any] = knob(
        [],
        "what is put around it, the first one innermost: names, or `{name: {option: value}}` (docs/wrappers.md)",
    )


@dataclass
class RolloutConfig:
    """How episodes are collected."""

    group_size: int = knob(8, "G: episodes per task, compared with one another")
    groups_per_step: int = knob(8, "tasks per training step")
    oversample: float = knob(
        2.0,
        "a group without spread is replaced by another task's, up to groups_per_step times this many groups in a step",
    )
    max_staleness: int = knob(
        0, "steps that may be collected ahead of training, so versions that a token may be behind; 0: they take turns"
    )
    concurrency: int = knob(64, "episodes at once")
    temperature: float = knob(1.0, "sampling temperature in training")
    top_p: float = knob(1.0, "nucleus sampling; below 1 the trainer's log-probs no longer match the engine's")
    max_tokens: int = knob(128, "tokens per response")
    max_turns: int = knob(16, "turns per episode, whatever the environment says")
    reset_timeout_s: float = knob(60.0, "deadline of an environment's reset")
    step_timeout_s: float = knob(120.0, "deadline of an environment's step, grading included")
    close_timeout_s: float = knob(30.0, "deadline of an environment's close")
    retries: int = knob(2, "how often an episode is tried again, with the same seed, after an infrastructure failure")
    workers: int = knob(0, "processes that run the environments; 0 runs them in the main process")
    worker_timeout_s: float = knob(30.0, "a worker process that shows no sign of life for so long is replaced")
    worker_memory_gib: float = knob(4.0, "a worker process that takes more memory is replaced")


@dataclass
class AlgorithmConfig:
    """What is learned from an episode (docs/algorithms.md)."""

    preset: str = knob(
        "agentgym",
        "a named bundle: `agentgym`, `grpo`, `dapo`, `dr_grpo`, `gspo`, `cispo`, `rloo`, `opd`, `hybrid`; the keys below override it",
    )
    w_rl: float = knob(1.0, "weight of the RL term; 0 turns it off")
    w_opd: float = knob(0.0, "weight of on-policy distillation from the hint-informed teacher; 0 turns it off")
    estimator: str = knob(
        "grpo", "advantages in a group: `grpo`, `dr_grpo`, `rloo` (of the outcome), `step_wise` (outcome and scores)"
    )
    step_coef: float = knob(1.0, "`step_wise`: weight of a turn's score beside the outcome")
    singleton: str = knob(
        "group", "`step_wise`: a turn that no other episode reached: `group` statistics or `raw` value"
    )
    opd: str = knob("hybrid_topk", "distillation: `hybrid_topk`, `topk_kl`, `token`")
    opd_k: int = knob(4, "tokens in the top-k sets of student and teacher")
    opd_clip: float = knob(2.0, "C: teacher - old is clipped to [-C, C]; 1 for live agents")
    opd_select: str = knob("sequence", "the hint is chosen per `sequence` (response) or per `token`")
    opd_support: str = knob("student", "tokens that `hybrid_topk` sums over: `student`, `teacher` or `overlap` of both")
    ratio: str = knob("token", "importance ratio: `token`, `sequence` (GSPO), `cispo`")
    aggregation: str = knob("token_mean", "`token_mean`, `sample_mean`, `sum_over_max_length`")
    clip_low: float = knob(0.2, "the ratio is clipped below at 1 - clip_low")
    clip_high: float = knob(0.28, "the ratio is clipped above at 1 + clip_high")
    importance_cap: float = knob(
        2.0, "cap of the truncated importance weight min(exp(old - behaviour), cap); 0 turns the weight off"
    )
    kl_coef: float = knob(0.0, "coefficient of the k3 estimate of the KL to the reference model; 0 loads no reference")
    entropy_coef: float = knob(0.0, "coefficient of the entropy bonus")
    truncation: str = knob("mask", "turns cut off at max_tokens: `mask` (not trained on) or `penalise`")
    repetition_share: float = knob(
        0.9, "a response whose share of repeated 8-grams is above this is filtered out; 1 keeps all"
    )


@dataclass
class JudgeConfig:
    """Who scores turns by what came back after them, and gives hints (docs/learning.md)."""

    kind: str = knob("none", "`none`, `verifier` (the environment's own evidence), `rules`, `llm`")
    url: str = knob("", "`llm`: an OpenAI-compatible base URL; empty: the run's own engine, with the model in training")
    model: str = knob("", "`llm`: the model's name at that URL")
    key_env: str = knob("", "`llm`: the environment variable that holds the API key")
    votes: int = knob(3, "m: how often a turn is judged; the most frequent valid vote counts")
    temperature: float = knob(0.7, "`llm`: sampling temperature of the votes")
    max_tokens: int = knob(256, "`llm`: tokens per vote")
    timeout_s: float = knob(60.0, "`llm`: deadline of one call")
    retries: int = knob(2, "`llm`: how often a failed call is tried again")
    concurrency: int = knob(16, "`llm`: calls at once")
    history_chars: int = knob(4000, "`llm`: characters of history shown, head and tail")
    next_state_chars: int = knob(4000, "`llm`: characters of the response and of the next state shown, head and tail")
    bind: bool = knob(
        True,
        "`llm`: only an answer that repeats its call's random code counts; false for an endpoint that cannot, whose whole answer is then taken for its own",
    )
    rules: list[Any] = knob(
        [],
        "`rules`: mappings, tried in order: `score` (-1, 0, 1) and/or `hint` if all of its conditions hold: `matches` (a regular expression, with `where`: `next_state`, `response` or `task`, `role`, `ignore_case`) and `path` (such as `info.exit_code`) with `equals`, `above`, `below` or `exists`; see docs/learning.md",
    )


@dataclass
class HintsConfig:
    """What the response should have done, told to the teacher in hindsight."""

    source: str = knob("environment", "`environment`, `judge`, or `both`")
    max_hints: int = knob(3, "distinct candidates kept per turn; the teacher makes one forward pass for each")
    min_chars: int = knob(11, "shorter ones are dropped")
    max_chars: int = knob(600, "longer ones are cut off")
    template: str = knob("\n\nHint: {hint}", "appended to the last user message of the teacher's prompt")


@dataclass
class TeacherConfig:
    """Who scores the responses under the prompt with the hint."""

    kind: str = knob("self", "`self` (the weights in training), `reference` (frozen), `http` (an external engine)")
    url: str = knob(
        "", "`http`: the OpenAI-compatible base URL of an engine that returns log-probs of given ids (vLLM)"
    )
    model: str = knob("", "`http`: the model's name there; it must have the same tokenizer")
    key_env: str = knob("", "`http`: the environment variable that holds the API key")
    timeout_s: float = knob(120.0, "`http`: deadline of one call, all tries together")


@dataclass
class LiveConfig:
    """Learning from what the gateway serves (docs/gateway.md)."""

    learn: bool = knob(False, "train on the turns that were served, beside serving; needs judge.kind")
    min_samples: int = knob(16, "an update fires when so many samples are ready")
    max_wait_s: float = knob(900.0, "or when one has been ready for so long")
    max_share: float = knob(0.5, "the largest share of one user in an update, where there are others")
    max_age: int = knob(0, "samples whose weights are more updates old than this are expired; 0: none is")


@dataclass
class TrainerConfig:
    """How it is learned."""

    steps: int = knob(20, "batches of episodes to train on")
    learning_rate: float = knob(1e-5, "AdamW's, after the warm-up")
    warmup_steps: int = knob(0, "optimiser steps of linear warm-up")
    weight_decay: float = knob(0.0, "AdamW's")
    max_grad_norm: float = knob(1.0, "gradients are clipped to this norm")
    updates_per_batch: int = knob(
        1, "optimiser steps per batch; with 1 the ratio is 1 and only the importance weight corrects"
    )
    micro_batch_tokens: int = knob(2048, "tokens of one forward pass, padding included")
    precision: str = knob("bf16", "`bf16` (autocast over fp32 weights) or `fp32`")
    zero_stage: int = knob(1, "DeepSpeed's ZeRO stage: 0 to 3")
    ranks: int = knob(1, "training processes on this machine (on GPUs: one each)")
    gradient_checkpointing: bool = knob(False, "recompute activations: less memory, a third more time")
    checkpoint_every: int = knob(5, "steps between checkpoints; the last step always makes one")
    keep_checkpoints: int = knob(2, "how many are kept; older ones are deleted")
    step_timeout_s: float = knob(1800.0, "deadline of one call of the training engine")


@dataclass
class WarmStartConfig:
    """Supervised training on oracle demonstrations before RL."""

    examples: int = knob(0, "demonstrations from the training split; 0 skips the warm start")
    epochs: int = knob(1, "passes over them")
    batch_size: int = knob(16, "demonstrations per optimiser step")
    learning_rate: float = knob(5e-5, "AdamW's")


@dataclass
class EvaluationConfig:
    """How a checkpoint is evaluated on held-out tasks."""

    before_and_after: bool = knob(True, "evaluate the base model, the model before RL and the one after it")
    n_tasks: int = knob(96, "held-out tasks; 0 takes all")
    attempts: int = knob(1, "episodes per task")
    temperature: float = knob(1.0, "sampling temperature")
    every: int = knob(0, "also evaluate every so many training steps; 0: only before and after")


@dataclass
class GuardConfig:
    """Guard rails: a value beyond its threshold stops the run with the weights of the last checkpoint kept."""

    gap_mean: float = knob(
        0.12, "mean |trainer - engine| log-prob per token, at the start and every `gap_every` steps (fp32: use 1e-3)"
    )
    gap_every: int = knob(10, "training steps between measurements of the gap")
    max_kl: float = knob(
        1.0,
        "mean k3 KL per token to the reference or, without one, from the weights that sampled to those that trained",
    )
    min_entropy: float = knob(0.0, "mean entropy of the sampled distribution, in nats")
    max_truncated: float = knob(1.0, "share of responses cut off at max_tokens")
    max_infrastructure: float = knob(0.5, "share of a step's episodes lost to infrastructure failures")


@dataclass
class GatewayConfig:
    """The endpoint that `agentgym serve` offers (docs/gateway.md)."""

    host: str = knob("127.0.0.1", "where it listens; other machines can reach it only if there are keys")
    port: int = knob(8000, "0 takes a free one")
    model_names: list[str] = knob([], "further names of the model that clients may ask for; `*`: any name")
    keys: str = knob("", "file of hashed API keys (`agentgym serve CONFIG --new-key USER` adds one); empty: no keys")
    max_tokens: int = knob(0, "tokens of an answer where the client does not say; 0: what the context leaves")
    requests_per_minute: float = knob(600.0, "of one key; 0: no limit")
    concurrency: int = knob(64, "requests of one key at once; 0: no limit")
    max_body_mib: float = knob(16.0, "largest body of a request")
    max_messages: int = knob(20000, "messages of one request")
    max_message_chars: int = knob(1000000, "characters of one message")
    body_timeout_s: float = knob(30.0, "how long a client may take to send its request")
    send_timeout_s: float = knob(120.0, "how long a client may take to read a piece of its answer")
    session_timeout_s: float = knob(
        1800.0, "a session that nobody used for so long is closed: its turns wait no longer"
    )
    regenerate_s: float = knob(
        600.0, "so long after an answer the same first request is a wish for another answer; later it is a new session"
    )
    max_sessions: int = knob(
        10000, "sessions known by heart; the longest unused are forgotten first, and stay in the store"
    )
    retention_days: float = knob(0.0, "turns older than this are erased; 0 keeps them")
    redact: str = knob(
        "", "`module:function` that changes what is stored: from text to text; empty: nothing is changed"
    )
    log_content: bool = knob(False, "write what was said into the log")


@dataclass
class Config:
    """Everything a run depends on; saved resolved as `config.yaml` in the run folder."""

    name: str = knob("run", "name of the run; its folder is `<dir>/<name>-s<seed>`")
    dir: str = knob("runs", "folder of run folders")
    seed: int = knob(0, "seeds the tasks' order, the episodes and the trainer")
    imports: list[str] = knob(
        [],
        "modules or .py files (relative to the config) to import first, which register environments, tasks, wrappers",
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    hints: HintsConfig = field(default_factory=HintsConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)


# What the papers bundle (algorithms.md section 3); values not named are the defaults above.
PRESETS: dict[str, dict[str, Any]] = {
    "agentgym": {},
    "grpo": {"aggregation": "sample_mean", "clip_high": 0.2, "kl_coef": 0.04},  # 2402.03300
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0},  # 2503.14476
    "dr_grpo": {"estimator": "dr_grpo", "aggregation": "sum_over_max_length", "clip_high": 0.2},  # 2503.20783
    "gspo": {"ratio": "sequence", "aggregation": "sample_mean", "clip_low": 3e-4, "clip_high": 4e-4},  # 2507.18071
    "cispo": {"ratio": "cispo"},  # 2506.13585
    "rloo": {"estimator": "rloo"},  # 2402.14740
    "opd": {"w_rl": 0.0, "w_opd": 1.0},  # on-policy distillation alone
    "hybrid": {"w_opd": 1.0, "estimator": "step_wise"},  # 2603.10165
}


def knobs(schema: Any = Config, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """All (key, default, doc) of the tree, in order."""
    for item in fields(schema):
        default = item.default_factory() if callable(item.default_factory) else item.default
        if is_dataclass(default):
            yield from knobs(type(default), f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", default, item.metadata["doc"]
