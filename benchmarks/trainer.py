"""Trainer tokens per second, and the share of the machine's matrix-product rate that they make.

The rate is that of bf16 products of the model's own MLP shape, in a process with the same threads. The work of a token
is counted as 6 x parameters x tokens (forward and backward), head and attention scores included for no token more
than the trainer computes them for: an underestimate of what is done, so the share is one too.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.config import load_config
from agentgym.models import resolve_model
from agentgym.trainers.process import LearnerProcess
from agentgym.types import Sample, ScoredSample, TokenSpan

GROUPS, MEMBERS, PROMPT, RESPONSE = 8, 8, 110, 40
STEPS = 3

MATMUL = """
import time, torch
a, b = torch.randn(2048, 576, dtype=torch.bfloat16), torch.randn(576, 1536, dtype=torch.bfloat16)
for _ in range(20): a @ b
best = 1e9
for _ in range(5):
    began = time.perf_counter()
    for _ in range(50): a @ b
    best = min(best, (time.perf_counter() - began) / 50)
print(2 * 2048 * 576 * 1536 / best)
"""


async def measure(folder: Path) -> dict[str, Any]:
    """One batch of GRPO shape, learned `STEPS` times."""
    config = load_config("quickstart", [f"dir={folder}", "trainer.learning_rate=1e-9"])
    rate = matmul_rate()
    learner = LearnerProcess(config, model=resolve_model(config.model.path), folder=folder)
    try:
        await learner.start()
        batch = _batch(np.random.default_rng(0))
        await learner.step(batch)
        began = time.monotonic()
        for _ in range(STEPS):
            await learner.step(batch)
        seconds = (time.monotonic() - began) / STEPS
    finally:
        await learner.close()
    tokens = sum(len(scored.sample.ids) for scored in batch)
    unique = GROUPS * (PROMPT + MEMBERS * RESPONSE)
    return {
        "share_of_matmul_rate": 6 * 106e6 * unique / seconds / rate,
        "tokens_per_second": tokens / seconds,
        "computed_tokens_per_second": unique / seconds,
        "seconds_per_step": seconds,
        "matmul_tflops": rate / 1e12,
        "batch": f"{GROUPS} groups of {MEMBERS}, prompts of {PROMPT} and responses of {RESPONSE} tokens",
    }


def matmul_rate() -> float:
    """Floating-point operations per second of bf16 matrix products, in a process of its own."""
    return float(subprocess.run([sys.executable, "-c", MATMUL], capture_output=True, text=True, check=True).stdout)


def _batch(rng: np.random.Generator) -> list[ScoredSample]:
    scored = []
    for group in range(GROUPS):
        prompt = tuple(int(token) for token in rng.integers(100, 40_000, PROMPT))
        for member in range(MEMBERS):
            response = tuple(int(token) for token in rng.integers(100, 40_000, RESPONSE))
            sample = Sample(
                id=f"{group}-{member}/0", trajectory_id=f"{group}-{member}", group_id=str(group), ids=prompt + response,
                mask=(0,) * PROMPT + (1,) * RESPONSE, logprobs=(None,) * PROMPT + (-10.0,) * RESPONSE,
                versions=(-1,) * PROMPT + (0,) * RESPONSE, spans=(TokenSpan(turn=0, start=PROMPT, end=PROMPT + RESPONSE),),
            )  # fmt: skip
            scored.append(ScoredSample(sample=sample, advantages=(1.0 if member % 2 else -1.0,)))
    return scored
