"""What the gateway keeps of each turn, and what a learner is given: frozen structs."""

from __future__ import annotations

from typing import Any, Literal

from agentgym.types import Completion, Message, Struct, ToolSpec

Kind = Literal["main", "side"]
# How a request stands to what was served before.
Relation = Literal[
    "new",  # the first of its session
    "continued",  # what follows an answer of ours
    "retry",  # the same request again, whose answer never arrived
    "regenerated",  # the same request again, after an answer that arrived
    "edited",  # another message in the place of one that was answered
    "branched",  # goes on from an earlier turn than the last
    "parallel",  # the same request while it is being answered
    "truncated",  # the client dropped the beginning
    "compacted",  # the client put a summary in the place of the beginning
    "rewritten",  # of this session by its header; its history is not the one we know
]
# What became of an answer. `open`: being made.
State = Literal["open", "complete", "aborted", "failed"]
# What ended a turn's wait for its next state.
Ending = Literal["reply", "regenerated", "edited", "unchosen", "done", "timeout"]


class Attachment(Struct, frozen=True, kw_only=True):
    """An image of a request, as it came."""

    message: int  # its message's place in the request
    url: str  # http(s), or data with the image in it
    detail: str = ""


class Taken(Struct, frozen=True, kw_only=True):
    """How a request was taken, and why."""

    kind: Kind
    label: str = ""  # of a side turn: "title", "summary", ...
    why: str
    relation: Relation
    session: str
    parent: str | None = None  # the turn whose answer it follows
    replaces: str | None = None  # the turn that it repeats, regenerates or edits
    next_state: tuple[Message, ...] = ()  # what came after the parent's answer

    def header(self) -> str:
        """For the response header X-Agentgym-Turn."""
        label = f"; label={self.label}" if self.label else ""
        why = self.why.encode("ascii", "replace").decode().replace('"', "'").replace("\n", " ")
        return f'{self.kind}{label}; relation={self.relation}; session={self.session}; why="{why}"'


class TurnRecord(Struct, frozen=True, kw_only=True):
    """One answer as it is stored; of a request for n answers each is one."""

    id: str  # the completion's id; "<id>/<choice>" from the second answer on
    user: str
    taken: Taken
    state: State
    reason: str = ""  # why it was aborted or failed
    created: float
    messages: tuple[Message, ...]  # the whole prompt
    tools: tuple[ToolSpec, ...] = ()
    images: tuple[Attachment, ...] = ()
    completion: Completion
    request: dict[str, Any] = {}  # the parameters, without messages and tools
    caveat: str = ""  # why the log-probs are not those of the model at its temperature: "greedy", "penalties", ...


class Feedback(Struct, frozen=True, kw_only=True):
    """What somebody said about an answer; of one user and completion the later wins."""

    completion_id: str
    user: str
    thumb: Literal["up", "down"] | None = None
    score: float | None = None  # -1 to 1
    text: str = ""
    correction: str = ""  # what the answer should have been: a hint
    created: float = 0.0


class CompletedTurn(Struct, frozen=True, kw_only=True):
    """A main turn whose next state is known, or known not to come: what a learner consumes."""

    turn: TurnRecord
    ending: Ending
    next_state: tuple[Message, ...] = ()  # all messages after the answer, up to the policy's next word
    alternative: str | None = None  # `regenerated`, `edited`: the turn that took its place
    feedback: Feedback | None = None
    ended: float = 0.0
