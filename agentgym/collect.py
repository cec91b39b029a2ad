"""Collecting groups of episodes to learn from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from agentgym.pool import RolloutPool, cancel
from agentgym.types import Group, Sampling, Task, Trajectory


class TaskStream:
    """An endless, seeded stream of tasks: epoch after epoch, each in an order of its own.

    `position` counts the tasks that were handed out; a stream made with it goes on exactly there.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, position: int = 0) -> None:
        self.tasks = tasks
        self.seed = seed
        self.position = position
        self._order: np.ndarray = np.empty(0, dtype=int)
        self._epoch = -1

    def __next__(self) -> Task:
        epoch, offset = divmod(self.position, len(self.tasks))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(len(self.tasks))
        self.position += 1
        return self.tasks[int(self._order[offset])]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one step: those with something to learn from, and those without."""

    groups: tuple[Group, ...]
    dropped: tuple[Group, ...] = ()

    @property
    def trajectories(self) -> list[Trajectory]:
        """All members of all groups, the dropped ones included."""
        return [member for group in (*self.groups, *self.dropped) for member in group.trajectories]


async def collect(
    pool: RolloutPool,
    stream: TaskStream,
    *,
    prefix: str,
    wanted: int,
    limit: int,
    size: int,
    sampling: Sampling,
    useful: Callable[[Group], bool],
    keep: Callable[[Trajectory], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Collected:
    """Run groups until `wanted` of them are useful or `limit` have been started (dynamic sampling, 2503.14476).

    consumes: tasks of the stream; produces: groups, each trajectory handed to `keep` as it ends; waits for: the pool;
    is unblocked by: any group's end, which starts a replacement if the group has nothing to learn from.
    """
    started = 0
    found: dict[bool, list[Group]] = {True: [], False: []}

    def start() -> asyncio.Task[Group]:
        nonlocal started
        seed, task = stream.position, next(stream)
        started += 1
        return asyncio.create_task(pool.group(f"{prefix}-g{started - 1:03d}", task, seed, sampling, size, keep))

    running = {start() for _ in range(min(wanted, limit))}
    try:
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for group in (task.result() for task in ended):
                found[useful(group)].append(group)
            while len(found[True]) + len(running) < wanted and started < limit:
                running.add(start())
            progress(len(found[True]), wanted)
    finally:
        await cancel(list(running))
    ordered = {kind: tuple(sorted(groups, key=lambda group: group.id)) for kind, groups in found.items()}
    return Collected(groups=ordered[True], dropped=ordered[False])
