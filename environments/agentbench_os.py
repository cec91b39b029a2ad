"""AgentBench's operating-system tasks: questions about a system, answered in words, and changes to it, checked there.

A task's `data`: `init` (commands), `start` (a command in the background), `evaluation` as published, and `files`, the
text of the scripts that these name. What is right is computed by the task's own example, before the policy acts where
that changes nothing (so that nobody can change the question), else after.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from agentgym.env import Info
from agentgym.environments.acting import ShellEnv, ShellSettings
from agentgym.environments.sandbox import CommandResult, Limits, Sandbox
from agentgym.errors import TaskError, UsageError
from agentgym.types import Message, Task

HOME = "/home/agent"
TIMEOUT_S = 110.0  # of a check: one of them counts all files of the system
PATH = (
    f"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:{HOME}:{HOME}/bin"  # the agent's programs come last
)
CHANGES_BY_ITSELF = re.compile(r"\bps\b|\bwho\b|\buptime\b|/proc\b|\btop\b")
UNITS = {"": 1, "B": 1, "BYTE": 1, "K": 2**10, "KB": 2**10, "M": 2**20, "MB": 2**20, "G": 2**30, "GB": 2**30, "T": 2**40, "TB": 2**40}  # fmt: skip


class AgentBenchOSEnv(ShellEnv):
    """A question or an order about a small Linux system; see `ShellEnv` for how an episode goes and its arguments."""

    name = "agentbench-os"
    defaults = ShellSettings(command_timeout_s=30.0, max_output_chars=4000)
    place = "You work in a Linux shell, in your home directory /home/agent."
    asks = "When you know the answer to the question, say it without {ending}: `Answer: ...`."

    def __init__(self, *, image: str = "", **shared: Any) -> None:
        super().__init__(**shared)
        self.image = image

    async def oracle(self, task: Task) -> list[Message]:
        evaluation = _evaluation(task)
        if not _asks(evaluation):
            return self.script([_example(task)]) if _example(task) else []
        if self.task is None or self.task.id != task.id:
            await self.reset(options={"task": task})
        assert self.sandbox is not None
        right = await self._right_answer()
        return [self.protocol.message("true"), Message(role="assistant", content=f"Answer: {right}")]

    async def _open(self, task: Task) -> None:
        self.right: str | None = None
        await self._start(task)
        evaluation, example = _evaluation(task), _example(task)
        if not _asks(evaluation):
            return
        if not example:
            self.right = str(evaluation["match"])
            return
        assert self.sandbox is not None
        before = await self.sandbox.snapshot()
        result = await self._run_example(task)
        if (
            result.exit_code == 0
            and not result.stderr
            and result.stdout.strip()
            and not CHANGES_BY_ITSELF.search(example)
        ):
            self.right = result.stdout.strip()
        if await self.sandbox.snapshot() != before:
            self.right = None
            await self._stop()
            await self._start(task)

    async def _start(self, task: Task) -> None:
        limits = Limits(disk_mb=512)
        self.sandbox = self._sandbox(task, limits, image=self.image, workdir=HOME, writable=not self.image)
        await self.sandbox.start()
        if not self.sandbox.isolates:
            raise UsageError("AgentBench's tasks name absolute paths: they need the sandbox bubblewrap or docker")
        for command in task.data.get("init", ()):
            result = await clean(self.sandbox, command)
            if result.timed_out:
                raise TaskError(f"task {task.id}: its set-up does not end")
        await self._run_service(task)

    async def _run_service(self, task: Task) -> None:
        if task.data.get("start"):
            assert self.sandbox is not None
            await self.sandbox.run(f"{task.data['start']} >/dev/null 2>&1")

    async def _run_example(self, task: Task | None = None) -> CommandResult:
        assert self.sandbox is not None and (task or self.task) is not None
        return await clean(self.sandbox, _example(task or self.task))  # type: ignore[arg-type]

    async def _right_answer(self) -> str:
        if self.right is not None:
            return self.right
        assert self.task is not None
        found = (await self._run_example()).stdout.strip()
        if not found and _matcher(_evaluation(self.task)) == "integer":
            return "0"  # what awk's count of nothing prints
        if not found:
            raise TaskError(f"task {self.task.id}: its example gives no answer")
        return found

    async def _judge(self, said: str) -> tuple[float, Info]:
        assert self.task is not None and self.sandbox is not None
        evaluation = _evaluation(self.task)
        await self._run_service(self.task)
        if not _asks(evaluation):
            result = await clean(self.sandbox, _check(self.task, evaluation["check"]))
            solved = result.exit_code == 0 and self.commands > 0
            return float(solved), {"solved": solved, "failed": [] if solved else ["the check fails"]}
        right = await self._right_answer()
        solved = same(answer(said), right, _matcher(evaluation))
        return float(solved), {"solved": solved, "failed": [] if solved else ["another answer is right"]}


async def clean(sandbox: Sandbox, command: str) -> CommandResult:
    """Run a command of the task's in the home directory, with an environment of its own."""
    variables = f"HOME={HOME} PATH={PATH} LANG=C.UTF-8 USER=agent TERM=dumb"
    script = f"cd ~ && {{ {command}\n}}"
    return await sandbox.run(
        f"/usr/bin/env -i {variables} /bin/bash --norc -c {shlex.quote(script)}", timeout_s=TIMEOUT_S
    )


def answer(said: str) -> str:
    """The answer in the policy's last message: what follows the last `Answer:`, or all of it."""
    found = re.findall(r"(?i)answer\s*:\s*(.*)", said)
    return (found[-1] if found else said).strip().strip("`*'\"").strip()


def same(given: str, right: str, matcher: str) -> bool:
    """Whether an answer is the right one: as an integer, as a size with a unit, or as text."""
    try:
        if matcher == "integer":
            return int(given) == int(right)
        if matcher == "size":
            return _size(given) == _size(right)
    except ValueError:
        return False
    return given.replace("\r\n", "\n").strip() == right.strip()


def _size(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(text)
    return float(match[1]) * UNITS[match[2].upper()]


def _evaluation(task: Task) -> dict[str, Any]:
    found = task.data.get("evaluation")
    if not isinstance(found, dict) or not ("match" in found or "check" in found):
        raise TaskError(f"task {task.id}: it has no evaluation")
    return found


def _asks(evaluation: dict[str, Any]) -> bool:
    """Whether an answer is asked for, and not a change."""
    check = evaluation.get("check")
    return check is None or (isinstance(check, list) and len(check) > 1)


def _matcher(evaluation: dict[str, Any]) -> str:
    check = evaluation.get("check")
    name = check[-1].get("file", "") if isinstance(check, list) and isinstance(check[-1], dict) else ""
    return "integer" if "integer" in name else "size" if "size" in name else "text"


def _check(task: Task, check: Any) -> str:
    """The command that checks the state of the system."""
    if isinstance(check, list) and len(check) == 1 and isinstance(check[0], str):
        return check[0]
    return _code(task, check)


def _example(task: Task) -> str:
    """The task's own solution; empty if there is none."""
    found = _evaluation(task).get("example") or task.data.get("example") or ""
    return found if isinstance(found, str) else _code(task, found)


def _code(task: Task, what: Any) -> str:
    if isinstance(what, dict) and "code" in what:
        return str(what["code"])
    if isinstance(what, dict) and what.get("file") in task.data.get("files", {}):
        return f"(\n{task.data['files'][what['file']]}\n)"
    raise TaskError(f"task {task.id}: {what!r} is no command")
