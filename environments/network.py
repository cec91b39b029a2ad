"""The network of a sandbox that may reach some hosts: a proxy outside it, which listens inside.

A sandbox has a network namespace with nothing but loopback. The proxy's listening socket is opened in that namespace (see
`netns`) and served from here, so that what is inside can speak to the proxy and to nobody else; the proxy connects to the
hosts of the list, by name, and to no others. Commands find it in `http_proxy` and `https_proxy`.

An entry of the list is `host`, `*.host` (each host below it) or either with `:port`; without a port, 80 and 443. A name
that resolves to an address of this machine or of a private network is refused, unless the entry is that address itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import subprocess
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from agentgym.environments import netns
from agentgym.errors import SandboxError, UsageError
from agentgym.types import Struct

PORT = 3128  # inside
WEB = (80, 443)
MAX_HEAD = 16 << 10  # bytes of a request's head
MAX_CONNECTIONS = 64  # of one sandbox at once
HEAD_S, CONNECT_S, IDLE_S, LINGER_S = 10.0, 10.0, 60.0, 1.0
HELPER_S = 20.0
HOP_BY_HOP = (b"proxy-", b"connection:", b"keep-alive:")


class Rule(Struct, frozen=True, kw_only=True):
    """One entry of the list."""

    host: str
    below: bool = False
    ports: tuple[int, ...] = WEB

    def admits(self, host: str, port: int) -> bool:
        """Whether `host` may be reached at `port`."""
        return port in self.ports and (host.endswith(f".{self.host}") if self.below else host == self.host)


def rule(entry: str) -> Rule:
    """Read an entry. Raises UsageError."""
    host, colon, port = entry.strip().lower().rpartition(":")
    if not colon:
        host, port = port, ""
    below, host = host.startswith("*."), host.removeprefix("*.")
    known = host and not set(host) & set("*/@ []") and (not colon or (port.isdecimal() and 0 < int(port) < 65536))
    if not known:
        raise UsageError(f"{entry!r} is no host that can be allowed: write host, *.host or host:port")
    return Rule(host=host, below=below, ports=(int(port),) if colon else WEB)


def variables() -> dict[str, str]:
    """What tells programs of the proxy."""
    url = f"http://127.0.0.1:{PORT}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return dict.fromkeys(names, url) | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1")


class Proxy:
    """Serves one sandbox.

    Consumes: connections from inside. Produces: bytes both ways. Waits for: the hosts, each with a deadline. Unblocked by:
    either side's end, silence of IDLE_S, or `close`.
    """

    def __init__(self, allow: Sequence[str]) -> None:
        self.rules = tuple(map(rule, allow))
        self.server: asyncio.Server | None = None
        self.serving: set[asyncio.Task[None]] = set()

    async def listen(self, pid: int) -> None:
        """Serve the network namespace of a process. Raises SandboxError."""
        await self.close()
        listening = await asyncio.to_thread(listen_in, pid, PORT)
        self.server = await asyncio.start_server(self._serve, sock=listening, limit=MAX_HEAD)

    async def close(self) -> None:
        """End every connection; safe to call twice."""
        server, self.server = self.server, None
        if server is not None:
            server.close()
        for task in list(self.serving):
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ValueError):
            try:
                if len(self.serving) > MAX_CONNECTIONS:
                    await _say(reader, writer, 503, "too many connections")
                    return
                async with asyncio.timeout(HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                await self._answer(head, reader, writer)
            finally:
                writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _, headers = head.partition(b"\r\n")
        method, target, version = [*line.decode("latin-1").split(" "), "", ""][:3]
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = (url.hostname or "").rstrip("."), url.port or (443 if method == "CONNECT" else 80)
        if not host or (method != "CONNECT" and url.scheme != "http"):
            await _say(reader, writer, 400, "this is a proxy: ask for http://host/ or CONNECT host:port")
            return
        matching = [one for one in self.rules if one.admits(host, port)]
        places = await addresses(host, port, matching) if matching else []
        if not places:
            await _say(reader, writer, 403, f"{host}:{port} is not among the hosts that may be reached")
            return
        there = await _connect(places)
        if there is None:
            await _say(reader, writer, 502, f"{host}:{port} cannot be reached")
            return
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            kept = [one for one in headers.split(b"\r\n") if one and not one.lower().startswith(HOP_BY_HOP)]
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            first = f"{method} {path} {version}".encode("latin-1")
            there[1].write(b"\r\n".join([first, *kept, b"Connection: close", b"", b""]))
        await _join((reader, writer), there)


def listen_in(pid: int, port: int) -> socket.socket:
    """A socket that listens on loopback in the network namespace of a process. Raises SandboxError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [sys.executable, "-I", "-S", netns.__file__, str(pid), str(port), str(theirs.fileno())]
        try:
            done = subprocess.run(argv, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=HELPER_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"the allowed hosts cannot be reached from the sandbox: {error}") from error
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
            raise SandboxError(f"the allowed hosts cannot be reached from the sandbox: {said}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=descriptors[0])


async def addresses(host: str, port: int, rules: Sequence[Rule]) -> list[tuple[str, int]]:
    """Where the host is, without what only a rule that says so may lead to."""
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    explicit = any(_is_address(one.host) or one.host == "localhost" for one in rules if not one.below)
    places = dict.fromkeys((str(info[4][0]), port) for info in found)
    return [place for place in places if explicit or ipaddress.ip_address(place[0].split("%")[0]).is_global]


async def _connect(places: Sequence[tuple[str, int]]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    for place in places:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(*place)
    return None


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(here: Ends, there: Ends) -> None:
    """Carry bytes both ways until both are done."""
    try:
        await asyncio.gather(_carry(here[0], there[1]), _carry(there[0], here[1]))
    finally:
        there[1].close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        async with asyncio.timeout(IDLE_S):
            chunk = await reader.read(1 << 16)
        if not chunk:
            break
        writer.write(chunk)
        async with asyncio.timeout(IDLE_S):
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, code: int, why: str) -> None:
    """Refuse, and read on a little: a connection that is closed with something unread loses the answer."""
    body = f"{why}\n".encode()
    writer.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (code, len(body), body))
    await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(LINGER_S):
        while await reader.read(1 << 16):
            pass


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
