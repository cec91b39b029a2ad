"""What a learner consumes: completed turns with their next state, and feedback, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agentgym.errors import UsageError
from agentgym.gateway.ledger import Ledger
from agentgym.gateway.records import CompletedTurn, Feedback

AGAIN_S = 30.0  # so often the ledger is looked at even if nobody says that there is something


class Feed:
    """Gives out each completed main turn once, until it is settled; after a restart what was not settled comes again.

    consumes: the ledger's ready turns; produces: CompletedTurn; waits for: next states, feedback, time-outs; is
    unblocked by: any of them. Feedback that comes after its turn was given out is told by `feedback()`.

    Example:
        async for completed in gateway.feed.completed():
            sample = ...  # completed.turn.completion, completed.next_state, completed.feedback
            await gateway.feed.settle(completed.turn.id, "trained")
    """

    def __init__(self, ledger: Ledger, stored: Callable[..., Awaitable[Any]]) -> None:
        self._ledger, self._stored = ledger, stored
        self._woken = asyncio.Event()
        self._given: set[str] = set()
        self._told: asyncio.Queue[Feedback | None] = asyncio.Queue()
        self._closed = False

    async def completed(self) -> AsyncIterator[CompletedTurn]:
        """Completed turns in the order of their completion, for ever (until the gateway closes)."""
        while not self._closed:
            self._woken.clear()
            fresh = [
                turn
                for turn in await self._stored(self._ledger.ready, 256 + len(self._given))
                if turn.turn.id not in self._given
            ]
            for turn in fresh:
                self._given.add(turn.turn.id)
                yield turn
            if not fresh:
                try:
                    async with asyncio.timeout(AGAIN_S):
                        await self._woken.wait()
                except TimeoutError:
                    continue

    async def feedback(self) -> AsyncIterator[Feedback]:
        """What users say about answers, as they say it."""
        while (feedback := await self._told.get()) is not None:
            yield feedback

    async def settle(self, id: str, fate: str) -> None:
        """Say what became of a turn: "trained", or "rejected: why"; it is not given out again."""
        if fate in ("ready", "waiting") or not fate:
            raise UsageError(f"{fate!r} is no fate: say what became of the turn, as in 'rejected: unscored'")
        await self._stored(self._ledger.settle, id, fate)
        self._given.discard(id)

    async def reopen(self) -> int:
        """Give those turns out again whose training was taken back; returns how many."""
        number = await self._stored(self._ledger.reopen)
        self.wake()
        return int(number)

    def wake(self) -> None:
        """Something may be ready."""
        self._woken.set()

    def told(self, feedback: Feedback) -> None:
        """Somebody said something."""
        self._told.put_nowait(feedback)
        self._woken.set()

    def close(self) -> None:
        """End the iterators."""
        self._closed = True
        self._woken.set()
        self._told.put_nowait(None)
