"""Tokens per second of a rollout, as a share of what raw requests to the same vLLM give at the same concurrency.

Both sample answers to the same prompts, up to the same number of tokens. The rollout renders messages, parses
answers, steps environments and makes trajectories, in this process and in worker processes; the baseline only sends
ids and counts what comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from agentgym.config import load_config
from agentgym.models import resolve_model
from agentgym.pipeline import load_tasks, serving
from agentgym.policies.http import GENERATE
from agentgym.policies.vllm import VLLMPolicy
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Sampling

CONCURRENCY = 32
EPISODES = 128
WORKERS = 2
ROUNDS = 3
SAMPLING = Sampling(max_tokens=64, temperature=1.0)


async def measure(folder: Path) -> dict[str, Any]:
    """Alternate rollout, rollout in workers and baseline `ROUNDS` times; the ratios are those of the totals."""
    overrides = [f"rollout.concurrency={CONCURRENCY}", f"dir={folder}"]
    config = load_config("quickstart", overrides)
    tasks = load_tasks(config, "train")[:EPISODES]
    model = resolve_model(config.model.path)
    found: Counter[str] = Counter()
    async with serving(config, model, folder, 0, lambda remark: None) as policy:
        assert isinstance(policy, VLLMPolicy)
        in_workers = load_config("quickstart", [*overrides, f"rollout.workers={WORKERS}"])
        async with RolloutPool(policy, config) as pool, RolloutPool(policy, in_workers) as workers:
            for index in range(ROUNDS + 1):  # the first round warms up
                if index == 1:
                    found.clear()
                for name, chosen in (("rollout", pool), ("in_workers", workers)):
                    tokens, seconds, prompts = await _rollout(chosen, tasks, index)
                    found.update({f"{name}_tokens": tokens, f"{name}_seconds": seconds})
                tokens, seconds = await _raw(policy, prompts)
                found.update({"raw_tokens": tokens, "raw_seconds": seconds})
    rates = {name: found[f"{name}_tokens"] / found[f"{name}_seconds"] for name in ("rollout", "in_workers", "raw")}
    return {
        "share_of_raw_vllm": rates["rollout"] / rates["raw"],
        f"share_with_{WORKERS}_workers": rates["in_workers"] / rates["raw"],
        "rollout_tokens_per_second": rates["rollout"],
        "tokens_per_second_with_workers": rates["in_workers"],
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
    assert policy.client is not None
    client, places = policy.client, asyncio.Semaphore(CONCURRENCY)

    async def ask(ids: tuple[int, ...], seed: int) -> int:
        body = {
            "token_ids": ids,
            "sampling_params": {
                "temperature": 1.0, "max_tokens": SAMPLING.max_tokens, "seed": seed, "logprobs": 0,
                "stop_token_ids": policy.template.stop_ids,
            },
        }  # fmt: skip
        async with places:
            answer = await client.post(GENERATE, body)
        return len(msgspec.json.decode(answer)["choices"][0]["token_ids"])

    began = time.monotonic()
    numbers = await asyncio.gather(*(ask(ids, index) for index, ids in enumerate(prompts)))
    return sum(numbers), time.monotonic() - began
