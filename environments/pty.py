"""A real terminal inside a sandbox: a shell on a pseudo-terminal, its output kept until somebody looks.

Output that nobody looks at is kept up to a bound; beyond it the oldest goes, as it would from the top of a screen. A
flood is read slowly.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

ROWS, COLUMNS = 24, 80
KEEP_BYTES = 64 << 10
FLOOD_BYTES = 1 << 20  # a second; more is read in the seconds that follow
ENDED = b"[the terminal has ended]\r\n"
SHELL = f"stty rows {ROWS} cols {COLUMNS} sane; export TERM=xterm HISTFILE=/dev/null PS1='$ '; exec bash --norc --noprofile -i"


class Terminal:
    """The wire to a terminal, both ways.

    Consumes: what the terminal prints. Produces: it, in `take`. Waits for: nothing. Unblocked by: the terminal.

    Args:
        wire: a connected socket; closed with the terminal.
        end: called when the terminal is closed.
    """

    def __init__(self, wire: socket.socket, end: Callable[[], None] = lambda: None) -> None:
        self.loop = asyncio.get_running_loop()
        self.wire, self.end = wire, end
        wire.setblocking(False)
        self.kept = bytearray()
        self.dropped = 0
        self.tail = b""
        self.came = asyncio.Event()  # since the last `quiet`
        self.second, self.read_then = self.loop.time(), 0
        self.paused = False  # it printed too much, and is read again in a moment
        self.closed = False
        self.loop.add_reader(wire, self._ready)

    @property
    def ended(self) -> bool:
        """Whether the shell in it is gone."""
        return self.closed or self.tail.endswith(ENDED)

    async def send(self, data: bytes, timeout_s: float = 5.0) -> bool:
        """Type; False if the terminal takes no more."""
        if self.closed:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self.loop.sock_sendall(self.wire, data)
        except (OSError, TimeoutError):
            return False
        return True

    async def quiet(self, within_s: float, still_s: float = 0.15) -> None:
        """Wait until nothing has come for `still_s` (longer in a flood, which comes in bursts), at most `within_s`."""
        until = self.loop.time() + within_s
        while not self.closed and (left := until - self.loop.time()) > 0:
            self.came.clear()
            try:
                burst = self.read_then > KEEP_BYTES
                await asyncio.wait_for(self.came.wait(), min(3 * still_s if burst else still_s, left))
            except TimeoutError:
                if not self.paused:
                    return

    def take(self) -> tuple[bytes, int]:
        """What came since the last time, and how many bytes before it are lost."""
        taken, lost = bytes(self.kept), self.dropped
        self.kept.clear()
        self.dropped = 0
        return taken, lost

    def close(self) -> None:
        """Hang up; safe to call twice."""
        if not self.closed:
            self.closed = True
            self.loop.remove_reader(self.wire)
            self.wire.close()
            self.end()

    def _ready(self) -> None:
        try:
            chunk = self.wire.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            self.came.set()
            return
        self.kept += chunk
        self.tail = (self.tail + chunk)[-len(ENDED) :]
        if (over := len(self.kept) - KEEP_BYTES) > 0:
            del self.kept[:over]
            self.dropped += over
        self.came.set()
        self._slow_down(len(chunk))

    def _slow_down(self, size: int) -> None:
        now = self.loop.time()
        if now - self.second > 1.0:
            self.second, self.read_then = now, 0
        self.read_then += size
        if self.read_then > FLOOD_BYTES:
            self.paused = True
            self.loop.remove_reader(self.wire)
            self.loop.call_later(1.0 - (now - self.second), self._read_on)

    def _read_on(self) -> None:
        self.paused = False
        if not self.closed:
            self.loop.add_reader(self.wire, self._ready)
