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

from agentgym.env import Info
from agentgym.environments.acting import ShellEnv
from agentgym.environments.findings import hints_of
from agentgym.environments.sandbox import Sandbox, Snapshot
from agentgym.environments.verify import Verdict, printable, verify
from agentgym.errors import AgentgymError, InfrastructureError, TaskError
from agentgym.types import Message, Task

# What the system answers to paths that make no sense together: the task's fault.
MEANINGLESS = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


class TerminalEnv(ShellEnv):
    """A shell in a sandbox, judged by the state that is left: see `ShellEnv` for how an episode goes and its arguments.

    Args:
        partial_credit: reward the share of the expectations met that were not met at the start (only if everything
            else is untouched) instead of all or nothing.
    """

    name = "terminal"

    def __init__(self, *, partial_credit: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.partial_credit = partial_credit

    async def oracle(self, task: Task) -> list[Message]:
        return self.script(list(task.data.get("solution", ())))

    async def _open(self, task: Task) -> None:
        self.sandbox = self._sandbox(task)
        await self.sandbox.start()
        await _set_up(self.sandbox, task)
        self.before: Snapshot = await self.sandbox.snapshot()

    async def _judge(self, said: str) -> tuple[float, Info]:
        assert self.task is not None and self.sandbox is not None
        after = await self.sandbox.snapshot()
        verdicts = grade(self.task, self.before, after)
        solved = all(verdict.ok for verdict in verdicts)
        reward = float(solved)
        if self.partial_credit and not solved:
            reward = share(grade(self.task, self.before, self.before), verdicts)
        failed = [verdict.why for verdict in verdicts if not verdict.ok]
        plain = [{"kind": one.kind, "path": one.path, "ok": one.ok, "why": one.why} for one in verdicts]
        hint = {} if solved else {"hint": hints_of(self.task, verdicts)}
        return reward, {"solved": solved, "failed": failed, "verdicts": plain, **hint}


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
