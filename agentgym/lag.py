"""How late an event loop is: what it costs everybody when something blocks it."""

from __future__ import annotations

import asyncio
from types import TracebackType

PROBE_S = 0.05


class LagMeter:
    """Measures the loop that it is entered in.

    consumes: nothing; produces: the longest delay so far; waits for: time; is unblocked by: time alone.
    """

    def __init__(self) -> None:
        self._longest = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LagMeter:
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()

    def take(self) -> float:
        """The longest delay in seconds since the last call."""
        longest, self._longest = self._longest, 0.0
        return longest

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self._longest = max(self._longest, loop.time() - due)
