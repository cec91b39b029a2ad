"""A shell as a process of this machine: its streams, and the end of everything that it started.

Where a launcher (bubblewrap, unshare) has put the shell into a process namespace, the launcher's child is the first
process of it: the kernel lets that one end only when all others in the namespace have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentgym.environments.output import Stream
from agentgym.environments.shell import DRAIN_S, Shell
from agentgym.errors import SandboxError

GRACE_S = 5.0  # for a killed process to be gone
SETTLE_S = 0.01  # for the last output of a shell whose jobs hold its streams open
FLOOD_BYTES = 4 << 20  # a command that prints more is read slowly, so that it cannot keep the host busy
FLOOD_PAUSE_S = 0.02

INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)  # by children, where they are ignored

Sweep = Callable[[], None]  # ends what killing the process group does not


class LocalShell(Shell):
    """A bash of this machine. `sweep` ends what has left its process group."""

    def __init__(
        self,
        argv: Sequence[str],
        sweep: Sweep,
        *,
        cwd: Path,
        env: dict[str, str],
        limit: int,
        terminal: bool = False,
    ) -> None:
        super().__init__(limit)
        self.sweep = sweep
        self.loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        pair: tuple[socket.socket | None, socket.socket | None] = socket.socketpair() if terminal else (None, None)
        self.wire, wire = pair
        self.wire_in = wire.fileno() if wire else -1
        try:
            self.process = _spawn(argv, theirs.fileno(), cwd, env, [wire.fileno()] if wire else [])
        except OSError as error:
            for end in (ours, self.wire):
                if end is not None:
                    end.close()
            raise SandboxError(f"cannot start a shell: {error}") from error
        finally:
            for end in (theirs, wire):
                if end is not None:
                    end.close()
        ours.setblocking(False)
        self.socket = ours
        assert self.process.stdout is not None and self.process.stderr is not None
        self.pipes = {self.process.stdout.fileno(): self.out, self.process.stderr.fileno(): self.err}
        self.open_pipes = set(self.pipes)
        self.dry = self.loop.create_future()  # both streams have come to their end
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
        self.first: list[int] = []  # handles of the launcher's children
        self.inside: list[int] = []  # and their process ids
        self.handle = os.pidfd_open(self.process.pid)
        self.loop.add_reader(self.handle, self._note_end)

    async def open(self, cwd: str = "") -> None:
        await super().open(cwd)
        self.first, self.inside = children(self.process.pid)

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def kill(self) -> None:
        if self.process.returncode is None:  # not yet reaped: the number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await asyncio.wait([self.ended], timeout=GRACE_S)
            if not self.ended.done():
                raise SandboxError(f"process {self.process.pid} could not be killed")
            self.process.wait()
        await asyncio.to_thread(self._end_rest)

    def _end_rest(self) -> None:
        until = time.monotonic() + GRACE_S
        while self.first:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self.first[-1], signal.SIGKILL)
            if not select.select([self.first[-1]], [], [], max(0.0, until - time.monotonic()))[0]:
                raise SandboxError("something in the sandbox could not be killed")
            os.close(self.first.pop())
        self.sweep()

    async def drain(self) -> None:
        if self.ended.done() and not self.dry.done():
            await asyncio.wait([self.dry], timeout=SETTLE_S)

    async def close(self) -> None:
        """Kill the shell and give its descriptors back; safe to call twice."""
        if self.handle < 0:
            return
        try:
            await self.kill()
            await asyncio.wait([self.dry], timeout=DRAIN_S)
        finally:
            self.loop.remove_reader(self.handle)
            for pipe in self.open_pipes:
                self.loop.remove_reader(pipe)
            assert self.process.stdout is not None and self.process.stderr is not None
            self.process.stdout.close()
            self.process.stderr.close()
            self.socket.close()
            if self.wire is not None:
                self.wire.close()
            os.close(self.handle)
            self.handle = -1

    def listen(self) -> None:
        for pipe in self.open_pipes:
            self.loop.add_reader(pipe, self._ready, pipe, self.pipes[pipe])

    def _ready(self, pipe: int, stream: Stream) -> None:
        try:
            chunk = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        if not chunk:
            self.loop.remove_reader(pipe)
            self.open_pipes.discard(pipe)
            if not self.open_pipes and not self.dry.done():
                self.dry.set_result(None)
            return
        stream.feed(chunk)
        if stream.kept.total > FLOOD_BYTES:
            self.loop.remove_reader(pipe)
            if stream.marked is not None:  # else nobody waits: the next command reads on
                self.loop.call_later(FLOOD_PAUSE_S, self._resume, pipe)

    def _resume(self, pipe: int) -> None:
        if pipe in self.open_pipes and self.handle >= 0:
            self.loop.add_reader(pipe, self._ready, pipe, self.pipes[pipe])

    def _note_end(self) -> None:
        """Learn the exit code, and leave the process for `kill` to reap."""
        self.loop.remove_reader(self.handle)
        end = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        if end is not None and not self.ended.done():
            self.ended.set_result(end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status)


def children(pid: int) -> tuple[list[int], list[int]]:
    """(handles, ids) of the children of a process that is not reaped; none where the kernel does not list them."""
    handles, ids = list[int](), list[int]()
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                handles.append(os.pidfd_open(int(child)))
                ids.append(int(child))
    return handles, ids


def _spawn(
    argv: Sequence[str], stdin: int, cwd: Path, env: dict[str, str], passed: Sequence[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*_heeding(), *argv],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        pass_fds=passed,
        start_new_session=True,
    )


def _heeding() -> list[str]:
    """What to put before a command line so that it heeds the signals which this process ignores (nohup, a worker)."""
    ignored = [one.name.removeprefix("SIG") for one in INHERITED if signal.getsignal(one) is signal.SIG_IGN]
    return ["/usr/bin/env", f"--default-signal={','.join(ignored)}"] if ignored else []
