"""The rollout pool: many episodes at once, without a barrier."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from agentgym.config import Config, RolloutConfig
from agentgym.env import Env
from agentgym.policy import Policy
from agentgym.registry import ENVIRONMENTS
from agentgym.rollout import EpisodeRequest, run_episode
from agentgym.types import Group, Sampling, Task, Trajectory


class RolloutPool:
    """Runs episodes in this process's event loop.

    consumes: episode requests; produces: one trajectory each, as they end; waits for: a free place
    (`rollout.concurrency`), the policy and the environment of that episode; is unblocked by: any episode's end.
    An episode that an infrastructure failure ended is tried again with the same seed, `rollout.retries` times.
    """

    def __init__(self, policy: Policy, config: Config, make_env: Callable[[Task], Env] | None = None) -> None:
        self.policy = policy
        self.config = config
        self.make_env = make_env or (lambda task: ENVIRONMENTS.make(task.env, **config.env.options))
        self.retried: Counter[str] = Counter()  # reasons of failed attempts
        self._places = asyncio.Semaphore(config.rollout.concurrency)

    async def episode(self, request: EpisodeRequest) -> Trajectory:
        """Run one episode as soon as there is a place."""
        timeout_s = self.config.engine.request_timeout_s + 5  # the engine's own deadline tells more: let it come first
        async with self._places:
            for attempts in range(1, self.config.rollout.retries + 2):  # noqa: B007 (told below)
                trajectory = await run_episode(request, self.policy, self.make_env, self.config.rollout, timeout_s)
                if trajectory.status != "infrastructure":
                    break
                self.retried[trajectory.reason] += 1
            return msgspec.structs.replace(trajectory, info={**trajectory.info, "attempts": attempts})

    async def episodes(self, requests: Sequence[EpisodeRequest]) -> AsyncIterator[Trajectory]:
        """Run all `requests` and yield their trajectories in the order in which they end."""
        tasks = [asyncio.create_task(self.episode(request)) for request in requests]
        try:
            for finished in asyncio.as_completed(tasks):
                yield await finished
        finally:
            await cancel(tasks)

    async def group(
        self,
        id: str,
        task: Task,
        seed: int,
        sampling: Sampling,
        size: int,
        keep: Callable[[Trajectory], None] = lambda _: None,
    ) -> Group:
        """Run `size` episodes of one task at once: member m has the id "<id>-m<m>", and is given to `keep` as it ends."""
        requests = [
            EpisodeRequest(id=f"{id}-m{member}", group_id=id, task=task, seed=seed * 1009 + member, sampling=sampling)
            for member in range(size)
        ]
        members = []
        async for trajectory in self.episodes(requests):
            keep(trajectory)
            members.append(trajectory)
        return Group(id=id, task_id=task.id, trajectories=tuple(sorted(members, key=lambda member: member.id)))


def training_sampling(rollout: RolloutConfig) -> Sampling:
    """How episodes are sampled for training."""
    return Sampling(temperature=rollout.temperature, top_p=rollout.top_p, max_tokens=rollout.max_tokens)


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
