"""The tools of a terminal: commands and files in the shell that lasts, and keys and a screen for interactive programs."""

from __future__ import annotations

import asyncio
import base64
import posixpath
import secrets
from collections.abc import Callable
from typing import Annotated, Any

from agentgym.env import Info
from agentgym.environments.pty import Terminal
from agentgym.environments.sandbox import CommandResult, Sandbox
from agentgym.environments.settings import ShellSettings
from agentgym.environments.shell import quote
from agentgym.errors import SandboxError

MAX_WAIT_S = 30.0
FIRST_S = 3.0  # for the prompt of a terminal that was just started


class TerminalTools:
    """What the policy may call; `last` holds what the record keeps of the last call."""

    def __init__(self, sandbox: Sandbox | None, settings: ShellSettings) -> None:
        from agentgym.environments.screen import Screen

        self._sandbox, self.settings = sandbox, settings
        self.last: Info = {}
        self.terminal: Terminal | None = None
        self.emulator = Screen()

    def functions(self) -> list[Callable[..., Any]]:
        """The tools, in order."""
        return [self.shell, self.read_file, self.write_file, self.send_keys, self.screen]

    async def close(self) -> None:
        """Hang up."""
        if self.terminal is not None:
            terminal, self.terminal = self.terminal, None
            terminal.close()

    async def shell(self, command: Annotated[str, "what bash is to run, also several lines"]) -> str:
        """Run a command in bash and read its exit code and output. Directory and variables last; there is no input."""
        from agentgym.environments.protocols import show

        return show(await self._run(command), self.settings.max_output_chars)

    async def read_file(
        self,
        path: Annotated[str, "relative to the shell's directory, or absolute"],
        start: Annotated[int, "the first line, from 1"] = 1,
        lines: Annotated[int, "how many lines; 0 for all"] = 0,
    ) -> str:
        """Read a text file, or some lines of it."""
        tail = f"command tail -n +{max(1, start)} -- {quote(path)}"
        result = await self._run(f"({tail}{f' | command head -n {lines}' if lines > 0 else ''})")
        if result.exit_code and result.stderr:
            return f"error: {result.stderr.strip()}"
        return result.stdout

    async def write_file(
        self,
        path: Annotated[str, "relative to the shell's directory, or absolute; its directories are made"],
        content: Annotated[str, "all of the file"],
    ) -> str:
        """Write a text file, replacing what is there."""
        data, folder = content.encode("utf-8", "replace"), posixpath.dirname(path) or "."
        word = secrets.token_hex(8)
        text = base64.encodebytes(data).decode()
        result = await self._run(
            f"(command mkdir -p -- {quote(folder)} && command base64 -d > {quote(path)}) <<'{word}'\n{text}{word}"
        )
        if result.exit_code:
            return f"error: {result.stderr.strip() or f'exit {result.exit_code}'}"
        return f"wrote {len(data)} bytes"

    async def send_keys(
        self,
        keys: Annotated[list[str], "text to type, or keys: Enter, Tab, Escape, Up, Down, PageUp, F1, C-c, M-x, ..."],
        wait_s: Annotated[float, "seconds to wait at most until the screen is still"] = 2.0,
    ) -> str:
        """Type into a terminal of its own, for interactive programs (an editor, a debugger), and see its screen."""
        from agentgym.environments.screen import encode

        terminal = await self._terminal()
        if isinstance(terminal, str):
            return terminal
        await self._look(terminal)
        if not await terminal.send(encode(keys)):
            return "error: the terminal takes no more keys: the program in it reads none"
        await terminal.quiet(min(max(wait_s, 0.0), MAX_WAIT_S))
        return await self._look(terminal)

    async def screen(self) -> str:
        """See the screen of that terminal."""
        terminal = await self._terminal()
        return terminal if isinstance(terminal, str) else await self._look(terminal)

    async def _run(self, command: str) -> CommandResult:
        from agentgym.environments.protocols import told

        assert self._sandbox is not None
        result = await self._sandbox.run(command, timeout_s=self.settings.command_timeout_s)
        self.last = told(result)
        return result

    async def _terminal(self) -> Terminal | str:
        """The terminal, or why there is none: a shell that was bent so far that it starts nothing is the policy's doing."""
        if self.terminal is None or self.terminal.ended:
            await self.close()
            assert self._sandbox is not None
            self.emulator.reset()
            try:
                self.terminal = await self._sandbox.open_terminal()
            except SandboxError as error:
                return f"error: {error}"
            await self.terminal.quiet(FIRST_S, 0.5)
        return self.terminal

    async def _look(self, terminal: Terminal) -> str:
        answers = await asyncio.to_thread(self.emulator.feed, *terminal.take())  # it may take a tenth of a second
        if answers:
            await terminal.send(answers, 0.5)
            await terminal.quiet(0.3, 0.05)
            await asyncio.to_thread(self.emulator.feed, *terminal.take())
        return self.emulator.text()
