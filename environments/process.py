"""Running one command to its end: bounded output, a deadline, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agentgym.environments.sandbox import CommandResult, Limits
from agentgym.errors import SandboxError

TIMED_OUT = 124  # as coreutils' `timeout` has it
CANNOT_RUN = 126
MAX_COMMAND_BYTES = 120_000  # Linux takes at most 128 KiB in one argument
GRACE_S = 5.0  # for a killed process to be gone
DRAIN_S = 0.5  # for the pipes to run dry once the command has ended
FLOOD_BYTES = 4 << 20  # a command that prints more is read slowly, so that it cannot keep the host busy
FLOOD_PAUSE_S = 0.02

Kill = Callable[[subprocess.Popen[bytes], bool], None]  # (process, thorough): end it and all that it started


def shell(command: str, limits: Limits, ready: int, *, count_processes: bool) -> list[str]:
    """The argument list that applies `limits`, writes a byte to the descriptor `ready`, and becomes `command`.

    The byte tells a sandbox that failed to start from a command that failed.
    """
    bounds = [f"-v {limits.memory_mb << 10}", f"-f {limits.file_mb << 10}", f"-n {limits.open_files}", "-c 0"]
    if count_processes:
        bounds.append(f"-u {limits.processes}")
    set_limits = "; ".join(f"ulimit {bound} 2>/dev/null" for bound in bounds)
    prelude = f'{set_limits}; umask 022; printf . >&{ready}; exec {ready}>&-; exec "$BASH" -c "$1" bash'
    return [find_bash(), "-c", prelude, "bash", command]


def find_bash() -> str:
    """The path of bash. Raises SandboxError."""
    path = shutil.which("bash", path="/usr/local/bin:/usr/bin:/bin")
    if path is None:
        raise SandboxError("no bash on this machine: install it")
    return path


def refusal(command: str) -> CommandResult | None:
    """The result of a command that no shell can take, which is the policy's fault and no failure of ours."""
    size = len(command.encode("utf-8", "replace"))
    why = "the command holds a NUL character" if "\0" in command else ""
    if size > MAX_COMMAND_BYTES:
        why = f"the command is too long: {size} bytes, at most {MAX_COMMAND_BYTES}"
    return CommandResult(exit_code=CANNOT_RUN, stdout="", stderr=f"bash: {why}\n", seconds=0.0) if why else None


class Output:
    """One pipe's output, read as it comes and kept within `limit` bytes: half head, half tail."""

    def __init__(self, file: int, limit: int) -> None:
        self.file = file
        self.half = max(limit // 2, 1)
        self.head, self.tail = bytearray(), bytearray()
        self.total = 0
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        os.set_blocking(file, False)
        self.loop.add_reader(file, self._ready)

    def _ready(self) -> None:
        try:
            chunk = os.read(self.file, 1 << 16)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
            return
        self.add(chunk)
        if self.total > FLOOD_BYTES:
            self.loop.remove_reader(self.file)
            self.loop.call_later(FLOOD_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self.closed.done():
            self.loop.add_reader(self.file, self._ready)

    def add(self, chunk: bytes) -> None:
        """Keep what there is room for."""
        self.total += len(chunk)
        room = self.half - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        if len(self.tail) > 2 * self.half:
            del self.tail[: -self.half]

    def close(self) -> None:
        """Read no more."""
        if not self.closed.done():
            self.loop.remove_reader(self.file)
            self.closed.set_result(None)

    def text(self) -> tuple[str, int]:
        """The output as valid text, and how many bytes are missing from its middle."""
        tail = self.tail[-self.half :]
        dropped = self.total - len(self.head) - len(tail)
        if not dropped:
            return (self.head + tail).decode("utf-8", "replace"), 0
        start, end = (part.decode("utf-8", "replace") for part in (self.head, tail))
        return f"{start}\n[... {dropped} bytes left out ...]\n{end}", dropped


async def run_process(
    argv: Callable[[int], Sequence[str]], kill: Kill, *, cwd: Path, env: dict[str, str], timeout_s: float, limit: int
) -> CommandResult:
    """Run `argv(ready)` until it exits or `timeout_s` is over, then end whatever is left of it with `kill`.

    A background process that holds the pipes open does not keep this waiting.

    Raises:
        SandboxError: the command never started, or could not be killed.
    """
    begun = time.monotonic()
    ready_read, ready_write = os.pipe()
    try:
        process = _spawn(argv(ready_write), ready_write, cwd, env)
    except OSError as error:
        os.close(ready_read)
        raise SandboxError(f"cannot start a command: {error}") from error
    finally:
        os.close(ready_write)
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr, os.fdopen(ready_read, "rb", 0) as ready:
        outputs = [Output(pipe.fileno(), limit) for pipe in (process.stdout, process.stderr)]
        try:
            timed_out = await _finish(process, kill, outputs, timeout_s)
        finally:
            for output in outputs:
                output.close()
        os.set_blocking(ready_read, False)
        started = ready.read(1) == b"."
    (stdout, stdout_dropped), (stderr, stderr_dropped) = (output.text() for output in outputs)
    if not started:
        raise SandboxError(f"the sandbox did not start: {stderr.strip()[-300:] or f'exit {process.returncode}'}")
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return CommandResult(
        exit_code=TIMED_OUT if timed_out else code,
        stdout=stdout,
        stderr=stderr,
        seconds=time.monotonic() - begun,
        timed_out=timed_out,
        stdout_dropped=stdout_dropped,
        stderr_dropped=stderr_dropped,
    )


def _spawn(argv: Sequence[str], ready: int, cwd: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [part.encode("utf-8", "replace") for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        pass_fds=(ready,),
        start_new_session=True,
    )


async def _finish(process: subprocess.Popen[bytes], kill: Kill, outputs: list[Output], timeout_s: float) -> bool:
    """Wait for the exit, whatever happens end everything, and say whether time ran out."""
    with _exit_of(process) as exited:
        pipes = [output.closed for output in outputs]
        done: set[asyncio.Future[None]] = set()
        try:
            done, _ = await asyncio.wait([exited], timeout=timeout_s)
        finally:
            left_open = done and any(not pipe.done() for pipe in pipes)
            if left_open:  # the last output is still in the pipes, or somebody else holds them
                await asyncio.wait(pipes, timeout=0.01)
            kill(process, not done or any(not pipe.done() for pipe in pipes))
            await asyncio.wait([exited], timeout=GRACE_S)
            if process.poll() is None:
                raise SandboxError(f"process {process.pid} could not be killed")
        await asyncio.wait(pipes, timeout=DRAIN_S)
        return not done


@contextlib.contextmanager
def _exit_of(process: subprocess.Popen[bytes]) -> Iterator[asyncio.Future[None]]:
    """A future that is done once the process has exited."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[None] = loop.create_future()
    handle = os.pidfd_open(process.pid)

    def note() -> None:
        loop.remove_reader(handle)
        exited.set_result(None)

    loop.add_reader(handle, note)
    try:
        yield exited
    finally:
        loop.remove_reader(handle)
        os.close(handle)
