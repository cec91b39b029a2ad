"""How a policy acts in a shell: one ```bash block a message, or calls of tools. Both by the same contract."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any

from agentgym.env import Info
from agentgym.environments.blocks import NO_BLOCK, block, parse_block
from agentgym.environments.context import cut
from agentgym.environments.sandbox import CommandResult, Sandbox
from agentgym.environments.settings import ShellSettings
from agentgym.types import Message, Struct, ToolCall, ToolSpec

MAX_CALLS = 8  # of one message
MAX_RAW = 4000  # characters of output with escape codes that the record keeps
NO_CALL = "no tool call"
BROKEN_CALL = re.compile(r"<\|?tool_calls?\b|<function[=_]|\[TOOL_CALLS\]")


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of one message of the policy."""

    messages: tuple[Message, ...] = ()  # what it reads now
    info: Info = {}
    problem: str = ""  # why the message could not be used
    silent: bool = False  # it asks for nothing: the policy is done, or does not know how to act
    acted: int = 0  # commands or calls that were carried out


class Protocol(ABC):
    """One way to act in a sandbox."""

    how: str  # to say in the first message
    ending: str  # what a last message goes without
    tools: tuple[ToolSpec, ...] = ()

    @abstractmethod
    async def act(self, action: Message) -> Outcome:
        """Do what the message asks for. Raises SandboxError if the sandbox failed."""

    @abstractmethod
    def message(self, command: str) -> Message:
        """A message of the policy that runs `command`."""

    async def close(self) -> None:
        """Give back what it holds."""


class BlockProtocol(Protocol):
    """One ```bash block a message."""

    how = "Answer with one ```bash block holding one command."
    ending = "a block"

    def __init__(self, sandbox: Sandbox | None, settings: ShellSettings) -> None:
        self.sandbox, self.settings = sandbox, settings

    async def act(self, action: Message) -> Outcome:
        command, problem = parse_block(action.content)
        if problem:
            teaching = f"Not understood: {problem}. Answer with one block:\n```bash\nCOMMAND\n```"
            return Outcome(messages=_user(teaching), problem=problem, silent=problem == NO_BLOCK)
        assert self.sandbox is not None
        result = await self.sandbox.run(command, timeout_s=self.settings.command_timeout_s)
        return Outcome(messages=_user(show(result, self.settings.max_output_chars)), info=told(result), acted=1)

    def message(self, command: str) -> Message:
        return Message(role="assistant", content=block(command))


class ToolProtocol(Protocol):
    """Calls of the terminal's tools, several a message if need be."""

    how = "Use the tools to act."
    ending = "a tool call"

    def __init__(self, sandbox: Sandbox | None, settings: ShellSettings) -> None:
        from agentgym.environments.terminal_tools import TerminalTools
        from agentgym.environments.tools import Functions, Toolbox

        self.settings = settings
        self.terminal = TerminalTools(sandbox, settings)
        deadline = settings.command_timeout_s + 30.0  # a command has its own
        self.box = Toolbox(
            [Functions(*self.terminal.functions())], timeout_s=deadline, max_chars=settings.max_output_chars
        )

    async def start(self) -> None:
        """Have the tools ready."""
        await self.box.start()
        self.tools = self.box.specs

    async def act(self, action: Message) -> Outcome:
        if not action.tool_calls:
            broken = BROKEN_CALL.search(action.content)
            problem = "the tool call cannot be read" if broken else NO_CALL
            names = ", ".join(spec.name for spec in self.tools)
            text = f"Not understood: {problem}. Call one of the tools: {names}."
            return Outcome(messages=_user(text), problem=problem, silent=not broken)
        messages, infos, acted, problem = [], [], 0, ""
        for call in action.tool_calls[:MAX_CALLS]:
            self.terminal.last = {}
            result = await self.box.call(call)
            messages.append(Message(role="tool", tool_call_id=call.id, name=call.name, content=result.content))
            infos.append({"tool": call.name, **({"error": result.error} if result.error else {}), **self.terminal.last})
            problem = problem or (f"{result.error}: {result.content}"[:200] if result.misspelt else "")
            acted += not result.misspelt
        for call in action.tool_calls[MAX_CALLS:]:
            text = f"error: not carried out: at most {MAX_CALLS} calls a message"
            messages.append(Message(role="tool", tool_call_id=call.id, name=call.name, content=text))
        info: dict[str, Any] = {"calls": infos, **(infos[-1] if len(infos) == 1 else {})}
        return Outcome(messages=tuple(messages), info=info, problem="" if acted else problem, acted=acted)

    def message(self, command: str) -> Message:
        call = ToolCall(id="call-1", name="shell", arguments=json.dumps({"command": command}))
        return Message(role="assistant", tool_calls=(call,))

    async def close(self) -> None:
        await self.terminal.close()
        await self.box.close()


PROTOCOLS: dict[str, type[BlockProtocol] | type[ToolProtocol]] = {"block": BlockProtocol, "tools": ToolProtocol}


def show(result: CommandResult, limit: int) -> str:
    """What the policy reads of a command: exit code and output, at most `limit` characters of it."""
    head = "timed out, killed" if result.timed_out else f"exit {result.exit_code}"
    text = "\n".join(part for part in (result.stdout.rstrip("\n"), result.stderr.rstrip("\n")) if part)
    return f"({head})\n{cut(text, limit)}" if text else f"({head})"


def told(result: CommandResult) -> Info:
    """What the record keeps of a command; output with escape codes also as it came, within bounds."""
    info: Info = {"exit_code": result.exit_code, "timed_out": result.timed_out, "seconds": result.seconds}
    for name, raw in (("stdout_raw", result.stdout_raw), ("stderr_raw", result.stderr_raw)):
        if b"\x1b" in raw:
            info[name] = cut(raw.decode("utf-8", "replace"), MAX_RAW)
    return info


def _user(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)
