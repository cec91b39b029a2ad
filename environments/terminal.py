"""The terminal: the policy writes one ```bash block a message, and is judged by the state that it leaves behind.

A task's `data` holds `files` (the initial state), `expect` (see `verify`) and `solution` (shell commands):

    {"files": {"a.txt": "one\\ntwo\\n", "run.sh": {"text": "", "mode": "644"}, "docs": {"dir": True},
               "old": {"link": "a.txt"}, "x.tar": {"base64": "..."}},
     "expect": [{"kind": "text", "path": "n.txt", "text": "2", "tolerance": "space"}],
     "solution": ["wc -l < a.txt > n.txt"]}
"""

from __future__ import annotations

import base64
import errno
from typing import Any

from agentgym.env import Env, Info
from agentgym.environments.blocks import NO_BLOCK, block, parse_block
from agentgym.environments.sandbox import CommandResult, Sandbox, Snapshot, open_sandbox
from agentgym.environments.verify import Verdict, printable, verify
from agentgym.errors import AgentgymError, InfrastructureError, TaskError, UsageError
from agentgym.types import Message, Observation, StepResult, Task

SYSTEM = "You work in a Linux shell. Answer with one ```bash block holding one command."
SEVERAL = " Say when you are done."
DONE = "Done."

# What the system answers to paths that make no sense together: the task's fault.
MEANINGLESS = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


class TerminalEnv(Env):
    """A shell in a sandbox.

    The episode ends when the policy answers without a block after it has run a command (it says that it is done),
    at `max_steps`, or after `max_parse_errors` messages in a row that hold no usable block; whichever it is, the
    state is verified and that step's reward is the outcome.

    Args:
        sandbox: `auto`, `bubblewrap` or `plain`.
        max_steps: messages the policy may write; with 1 the first command ends the episode.
        protocol: how the policy acts; `block` is the only one so far.
        max_parse_errors: unusable messages in a row that end the episode.
        command_timeout_s: seconds one command may take.
        max_output_chars: of a command's output in an observation; head and tail are kept.
        system_prompt: replaces the first message; empty for none.
        partial_credit: reward the share of the expectations met that were not met at the start (only if everything
            else is untouched) instead of all or nothing.
    """

    def __init__(
        self,
        *,
        sandbox: str = "auto",
        max_steps: int = 8,
        protocol: str = "block",
        max_parse_errors: int = 2,
        command_timeout_s: float = 20.0,
        max_output_chars: int = 2000,
        system_prompt: str | None = None,
        partial_credit: bool = False,
    ) -> None:
        if protocol != "block":
            raise UsageError(f"terminal: unknown protocol {protocol!r}; known: block")
        if max_steps < 1 or max_parse_errors < 1 or command_timeout_s <= 0 or max_output_chars < 2:
            raise UsageError(
                "terminal: max_steps, max_parse_errors, command_timeout_s and max_output_chars must be > 0"
            )
        self.kind = sandbox
        self.max_steps = max_steps
        self.max_parse_errors = max_parse_errors
        self.command_timeout_s = command_timeout_s
        self.max_output_chars = max_output_chars
        self.system_prompt = system_prompt if system_prompt is not None else SYSTEM + SEVERAL * (max_steps > 1)
        self.partial_credit = partial_credit
        self.sandbox: Sandbox | None = None
        self.task: Task | None = None
        self.ended = True

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError('terminal: reset needs options={"task": Task}')
        await self.close()
        self.sandbox = open_sandbox(self.kind)
        await self.sandbox.start()
        await _set_up(self.sandbox, task)
        self.task, self.ended = task, False
        self.before: Snapshot = await self.sandbox.snapshot()
        self.steps = self.commands = self.parse_errors = 0
        messages = [Message(role="system", content=self.system_prompt)] if self.system_prompt else []
        messages.append(Message(role="user", content=task.instruction))
        return Observation(messages=tuple(messages)), {"task": task.id, "isolates": self.sandbox.isolates}

    async def step(self, action: Message) -> StepResult:
        if self.task is None or self.sandbox is None:
            raise UsageError("terminal: step before reset, or after close")
        if self.ended:
            return StepResult(_say("The episode has ended."), 0.0, True, False, {"ended": True})
        self.steps += 1
        command, problem = parse_block(action.content)
        if problem == NO_BLOCK and self.commands:
            return await self._end("done", "", {})
        if problem:
            return await self._teach(problem)
        self.parse_errors = 0
        self.commands += 1
        result = await self.sandbox.run(command, timeout_s=self.command_timeout_s)
        info = {"exit_code": result.exit_code, "timed_out": result.timed_out, "seconds": result.seconds}
        shown = show(result, self.max_output_chars)
        if self.steps >= self.max_steps:
            return await self._end("max_steps", shown, info)
        return StepResult(_say(shown), 0.0, False, False, info)

    async def close(self) -> None:
        if self.sandbox is not None:
            sandbox, self.sandbox, self.ended = self.sandbox, None, True
            await sandbox.close()

    async def oracle(self, task: Task) -> list[Message]:
        commands = list(task.data.get("solution", ()))
        last = commands[self.max_steps - 1 :]  # what does not fit goes into the last message
        parts = commands if len(commands) <= self.max_steps else [*commands[: self.max_steps - 1], "\n".join(last)]
        says = [block(part) for part in parts] + ([DONE] if len(parts) < self.max_steps else [])
        return [Message(role="assistant", content=text) for text in says]

    async def _teach(self, problem: str) -> StepResult:
        self.parse_errors += 1
        info = {"parse_error": problem, "parse_errors": self.parse_errors}
        text = f"Not understood: {problem}. Answer with one block:\n```bash\nCOMMAND\n```"
        if self.parse_errors >= self.max_parse_errors or self.steps >= self.max_steps:
            end = "parse_errors" if self.parse_errors >= self.max_parse_errors else "max_steps"
            return await self._end(end, text, info)
        return StepResult(_say(text), 0.0, False, False, info)

    async def _end(self, end: str, text: str, info: Info) -> StepResult:
        assert self.task is not None and self.sandbox is not None
        after = await self.sandbox.snapshot()
        verdicts = grade(self.task, self.before, after)
        solved = all(verdict.ok for verdict in verdicts)
        reward = float(solved)
        if self.partial_credit and not solved:
            reward = share(grade(self.task, self.before, self.before), verdicts)
        self.ended = True
        failed = [verdict.why for verdict in verdicts if not verdict.ok]
        plain = [{"kind": one.kind, "path": one.path, "ok": one.ok, "why": one.why} for one in verdicts]
        info = {**info, "end": end, "solved": solved, "failed": failed, "verdicts": plain, "steps": self.steps}
        return StepResult(_say(text), reward, True, False, info)


def grade(task: Task, before: Snapshot, after: Snapshot) -> list[Verdict]:
    """The verdicts on what became of a task. Raises TaskError if its verifier is broken, whatever the reason."""
    try:
        return verify(task.data["expect"], before, after)
    except AgentgymError:
        raise
    except Exception as error:
        raise TaskError(f"task {task.id}: the verifier raised {type(error).__name__}: {error}") from error


def share(before: list[Verdict], after: list[Verdict]) -> float:
    """The share of the expectations that did not hold at the start and do now; 0 if anything else was touched."""
    open_at_first = [now for was, now in zip(before, after, strict=True) if not was.ok]
    if not after[-1].ok or not open_at_first:
        return 0.0
    return sum(verdict.ok for verdict in open_at_first) / len(open_at_first)


def show(result: CommandResult, limit: int) -> str:
    """What the policy reads of a command: exit code and output, at most `limit` characters of it."""
    head = "timed out, killed" if result.timed_out else f"exit {result.exit_code}"
    text = "\n".join(part for part in (result.stdout.rstrip("\n"), result.stderr.rstrip("\n")) if part)
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return f"({head})\n{text}" if text else f"({head})"


def _say(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),) if text else ())


async def _set_up(sandbox: Sandbox, task: Task) -> None:
    """Fill the working directory; what is wrong with the task is a TaskError, a full disk is not."""
    files: Any = task.data.get("files", {})
    try:
        for path, what in files.items():
            await _put(sandbox, path, {"text": what} if isinstance(what, str) else what)
    except InfrastructureError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno not in MEANINGLESS:
            raise
        raise TaskError(f"task {task.id}: {error}") from error
    except Exception as error:
        raise TaskError(f"task {task.id}: cannot set up its files: {printable(str(error))}") from error


async def _put(sandbox: Sandbox, path: str, what: dict[str, Any]) -> None:
    if "dir" in what:
        await sandbox.make_dir(path, int(what.get("mode", "755"), 8))
    elif "link" in what:
        await sandbox.link(path, what["link"])
    else:
        content = base64.b64decode(what["base64"], validate=True) if "base64" in what else what["text"].encode()
        await sandbox.write(path, content, int(what.get("mode", "644"), 8))
