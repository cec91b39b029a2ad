"""A warm pool: containers that are ready before anybody asks, so that an episode waits for none."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from agentgym.environments.containers import Spec
from agentgym.errors import SandboxError

if TYPE_CHECKING:
    from agentgym.environments.docker import DockerSandbox

IDLE_S = 20.0  # after the last sandbox of a kind was closed, its ready ones go too
AT_ONCE = 4  # containers that start at the same time: the daemon gains nothing from more

_pools: dict[tuple[asyncio.AbstractEventLoop, Spec], Pool] = {}


class Pool:
    """Up to `size` ready containers of one kind.

    Consumes: requests (`take`). Produces: ready containers. Waits for: the daemon, at most AT_ONCE starts at a time.
    Unblocked by: a container that was taken, which is replaced.
    """

    def __init__(self, spec: Spec, size: int) -> None:
        self.spec, self.size = spec, size
        self.ready: deque[DockerSandbox] = deque()
        self.starting: set[asyncio.Task[None]] = set()
        self.in_use = 0

    async def take(self) -> DockerSandbox | None:
        """A ready container, or None: then the caller makes its own."""
        self.in_use += 1
        found = None
        while self.ready and found is None:
            found = self.ready.popleft()
            if found.control is None or found.control.ended.done():
                await found.close()
                found = None
        self._refill()
        return found

    def give_back(self) -> None:
        """One that was taken, or made instead, is closed."""
        self.in_use -= 1
        asyncio.get_running_loop().call_later(IDLE_S, self._empty_if_idle)

    async def close(self) -> None:
        """Close the ready ones, and those that are starting."""
        for task in self.starting:
            task.cancel()
        await asyncio.gather(*self.starting, return_exceptions=True)
        while self.ready:
            await self.ready.popleft().close()

    def _refill(self) -> None:
        missing = min(self.size - len(self.ready) - len(self.starting), AT_ONCE - len(self.starting))
        for _ in range(missing):
            task = asyncio.ensure_future(self._start_one())
            self.starting.add(task)
            task.add_done_callback(self.starting.discard)

    async def _start_one(self) -> None:
        from agentgym.environments.docker import DockerSandbox

        made = DockerSandbox(self.spec, waiting=True)
        with contextlib.suppress(SandboxError):  # whoever needs one meets the same failure and reports it
            await made.start()
            self.ready.append(made)
            asyncio.get_running_loop().call_soon(self._refill)

    def _empty_if_idle(self) -> None:
        if not self.in_use and (self.ready or self.starting):
            self.closing = asyncio.ensure_future(self.close())


def pool(spec: Spec, size: int) -> Pool:
    """This event loop's pool of `spec`."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _pools if key[0].is_closed()]:
        del _pools[key]
    made = _pools.setdefault((loop, spec), Pool(spec, size))
    made.size = max(made.size, size)
    return made


async def fill(spec: Spec, size: int) -> Pool:
    """A pool with `size` ready containers, once they are."""
    made = pool(spec, size)
    made._refill()
    while made.starting:
        await asyncio.gather(*made.starting)
        await asyncio.sleep(0)
    return made


async def close_pools() -> None:
    """Close every ready container of this event loop."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _pools if key[0] is loop]:
        await _pools.pop(key).close()
