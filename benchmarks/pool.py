"""What the rollout pool costs per environment step, and what it saves by not waiting for the slowest environment.

A scripted policy and an environment that does nothing are stepped through Gymnasium's SyncVectorEnv, through its
AsyncVectorEnv and through the pool. The pool's figure is CPU time, less what the policy's and the environment's own
coroutines take when they are awaited in a bare loop; Gymnasium's figures are CPU time of all processes, less what the
bare environments take. Then 63 environments of 10 ms beside one of 1 s, for the same time behind a barrier and without.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil

from agentgym.config import load_config
from agentgym.env import Env, Info
from agentgym.policy import Policy, PolicyAddress, Session
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Completion, Message, Observation, Prompt, Sampling, StepResult, Task

WIDTHS = (16, 64, 256)
STEPS = 16  # of an episode
TOTAL = 16384  # steps of a measurement
ROUNDS = 3  # the least of them counts: what else the machine does only adds
SLOW_S, FAST_S, BARRIER_S = 1.0, 0.01, 5.0

OBSERVATION = Observation(messages=(Message(role="user", content="go on"),))
COMPLETION = Completion(
    prompt_ids=(1, 2, 3), ids=(4,), logprobs=(-0.5,), versions=(0,), finish_reason="stop",
    message=Message(role="assistant", content="step"),
)  # fmt: skip


class Nothing(Env):
    """Does nothing for `STEPS` steps, or for as many as fit; each takes `seconds`."""

    def __init__(self, seconds: float = 0.0, steps: int = STEPS) -> None:
        self.seconds, self.steps, self.done = seconds, steps, 0

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        self.done = 0
        return OBSERVATION, {}

    async def step(self, action: Message) -> StepResult:
        await asyncio.sleep(self.seconds)
        self.done += 1
        return StepResult(OBSERVATION, 0.0, self.done >= self.steps, False, {})

    async def close(self) -> None:
        pass


class Always(Policy):
    """Gives the same answer at once."""

    address = PolicyAddress(factory="benchmarks.pool:Always")

    async def __call__(self, prompt: Prompt, *, session: Session, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        return COMPLETION


class GymNothing(gymnasium.Env[Any, Any]):
    """The same for Gymnasium."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.done = seconds, 0
        self.observation_space = gymnasium.spaces.Discrete(2)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, Info]:
        self.done = 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, Info]:
        if self.seconds:
            time.sleep(self.seconds)
        self.done += 1
        return 0, 0.0, self.done >= STEPS and not self.seconds, False, {}


async def measure(folder: Path) -> dict[str, Any]:
    """CPU microseconds per step at each width, and steps behind a barrier and without."""
    own = min([await own_cost() for _ in range(ROUNDS)])
    found: dict[str, Any] = {"policy_and_env_us": own, "cpu_us_per_step": {}}
    for width in WIDTHS:
        pool = min([await pool_cost(width, 0) for _ in range(ROUNDS)])
        found["cpu_us_per_step"][str(width)] = {
            "pool": pool - own,
            "pool_in_one_worker": await pool_cost(width, 1) - own,
            "sync_vector_env": min(vector_cost(width, gymnasium.vector.SyncVectorEnv) for _ in range(ROUNDS)),
            "async_vector_env": vector_cost(width, gymnasium.vector.AsyncVectorEnv),
        }
    barrier, free = barrier_steps(), await free_steps()
    return found | {"steps_behind_a_barrier": barrier, "steps_without": free, "ratio_without_barrier": free / barrier}


def cpu() -> float:
    """CPU seconds of this process and of those below it that run."""
    below = psutil.Process().children(recursive=True)
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in below)


async def own_cost() -> float:
    """CPU microseconds of the policy's and the environment's coroutines, 64 times at once without a pool."""

    async def play(steps: int) -> None:
        env, policy, session = Nothing(steps=1 << 30), Always(), Session("")
        for _ in range(steps):
            made = await policy(PROMPT, session=session, sampling=SAMPLING)
            await env.step(made.message)

    began = cpu()
    await asyncio.gather(*(play(TOTAL // 64) for _ in range(64)))
    return (cpu() - began) / TOTAL * 1e6


PROMPT, SAMPLING = Prompt(messages=OBSERVATION.messages), Sampling()


async def pool_cost(width: int, workers: int) -> float:
    """CPU microseconds per step of a pool with `width` episodes at once, trajectories included."""
    config = load_config(None, [f"rollout.concurrency={width}", f"rollout.workers={workers}"])
    async with RolloutPool(Always(), config, lambda task: Nothing()) as pool:
        await pool.episode(requests(1)[0])
        began = cpu()
        ended = [len(trajectory.turns) async for trajectory in pool.episodes(requests(TOTAL // STEPS))]
        return (cpu() - began) / sum(ended) * 1e6


def requests(number: int) -> list[EpisodeRequest]:
    """Episodes of the environment that does nothing."""
    task = Task(id="nothing", env="nothing", instruction="")
    return [
        EpisodeRequest(id=str(index), group_id="", task=task, seed=index, sampling=SAMPLING) for index in range(number)
    ]


def vector_cost(width: int, kind: Callable[..., Any]) -> float:
    """CPU microseconds per step of a Gymnasium vector environment, less the bare environments' own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = kind([GymNothing] * width)
        envs.reset(seed=0)
        actions = np.zeros(width, dtype=int)
        began = cpu()
        for _ in range(TOTAL // width):
            envs.step(actions)
        taken = cpu() - began
        envs.close()
    began = cpu()
    bare = GymNothing()
    for _ in range(TOTAL):
        bare.step(0)
    return (taken - (cpu() - began)) / TOTAL * 1e6


def seconds_of(index: int) -> float:
    """What a step of the environment `index` of 64 takes."""
    return FAST_S if index else SLOW_S


def barrier_steps() -> int:
    """Steps that AsyncVectorEnv makes of 64 environments in `BARRIER_S`."""
    envs = gymnasium.vector.AsyncVectorEnv([lambda index=index: GymNothing(seconds_of(index)) for index in range(64)])
    try:
        envs.reset(seed=0)
        steps, until = 0, time.monotonic() + BARRIER_S
        while time.monotonic() < until:
            envs.step(np.zeros(64, dtype=int))
            steps += 64
        return steps
    finally:
        envs.close()


async def free_steps() -> int:
    """Steps that the pool makes of the same environments in `BARRIER_S`."""
    made: list[Nothing] = []

    def make(task: Task) -> Nothing:
        made.append(Nothing(seconds_of(len(made)), steps=1 << 30))
        return made[-1]

    config = load_config(None, ["rollout.concurrency=64", "rollout.max_turns=1000000"])
    pool = RolloutPool(Always(), config, make)
    running = [asyncio.create_task(pool.episode(request)) for request in requests(64)]
    await asyncio.sleep(BARRIER_S)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return sum(env.done for env in made)
