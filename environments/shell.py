"""One bash for a whole episode.

The shell reads its script from a stream of its own, not from standard input, which is /dev/null for commands. For each
command the host sends a line of script, the command, and a random word. The line reads the command, evaluates it, and
only then reads the word and prints it, with the exit code, on both output streams: so nothing that a command prints can
be taken for its end, and an unusual shell (`set -e`, a new PS1, traps, `exec >file`) cannot break the next command.
The descriptors that this takes are closed in what a command starts.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from typing import Any

from agentgym.environments.output import Kept, Stream
from agentgym.environments.sandbox import CommandResult, Limits
from agentgym.errors import SandboxError

TIMED_OUT = 124  # as coreutils' `timeout` has it
CANNOT_RUN = 126
MAX_COMMAND_BYTES = 4 << 20
START_S = 30.0  # for a shell to answer
DRAIN_S = 0.5  # for the streams to run dry once the shell has ended
BASH = "/usr/local/bin:/usr/bin:/bin"

SETUP = r"exec 60<&0 61>&1 62>&2%s >/dev/null 2>/dev/null" "\n"
TERMINAL = 63  # the descriptor of a terminal's wire, where there is one
# `$?` is as the last command left it, but where a failing line would end the shell.
CODE = r"__agentgym() { return %d; }; [[ $- == *e* ]] || __agentgym; "
LINE = (
    r"LC_ALL=C \builtin read -r -N %d -u 60 __agentgym; %s"
    r'\builtin eval "$__agentgym" </dev/null >&61 2>&62 60<&- 61>&- 62>&-%s; __agentgym=$?; '
    r"\builtin mapfile -d '' -n 1 -u 60 __agentgym_word; "
    r'\builtin printf "%%s%%d %%s\0" "${__agentgym_word[0]}" "$__agentgym" "${PWD-}" >&61; '
    r'\builtin printf "%%s\0" "${__agentgym_word[0]}" >&62; \builtin unset __agentgym __agentgym_word; '
    r"\builtin unset -f __agentgym"
    "\n"
)


def shell_argv(limits: Limits, *, address_space: bool, count_processes: bool) -> list[str]:
    """The argument list of a shell that applies `limits` to itself."""
    bounds = [f"-f {limits.file_mb << 10}", f"-n {limits.open_files}", "-c 0"]
    if address_space:
        bounds.append(f"-v {limits.memory_mb << 10}")
    if count_processes:
        bounds.append(f"-u {limits.processes}")
    set_limits = "; ".join(f"ulimit {bound} 2>/dev/null" for bound in bounds)
    return [find_bash(), "--norc", "-c", f'{set_limits}; umask 022; exec "$BASH" --norc --noprofile', "bash"]


def find_bash() -> str:
    """The path of bash. Raises SandboxError."""
    path = shutil.which("bash", path=BASH)
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


class Shell(ABC):
    """A running bash, wherever it runs."""

    def __init__(self, limit: int) -> None:
        self.out, self.err = Stream(limit), Stream(limit)
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()  # its exit code
        self.code = 0
        self.cwd = ""
        self.fresh = True
        self.binary = False  # only the bytes of standard output are wanted
        self.wire_in = -1  # the number that a terminal's wire has when the shell starts, if it has one

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Give the shell its script. Raises OSError once it has ended."""

    @abstractmethod
    async def kill(self) -> None:
        """End the shell and everything that was started in it; safe to call twice. Raises SandboxError."""

    async def drain(self) -> None:
        """Read what an ended shell has left in its streams."""

    def listen(self) -> None:
        """Read again, if reading was put off."""

    async def open(self, cwd: str = "") -> None:
        """Wait until the shell answers, in the directory `cwd` if it is there. Raises SandboxError."""
        result = await self.run(f"cd -- {quote(cwd)} 2>/dev/null || :" if cwd else ":", START_S)
        if result.timed_out or result.shell_replaced:
            await self.kill()
            raise SandboxError(f"the sandbox did not start: {result.stderr.strip()[-300:] or 'no answer'}")

    async def run(self, command: str, timeout_s: float, *, wired: bool = False) -> CommandResult:
        """Run one command to its end; the shell has ended too if the result says `shell_replaced`.

        Args:
            wired: whether the command has the terminal's wire, as descriptor TERMINAL.
        """
        begun = time.monotonic()
        exchange: asyncio.Future[Any] = asyncio.ensure_future(self._exchange(command.encode("utf-8", "replace"), wired))
        try:
            either: list[asyncio.Future[Any]] = [exchange, self.ended]
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if exchange.done() and exchange.exception() is None:
                self.code, self.cwd = exchange.result()
                return self._result(self.code, begun)
            timed_out = not self.ended.done() and not exchange.done()
            if not timed_out:
                await self.drain()
            await self.kill()
            await self.drain()
            return self._result(TIMED_OUT if timed_out else await self.ended, begun, timed_out, replaced=True)
        except asyncio.CancelledError:
            await self.kill()
            raise
        finally:
            exchange.cancel()
            await asyncio.wait([exchange])
            if not exchange.cancelled():
                exchange.exception()

    async def _exchange(self, command: bytes, wired: bool) -> tuple[int, str]:
        word = secrets.token_hex(16).encode()
        out, err = self.out.expect(word), self.err.expect(word)
        line = LINE % (len(command), CODE % self.code if self.code else "", "" if wired else f" {TERMINAL}<&-")
        wire = f" {TERMINAL}<&{self.wire_in} {self.wire_in}<&-" if self.wire_in >= 0 else ""
        setup, self.fresh = SETUP % wire if self.fresh else "", False
        self.listen()
        await self.send((setup + line).encode() + command + word + b"\0")
        code, _, cwd = (await out).partition(b" ")
        await err
        return int(code), cwd.decode("utf-8", "replace")

    def _result(self, code: int, begun: float, timed_out: bool = False, *, replaced: bool = False) -> CommandResult:
        return make_result(code, self.out.take(), self.err.take(), begun, timed_out, self.cwd, replaced, self.binary)


def make_result(
    code: int, out: Kept, err: Kept, begun: float, timed_out: bool, cwd: str, replaced: bool, binary: bool
) -> CommandResult:
    """What a command left behind."""
    return CommandResult(
        exit_code=code,
        stdout="" if binary else out.text(),
        stderr=err.text(),
        seconds=time.monotonic() - begun,
        timed_out=timed_out,
        stdout_dropped=out.dropped,
        stderr_dropped=err.dropped,
        stdout_raw=out.raw(),
        stderr_raw=err.raw(),
        cwd=cwd,
        shell_replaced=replaced,
    )


def quote(text: str) -> str:
    """`text` as one word of a shell; unlike shlex's, for any text."""
    return "'" + text.replace("'", "'\\''") + "'"
