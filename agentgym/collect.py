"""Collecting groups of episodes to learn from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import numpy as np

from agentgym.pool import cancel
from agentgym.types import Group, Task, Trajectory


class TaskStream:
    """An endless, seeded stream of tasks: epoch after epoch, each in an order of its own.

    `position` counts the tasks that were handed out; a stream made with it goes on exactly there.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, position: int = 0) -> None:
        self.tasks = tasks
        self.seed = seed
        self.position = position
        self._orders: dict[int, np.ndarray] = {}

    def __next__(self) -> Task:
        self.position += 1
        return self.at(self.position - 1)

    def at(self, position: int) -> Task:
        """The task at a position."""
        epoch, offset = divmod(position, len(self.tasks))
        if epoch not in self._orders:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.tasks))
            recent = list(self._orders.items())[-1:]  # two epochs may overlap
            self._orders = dict([*recent, (epoch, order)])
        return self.tasks[int(self._orders[epoch][offset])]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one step: those with something to learn from, and those without."""

    groups: tuple[Group, ...]
    dropped: tuple[Group, ...] = ()

    @property
    def trajectories(self) -> list[Trajectory]:
        """All members of all groups, the dropped ones included."""
        return [member for group in (*self.groups, *self.dropped) for member in group.trajectories]


async def collect(
    start: Callable[[int], Awaitable[Group]],
    *,
    wanted: int,
    limit: int,
    useful: Callable[[Group], bool],
    first: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Collected:
    """Run groups 0, 1, 2, ... until `wanted` of them are useful or `limit` were started (dynamic sampling, 2503.14476).

    The `first` ones are run in any case: those that an earlier life had started.

    consumes: nothing but numbers, which `start` makes groups of; produces: one Collected; waits for: the groups that
    are running; is unblocked by: any group's end, which starts a replacement if it has nothing to learn from.
    """
    started = 0
    found: dict[bool, list[Group]] = {True: [], False: []}

    def another() -> asyncio.Future[Group]:
        nonlocal started
        started += 1
        return asyncio.ensure_future(start(started - 1))

    running = {another() for _ in range(max(first, min(wanted, limit)))}
    try:
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for group in (task.result() for task in ended):
                found[useful(group)].append(group)
            while len(found[True]) + len(running) < wanted and started < limit:
                running.add(another())
            progress(len(found[True]), wanted)
    finally:
        await cancel(list(running))
    ordered = {kind: tuple(sorted(groups, key=lambda group: group.id)) for kind, groups in found.items()}
    return Collected(groups=ordered[True], dropped=ordered[False])
