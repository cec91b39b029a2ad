"""Tokens per second of a rollout, as a share of what raw requests to the same vLLM give at the same concurrency.

Both sample answers to the same prompts, up to the same number of tokens. The rollout renders messages, parses
answers, steps environments and makes trajectories; the baseline only sends ids and counts what comes back.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from agentgym.config import load_config
from agentgym.models import resolve_model
from agentgym.pipeline import load_tasks, serving
from agentgym.policies.vllm import VLLMPolicy
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Sampling

CONCURRENCY = 32
EPISODES = 128
ROUNDS = 3
SAMPLING = Sampling(max_tokens=64, temperature=1.0)


async def measure(folder: Path) -> dict[str, Any]:
    """Alternate rollout and baseline `ROUNDS` times; the ratio is that of the totals."""
    config = load_config("quickstart", [f"rollout.concurrency={CONCURRENCY}", f"dir={folder}"])
    tasks = load_tasks(config, "train")[:EPISODES]
    model = resolve_model(config.model.path)
    totals = {"rollout": [0, 0.0], "raw": [0, 0.0]}
    async with serving(config, model, folder, 0, lambda remark: None) as policy:
        assert isinstance(policy, VLLMPolicy)
        pool = RolloutPool(policy, config)
        for index in range(ROUNDS + 1):  # the first round warms up
            tokens, seconds, prompts = await _rollout(pool, tasks, index)
            raw_tokens, raw_seconds = await _raw(policy, prompts)
            if index:
                totals["rollout"] = [totals["rollout"][0] + tokens, totals["rollout"][1] + seconds]
                totals["raw"] = [totals["raw"][0] + raw_tokens, totals["raw"][1] + raw_seconds]
    rates = {name: tokens / seconds for name, (tokens, seconds) in totals.items()}
    return {
        "share_of_raw_vllm": rates["rollout"] / rates["raw"],
        "rollout_tokens_per_second": rates["rollout"],
        "raw_tokens_per_second": rates["raw"],
        "concurrency": CONCURRENCY,
    }


async def _rollout(pool: RolloutPool, tasks: Any, seed: int) -> tuple[int, float, list[tuple[int, ...]]]:
    requests = [
        EpisodeRequest(id=f"{seed}/{task.id}", group_id="", task=task, seed=seed, sampling=SAMPLING) for task in tasks
    ]
    began = time.monotonic()
    completions = [turn.completion async for trajectory in pool.episodes(requests) for turn in trajectory.turns]
    seconds = time.monotonic() - began
    return sum(len(made.ids) for made in completions), seconds, [made.prompt_ids for made in completions]


async def _raw(policy: VLLMPolicy, prompts: list[tuple[int, ...]]) -> tuple[int, float]:
    places = asyncio.Semaphore(CONCURRENCY)

    async def ask(ids: tuple[int, ...], seed: int) -> int:
        body = {
            "token_ids": ids,
            "sampling_params": {
                "temperature": 1.0, "max_tokens": SAMPLING.max_tokens, "seed": seed, "logprobs": 0,
                "stop_token_ids": policy.template.stop_ids,
            },
        }  # fmt: skip
        async with places:
            answer = await policy._post("/inference/v1/generate", body)
        return len(answer["choices"][0]["token_ids"])

    began = time.monotonic()
    numbers = await asyncio.gather(*(ask(ids, index) for index, ids in enumerate(prompts)))
    return sum(numbers), time.monotonic() - began
