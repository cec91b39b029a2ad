"""A shell in a container, over the socket of one `docker exec`; and the wire to a container's first process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from agentgym.environments.process import FLOOD_BYTES, FLOOD_PAUSE_S
from agentgym.environments.shell import DRAIN_S, Shell
from agentgym.errors import SandboxError

HEADER = 8  # a frame: the stream's number, three zeros, four bytes of length
STDOUT, STDERR = 1, 2
SETTLE_S = 5.0


class Wire:
    """A hijacked connection to the daemon: frames come in, bytes go out."""

    def __init__(self, answer: Any, take: Callable[[int, bytes], None], end: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.socket = detach(answer)
        self.take, self.end = take, end
        self.pending = bytearray()
        self.loop.add_reader(self.socket, self._ready)

    async def send(self, data: bytes) -> None:
        """Write. Raises OSError once the connection is closed."""
        await self.loop.sock_sendall(self.socket, data)

    def finish(self) -> None:
        """Say that nothing more will be written."""
        self.socket.shutdown(socket.SHUT_WR)

    def pause(self, seconds: float | None) -> None:
        """Read nothing for a while, or until `resume`."""
        self.loop.remove_reader(self.socket)
        if seconds is not None:
            self.loop.call_later(seconds, self.resume)

    def resume(self) -> None:
        """Read again."""
        if self.socket.fileno() >= 0:
            self.loop.add_reader(self.socket, self._ready)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        if self.socket.fileno() >= 0:
            self.loop.remove_reader(self.socket)
            self.socket.close()

    def _ready(self) -> None:
        try:
            chunk = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.loop.remove_reader(self.socket)
            self.end()
            return
        self.pending += chunk
        while len(self.pending) >= HEADER:
            size = int.from_bytes(self.pending[4:HEADER], "big")
            if len(self.pending) < HEADER + size:
                break
            number, frame = self.pending[0], bytes(self.pending[HEADER : HEADER + size])
            del self.pending[: HEADER + size]
            self.take(number, frame)


def detach(answer: Any) -> socket.socket:
    """The connection that the SDK's answer stands for, as a socket of our own."""
    made = socket.socket(fileno=os.dup(answer.fileno()))
    answer._response.close()  # docker's own reader: it would hold the connection open
    answer.close()
    made.setblocking(False)
    return made


class DockerShell(Shell):
    """A bash in a container. `kill_all` ends everything in it but the first process."""

    def __init__(self, answer: Any, kill_all: Callable[[], Any], exit_code: Callable[[], Any], limit: int) -> None:
        super().__init__(limit)
        self.kill_all, self.exit_code = kill_all, exit_code
        self.streams = {STDOUT: self.out, STDERR: self.err}
        self.wire = Wire(answer, self._take, self._end)
        self.asking: asyncio.Task[None] | None = None

    async def send(self, data: bytes) -> None:
        await self.wire.send(data)

    async def kill(self) -> None:
        await self.kill_all()
        await asyncio.wait([self.ended], timeout=SETTLE_S)
        if not self.ended.done():  # somebody who cannot be killed holds its streams
            self.ended.set_result(137)
        self.wire.close()

    async def drain(self) -> None:
        if not self.ended.done():
            await asyncio.wait([self.ended], timeout=DRAIN_S)

    def listen(self) -> None:
        self.wire.resume()

    def _take(self, number: int, chunk: bytes) -> None:
        stream = self.streams.get(number, self.err)
        stream.feed(chunk)
        if stream.kept.total > max(FLOOD_BYTES, stream.limit):
            self.wire.pause(FLOOD_PAUSE_S if stream.marked is not None else None)

    def _end(self) -> None:
        self.asking = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        code = await self.exit_code()
        if not self.ended.done():
            self.ended.set_result(code)


class Control:
    """The wire to a container's first process, which does two things that nothing inside can prevent.

    It ends everything else when told to, without starting a process; and when this wire breaks, because its owner
    closed it or died, it exits, and the container goes with it.
    """

    def __init__(self, answer: Any) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.wire = Wire(answer, self._take, self._end)

    async def ask(self, word: str, timeout_s: float = 10.0) -> str:
        """Have `word` done; the answer is empty if the container is gone or does not answer."""
        begun = time.monotonic()
        try:
            await self.wire.send(word.encode() + b"\n")
            asking: asyncio.Future[Any] = asyncio.ensure_future(self.answers.get())
            await asyncio.wait({asking, self.ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and time.monotonic() - begun < timeout_s:
                return bytes(asking.result()).decode().strip()
            asking.cancel()
        except OSError:
            pass
        return ""

    async def kill_all(self) -> None:
        """End everything but the first process, and come back when all of it is dead. Raises SandboxError."""
        until = time.monotonic() + SETTLE_S
        while (answer := await self.ask("kill")) != "kill":
            if not answer:
                raise SandboxError("the container is gone, or does not answer")
            if time.monotonic() > until:
                raise SandboxError("something in the container cannot be killed")
            await asyncio.sleep(0.002)

    async def tell(self, word: str) -> None:
        """Have `word` done, if the container is there, without waiting for it."""
        with contextlib.suppress(OSError):
            await self.wire.send(word.encode() + b"\n")

    def close(self) -> None:
        """Let the container go."""
        self.wire.close()

    def _take(self, number: int, chunk: bytes) -> None:
        self.answers.put_nowait(chunk)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
