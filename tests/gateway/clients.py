"""Conversations as clients send them, against a reader alone: no engine, no server, a clock of their own."""

from __future__ import annotations

import itertools

import msgspec

from agentgym.gateway.index import Index
from agentgym.gateway.reading import Facts, Reader
from agentgym.gateway.requests import ChatMessage, conversation
from agentgym.types import Message, ToolCall, ToolSpec

MINUTE = 60.0


def said(role, content="", **more):
    return Message(role=role, content=content, **more)


def called(name, arguments, content="", id="c1"):
    return Message(role="assistant", content=content, tool_calls=(ToolCall(id=id, name=name, arguments=arguments),))


def parsed(messages):
    """OpenAI's messages as the gateway reads them."""
    return conversation(msgspec.convert(messages, type=list[ChatMessage]))[0]


class User:
    """One user's requests; each is answered, and the answer delivered, unless said otherwise."""

    def __init__(self, regenerate_s=600.0):
        self.reader = Reader(Index(regenerate_s))
        self.now = 1000.0
        self._numbers = itertools.count()

    def ask(
        self, messages, answer="An answer to that.", *, state="complete", delivered=True, tools=(), wait=5.0, **facts
    ):
        """How the request is taken."""
        id = f"t{next(self._numbers)}"
        self.now += wait
        specs = tuple(ToolSpec(name=name) for name in tools)
        taken = self.reader.take(Facts(tuple(messages), specs, **facts), id, self.now)
        if state != "open":
            message = said("assistant", answer) if isinstance(answer, str) else answer
            self.reader.answered(id, state, messages, message if state == "complete" else None)
            if state == "complete" and delivered:
                self.reader.delivered(id)
        self.last = id
        return taken
