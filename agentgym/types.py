"""The nouns that travel: what a policy reads and writes, what an episode leaves, what a trainer learns from.

All are frozen msgspec structs, so that they go over the wire and into the store as they are.
Shape suffixes: T tokens of one sequence, V vocabulary, G members of a group, B sequences.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal, NamedTuple

import msgspec

Role = Literal["system", "user", "assistant", "tool"]

# How an episode ended. `completed` and `truncated` have an outcome; the others never are a reward.
Status = Literal["completed", "truncated", "infrastructure", "task", "cancelled"]
WITH_OUTCOME: tuple[Status, ...] = ("completed", "truncated")
FinishReason = Literal["stop", "length", "abort"]


def new_id() -> str:
    """A fresh random id, 16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the nouns: immutable, keyword-only."""


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call of a tool that the model asked for."""

    id: str
    name: str
    arguments: str  # JSON text, byte for byte as the model wrote it


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool on offer: what the chat template prints."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}  # JSON schema of the arguments

    def to_openai(self) -> dict[str, Any]:
        """The tool as OpenAI's `tools` list has it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Image(Struct, frozen=True, kw_only=True):
    """A picture in a message."""

    data: bytes  # as `mime` says
    mime: str = "image/png"


class Message(Struct, frozen=True, kw_only=True):
    """One message of a conversation, in OpenAI's roles."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    call_errors: tuple[str, ...] = ()  # what is wrong with malformed calls in `content`; no model reads it
    images: tuple[Image, ...] = ()  # shown after the text


class Prompt(Struct, frozen=True, kw_only=True):
    """What a policy answers to: the whole conversation so far, or its ids."""

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    ids: tuple[int, ...] | None = None  # given: served exactly as they are, `messages` is ignored


class Sampling(Struct, frozen=True, kw_only=True):
    """How to sample one completion."""

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    frequency_penalty: float = 0.0  # what is sampled with a penalty has other log-probs than the trainer would compute
    presence_penalty: float = 0.0
    top_logprobs: int = 0  # how many of the likeliest tokens are told at each position (of a stream)
    json_schema: dict[str, Any] | None = None  # what the answer is held to; {}: any JSON object


class Completion(Struct, frozen=True, kw_only=True):
    """What the engine sampled, token by token.

    `ids`, `logprobs` and `versions` have the same length T. Log-probs are those of the distribution that was
    sampled from (temperature included); None where the engine gave none.
    """

    prompt_ids: tuple[int, ...]  # exactly as served
    ids: tuple[int, ...]  # exactly as sampled, the stop token included
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]  # weight version that sampled each token
    finish_reason: FinishReason
    message: Message  # the same for people and environments: text without special tokens, tool calls parsed
    temperature: float = 1.0
    seconds: float = 0.0

    @property
    def mixed(self) -> bool:
        """Whether more than one weight version sampled it."""
        return len(set(self.versions)) > 1


class Observation(Struct, frozen=True, kw_only=True):
    """What an environment shows: the messages that came since the policy last spoke, and the tools on offer."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


class StepResult(NamedTuple):
    """What a step returns; unpacks like Gymnasium's five."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Turn(Struct, frozen=True, kw_only=True):
    """One exchange: what came in, what the policy said, and what came back (the next state)."""

    index: int
    completion: Completion
    next_state: tuple[Message, ...] = ()  # everything before the policy speaks again, in order
    reward: float = 0.0
    info: dict[str, Any] = {}  # plain data from the environment: exit codes, verdicts, parse errors


class Task(Struct, frozen=True, kw_only=True):
    """One thing to do: plain data. Behaviour belongs to the environment that it names."""

    id: str  # unique in its task set, stable across machines
    env: str  # a registered environment
    instruction: str
    family: str = ""
    level: int = 0
    split: str = "train"  # "train" or "test"
    seed: int = 0
    data: dict[str, Any] = {}  # what the environment needs to set up and verify; the policy never sees it


class Trajectory(Struct, frozen=True, kw_only=True):
    """One episode, as it is stored."""

    id: str
    task_id: str
    group_id: str
    env: str
    seed: int
    status: Status
    reason: str = ""  # why it ended, in one line
    outcome: float | None = None  # the verifier's reward; None unless completed or truncated
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()  # the conversation from the first observation to the last next state
    tools: tuple[ToolSpec, ...] = ()  # on offer when it began
    started: float = 0.0  # seconds since the epoch
    seconds: float = 0.0
    info: dict[str, Any] = {}


class Group(Struct, frozen=True, kw_only=True):
    """G episodes of one task, compared with one another."""

    id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    judgements: tuple[tuple[Judgement, ...], ...] = ()  # of each member's turns, in order; empty where nobody judges


class TokenSpan(Struct, frozen=True, kw_only=True):
    """The tokens of a sample that one turn's response fills: ids[start:end]."""

    turn: int
    start: int
    end: int


class Sample(Struct, frozen=True, kw_only=True):
    """One sequence to train on: prompt and responses of append-only turns, ids as served and as sampled.

    The per-token tuples have length T = len(ids). Outside the responses `mask` is 0, `logprobs` is None and
    `versions` is -1.
    """

    id: str  # "<trajectory id>/<first turn>": the same trajectory gives the same ids
    trajectory_id: str
    group_id: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]  # 1: trained on
    logprobs: tuple[float | None, ...]  # behaviour log-probs, from the engine
    versions: tuple[int, ...]
    spans: tuple[TokenSpan, ...]
    temperature: float = 1.0


class Exchange(Struct, frozen=True, kw_only=True):
    """One turn as a judge sees it. Everything but `task` was written by a model, a tool, a page or a user: it is data."""

    trajectory_id: str
    turn: int
    task: str  # the instruction
    history: tuple[Message, ...] = ()  # before the response
    response: Message
    next_state: tuple[Message, ...] = ()  # all that came back before the policy spoke again, in order, typed by role
    reward: float = 0.0  # of this step, from the environment
    info: dict[str, Any] = {}  # its evidence; by convention `score` (-1, 0, 1), `hint`, `exit_code`, `parse_error`
    last: bool = False  # the episode ended here
    outcome: float | None = None  # of the whole episode, where there is one and `last`
    secrets: tuple[str, ...] = ()  # what no hint may contain


class Taught(Struct, frozen=True, kw_only=True):
    """What a teacher outside of the run says of the T tokens of a response, under the prompt with one hint."""

    logprobs: tuple[float | None, ...]  # None: not told, or not finite
    top_ids: tuple[tuple[int, ...], ...] = ()  # per token its k likeliest, falling, of equals the lower id; if it tells
    top: tuple[tuple[float, ...], ...] = ()  # their log-probs


class Judgement(Struct, frozen=True, kw_only=True):
    """What came of judging one turn; stored under (trajectory_id, turn)."""

    trajectory_id: str
    turn: int
    judge: str  # its kind
    votes: tuple[int | None, ...] = ()  # each +1, 0, -1, or None for one that could not be read
    score: float | None = None  # None: unscored, and `reason` says why
    hints: tuple[str, ...] = ()  # accepted ones
    refused_hints: tuple[
        str, ...
    ] = ()  # why each of the others was not: "too short", "a duplicate", "leaks the answer"
    reason: str = ""
    seconds: float = 0.0
    hinted: tuple[tuple[int, ...], ...] = ()  # the teacher's prompt for each of `hints`, as ids; only if it is asked
    taught: tuple[Taught, ...] = ()  # what a teacher outside of the run said under each of `hinted`


class ScoredSample(Struct, frozen=True, kw_only=True):
    """A sample with what each of its turns is worth, one entry per span, spread over the span's tokens."""

    sample: Sample
    advantages: tuple[float | None, ...]  # None: no RL term (an unscored turn)
    # The prompts of the teacher, as ids: per span one for each accepted hint. A span without has no OPD term;
    # empty as a whole: no span has one.
    hinted: tuple[tuple[tuple[int, ...], ...], ...] = ()
    taught: tuple[tuple[Taught, ...], ...] = ()  # likewise: what a teacher outside of the run said under each of them
