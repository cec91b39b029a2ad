"""What environments with a shell share: how an episode goes, whatever is in the sandbox and however it is judged."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from typing import Any, ClassVar

from agentgym.env import Env, Info
from agentgym.environments.context import Budget, counter
from agentgym.environments.protocols import PROTOCOLS, Outcome, Protocol, ToolProtocol, show
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox
from agentgym.environments.settings import ShellSettings, describe, settings_of
from agentgym.errors import SandboxError, TaskError, UsageError
from agentgym.types import Message, Observation, StepResult, Task

SEVERAL = "Say when you are done."
DONE = "Done."

__all__ = ["DONE", "ShellEnv", "ShellSettings", "say", "show"]


class ShellEnv(Env):
    """A shell in a sandbox; what is in it and how it is judged is the subclass's to say.

    The episode terminates when the policy asks for nothing after it has acted (it says that it is done), or after
    `max_parse_errors` messages in a row that cannot be used; it is truncated at `max_steps` (where that is more than one),
    its deadline or the end of its context. Whichever it is, all that runs is stopped, the state is judged, and that
    step's reward is the outcome.

    Args:
        sandbox: `auto` or one of the sandboxes by name.
        max_steps: messages the policy may write; with 1 the first command ends the episode.
        protocol: how the policy acts: `block` (one ```bash block a message) or `tools` (`shell`, `read_file`,
            `write_file`, and a terminal of its own with `send_keys` and `screen`).
        max_parse_errors: unusable messages in a row that end the episode.
        command_timeout_s: seconds one command may take.
        max_output_chars: of an observation; head and tail are kept.
        context_tokens: of everything said in an episode: each observation is cut to half of what is left, and the episode
            ends when nothing is; 0 for no budget.
        tokenizer: a folder or file with the tokenizer.json that counts them; estimated without.
        network: `task` for the hosts that a task asks for, `none` for none in any case.
        system_prompt: replaces the first message; empty for none.
    """

    name = "shell"
    defaults: ClassVar[ShellSettings] = ShellSettings()
    place = "You work in a Linux shell."  # what the first message says before and after how to act
    asks = ""

    def __init__(self, **shared: Any) -> None:
        self.settings = settings_of(type(self), self.defaults, shared)
        self.kind = self.settings.sandbox
        self.protocol: Protocol = PROTOCOLS[self.settings.protocol](None, self.settings)
        self.count = counter(self.settings.tokenizer)
        self.sandbox: Sandbox | None = None
        self.task: Task | None = None
        self.ended = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        describe(cls, ShellEnv, cls.defaults)

    @abstractmethod
    async def _open(self, task: Task) -> None:
        """Start `self.sandbox` (assigned before anything can fail) and lay the task out in it."""

    @abstractmethod
    async def _judge(self, said: str) -> tuple[float, Info]:
        """The outcome of what the policy left behind, and plain data about it: at least `solved` and `failed`.

        Nothing runs in the sandbox any more.

        Args:
            said: the policy's last message, if it ended the episode by saying that it is done.
        """

    @property
    def system_prompt(self) -> str:
        """The first message."""
        if self.settings.system_prompt is not None:
            return self.settings.system_prompt
        several = [SEVERAL] if self.settings.max_steps > 1 else []
        asks = [self.asks.format(ending=self.protocol.ending)] if self.asks else []
        return " ".join([self.place, self.protocol.how, *asks, *several])

    def _sandbox(self, task: Task, limits: Limits | None = None, **options: Any) -> Sandbox:
        """A sandbox for the task, not yet started, with what the settings and the task say."""
        tools = self.settings.protocol == "tools"
        return open_sandbox(self.kind, limits, allow=self.allowed_hosts(task), terminal=tools, **options)

    def allowed_hosts(self, task: Task) -> tuple[str, ...]:
        """The hosts that the task may reach, as `open_sandbox` takes them. Raises TaskError."""
        hosts = task.data.get("allowed_hosts", ())
        if not isinstance(hosts, list | tuple) or not all(isinstance(host, str) for host in hosts):
            raise TaskError(f"task {task.id}: allowed_hosts is not a list of hosts")
        return tuple(hosts) if self.settings.network == "task" else ()

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError(f'{self.name}: reset needs options={{"task": Task}}')
        await self.close()
        self.deadline = math.inf  # of time.monotonic(); a task may have one
        await self._open(task)
        assert self.sandbox is not None
        self.protocol = PROTOCOLS[self.settings.protocol](self.sandbox, self.settings)
        if isinstance(self.protocol, ToolProtocol):
            await self.protocol.start()
        self.task, self.ended = task, False
        self.steps = self.commands = self.parse_errors = 0
        self.budget = Budget(self.settings.context_tokens, self.count)
        messages = [Message(role="system", content=self.system_prompt)] if self.system_prompt else []
        messages.append(Message(role="user", content=task.instruction))
        for message in messages:
            self.budget.take(message.content)
        info = {"task": task.id, "isolates": self.sandbox.isolates}
        return Observation(messages=tuple(messages), tools=self.protocol.tools), info

    async def step(self, action: Message) -> StepResult:
        if self.task is None:
            raise UsageError(f"{self.name}: step before reset, or after close")
        if self.ended:
            return StepResult(say("The episode has ended."), 0.0, True, False, {"ended": True})
        self.steps += 1
        self.budget.take(action.content + "".join(call.arguments for call in action.tool_calls))
        outcome = await self.protocol.act(action)
        if outcome.silent and self.commands:
            return await self._end("done", Outcome(), said=action.content)
        self.commands += outcome.acted
        self.parse_errors = self.parse_errors + 1 if outcome.problem else 0
        problem = {"parse_error": outcome.problem, "parse_errors": self.parse_errors} if outcome.problem else {}
        fitted = [_with(message, self.budget.fit(message.content)) for message in outcome.messages]
        outcome = Outcome(messages=tuple(fitted), info={**outcome.info, **problem})
        if end := self._over():
            return await self._end(end, outcome)
        return StepResult(self._observe(outcome), 0.0, False, False, outcome.info)

    def _over(self) -> str:
        """Why the episode is over; empty if it is not."""
        if self.parse_errors >= self.settings.max_parse_errors:
            return "parse_errors"
        if self.steps >= self.settings.max_steps:
            return "max_steps"
        if time.monotonic() > self.deadline:
            return "time"
        return "context" if self.budget.spent else ""

    async def close(self) -> None:
        self.task = None
        await self._stop()

    async def _stop(self) -> None:
        """End the policy's sandbox; what it still runs is gone."""
        await self.protocol.close()
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            await sandbox.close()

    def script(self, commands: list[str], says: str = DONE) -> list[Message]:
        """The messages that run `commands`, within `max_steps`, and then say that it is done."""
        most = self.settings.max_steps
        last = commands[most - 1 :]  # what does not fit goes into the last message
        parts = commands if len(commands) <= most else [*commands[: most - 1], "\n".join(last)]
        ending = [Message(role="assistant", content=says)] if len(parts) < most else []
        return [*map(self.protocol.message, parts), *ending]

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

    def _observe(self, outcome: Outcome) -> Observation:
        return Observation(messages=outcome.messages, tools=self.protocol.tools)

    async def _end(self, end: str, outcome: Outcome, said: str = "") -> StepResult:
        self.ended = True
        assert self.sandbox is not None
        await self.protocol.close()
        await self.sandbox.stop()  # what is judged is what the policy left, and nobody changes it meanwhile
        reward, judged = await self._judge(said)
        info = {**outcome.info, "end": end, "reason": end, "steps": self.steps, **judged}
        cut_off = end in ("time", "context") or (end == "max_steps" and self.settings.max_steps > 1)
        return StepResult(self._observe(outcome), reward, not cut_off, cut_off, info)


def _with(message: Message, content: str) -> Message:
    return Message(role=message.role, content=content, tool_call_id=message.tool_call_id, name=message.name)


def say(text: str) -> Observation:
    """An observation of one user message; none if `text` is empty."""
    return Observation(messages=(Message(role="user", content=text),) if text else ())
