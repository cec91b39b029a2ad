"""A Python interpreter for a policy: cells that share their variables, run in a process of their own in a sandbox.

The process (`interpreter_driver`) is a child of the sandbox's persistent shell, and talks to us through it alone;
nothing that a cell says is evaluated here. As a tool: `{"class": "agentgym.environments.interpreter:PythonTool"}` in
a task's `tools`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from agentgym.environments.context import cut
from agentgym.environments.interpreter_packages import Place, prepare
from agentgym.environments.output import plain_text
from agentgym.environments.sandbox import KINDS, CommandResult, Limits, Sandbox, open_sandbox
from agentgym.environments.shell import quote
from agentgym.environments.tool_thread import ToolThread
from agentgym.environments.tools import FunctionTool, Tool, ToolSource
from agentgym.errors import SandboxError, UsageError
from agentgym.types import Struct

GRACE_S = 3.0  # for a cell that does not heed its interruption
START_S = 30.0
MAX_CODE = 1 << 20  # bytes
SLACK = 200  # characters for the note of what is left out
MEMORY_SHARE = 0.75  # of the sandbox's, for the data of the process: a MemoryError, and not the end of it
LIMITS = Limits(memory_mb=1024, processes=64)
START = (
    r"coproc AGENTGYM {{ export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1{path}; exec {python} -u -c {driver} {memory} {size}; }} 2>/dev/null"
    "\n"
    r'exec {{agentgym_in}}>&"${{AGENTGYM[1]}}" {{agentgym_out}}<&"${{AGENTGYM[0]}}"'
)
CELL = (
    "(builtin printf '%s\\n' {request}; builtin printf '%s' {code}) >&$agentgym_in && command head -n 1 <&$agentgym_out"
)

State = Literal["ok", "error", "timeout", "died", "refused"]


class Reply(Struct, frozen=True, kw_only=True):
    """What the process says of a cell."""

    number: int
    state: Literal["ok", "error", "timeout"]
    output: str
    left_out: int
    busy: bool  # processes that it started go on


class Cell(Struct, frozen=True, kw_only=True):
    """What came of a cell."""

    state: State
    output: str  # what it printed, head and tail
    seconds: float
    replaced: bool = False  # a new interpreter takes the next cell: all variables are gone
    emptied: bool = False  # and so are all files
    why: str = ""  # why it did not end by itself


class Interpreter:
    """Runs cells, one at a time; started by the first one.

    A cell that takes longer than `timeout_s` is interrupted and its variables are kept; where that is in vain, or what
    it started goes on, the interpreter is replaced and the result says so. Files in the working directory last.

    Args:
        sandbox: `auto` or one of the sandboxes by name.
        timeout_s: of a cell.
        max_chars: of a cell's output; head and tail are kept.
        memory_mb: of everything in the sandbox; a cell that wants more has a MemoryError, or loses its interpreter.
        packages: what can be imported besides the standard library.

    Example:
        python = Interpreter()
        await python.run("import sympy; x = sympy.symbols('x')")
        print(await python.run("sympy.integrate(x**2, x)"))  # x**3/3
        await python.close()
    """

    def __init__(
        self,
        *,
        sandbox: str = "auto",
        image: str = "",
        timeout_s: float = 10.0,
        max_chars: int = 4000,
        memory_mb: int = LIMITS.memory_mb,
        packages: Sequence[str] = ("numpy", "sympy"),
        limits: Limits | None = None,
    ) -> None:
        if timeout_s <= 0 or max_chars < 2 or memory_mb < 64:
            raise UsageError("interpreter: timeout_s must be > 0, max_chars > 1 and memory_mb at least 64")
        if sandbox not in KINDS:
            raise UsageError(f"interpreter: unknown sandbox {sandbox!r}; known: {', '.join(KINDS)}")
        limits = limits or msgspec.structs.replace(LIMITS, memory_mb=memory_mb)
        self.limits = msgspec.structs.replace(limits, output_bytes=max(limits.output_bytes, 16 * max_chars + 4096))
        self.kind, self.image = sandbox, image or ("interpreter" if sandbox == "docker" else "")
        self.timeout_s, self.max_chars, self.packages = timeout_s, max_chars, tuple(packages)
        self.sandbox: Sandbox | None = None
        self.place: Place | None = None
        self.running = False
        self.forgot = False  # variables are gone that nobody was told of
        self.cells = 0
        self.lock = asyncio.Lock()

    async def run(self, code: Annotated[str, "the code; a last expression is shown"]) -> str:
        """Run Python code and read what it prints. Variables, imports and files last from one call to the next."""
        return told(await self.execute(code))

    async def execute(self, code: str) -> Cell:
        """Run a cell. Raises SandboxError if there is no sandbox to be had, which nothing in a cell can bring about."""
        began = time.monotonic()
        data = code.encode("utf-8", "replace")
        if len(data) > MAX_CODE or b"\0" in data:
            why = f"the code is longer than {MAX_CODE} bytes" if len(data) > MAX_CODE else "the code holds a NUL"
            return Cell(state="refused", output="", seconds=0.0, why=why)
        async with self.lock:
            emptied = await self._ready()
            self.cells += 1
            request = json.dumps({"number": self.cells, "seconds": self.timeout_s, "size": len(data)})
            command = CELL.format(request=quote(request), code=quote(data.decode()))
            assert self.sandbox is not None
            try:
                result = await self.sandbox.run(command, self.timeout_s + GRACE_S)
                state, output, why = self._read(result)
                replaced = state == "died" or bool(why)
                if replaced:
                    self.running = False
                    await self.sandbox.stop()
            except SandboxError:  # whatever a cell has done to it: another one shows whether the machine is well
                await self._renew()
                state, output, why, replaced, emptied = "died", "", "the sandbox ended", True, True
            except BaseException:
                self.running, self.forgot = False, True
                raise
            forgot, self.forgot = self.forgot, False
            seconds = time.monotonic() - began
            replaced = replaced or forgot or emptied
            return Cell(state=state, output=output, seconds=seconds, replaced=replaced, emptied=emptied, why=why)

    async def close(self) -> None:
        """End the process and its sandbox; safe to call twice."""
        sandbox, self.sandbox, self.place, self.running = self.sandbox, None, None, False
        if sandbox is not None:
            await sandbox.close()

    async def _ready(self) -> bool:
        """Have the process running. Returns whether that took another sandbox, because cells have spoilt this one."""
        if self.running:
            return False
        if self.sandbox is None:
            await self._renew()
        try:
            await self._start()
        except SandboxError:
            if not self.cells:
                raise
            await self._renew()
            await self._start()
            return True
        return False

    async def _renew(self) -> None:
        """A new sandbox, in place of the one that there is. Raises SandboxError."""
        with contextlib.suppress(SandboxError):
            await self.close()
        self.sandbox = open_sandbox(self.kind, self.limits, image=self.image)
        await self.sandbox.start()

    async def _start(self) -> None:
        assert self.sandbox is not None
        if self.place is None:
            self.place = await prepare(self.sandbox, self.packages, f"{self.kind}/{self.image}")
        command = START.format(
            python=self.place.python,
            path=f" PYTHONPATH={quote(self.place.path)}" if self.place.path else "",
            driver=quote(driver()),
            memory=int(self.limits.memory_mb * MEMORY_SHARE) << 20,
            size=self.max_chars,
        )
        result = await self.sandbox.run(command, START_S)
        if result.exit_code or result.shell_replaced:
            raise SandboxError(f"the interpreter did not start: {result.stderr.strip()[-300:] or 'no answer'}")
        self.running = True

    def _read(self, result: CommandResult) -> tuple[State, str, str]:
        """How a cell ended, what it printed, and why its interpreter must be replaced, if it must."""
        if result.timed_out:
            return "timeout", "", f"it took longer than {self.timeout_s:g} s and could not be interrupted"
        try:
            reply = msgspec.json.decode(result.stdout, type=Reply)
        except (msgspec.MsgspecError, UnicodeError):
            return "died", "", "memory ran out" if result.oom else "the process ended"
        if reply.number != self.cells or result.shell_replaced:
            return "died", "", "its answers cannot be told apart"
        output = cut(plain_text(reply.output.encode("utf-8", "replace")), self.max_chars + SLACK)
        return reply.state, output, "what the cell had started was still running" if reply.busy else ""


class PythonTool(ToolSource):
    """The interpreter as a tool, `python`, that lives as long as the episode. Options: those of Interpreter."""

    def __init__(self, **options: object) -> None:
        self.interpreter = Interpreter(**options)  # type: ignore[arg-type]
        self.thread = ToolThread()

    async def start(self) -> Sequence[Tool]:
        return [FunctionTool(self.interpreter.run, self.thread, "python")]

    async def close(self) -> None:
        self.thread.close()
        await self.interpreter.close()


def told(cell: Cell) -> str:
    """A cell's result as the policy reads it."""
    notes = []
    if cell.state == "refused":
        notes.append(f"[not run: {cell.why}]")
    elif cell.state == "timeout" and not cell.replaced:
        notes.append("[timed out and interrupted: variables are kept]")
    elif cell.replaced:
        why = f"{cell.why}: " if cell.why else ""
        what = "variables and files" if cell.emptied else "variables"
        notes.append(f"[{why}the interpreter was replaced, all {what} are gone]")
    return "\n".join([*filter(None, [cell.output.rstrip("\n")]), *notes]) or "(no output)"


@functools.cache
def driver() -> str:
    """The program that runs cells."""
    return Path(__file__).with_name("interpreter_driver.py").read_text(encoding="utf-8")
