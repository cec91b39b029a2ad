"""The policy contract: whoever answers a prompt with a completion, token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentgym.types import Completion, FinishReason, Message, Prompt, Sampling, Struct, Task, ToolSpec

if TYPE_CHECKING:
    from agentgym.config import Config
    from agentgym.env import Env


class Session:
    """One conversation with a policy: keeps the ids that were served and sampled, so that they are never remade.

    A policy's template extends `ids` with the new messages only. Where that is not possible (a template that
    rewrites earlier turns) it renders afresh, and `broken` counts it: the turns after it make another sample.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.ids: tuple[int, ...] = ()  # all tokens so far, the last response included
        self.n_messages = 0  # how many messages `ids` covers, the policy's own last one included
        self.messages: tuple[Message, ...] = ()  # those messages: a conversation edited since cannot be extended
        self.tools: tuple[ToolSpec, ...] = ()  # the tools that were on offer
        self.broken = 0


class Policy(ABC):
    """Answers prompts. Safe to call concurrently with different sessions."""

    @abstractmethod
    async def __call__(self, prompt: Prompt, *, session: Session, sampling: Sampling) -> Completion:
        """Sample one completion and extend `session` by it.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            EngineError: the engine failed or took too long.
        """

    async def begin(self, session: Session, env: Env, task: Task) -> None:
        """Hear of an episode before its first prompt; only fakes such as the oracle make use of it."""

    async def close(self) -> None:
        """Free everything; safe to call twice."""

    @property
    def address(self) -> PolicyAddress | None:
        """How other processes reach it; None if they cannot."""
        return None


class PolicyAddress(Struct, frozen=True, kw_only=True):
    """How another process reaches a policy that serves: what to make there, with plain keyword arguments.

    The arguments may hold a key: an address travels over pipes only, and is never logged or stored.
    """

    factory: str  # "module:Class" of a Policy
    options: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"PolicyAddress({self.factory!r}, options: {', '.join(self.options)})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("factory", self.factory), ("options", list(self.options))]


class ServingPolicy(Policy):
    """A policy that serves the model of a config, and whose weights can be replaced while it serves.

    `model` is a Hugging Face folder, `folder` is where it may write logs and weights.
    """

    version: int  # the weights that requests begun now are answered by

    @abstractmethod
    def __init__(self, config: Config, *, model: Path, folder: Path, version: int = 0) -> None: ...

    @abstractmethod
    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start serving; `progress` is told what is going on. Raises EngineError with the last log lines."""

    @abstractmethod
    async def update_weights(self, directory: Path, version: int) -> None:
        """Serve the Hugging Face folder `directory` from now on, as `version`; requests in flight survive."""


class Piece(Struct, frozen=True, kw_only=True):
    """The tokens of a stream that were sampled since the piece before."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()  # (id, log-prob) of the likeliest, for each id; if asked for
    finish_reason: FinishReason | None = None  # only the last piece has one
    versions: tuple[int, ...] = ()  # the last piece's: the weight version of every token of the stream


class Template(Protocol):
    """Messages to ids and back, as the model's chat template has it."""

    stop_ids: tuple[int, ...]

    def encode_prompt(self, session: Session, prompt: Prompt) -> tuple[int, ...]: ...

    def decode_response(self, ids: tuple[int, ...], tools: tuple[ToolSpec, ...] = ()) -> Message: ...

    def advance(self, session: Session, prompt: Prompt, completion: Completion) -> None: ...


class TokenServer(ServingPolicy):
    """A serving policy that streams token ids, and whose template renders: what the gateway asks."""

    template: Template
    structured: bool = False  # whether it can hold an answer to a JSON schema

    @abstractmethod
    def stream(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Sample after `prompt_ids`, piece by piece; closing the iterator frees the engine.

        Raises:
            EngineError: the engine failed, or took longer than `engine.request_timeout_s`.
        """

    @abstractmethod
    def hinted(self, prompt: Prompt, served_ids: tuple[int, ...], hints: Sequence[str]) -> list[tuple[int, ...] | None]:
        """The teacher's prompts: `served_ids`, which said `prompt`, with each hint in the last user message.

        None where a hint cannot be told, as in a conversation without a user message.
        """


class ContextOverflow(Exception):
    """The prompt leaves no room for an answer: the episode ends as truncated."""
