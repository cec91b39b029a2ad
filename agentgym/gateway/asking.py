"""One request while it is answered: its n answers sampled at once, told as they come, kept before they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from agentgym.errors import EngineError
from agentgym.gateway.records import State, Taken
from agentgym.gateway.text import Detokenizer, Parts, Stops
from agentgym.policy import Piece, Session, TokenServer
from agentgym.types import Completion, FinishReason, Message, Prompt, Sampling, ToolCall, new_id

BARE = ("json", "llama3", "openai")  # formats in which an answer may be JSON that is a call, without a mark


class TokenLogprob(NamedTuple):
    """A sampled token with its log-prob and the likeliest in its place, as text."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Event(NamedTuple):
    """What became known of one of the answers; `finish`: OpenAI's word for why it ended."""

    choice: int
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None


@dataclass
class Answer:
    """One answer in the making."""

    choice: int
    id: str
    began: float = field(default_factory=time.monotonic)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    versions: tuple[int, ...] = ()
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason = "abort"
    content: str = ""  # as the client has it
    reasoning: str = ""
    first_s: float | None = None  # until the first token


@dataclass
class Ask:
    """A request with everything that its answers need."""

    id: str
    user: str
    created: float
    taken: Taken
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    n: int
    session: Session
    parameters: dict[str, Any]
    attachments: tuple[Any, ...] = ()
    logprobs: bool = False
    thinking: bool = False  # the prompt ends inside the reasoning
    chat: bool = True  # text completions have neither reasoning nor calls
    done: bool = False  # the client says that the session ends

    @property
    def ids(self) -> list[str]:
        """The id of each answer."""
        return [self.id if not choice else f"{self.id}/{choice}" for choice in range(self.n)]


Keep = Callable[[Ask, Answer, State, str, Completion], Awaitable[None]]


class Asking:
    """Samples the answers of `ask` and tells what becomes known; `keep` is called with each before its end is told.

    consumes: pieces of the engine; produces: events; waits for: the engine; is unblocked by: each piece, or by being
    closed, which frees the engine and keeps what there is as aborted. A reader that is slow holds up nothing.
    """

    def __init__(self, policy: TokenServer, ask: Ask, keep: Keep) -> None:
        self.policy, self.ask, self._keep = policy, ask, keep
        self.answers = [Answer(choice, id) for choice, id in enumerate(ask.ids)]
        self._events: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
        self._begun = False

    @property
    def completion_tokens(self) -> int:
        return sum(len(answer.ids) for answer in self.answers)

    async def events(self) -> AsyncGenerator[Event, None]:
        """What becomes known, in order.

        Raises:
            EngineError: an answer failed; the others are aborted.
        """
        self._begun = True
        tasks = [asyncio.create_task(self._answer(answer)) for answer in self.answers]
        left = len(tasks)
        try:
            while left:
                event = await self._events.get()
                if event is None:
                    left -= 1
                elif isinstance(event, BaseException):
                    raise event
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.shield(asyncio.wait(tasks))

    async def abandon(self) -> None:
        """Keep as aborted what nobody began to wait for: each request is accounted for."""
        if not self._begun:
            self._begun = True
            nothing = Message(role="assistant")
            for answer in self.answers:
                completion = self._completion(answer, nothing)
                await self._keep(self.ask, answer, "aborted", "the client went away", completion)

    async def _answer(self, answer: Answer) -> None:
        state: State = "aborted"
        reason = "the client went away"
        try:
            message = await self._sample(answer)
            state, reason = "complete", ""
            await self._keep(self.ask, answer, state, reason, self._completion(answer, message))
            self._events.put_nowait(Event(answer.choice, finish=_finish(answer)))
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                state, reason = "failed", str(error).splitlines()[0] if str(error) else type(error).__name__
            if answer.finish_reason == "abort" or state == "failed":
                text = Message(role="assistant", content=answer.content)
                await asyncio.shield(self._keep(self.ask, answer, state, reason, self._completion(answer, text)))
            if isinstance(error, asyncio.CancelledError):
                raise
            self._events.put_nowait(error)
        self._events.put_nowait(None)

    async def _sample(self, answer: Answer) -> Message:
        """Sample to the end; returns the whole answer, reasoning included."""
        ask, template = self.ask, self.policy.template
        sampling = ask.sampling
        if sampling.seed is not None and answer.choice:
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed + answer.choice)
        detokenizer, stops = Detokenizer(self._text), Stops(sampling.stop)
        parts = self._parts(answer) if ask.chat else None
        finish: FinishReason | None = None if sampling.max_tokens else "length"
        if finish is None:
            async with aclosing(self.policy.stream(ask.prompt_ids, sampling)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    finish = piece.finish_reason
                    self._take(answer, piece)
                    self._tell(answer, parts, stops.push(detokenizer.push(piece.ids)), piece)
        if finish is None or finish == "abort":
            raise EngineError("the engine gave up on the request")
        self._tell(answer, parts, stops.push(detokenizer.finish()) + stops.finish(), None, last=True)
        answer.finish_reason = finish
        return self._whole(answer, stops, parts, template.decode_response(tuple(answer.ids), ask.prompt.tools))

    def _parts(self, answer: Answer) -> Parts:
        """How the text is told apart, by the way in which this model writes calls."""
        written = getattr(getattr(self.policy.template, "tool_format", None), "name", "")
        return Parts(
            tools=bool(self.ask.prompt.tools), thinking=self.ask.thinking, bare=written in BARE,
            ended=lambda: bool(self._new_calls(answer)),
        )  # fmt: skip

    def _take(self, answer: Answer, piece: Piece) -> None:
        if answer.first_s is None and piece.ids:
            answer.first_s = time.monotonic() - answer.began
        answer.ids += piece.ids
        answer.logprobs += piece.logprobs
        answer.versions = piece.versions or answer.versions

    def _tell(self, answer: Answer, parts: Parts | None, text: str, piece: Piece | None, last: bool = False) -> None:
        """Tell what `text` adds, with the log-probs of the piece."""
        before = len(answer.calls)
        content, reasoning = parts.push(text, last) if parts else (text, "")
        answer.content += content
        answer.reasoning += reasoning
        logprobs = self._logprobs(piece) if piece and self.ask.logprobs else ()
        ended = tuple(answer.calls[before:])
        if content or reasoning or logprobs or ended:
            self._events.put_nowait(Event(answer.choice, content, reasoning, ended, logprobs))

    def _whole(self, answer: Answer, stops: Stops, parts: Parts | None, message: Message) -> Message:
        """The answer as it is kept; what it says beyond what was told is told now."""
        content = message.content
        if stops.found is not None and (place := content.find(stops.found)) >= 0:
            content = content[:place]
        if parts is None:
            return msgspec.structs.replace(message, content=content)
        ended = self._new_calls(answer, message.tool_calls)
        visible = Parts(tools=False, thinking=self.ask.thinking).push(content, last=True).content
        rest = _rest(visible, answer.content)
        if rest or ended:
            answer.content += rest
            self._events.put_nowait(Event(answer.choice, content=rest, calls=ended))
        return msgspec.structs.replace(message, content=content, tool_calls=tuple(answer.calls))

    def _new_calls(self, answer: Answer, calls: tuple[ToolCall, ...] | None = None) -> tuple[ToolCall, ...]:
        """Calls that were not told yet, under ids that no other answer has."""
        if calls is None:
            calls = self.policy.template.decode_response(tuple(answer.ids), self.ask.prompt.tools).tool_calls
        fresh = tuple(msgspec.structs.replace(call, id=f"call_{new_id()}") for call in calls[len(answer.calls) :])
        answer.calls += fresh
        return fresh

    def _completion(self, answer: Answer, message: Message) -> Completion:
        versions = answer.versions if len(answer.versions) == len(answer.ids) else (-1,) * len(answer.ids)
        return Completion(
            prompt_ids=self.ask.prompt_ids,
            ids=tuple(answer.ids),
            logprobs=tuple(answer.logprobs),
            versions=versions,
            finish_reason=answer.finish_reason,
            message=message,
            temperature=self.ask.sampling.temperature,
            seconds=time.monotonic() - answer.began,
        )

    def _logprobs(self, piece: Piece) -> tuple[TokenLogprob, ...]:
        tops = piece.top or ((),) * len(piece.ids)
        return tuple(
            TokenLogprob(
                self._text((id,)),
                -9999.0 if logprob is None else logprob,
                tuple((self._text((other,)), value) for other, value in top),
            )
            for id, logprob, top in zip(piece.ids, piece.logprobs, tops, strict=True)
            if id not in self.policy.template.stop_ids
        )

    def _text(self, ids: tuple[int, ...]) -> str:
        return self.policy.template.decode_response(ids).content if ids else ""


def _finish(answer: Answer) -> str:
    if answer.calls and answer.finish_reason == "stop":
        return "tool_calls"
    return "length" if answer.finish_reason == "length" else "stop"


def _rest(whole: str, told: str) -> str:
    """What `whole` says beyond `told`; outer space does not count."""
    if whole.startswith(told):
        return whole[len(told) :]
    whole, told = whole.strip(), told.strip()
    return whole[len(told) :] if whole.startswith(told) else ""
