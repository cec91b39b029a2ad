"""Collecting ahead of training (`rollout.max_staleness=1`) against taking turns (`0`), on the same work.

What is measured is the overlap of the loops and nothing else: the real `Training` loop, pool, store and `VLLMPolicy`
with its weight updates, an environment that waits as a shell or a browser does, the mock policy server in the engine's
place, and in the trainer's a stand-in whose step takes a fixed time without the CPU, as another process or a GPU would.
Both orders see the same tasks, seeds, tokens and waits. The most that overlap can give is
(collecting + training) / max(collecting, training), about 2 here.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from agentgym.collect import TaskStream
from agentgym.config import Config, load_config
from agentgym.env import Env, Info
from agentgym.metrics import read_metrics
from agentgym.models import resolve_model
from agentgym.policies.mock import MockPolicyServer
from agentgym.policies.vllm import VLLMPolicy
from agentgym.pool import RolloutPool
from agentgym.run import Run
from agentgym.trainers.loop import Training
from agentgym.trainers.process import LearnerProcess
from agentgym.types import Message, Observation, ScoredSample, StepResult, Task

STEPS, ROUNDS = 10, 2
TURNS = 4
WAIT_S = (0.05, 0.2)  # of an environment's step
LATENCY_S, TOKEN_S, TOKENS = 0.02, 0.003, 32  # of the engine
TRAIN_S = 1.0  # of a training step


class Waits(Env):
    """Waits in each of `TURNS` steps, for as long as its task's seed and the answer say; pays for every other answer."""

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        self.task: Task = (options or {})["task"]
        self.done = 0
        return Observation(messages=(Message(role="user", content=self.task.instruction),)), {}

    async def step(self, action: Message) -> StepResult:
        self.done += 1
        draw = zlib.crc32(f"{self.task.seed} {self.done} {action.content}".encode())
        await asyncio.sleep(random.Random(draw).uniform(*WAIT_S))
        last = self.done == TURNS
        came_back = () if last else (Message(role="user", content="go on"),)
        return StepResult(Observation(messages=came_back), float(last and draw % 2), last, False, {})

    async def close(self) -> None:
        pass


class FixedTime:
    """Has the learner's interface and its time; learns nothing, and publishes the weights that it was given."""

    def __init__(self, weights: Path) -> None:
        self.weights = weights

    async def step(self, samples: Sequence[ScoredSample]) -> dict[str, float]:
        await asyncio.sleep(TRAIN_S)
        return {"loss": 0.0}

    async def publish(self, folder: Path) -> None:
        await asyncio.to_thread(shutil.copytree, self.weights, folder, dirs_exist_ok=True)

    async def save(self, folder: Path) -> None:
        """There is no state beside the weights."""


async def measure(folder: Path) -> dict[str, Any]:
    """Alternate both orders `ROUNDS` times; the ratio is that of the totals."""
    seconds, waits = {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}
    for index in range(ROUNDS):
        for staleness in seconds:
            took, waited = await train(folder, f"r{index}-{staleness}", staleness)
            seconds[staleness] += took
            waits[staleness] += waited
    steps = STEPS * ROUNDS
    return {
        "taking_turns_over_ahead": seconds[0] / seconds[1],
        "seconds_per_step": {"taking_turns": seconds[0] / steps, "ahead": seconds[1] / steps},
        "seconds_waited_for_episodes": {"taking_turns": waits[0] / steps, "ahead": waits[1] / steps},
        "training_seconds_of_a_step": TRAIN_S,
    }


async def train(folder: Path, name: str, staleness: int) -> tuple[float, float]:
    """Wall seconds of `STEPS` training steps, and those in which the trainer waited for episodes."""
    model = resolve_model("tiny")
    config = _config(folder, name, staleness)
    run = Run.create(config)
    policy = VLLMPolicy(config, model=model, folder=run.folder)
    policy.server = MockPolicyServer(latency_s=LATENCY_S, token_s=TOKEN_S, length=TOKENS)  # type: ignore[assignment]
    run.store.add_version(step=0, life=run.life)
    tasks = [Task(id=f"wait/{seed}", env="waits", instruction=f"Task {seed}.", seed=seed) for seed in range(64)]
    try:
        await policy.start()
        learner = cast(LearnerProcess, FixedTime(model))
        pool = RolloutPool(policy, config, lambda task: Waits())
        run.store.add_tasks(tasks)
        began = time.monotonic()
        await Training(run, policy, pool, learner, TaskStream(tasks, config.seed)).train()
        took = time.monotonic() - began
        return took, sum(row["wait_seconds"] for row in read_metrics(run.folder))
    finally:
        await policy.close()
        run.close()


def _config(folder: Path, name: str, staleness: int) -> Config:
    return load_config(
        None,
        [
            f"dir={folder}", f"name={name}", "model.path=tiny", "model.max_length=1024", f"trainer.steps={STEPS}",
            "trainer.checkpoint_every=1000", f"rollout.max_tokens={TOKENS}", "rollout.group_size=8",
            "rollout.groups_per_step=4", f"rollout.max_staleness={staleness}", "algorithm.repetition_share=1.0",
        ],
    )  # fmt: skip
