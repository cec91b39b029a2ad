"""A worker process as its owner sees it: started, asked, watched, killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
import types
from collections.abc import Iterator
from typing import Any

import msgspec
import multiprocess
import psutil

from agentgym import errors
from agentgym.errors import DeadlineError, InfrastructureError
from agentgym.rollout import EpisodeRequest, failed
from agentgym.supervise import explain
from agentgym.types import Trajectory
from agentgym.wire import (
    LIMIT,
    Beat,
    Cancel,
    Cancelled,
    Ended,
    Ready,
    Refused,
    Start,
    Stop,
    Stuck,
    decode_from_worker,
    encode,
    frames,
    send,
)  # fmt: skip
from agentgym.worker import serve

START_TIMEOUT_S = 180.0  # a policy may load libraries and a tokenizer
DRAIN_S = 1.0  # for what an ended worker said to be read
KILL_S = 8.0  # for the supervisor to end everything before it is killed itself

_trajectory = msgspec.msgpack.Decoder(Trajectory).decode


class RemoteWorker:
    """One worker process. `ended` is done, with the reason, once it and all that it started are gone."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed  # the Setup
        self.pid = 0  # of the process that runs the episodes; 0 until it is ready
        self.silent_s = 0.0  # since its last beat, in time that its owner was listening
        self.lag_s = 0.0
        self.stuck = ""  # what it cannot end
        self.verdict = ""  # why its owner kills it
        self.stopping = False
        self.episodes: dict[int, tuple[EpisodeRequest, asyncio.Future[Trajectory]]] = {}
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # nobody may be waiting
        self._keys = itertools.count()
        self._reading: asyncio.Task[None] | None = None

    @property
    def load(self) -> int:
        """Episodes that it has, those included that were cancelled and are not gone yet."""
        return len(self.episodes)

    async def start(self) -> None:
        """Start the process; returns when its policy is made.

        Raises:
            AgentgymError: it refused, died or took too long.
        """
        try:
            end = self._spawn()
        except Exception as error:
            self.ended.set_result("it never started")
            raise InfrastructureError(f"cannot start a worker process: {error}") from error
        try:
            reader, self._writer = await asyncio.open_connection(sock=end, limit=LIMIT)
            self._reading = asyncio.create_task(self._read(reader))
            send(self._writer, self.packed)
            await asyncio.wait_for(asyncio.shield(self._ready), START_TIMEOUT_S)
        except TimeoutError:
            await self.kill("it did not start")
            raise DeadlineError(f"a worker process took longer than {START_TIMEOUT_S:g} s to start") from None
        except BaseException:
            await self.kill("not wanted")
            raise

    def _spawn(self) -> socket.socket:
        """Start the process; returns our end of its pipe."""
        # In this thread: a process that wants to die with its parent dies with the *thread* that started it.
        ours, theirs = multiprocess.Pipe()
        with ours, theirs:
            with _without_main():
                self._process = multiprocess.get_context("spawn").Process(
                    target=serve, args=(theirs, os.getpid()), name="agentgym-worker", daemon=True
                )
                self._process.start()
            try:
                self._handle = os.pidfd_open(self._process.pid)
            except OSError:
                self._process.terminate()
                raise
            self._loop.add_reader(self._handle, self._gone)
            return socket.socket(fileno=os.dup(ours.fileno()))

    async def run(self, request: EpisodeRequest) -> Trajectory:
        """Run one episode there; if the worker ends first, that is what the trajectory says.

        consumes: the request; produces: one trajectory; waits for: the worker; is unblocked by: its answer and its end.
        Cancelled, it tells the worker to cancel the episode, and does not wait for that.
        """
        if self.ended.done():
            return self._lost(request)
        key, future = next(self._keys), self._loop.create_future()
        self.episodes[key] = request, future
        send(self._writer, encode(Start(key=key, request=request)))
        try:
            return await future
        except asyncio.CancelledError:
            send(self._writer, encode(Cancel(key=key)))
            raise

    def check(self, elapsed_s: float, timeout_s: float, memory_bytes: float) -> str:
        """Why this worker must be replaced, if it must; `elapsed_s` is how long its owner listened since last time."""
        self.silent_s += elapsed_s
        if self.stuck:
            return self.stuck
        with contextlib.suppress(psutil.Error):
            taken = psutil.Process(self.pid).memory_info().rss
            if taken > memory_bytes:
                return f"out of memory: {taken / 2**30:.1f} GiB, more than rollout.worker_memory_gib"
        if self.silent_s > timeout_s:
            return f"no heartbeat for {timeout_s:g} s"
        return ""

    async def stop(self, patience_s: float) -> None:
        """Ask it to free everything and end; kill it if it takes longer than `patience_s`."""
        self.stopping = True
        if self._reading is not None and not self.ended.done():
            send(self._writer, encode(Stop()))
            await asyncio.wait([self.ended], timeout=patience_s)
        await self.kill("stopped")

    async def kill(self, why: str) -> None:
        """End it and everything that it started; returns when all are gone."""
        self.verdict = self.verdict or why
        for number, patience_s in ((signal.SIGTERM, KILL_S), (signal.SIGKILL, None)):
            if not self.ended.done():
                with contextlib.suppress(ProcessLookupError):
                    self._signal(number)
                await asyncio.wait([self.ended], timeout=patience_s)
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def _signal(self, number: int) -> None:
        pid = self._process.pid
        group = number == signal.SIGKILL and os.getpgid(pid) == pid  # it has a group of its own, if it got that far
        (os.killpg if group else os.kill)(pid, number)

    def _gone(self) -> None:
        """Its supervisor has ended, and with it everything."""
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self._process.join()
        self.ended.set_result(self.verdict or explain(self._process.exitcode))
        self._process.close()
        if self._reading is None:
            self._settle()
        else:  # should anything else hold the other end of the pipe, wait no longer for what it says
            self._loop.call_later(DRAIN_S, self._writer.transport.abort)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hear what the worker says.

        consumes: frames; produces: the results of `run` and the news of readiness and beats; waits for: the next frame,
        then the process's end; is unblocked by: any frame and by the worker's end, which closes the pipe. After it,
        every episode that is left has its trajectory.
        """
        try:
            async for frame in frames(reader):
                self._hear(decode_from_worker(frame))
        except Exception as error:
            self.verdict = f"not understood: {error}"
        await asyncio.wait([self.ended], timeout=KILL_S)
        if not self.ended.done():  # it lives on, and nobody understands it
            with contextlib.suppress(ProcessLookupError):
                self._signal(signal.SIGKILL)
            await self.ended
        self._writer.close()
        self._settle()

    def _hear(self, said: Any) -> None:
        self.silent_s = 0.0
        if isinstance(said, Ended | Cancelled):
            request, future = self.episodes.pop(said.key)
            if not future.done():
                body = said.trajectory if isinstance(said, Ended) else None
                future.set_result(closed(request) if body is None else _read_trajectory(request, body))
        elif isinstance(said, Beat):
            self.lag_s = said.lag_s
        elif isinstance(said, Stuck):
            self.stuck = said.reason
        elif isinstance(said, Ready):
            self.pid = said.pid
            self._ready.set_result(None)
        elif isinstance(said, Refused):
            self._ready.set_exception(getattr(errors, said.kind)(said.reason))

    def _settle(self) -> None:
        if not self._ready.done():
            why = f"a worker process ended as it started: {self.ended.result()}"
            self._ready.set_exception(InfrastructureError(why))
        for request, future in self.episodes.values():
            if not future.done():
                future.set_result(self._lost(request))
        self.episodes.clear()

    def _lost(self, request: EpisodeRequest) -> Trajectory:
        return closed(request) if self.stopping else lost(request, self.ended.result())


def lost(request: EpisodeRequest, reason: str) -> Trajectory:
    """The trajectory of an episode whose worker ended."""
    return failed(request, "infrastructure", f"the worker process ended: {reason}", worker_lost=True)


def closed(request: EpisodeRequest) -> Trajectory:
    """The trajectory of an episode that its executor's close cancelled."""
    return failed(request, "cancelled", "the pool was closed")


def _read_trajectory(request: EpisodeRequest, body: msgspec.Raw) -> Trajectory:
    try:
        return _trajectory(body)
    except msgspec.MsgspecError as error:
        return failed(request, "infrastructure", f"the trajectory holds nonsense: {error}")


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new process from running the user's script again: what it needs of it is sent."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
