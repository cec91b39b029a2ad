"""A thread for the functions of one episode: they may block, and each call has a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any


class TimeUp(BaseException):
    """Raised inside a function that has run for too long, so that a loop of its own ends."""


class ToolThread:
    """One daemon thread that calls one function after another, so that an episode's state is touched by one at a time.

    A call that is over its deadline is interrupted with TimeUp. Where that is in vain (it waits inside C code) the
    thread is given up: later calls get another one, and nothing waits for it at exit.
    """

    GRACE_S = 0.5  # for an interrupted call to end

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """What `function` returns or raises. Raises TimeoutError after `timeout_s`."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        running = threading.Lock()  # held while the function runs
        abandoned = threading.Event()

        def settle(value: Any, error: BaseException | None) -> None:
            if not outcome.done():
                outcome.set_exception(error) if error is not None else outcome.set_result(value)

        def job() -> None:
            value: Any = None
            error: BaseException | None = None
            if abandoned.is_set():
                return
            try:
                with running:
                    value = function()
            except (StopIteration, KeyboardInterrupt, GeneratorExit) as odd:  # no future may hold it
                error = RuntimeError(f"{type(odd).__name__}: {odd}")
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, value, error)

        self._start()
        self._jobs.put(job)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(outcome)
        except BaseException:
            abandoned.set()
            if not outcome.done():
                outcome.add_done_callback(_heard)
                await self._interrupt(running, outcome)
            raise

    def close(self) -> None:
        """End the thread once it is idle; safe to call twice."""
        if self._thread is not None:
            self._thread = None
            self._jobs.put(None)

    async def _interrupt(self, running: threading.Lock, outcome: asyncio.Future[Any]) -> None:
        thread = self._thread
        if thread is None or not running.locked():
            return
        _raise_in(thread, ctypes.py_object(TimeUp))
        done, _ = await asyncio.wait([outcome], timeout=self.GRACE_S)
        if done:
            _raise_in(thread, None)  # it may have ended by itself: what comes next is not to be hit
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._jobs.put(None)
        self._jobs = queue.SimpleQueue()
        self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name="agentgym-tool", daemon=True)
            self._thread.start()


def _raise_in(thread: threading.Thread, error: Any) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)


def _heard(outcome: asyncio.Future[Any]) -> None:
    """Nobody waits any more for what a call came to."""
    if not outcome.cancelled():
        outcome.exception()


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while True:
        with contextlib.suppress(TimeUp):  # one that came too late
            job = jobs.get()
            if job is None:
                return
            job()
