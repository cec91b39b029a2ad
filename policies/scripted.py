"""Policies without a model: a script, the oracle, and one that does nothing useful."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from agentgym.env import Env
from agentgym.errors import UsageError
from agentgym.policy import Policy, Session
from agentgym.types import Completion, Message, Prompt, Sampling, Task

Script = Sequence[Message | str] | Callable[[Prompt], Message | str]


class Encoder(Protocol):
    """What a chat template offers to whoever needs ids for messages that no engine sampled."""

    def encode_prompt(self, session: Session, prompt: Prompt) -> tuple[int, ...]:
        """All ids up to where the policy speaks."""

    def encode_response(self, message: Message) -> tuple[int, ...]:
        """The ids of a response, the end-of-turn token included."""


class ScriptedPolicy(Policy):
    """Answers from `script`: messages in order, anew in each session and the last one repeated, or a function.

    With a `template` completions carry ids (log-probs None, version -1: nobody sampled them); without, none.

    Example:
        ScriptedPolicy(["```bash\\nls\\n```", "Done."])
    """

    def __init__(self, script: Script, template: Encoder | None = None) -> None:
        if not callable(script) and not script:
            raise UsageError("a scripted policy needs at least one message")
        self.script = script
        self.template = template
        self._spoken: WeakKeyDictionary[Session, int] = WeakKeyDictionary()

    async def __call__(self, prompt: Prompt, *, session: Session, sampling: Sampling) -> Completion:
        spoken = self._spoken.get(session, 0)
        self._spoken[session] = spoken + 1
        answer = self.answer(prompt, session, spoken)
        message = Message(role="assistant", content=answer) if isinstance(answer, str) else answer
        return complete(message, prompt, session, self.template)

    def answer(self, prompt: Prompt, session: Session, spoken: int) -> Message | str:
        """What to say after having spoken `spoken` times in this session."""
        if callable(self.script):
            return self.script(prompt)
        return self.script[min(spoken, len(self.script) - 1)]


class NoopPolicy(ScriptedPolicy):
    """Says nothing: what it is rewarded for, doing nothing earns."""

    def __init__(self, template: Encoder | None = None) -> None:
        super().__init__([""], template)


class OraclePolicy(ScriptedPolicy):
    """Asks each episode's environment for its solution and gives it message by message, then an empty one."""

    def __init__(self, template: Encoder | None = None) -> None:
        super().__init__([""], template)
        self._solutions: WeakKeyDictionary[Session, list[Message]] = WeakKeyDictionary()

    async def begin(self, session: Session, env: Env, task: Task) -> None:
        self._solutions[session] = await env.oracle(task)

    def answer(self, prompt: Prompt, session: Session, spoken: int) -> Message | str:
        solution = self._solutions.get(session, [])
        return solution[spoken] if spoken < len(solution) else ""


def complete(message: Message, prompt: Prompt, session: Session, template: Encoder | None) -> Completion:
    """`message` as a completion of `prompt` that nobody sampled; `session` is extended by it."""
    prompt_ids: tuple[int, ...] = prompt.ids or ()
    ids: tuple[int, ...] = ()
    if template is not None:
        prompt_ids = template.encode_prompt(session, prompt) if prompt.ids is None else prompt.ids
        ids = template.encode_response(message)
    session.ids = prompt_ids + ids
    session.n_messages = len(prompt.messages) + 1
    return Completion(
        prompt_ids=prompt_ids,
        ids=ids,
        logprobs=(None,) * len(ids),
        versions=(-1,) * len(ids),
        finish_reason="stop",
        message=message,
    )
