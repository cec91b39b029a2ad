"""The rollout pool: many episodes at once, without a barrier."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from agentgym.config import Config, RolloutConfig
from agentgym.env import Env
from agentgym.executors import Executor, InlineExecutor, LocalExecutor
from agentgym.policy import Policy
from agentgym.rollout import EpisodeRequest
from agentgym.types import Group, Sampling, Task, Trajectory


class RolloutPool:
    """Runs episodes: in `rollout.workers` processes if the policy has an address, else in this process's event loop.

    Start it before the first episode (else that one waits for the workers to start) and close it at the end.

    Example:
        async with RolloutPool(policy, config) as pool:
            async for trajectory in pool.episodes(requests):
                print(trajectory.outcome)
    """

    def __init__(
        self,
        policy: Policy,
        config: Config,
        make_env: Callable[[Task], Env] | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.retried: Counter[str] = Counter()  # reasons of failed attempts
        self.executor = executor or local_executor(policy, config, make_env)
        self._places = asyncio.Semaphore(config.rollout.concurrency)

    async def start(self) -> None:
        """Start the workers, if there are any; safe to call twice. Raises AgentgymError if they cannot start."""
        await self.executor.start()

    async def close(self) -> None:
        """End the workers; episodes that still run end as cancelled. Safe to call twice."""
        await self.executor.close()

    async def __aenter__(self) -> RolloutPool:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def episode(self, request: EpisodeRequest) -> Trajectory:
        """Run one episode as soon as there is a place.

        consumes: the request; produces: exactly one trajectory; waits for: a free place (`rollout.concurrency`), then
        for the executor; is unblocked by: the end of any other episode, then of this one. What an infrastructure
        failure ended is tried again with the same seed, `rollout.retries` times. An episode that lost a worker has its
        last try alone in one: the faults of its fellows are not held against it.
        """
        retries = self.config.rollout.retries
        async with self._places:
            losses = 0
            for attempt in range(retries + 1):
                trajectory = await self.executor.run(request, alone=losses > 0 and attempt == retries)
                if trajectory.status != "infrastructure":
                    break
                losses += trajectory.info.get("worker_lost", False)
                self.retried[trajectory.reason] += 1
            return msgspec.structs.replace(trajectory, info={**trajectory.info, "attempts": attempt + 1})

    async def episodes(self, requests: Sequence[EpisodeRequest]) -> AsyncIterator[Trajectory]:
        """Run all `requests` and yield their trajectories in the order in which they end.

        consumes: the requests; produces: one trajectory each; waits for: whichever ends next, and its caller; is
        unblocked by: any episode's end. Closed early, it cancels what still runs.
        """
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


def local_executor(policy: Policy, config: Config, make_env: Callable[[Task], Env] | None = None) -> Executor:
    """Worker processes on this machine if they are wanted and can reach the policy, else this process."""
    if config.rollout.workers and policy.address is not None:
        return LocalExecutor(policy.address, config, make_env)
    return InlineExecutor(policy, config, make_env)


async def cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
