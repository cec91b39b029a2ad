"""Which conversation a request belongs to, told by the messages themselves.

A client sends the whole conversation each time. Each answer of ours is known by a digest of all that led to it, so that
what follows it is found whatever else goes on; system messages do not count, for clients write dates into them.
Nothing here reads a clock, a disk or a network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgym.gateway.messages import chain, digest, message_key, same_text, system_key, tools_key
from agentgym.gateway.records import Kind, Relation, State
from agentgym.types import Message, ToolSpec

LONG = 24  # characters of an answer that nobody gives twice by chance
HEAD = 48  # characters of a system prompt by which it is told from another
SUMMARY = 40  # characters of a summary of ours that is recognised in a later request


@dataclass
class Known:
    """A turn that the index knows."""

    id: str
    session: str
    parent: str | None
    kind: Kind
    label: str
    created: float
    system: bytes
    head: str  # how its system prompt begins
    tools: bytes
    before: bytes  # of the prompt
    count: int  # messages of the prompt, system messages left out
    last: bytes  # of the last of them
    keys: tuple[bytes, ...] = ()  # of all of them, until a reply comes
    state: State = "open"
    delivered: bool = False
    followed: bool = False  # a reply came
    after: bytes = b""  # of the prompt and the answer
    anchors: tuple[bytes, ...] = ()
    answer: str = ""  # of side turns only: a summary comes back inside another message


@dataclass(frozen=True)
class Match:
    """Where a request belongs; `since` is how many of its messages were there before what is new."""

    relation: Relation
    session: str | None  # None: one that is not there yet
    parent: Known | None
    since: int
    why: str
    replaces: Known | None = None


@dataclass
class Request:
    """What matching needs of a request; digests are made once."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    now: float
    session: str | None = None  # as the client names it
    retry: bool = False  # the client says that it asks again
    keys: list[bytes] = field(init=False)  # of all messages
    chain: list[bytes] = field(init=False)
    system: bytes = field(init=False)
    tool_names: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [message_key(message) for message in self.messages]
        self.chain = chain(self.messages, self.keys)
        self.system = system_key(self.messages)
        self.tool_names = tools_key(self.tools)

    @property
    def head(self) -> str:
        """How its system prompt begins: the part that clients do not write dates into."""
        return next((message.content[:HEAD] for message in self.messages if message.role == "system"), "")

    @property
    def answered(self) -> bool:
        """Whether it holds an answer already."""
        return any(message.role == "assistant" for message in self.messages)


class Index:
    """The turns of one user; `regenerate_s`: so long after an answer the same first request is a wish for another."""

    def __init__(self, regenerate_s: float = 600.0) -> None:
        self.regenerate_s = regenerate_s
        self.turns: dict[str, Known] = {}
        self._before: dict[bytes, list[str]] = defaultdict(list)
        self._after: dict[bytes, list[str]] = defaultdict(list)
        self._anchor: dict[bytes, list[str]] = defaultdict(list)
        self._children: dict[str, list[str]] = defaultdict(list)
        self.sessions: dict[str, list[str]] = {}

    def match(self, request: Request) -> Match:
        """Find where a request belongs."""
        return self._again(request) or self._follows(request) or self._cut(request) or self._new(request)

    def add(self, turn: Known) -> None:
        """Know a turn that is being answered."""
        self.turns[turn.id] = turn
        self._before[turn.before].append(turn.id)
        self.sessions.setdefault(turn.session, []).append(turn.id)
        if turn.parent:
            self._children[turn.parent].append(turn.id)

    def answer(self, id: str, state: State, messages: Sequence[Message], answer: Message | None) -> None:
        """Know how it ended; only a complete answer is followed by anything."""
        turn = self.turns.get(id)
        if turn is None:
            return
        turn.state = state
        if state != "complete" or answer is None:
            return
        key = message_key(answer)
        turn.after = digest(turn.before + key)
        turn.anchors = _anchors(turn.last, key, answer)
        turn.answer = same_text(answer.content) if turn.kind == "side" else ""
        self._after[turn.after].append(id)
        for anchor in turn.anchors:
            self._anchor[anchor].append(id)

    def reply(self, turn: Known) -> None:
        """A reply to it came: it is no session's end any more."""
        turn.followed, turn.keys = True, ()

    def forget_session(self, session: str) -> None:
        """Forget the turns of a session."""
        for id in self.sessions.pop(session, []):
            turn = self.turns.pop(id, None)
            if turn is None:
                continue
            for table, keys in (
                (self._before, (turn.before,)),
                (self._after, (turn.after,)),
                (self._anchor, turn.anchors),
            ):
                for key in keys:
                    _drop(table, key, id)
            if turn.parent:
                _drop(self._children, turn.parent, id)
            self._children.pop(id, None)

    # --- the same request again --------------------------------------------------------------------------------------

    def _again(self, request: Request) -> Match | None:
        same = [
            turn
            for turn in self._of(self._before, request.chain[-1], request)
            if turn.system == request.system and turn.tools == request.tool_names
        ]
        if not same:
            return None
        last = max(same, key=lambda turn: turn.created)
        parent = self.turns.get(last.parent or "")
        since = _after_last_answer(request.messages)
        inside = request.answered or request.session is not None  # more than two first words that are the same
        if last.state in ("aborted", "failed"):
            return Match("retry", last.session, parent, since, f"asks again for what was {last.state}", last)
        if last.state == "open":
            if request.retry:
                return Match("retry", last.session, parent, since, "asks again; the client says it is a retry", last)
            if not inside:
                return None
            return Match("parallel", last.session, parent, since, "the same request is being answered", None)
        if request.retry or not last.delivered:
            why = "the client says it is a retry" if request.retry else "the answer was not delivered"
            return Match("retry", last.session, parent, since, f"asks again: {why}", last)
        if inside or (not last.followed and request.now - last.created <= self.regenerate_s):
            return Match("regenerated", last.session, parent, since, "wants another answer to the same request", last)
        return None

    # --- what follows an answer of ours ------------------------------------------------------------------------------

    def _follows(self, request: Request) -> Match | None:
        for count in range(len(request.messages), 0, -1):
            if request.messages[count - 1].role != "assistant":
                continue
            found = self._of(self._after, request.chain[count], request)
            if found:
                return self._after_answer(request, max(found, key=lambda turn: self._likeness(turn, request)), count)
        return None

    def _after_answer(self, request: Request, parent: Known, count: int) -> Match:
        fresh = [message for message in request.messages[count:] if message.role != "system"]
        why = f"{len(fresh)} message{'s' * (len(fresh) != 1)} after an answer of ours"
        if not parent.followed:
            twin = self._twin_that_went_on(parent)
            session = None if twin and not request.session else parent.session
            return Match("continued" if session else "branched", session, parent, count, why)
        children = [self.turns[id] for id in self._children[parent.id] if id in self.turns]
        main = [child for child in children if child.kind == "main"]
        known = {child.last for child in children}
        if any(message.role == "assistant" for message in fresh):
            last = main[-1] if main else None
            return Match("edited", parent.session, parent, count, "an answer of ours was rewritten", last)
        if all(child.state in ("aborted", "failed") for child in main):
            return Match("continued", parent.session, parent, count, why)
        place = sum(message.role != "system" for message in request.messages[:count])
        if len(fresh) == 1 and fresh[0].role == "user" and message_key(fresh[0]) not in known and main:
            replaced = next((child for child in reversed(main) if child.count == place + 1), None)
            if replaced:
                return Match("edited", parent.session, parent, count, "another message in the place of one", replaced)
        return Match("branched", parent.session, parent, count, f"{why} that was answered before")

    def _twin_that_went_on(self, turn: Known) -> bool:
        """Whether another answer to the same first request went on: then two conversations began alike."""
        twins = (self.turns[id] for id in self._before[turn.before] if id != turn.id)
        return not turn.parent and any(twin.followed and twin.session == turn.session for twin in twins)

    def _likeness(self, turn: Known, request: Request) -> tuple[bool, bool, bool, float]:
        same = turn.system == request.system and turn.tools == request.tool_names
        return same, turn.kind == "main", not turn.followed, turn.created

    # --- the beginning is gone ---------------------------------------------------------------------------------------

    def _cut(self, request: Request) -> Match | None:
        """The client dropped or rewrote the beginning: known by the last answer, or by a summary of ours."""
        messages = [message for message in request.messages if message.role != "system"]
        place = max((n for n, message in enumerate(messages) if message.role == "assistant"), default=-1)
        if place >= 0:
            answer, key = messages[place], message_key(messages[place])
            before = message_key(messages[place - 1]) if place else b""
            for anchor in reversed(_anchors(before, key, answer)):
                if found := [turn for turn in self._of(self._anchor, anchor, request) if not turn.followed]:
                    parent = max(found, key=lambda turn: self._likeness(turn, request))
                    whole = all(message_key(message) in parent.keys for message in messages[:place])
                    relation: Relation = "truncated" if whole else "compacted"
                    why = "the beginning was dropped" if whole else "the beginning was rewritten"
                    return Match(relation, parent.session, parent, _place(request.messages, place + 1), why)
        return self._by_summary(request)

    def _by_summary(self, request: Request) -> Match | None:
        texts = [message.content for message in request.messages if message.role != "assistant"]
        for turn in sorted(self._in(request), key=lambda turn: -turn.created)[:256]:
            if turn.label == "summary" and len(turn.answer) >= SUMMARY and any(turn.answer in text for text in texts):
                holds = next(n for n, message in enumerate(request.messages) if turn.answer in message.content)
                parent = self._last_main(turn.session)
                return Match("compacted", turn.session, parent, holds + 1, "begins with a summary that we wrote")
        if request.session is not None and (parent := self._last_main(request.session)):
            why = "of this session by its header, with another history"
            since = _after_last_answer(request.messages)  # of somebody else's answer: then it is no reply to ours
            return Match("rewritten", request.session, None if since else parent, since, why)
        return None

    def _new(self, request: Request) -> Match:
        since = _after_last_answer(request.messages)
        why = "continues a conversation that began elsewhere" if since else "begins a conversation"
        return Match("new", request.session, None, since, why)

    # --- looking up --------------------------------------------------------------------------------------------------

    def _of(self, table: dict[bytes, list[str]], key: bytes, request: Request) -> list[Known]:
        turns = [self.turns[id] for id in table.get(key, ())]
        return [turn for turn in turns if request.session in (None, turn.session)]

    def _in(self, request: Request) -> list[Known]:
        ids = self.turns if request.session is None else self.sessions.get(request.session, ())
        return [self.turns[id] for id in ids]

    def _last_main(self, session: str) -> Known | None:
        turns = [self.turns[id] for id in self.sessions.get(session, ()) if id in self.turns]
        return next((turn for turn in reversed(turns) if turn.kind == "main" and turn.state == "complete"), None)


def _anchors(before: bytes, key: bytes, answer: Message) -> tuple[bytes, ...]:
    """What an answer is known by without its beginning: alone if it is long enough, and with what it answers."""
    alone = len(same_text(answer.content)) >= LONG
    return (*((digest(b"alone" + key),) if alone else ()), *((digest(before + key),) if before else ()))


def _after_last_answer(messages: Sequence[Message]) -> int:
    return max((n + 1 for n, message in enumerate(messages) if message.role == "assistant"), default=0)


def _place(messages: Sequence[Message], count: int) -> int:
    """The place after the first `count` messages that are not system messages."""
    for place, message in enumerate(messages):
        count -= message.role != "system"
        if not count:
            return place + 1
    return len(messages)


def _drop(table: dict[bytes, list[str]] | dict[str, list[str]], key: bytes | str, id: str) -> None:
    ids = table.get(key)  # type: ignore[call-overload,arg-type]
    if ids and id in ids:
        ids.remove(id)
        if not ids:
            del table[key]  # type: ignore[arg-type]
