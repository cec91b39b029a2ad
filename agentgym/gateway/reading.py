"""How each request is taken: whose session, main or side, and what of it is the next state of an earlier turn.

In memory, by user; what is needed after a restart is given back by the ledger.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from agentgym.gateway.index import Index, Known, Match, Request
from agentgym.gateway.records import State, Taken, TurnRecord
from agentgym.gateway.sides import QUOTED, Around, side
from agentgym.types import Message, ToolSpec, new_id

RECENT = 32  # texts and arguments per user against which requests are held
ENDS_WAIT = ("continued", "truncated", "compacted", "rewritten", "branched", "edited")
DONE = ("1", "true", "yes", "done")


@dataclass(frozen=True)
class Facts:
    """A request, as far as it says where it belongs; header values are as the client sent them."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    session: str | None = None  # X-Session-Id
    turn_type: str = ""  # X-Turn-Type
    parent_session: str = ""  # X-Parent-Session-Id
    done: bool = False  # X-Session-Done
    retry: bool = False


@dataclass
class Reader:
    """One user's conversations."""

    index: Index
    calls: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT))
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT))

    def take(self, facts: Facts, id: str, now: float) -> Taken:
        """How the request `id` is taken; from then on it is known as being answered."""
        request = Request(facts.messages, facts.tools, now, facts.session, facts.retry)
        match = self.index.match(request)
        found = side(facts.messages, self._around(facts, match, request))
        label, said = found or ("", "")
        kind = "side" if found else "main"
        why = f"{said}; {match.why}" if said else match.why
        taken = Taken(
            kind=kind,  # type: ignore[arg-type]
            label=label,
            why=why,
            relation=match.relation,
            session=match.session or facts.session or f"s-{new_id()}",
            parent=match.parent.id if match.parent else None,
            replaces=match.replaces.id if match.replaces else None,
            next_state=_next_state(facts.messages[match.since :]) if match.parent else (),
        )
        self._know(taken, request, id, now)
        if kind == "main":
            if match.parent and match.relation in ENDS_WAIT:
                self.index.reply(match.parent)
            self._remember(facts.messages[match.since :])
        return taken

    def twin(self, id: str, other: str) -> None:
        """Another answer to the request `id` is being made, as `other`."""
        self.index.add(replace(self.index.turns[id], id=other))

    def restore(self, turn: TurnRecord, delivered: bool, followed: bool) -> None:
        """Know a turn again that the ledger kept."""
        request = Request(turn.messages, turn.tools, turn.created)
        self._know(turn.taken, request, turn.id, turn.created)
        if followed:
            self.index.reply(self.index.turns[turn.id])
        answer = turn.completion.message if turn.state == "complete" else None
        self.answered(turn.id, turn.state, turn.messages, answer)
        if delivered:
            self.delivered(turn.id)

    def answered(self, id: str, state: State, messages: Sequence[Message], answer: Message | None) -> None:
        """Know how a turn ended."""
        self.index.answer(id, state, messages, answer)
        turn = self.index.turns.get(id)
        if turn is not None and answer is not None and turn.kind == "main":
            self._remember([answer])
            self.calls.extend(text for call in answer.tool_calls for text in _texts(call.arguments))

    def delivered(self, id: str) -> None:
        """Know that the client has the whole answer."""
        if turn := self.index.turns.get(id):
            turn.delivered = True

    def _know(self, taken: Taken, request: Request, id: str, now: float) -> None:
        pairs = zip(request.messages, request.keys, strict=True)
        keys = tuple(key for message, key in pairs if message.role != "system")
        self.index.add(
            Known(
                id=id, session=taken.session, parent=taken.parent, kind=taken.kind, label=taken.label, created=now,
                system=request.system, head=request.head, tools=request.tool_names, before=request.chain[-1], keys=keys,
                count=len(keys), last=keys[-1] if keys else b"",
            )
        )  # fmt: skip

    def _around(self, facts: Facts, match: Match, request: Request) -> Around:
        parent = match.parent
        return Around(
            header=facts.turn_type,
            parent_header=facts.parent_session,
            max_tokens=facts.max_tokens,
            tools=bool(facts.tools),
            parent_side=parent.label if parent and parent.kind == "side" else None,
            other_system=bool(parent and parent.head != request.head),
            tools_gone=bool(parent and not facts.tools and parent.tools != request.tool_names),
            calls=self.calls,
            recent=self.recent,
        )

    def _remember(self, messages: Sequence[Message]) -> None:
        self.recent.extend(message.content.strip() for message in messages if len(message.content.strip()) >= QUOTED)


class Readers:
    """The readers of all users; `max_sessions` bounds what is kept in memory, the longest unused is forgotten first."""

    def __init__(self, *, regenerate_s: float, max_sessions: int) -> None:
        self.regenerate_s, self.max_sessions = regenerate_s, max_sessions
        self._readers: dict[str, Reader] = {}
        self._used: OrderedDict[tuple[str, str], float] = OrderedDict()  # (user, session): when

    def of(self, user: str) -> Reader:
        """The reader of a user."""
        if user not in self._readers:
            self._readers[user] = Reader(Index(self.regenerate_s))
        return self._readers[user]

    def use(self, user: str, session: str, now: float) -> None:
        """A session was used; the longest unused are forgotten."""
        self._used[user, session] = now
        self._used.move_to_end((user, session))
        while len(self._used) > self.max_sessions:
            (user, session), _ = self._used.popitem(last=False)
            self.forget(user, session)

    def forget(self, user: str, session: str | None = None) -> None:
        """Forget a session, or all that is known of a user."""
        for found in [key for key in self._used if key[0] == user and session in (None, key[1])]:
            del self._used[found]
        if session is None:
            self._readers.pop(user, None)
        elif reader := self._readers.get(user):
            reader.index.forget_session(session)
            if not reader.index.turns:
                del self._readers[user]

    def __len__(self) -> int:
        return len(self._used)


def _next_state(messages: Sequence[Message]) -> tuple[Message, ...]:
    """All messages up to the policy's next word."""
    end = next((n for n, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return tuple(messages[:end])


def _texts(arguments: str) -> Iterator[str]:
    """The long texts in a call's arguments."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return
    pending = [found]
    while pending:
        value = pending.pop()
        if isinstance(value, str) and len(value.strip()) >= QUOTED:
            yield value.strip()
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
