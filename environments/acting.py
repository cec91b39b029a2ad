"""What environments with a shell share: the policy writes one ```bash block a message until it says that it is done."""

from __future__ import annotations

import math
import time
from abc import abstractmethod

from agentgym.env import Env, Info
from agentgym.environments.blocks import NO_BLOCK, block, parse_block
from agentgym.environments.sandbox import CommandResult, Sandbox
from agentgym.errors import SandboxError, UsageError
from agentgym.types import Message, Observation, StepResult, Task

SYSTEM = "You work in a Linux shell. Answer with one ```bash block holding one command."
SEVERAL = " Say when you are done."
DONE = "Done."


class ShellEnv(Env):
    """A shell in a sandbox; what is in it and how it is judged is the subclass's to say.

    The episode ends when the policy answers without a block after it has run a command (it says that it is done),
    at `max_steps` or its deadline, or after `max_parse_errors` messages in a row that hold no usable block; whichever it is, the
    state is judged and that step's reward is the outcome.

    Args:
        sandbox: `auto` or one of the sandboxes by name.
        max_steps: messages the policy may write; with 1 the first command ends the episode.
        protocol: how the policy acts; `block` is the only one so far.
        max_parse_errors: unusable messages in a row that end the episode.
        command_timeout_s: seconds one command may take.
        max_output_chars: of a command's output in an observation; head and tail are kept.
        system_prompt: replaces the first message; empty for none.
    """

    name = "shell"

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
    ) -> None:
        if protocol != "block":
            raise UsageError(f"{self.name}: unknown protocol {protocol!r}; known: block")
        if max_steps < 1 or max_parse_errors < 1 or command_timeout_s <= 0 or max_output_chars < 2:
            raise UsageError(
                f"{self.name}: max_steps, max_parse_errors, command_timeout_s and max_output_chars must be > 0"
            )
        self.kind = sandbox
        self.max_steps = max_steps
        self.max_parse_errors = max_parse_errors
        self.command_timeout_s = command_timeout_s
        self.max_output_chars = max_output_chars
        self.system_prompt = system_prompt if system_prompt is not None else SYSTEM + SEVERAL * (max_steps > 1)
        self.sandbox: Sandbox | None = None
        self.task: Task | None = None
        self.ended = True

    @abstractmethod
    async def _open(self, task: Task) -> None:
        """Start `self.sandbox` (assigned before anything can fail) and lay the task out in it."""

    @abstractmethod
    async def _judge(self, said: str) -> tuple[float, Info]:
        """The outcome of what the policy left behind, and plain data about it: at least `solved` and `failed`.

        Args:
            said: the policy's last message, if it ended the episode by saying that it is done.
        """

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError(f'{self.name}: reset needs options={{"task": Task}}')
        await self.close()
        self.deadline = math.inf  # of time.monotonic(); a task may have one
        await self._open(task)
        assert self.sandbox is not None
        self.task, self.ended = task, False
        self.steps = self.commands = self.parse_errors = 0
        messages = [Message(role="system", content=self.system_prompt)] if self.system_prompt else []
        messages.append(Message(role="user", content=task.instruction))
        return Observation(messages=tuple(messages)), {"task": task.id, "isolates": self.sandbox.isolates}

    async def step(self, action: Message) -> StepResult:
        if self.task is None:
            raise UsageError(f"{self.name}: step before reset, or after close")
        if self.ended:
            return StepResult(say("The episode has ended."), 0.0, True, False, {"ended": True})
        self.steps += 1
        command, problem = parse_block(action.content)
        if problem == NO_BLOCK and self.commands:
            return await self._end("done", "", {}, said=action.content)
        if problem:
            return await self._teach(problem)
        self.parse_errors = 0
        self.commands += 1
        assert self.sandbox is not None
        result = await self.sandbox.run(command, timeout_s=self.command_timeout_s)
        info = {"exit_code": result.exit_code, "timed_out": result.timed_out, "seconds": result.seconds}
        shown = show(result, self.max_output_chars)
        if self.steps >= self.max_steps or time.monotonic() > self.deadline:
            return await self._end("max_steps" if self.steps >= self.max_steps else "time", shown, info)
        return StepResult(say(shown), 0.0, False, False, info)

    async def close(self) -> None:
        self.task = None
        await self._stop()

    async def _stop(self) -> None:
        """End the policy's sandbox; what it still runs is gone."""
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            await sandbox.close()

    def script(self, commands: list[str], says: str = DONE) -> list[Message]:
        """The messages that run `commands`, within `max_steps`, and then say that it is done."""
        last = commands[self.max_steps - 1 :]  # what does not fit goes into the last message
        parts = commands if len(commands) <= self.max_steps else [*commands[: self.max_steps - 1], "\n".join(last)]
        texts = [block(part) for part in parts] + ([says] if len(parts) < self.max_steps else [])
        return [Message(role="assistant", content=text) for text in texts]

    async def _teach(self, problem: str) -> StepResult:
        self.parse_errors += 1
        info = {"parse_error": problem, "parse_errors": self.parse_errors}
        text = f"Not understood: {problem}. Answer with one block:\n```bash\nCOMMAND\n```"
        if self.parse_errors >= self.max_parse_errors or self.steps >= self.max_steps:
            end = "parse_errors" if self.parse_errors >= self.max_parse_errors else "max_steps"
            return await self._end(end, text, info)
        return StepResult(say(text), 0.0, False, False, info)

    async def _spoilt(self, error: SandboxError) -> tuple[float, Info]:
        """The judgement where the files cannot be taken out: the policy's doing, if its sandbox is otherwise well.

        Raises `error` if it is not.
        """
        assert self.sandbox is not None
        try:
            alive = (await self.sandbox.run("true")).exit_code == 0
        except SandboxError:
            raise error from None
        if not alive:
            raise error
        return 0.0, {"solved": False, "failed": [f"the files cannot be read: {error}"]}

    async def _end(self, end: str, text: str, info: Info, said: str = "") -> StepResult:
        self.ended = True
        reward, judged = await self._judge(said)
        return StepResult(say(text), reward, True, False, {**info, "end": end, "steps": self.steps, **judged})


def show(result: CommandResult, limit: int) -> str:
    """What the policy reads of a command: exit code and output, at most `limit` characters of it."""
    head = "timed out, killed" if result.timed_out else f"exit {result.exit_code}"
    text = "\n".join(part for part in (result.stdout.rstrip("\n"), result.stderr.rstrip("\n")) if part)
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return f"({head})\n{text}" if text else f"({head})"


def say(text: str) -> Observation:
    """An observation of one user message; none if `text` is empty."""
    return Observation(messages=(Message(role="user", content=text),) if text else ())
