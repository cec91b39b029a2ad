"""What is kept, and what of it a hook takes out; ids that are extended and never made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from agentgym.errors import UsageError
from agentgym.gateway.messages import message_key
from agentgym.gateway.records import TurnRecord
from agentgym.gateway.requests import Common
from agentgym.policy import Session
from agentgym.types import Message, Sampling

Redact = Callable[[str], str]
T = TypeVar("T")
SPOKEN = ("messages", "tools", "functions", "prompt")  # kept as they are meant, not as parameters


def redacted(value: T, redact: Redact | None) -> T:
    """`value` with all its text as the hook leaves it; a turn that the hook changed loses its ids, which spell the text."""
    if redact is None:
        return value
    changed = msgspec.convert(_through(msgspec.to_builtins(value), redact), type=_kind(value))
    if not isinstance(value, TurnRecord) or changed == value:
        return changed
    bare = msgspec.structs.replace(changed.completion, prompt_ids=(), ids=(), logprobs=(), versions=())
    return msgspec.structs.replace(changed, completion=bare, caveat="redacted")


def caveat(sampling: Sampling) -> str:
    """Why the log-probs are not those of the model at its temperature, in a word; empty if they are."""
    reasons = {
        "greedy": sampling.temperature == 0,
        "penalties": sampling.frequency_penalty or sampling.presence_penalty,
        "schema": sampling.json_schema is not None,
        "truncated distribution": sampling.top_p < 1 or sampling.top_k,
    }
    return ", ".join(name for name, holds in reasons.items() if holds)


def parameters(request: Common) -> dict[str, Any]:
    """What was asked for beside what was said."""
    given = msgspec.to_builtins(request)
    return {name: value for name, value in given.items() if name not in SPOKEN and value is not None}


def as_sampled(messages: tuple[Message, ...], base: tuple[Message, ...]) -> tuple[Message, ...] | None:
    """`messages` with our answers as `base` has them, byte for byte; None if they do not begin as `base` does."""
    known = [message for message in base if message.role != "system"]
    found: list[Message] = []
    place = 0
    for message in messages:
        if message.role != "system" and place < len(known):
            ours, place = known[place], place + 1
            if message_key(ours) != message_key(message):
                return None
            if message.role == "assistant":
                message = ours
        found.append(message)
    return tuple(found) if place == len(known) else None


def copied(session: Session, id: str) -> Session:
    """Another session that goes on from the same ids."""
    made = Session(id)
    made.ids, made.n_messages, made.messages, made.tools = (
        session.ids, session.n_messages, session.messages, session.tools,
    )  # fmt: skip
    return made


def session_after(turn: TurnRecord) -> Session:
    """The session as it was at the end of a kept turn."""
    session, completion = Session(turn.taken.session), turn.completion
    session.ids = completion.prompt_ids + completion.ids
    session.messages = (*turn.messages, completion.message)
    session.n_messages, session.tools = len(session.messages), turn.tools
    return session


def load_hook(name: str) -> Redact | None:
    """The function that `gateway.redact` names.

    Raises:
        UsageError: there is none.
    """
    if not name:
        return None
    import importlib

    module, _, attribute = name.partition(":")
    try:
        hook = getattr(importlib.import_module(module), attribute)
        if not isinstance(hook("text"), str):
            raise TypeError("it does not return text")
    except Exception as error:
        raise UsageError(f"gateway.redact={name}: expected module:function from text to text: {error}") from error
    return hook


def _kind(value: Any) -> Any:
    return tuple[Message, ...] if isinstance(value, tuple) else type(value)


def _through(value: Any, redact: Redact) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: item if key in KEPT else _through(item, redact) for key, item in value.items()}
    return [_through(item, redact) for item in value] if isinstance(value, list | tuple) else value


# Names, ids and numbers that a hook has no say in: the books would not balance.
KEPT = frozenset(
    [
        "id",
        "user",
        "session",
        "parent",
        "replaces",
        "kind",
        "label",
        "relation",
        "state",
        "role",
        "completion_id",
        "tool_call_id",
        "finish_reason",
        "thumb",
        "ids",
        "prompt_ids",
        "logprobs",
        "versions",
        "created",
    ]
)
