"""Conversations as values: what counts as the same message, and digests of their beginnings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from agentgym.types import Message, ToolSpec

SIZE = 12  # bytes of a digest
THINK, THOUGHT = "<think>", "</think>"


def same_text(text: str) -> str:
    """What is left of a text if thinking and outer space do not count: clients drop them from the history."""
    thought, ended, rest = text.partition(THOUGHT)
    opened = thought.lstrip().removeprefix(THINK)
    return rest.strip() if ended and THINK not in opened else text.strip()


def message_key(message: Message) -> bytes:
    """Digest of what makes a message the same: role, text and calls; ids of calls and the layout of JSON do not count."""
    text = same_text(message.content) if message.role == "assistant" else message.content.strip()
    parts = [message.role, text, *(f"{call.name}\x1f{_plain(call.arguments)}" for call in message.tool_calls)]
    return digest("\x1e".join(parts).encode(errors="surrogatepass"))


def chain(messages: Sequence[Message], keys: Sequence[bytes]) -> list[bytes]:
    """Digests of each beginning: entry k is of the first k messages, system messages not counted."""
    found = [b""]
    for message, key in zip(messages, keys, strict=True):
        found.append(found[-1] if message.role == "system" else digest(found[-1] + key))
    return found


def system_key(messages: Iterable[Message]) -> bytes:
    """Digest of the system messages."""
    return digest(b"\x1e".join(message_key(message) for message in messages if message.role == "system"))


def tools_key(tools: Iterable[ToolSpec]) -> bytes:
    """Digest of the names of the tools on offer."""
    return digest("\x1e".join(sorted(tool.name for tool in tools)).encode(errors="surrogatepass"))


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=SIZE).digest()


def _plain(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()
