"""The gateway's core, without a web framework: requests in, answers out, every turn kept, completed turns for a learner."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from agentgym.config import Config
from agentgym.errors import AgentgymError, UsageError
from agentgym.gateway.asking import Answer, Ask, Asking
from agentgym.gateway.feed import Feed
from agentgym.gateway.keep import Redact, as_sampled, caveat, copied, parameters, redacted, session_after
from agentgym.gateway.ledger import Ledger
from agentgym.gateway.problems import Problem, invalid, no_model, not_found, too_long, unsupported
from agentgym.gateway.reading import ENDS_WAIT, Facts, Readers
from agentgym.gateway.records import Attachment, Feedback, State, Taken, TurnRecord
from agentgym.gateway.requests import (
    ChatRequest,
    Common,
    CompletionRequest,
    FeedbackRequest,
    NamedTool,
    conversation,
)
from agentgym.policy import Session, TokenServer
from agentgym.types import Completion, Message, Prompt, new_id

log = logging.getLogger("agentgym.gateway")
T = TypeVar("T")
BIG = 20_000  # characters whose rendering would hold up the event loop
HELD = 4_000_000  # ids of sessions held in memory; those of others are read again when they go on
KNOWN = 5000  # turns that are known again after a restart


class Gateway:
    """Serves what `policy` serves, and keeps what is said in `ledger`.

    Example:
        async with Gateway(policy, config, Ledger(run.folder / "store.sqlite")) as gateway:
            async for turn in gateway.feed.completed():  # while app(gateway) serves
                await gateway.feed.settle(turn.turn.id, "rejected: ...")
    """

    def __init__(
        self, policy: TokenServer, config: Config, ledger: Ledger, *, model: str = "", redact: Redact | None = None
    ) -> None:
        if not isinstance(policy, TokenServer):
            raise UsageError(f"{type(policy).__name__} does not stream token ids: serve another engine")
        self.policy, self.config, self.settings, self.ledger = policy, config, config.gateway, ledger
        self.model = model or config.model.path
        self.redact = redact
        self.readers = Readers(regenerate_s=self.settings.regenerate_s, max_sessions=self.settings.max_sessions)
        self.feed = Feed(ledger, self.stored)
        self.unrecorded = 0  # turns that could not be written: the disk is full, or broken
        self.observers: list[Callable[[Ask, Answer, State], None]] = []  # metrics
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # by turn: the ids up to its end
        self._held = 0  # ids of all of them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._background: set[asyncio.Task[Any]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Gateway:
        for turn, delivered, followed in await self.stored(self.ledger.recent, KNOWN):
            self._remember(turn, delivered, followed)
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._sweeper:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        if self._background:
            await asyncio.wait(self._background, timeout=30)
        self.feed.close()
        self._thread.shutdown()
        self.ledger.close()

    async def stored(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the ledger in its own thread, in the order of the calls."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))

    @property
    def names(self) -> list[str]:
        """The names of the model; the first is its own."""
        return [self.model, *(name for name in self.settings.model_names if name not in ("*", self.model))]

    def knows(self, name: str) -> bool:
        """Whether clients may ask for this model."""
        return name in self.names or "*" in self.settings.model_names

    # --- asking ------------------------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest, user: str, facts: Facts, prefix: str = "chatcmpl-") -> Asking:
        """Begin to answer a conversation; `prefix` begins the answer's id.

        Raises:
            Problem: it cannot be answered.
        """
        self._check(request)
        if len(request.messages) > self.settings.max_messages:
            raise invalid(f"{len(request.messages)} messages are more than {self.settings.max_messages}", "messages")
        if request.modalities and set(request.modalities) - {"text"}:
            raise unsupported("modalities", "may hold 'text' alone: this server speaks no other")
        schema, tools = request.schema(), request.offered()
        if schema is not None and not self.policy.structured:
            raise unsupported("response_format", "is not supported by the engine of this server, except for 'text'")
        if request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool):
            raise unsupported("tool_choice", "may be 'auto' or 'none' here: no engine of this server can force a call")
        messages, attachments = conversation(request.messages)
        longest = max(len(message.content) for message in messages)
        if longest > self.settings.max_message_chars:
            raise Problem(
                f"a message of {longest} characters is longer than {self.settings.max_message_chars}",
                param="messages", code="string_above_max_length",
            )  # fmt: skip
        facts = replace(facts, messages=messages, tools=tools, max_tokens=request.limit)
        ask = await self._ask(request, user, facts, attachments, logprobs=bool(request.logprobs), prefix=prefix)
        sampling = msgspec.structs.replace(
            ask.sampling, json_schema=schema, top_logprobs=request.top_logprobs or 0 if request.logprobs else 0
        )
        ask.sampling = sampling
        return Asking(self.policy, ask, self._keep)

    async def complete(
        self, request: CompletionRequest, prompt: str | Sequence[int], user: str, facts: Facts
    ) -> Asking:
        """Begin to continue a text (or ids), as it is."""
        self._check(request)
        if request.suffix:
            raise unsupported("suffix", "is not supported by this server")
        if (request.best_of or 1) > (request.n or 1):
            raise unsupported("best_of", "greater than n is not supported by this server")
        text = prompt if isinstance(prompt, str) else ""
        facts = replace(
            facts, messages=(Message(role="user", content=text),), turn_type=facts.turn_type or "completion"
        )
        ids = await self._plain(text) if isinstance(prompt, str) else self._known_ids(prompt)
        ask = await self._ask(request, user, facts, (), logprobs=request.logprobs is not None, ids=ids)
        ask.sampling = msgspec.structs.replace(ask.sampling, top_logprobs=request.logprobs or 0)
        ask.chat = False
        return Asking(self.policy, ask, self._keep)

    def _check(self, request: Common) -> None:
        if not self.knows(request.model):
            raise no_model(request.model, self.names)

    async def _ask(
        self, request: Common, user: str, facts: Facts, attachments: tuple[Attachment, ...], *, logprobs: bool,
        ids: tuple[int, ...] | None = None, prefix: str = "cmpl-",
    ) -> Ask:  # fmt: skip
        now, id = time.time(), f"{prefix}{new_id()}{new_id()[:8]}"
        n = request.n or 1
        reader = self.readers.of(user)
        taken = reader.take(facts, id, now)
        for choice in range(1, n):
            reader.twin(id, f"{id}/{choice}")
        self.readers.use(user, taken.session, now)
        self._follow(taken, id, user, now)
        try:
            prompt = Prompt(messages=facts.messages, tools=facts.tools, ids=ids)
            session, prompt = await self._session(taken, prompt, facts)
            prompt_ids = await self._encode(session, prompt)
            room = self.config.model.max_length - len(prompt_ids)
            if room < 1:
                raise too_long(len(prompt_ids), self.config.model.max_length)
            sampling = request.sampling(self._limit(facts, request, room))
        except BaseException:
            for choice in range(n):
                reader.answered(id if not choice else f"{id}/{choice}", "failed", facts.messages, None)
            raise
        return Ask(
            id=id, user=user, created=now, taken=taken, prompt=prompt, prompt_ids=prompt_ids, sampling=sampling, n=n,
            session=session, parameters=parameters(request), attachments=attachments, logprobs=logprobs,
            thinking=self._thinks(prompt_ids), done=facts.done,
        )  # fmt: skip

    def _limit(self, facts: Facts, request: Common, room: int) -> int:
        wanted = facts.max_tokens if facts.max_tokens is not None else request.max_tokens
        if wanted is None and isinstance(request, CompletionRequest):
            wanted = 16  # OpenAI's
        return min(room, wanted if wanted is not None else self.settings.max_tokens or room)

    async def _session(self, taken: Taken, prompt: Prompt, facts: Facts) -> tuple[Session, Prompt]:
        """The ids that the request extends, and the request with our answers as they were sampled."""
        session = Session(taken.session)
        if taken.parent is None or prompt.ids is not None:
            return session, prompt
        base = self._sessions.get(taken.parent)
        if base is None:
            turn = await self._quietly(self.ledger.turn, taken.parent)
            if turn is None or not turn.completion.ids:
                return session, prompt
            base = session_after(turn)
        messages = as_sampled(prompt.messages, base.messages)
        if messages is None:  # the beginning is gone
            return session, prompt
        return copied(base, session.id), msgspec.structs.replace(prompt, messages=messages)

    async def _encode(self, session: Session, prompt: Prompt) -> tuple[int, ...]:
        big = sum(len(message.content) + 50 for message in prompt.messages) > BIG
        encode = self.policy.template.encode_prompt
        try:
            ids = await asyncio.to_thread(encode, session, prompt) if big else encode(session, prompt)
        except AgentgymError as error:
            raise invalid(str(error), "messages") from error
        except Exception as error:  # a chat template may fail in any way on what it was not made for
            log.warning("the chat template failed: %s", type(error).__name__)
            raise invalid(
                f"the chat template cannot render these messages: {type(error).__name__}", "messages"
            ) from error
        if not ids:
            raise invalid("the prompt is empty", "prompt")
        return ids

    async def _plain(self, text: str) -> tuple[int, ...]:
        """The ids of a text that no template touches."""
        tokenizer = getattr(self.policy.template, "tokenizer", None)
        if tokenizer is None:
            raise unsupported("prompt", "as text is not supported by the engine of this server: give token ids")
        encode = partial(tokenizer.encode, add_special_tokens=False)
        made = await asyncio.to_thread(encode, text) if len(text) > BIG else encode(text)
        return tuple(made.ids)

    def _known_ids(self, prompt: Sequence[int]) -> tuple[int, ...]:
        tokenizer = getattr(self.policy.template, "tokenizer", None)
        if tokenizer is not None and max(prompt) >= tokenizer.get_vocab_size():
            raise invalid(f"token id {max(prompt)} is not in the model's vocabulary", "prompt")
        return tuple(prompt)

    def _thinks(self, prompt_ids: tuple[int, ...]) -> bool:
        """Whether the prompt opens the reasoning, as some templates do."""
        return self.policy.template.decode_response(prompt_ids[-8:]).content.rstrip().endswith("<think>")

    # --- keeping -----------------------------------------------------------------------------------------------------

    async def _keep(self, ask: Ask, answer: Answer, state: State, reason: str, completion: Completion) -> None:
        """Keep an answer, durable when this returns; a disk that fails delays and refuses nobody."""
        reader = self.readers.of(ask.user)
        reader.answered(answer.id, state, ask.prompt.messages, completion.message if state == "complete" else None)
        for observer in self.observers:
            observer(ask, answer, state)
        if state == "complete" and ask.chat:
            session = copied(ask.session, ask.session.id)  # each of n answers goes on from the same beginning
            self.policy.template.advance(session, ask.prompt, completion)
            self._snapshot(answer.id, session)
        turn = TurnRecord(
            id=answer.id, user=ask.user, taken=ask.taken, state=state, reason=reason, created=ask.created,
            messages=ask.prompt.messages, tools=ask.prompt.tools, images=ask.attachments, completion=completion,
            request=ask.parameters, caveat=caveat(ask.sampling),
        )  # fmt: skip
        if self.settings.log_content:
            log.info("%s %s: %r", turn.id, ask.taken.header(), completion.message.content)
        await self._quietly(self.ledger.add, redacted(turn, self.redact), now=time.time())
        if ask.done and state == "complete":
            await self.close_session(ask.user, ask.taken.session)

    def delivered(self, ask: Ask) -> None:
        """The client has the whole answer."""
        reader = self.readers.of(ask.user)
        for id in ask.ids:
            reader.delivered(id)
        self._later(self._quietly(self.ledger.delivered, ask.id))

    def _follow(self, taken: Taken, id: str, user: str, now: float) -> None:
        """Tell the ledger what a main request means for the turns before it."""
        if taken.kind == "side":
            return
        if taken.parent and taken.relation in ENDS_WAIT and taken.next_state:
            state = redacted(taken.next_state, self.redact)
            self._later(self._followed(taken.parent, "reply", now=now, next_state=state))
        if taken.replaces and taken.relation in ("regenerated", "edited"):
            self._later(self._followed(taken.replaces, taken.relation, now=now, alternative=id))

    async def _followed(self, id: str, ending: Any, **rest: Any) -> None:
        await self._quietly(self.ledger.follow, id, ending, **rest)
        self.feed.wake()

    async def _quietly(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        try:
            return await self.stored(work, *args, **kwargs)
        except AgentgymError as error:
            self.unrecorded += 1
            log.error("not recorded: %s", error)
            return None

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _snapshot(self, id: str, session: Session) -> None:
        self._sessions[id] = session
        self._held += len(session.ids)
        while self._held > HELD and len(self._sessions) > 1:
            _, oldest = self._sessions.popitem(last=False)
            self._held -= len(oldest.ids)

    # --- feedback and sessions ---------------------------------------------------------------------------------------

    async def add_feedback(self, request: FeedbackRequest, user: str) -> Feedback:
        """Keep what a user says about an answer that they got.

        Raises:
            Problem: they got no such answer.
        """
        owner = await self.stored(self.ledger.owner, request.completion_id)
        if owner != user:
            raise not_found(f"no completion '{request.completion_id[:100]}' of yours", param="completion_id")
        feedback = Feedback(
            completion_id=request.completion_id, user=user, thumb=request.thumb, score=request.score,
            text=request.text, correction=request.correction, created=time.time(),
        )  # fmt: skip
        await self.stored(self.ledger.add_feedback, redacted(feedback, self.redact))
        self.feed.told(feedback)
        return feedback

    async def close_session(self, user: str, session: str, why: Any = "done") -> int:
        """End a session: its turns wait for no next state any more."""
        closed = await self._quietly(self.ledger.close_session, user, session, why, now=time.time())
        self.feed.wake()
        return closed or 0

    async def erase(self, user: str, session: str | None = None) -> int:
        """Erase what is kept of a user or of one session, in the store and in memory."""
        self.readers.forget(user, session)
        for id in [id for id, kept in self._sessions.items() if session in (None, kept.id)]:
            self._held -= len(self._sessions.pop(id).ids)  # made again from the store where it is of somebody else
        return await self.stored(self.ledger.erase, user, session)

    async def erase_turn(self, id: str) -> None:
        """Erase one answer; the ids up to its end are forgotten."""
        if kept := self._sessions.pop(id, None):
            self._held -= len(kept.ids)
        await self.stored(self.ledger.erase_turn, id)

    async def _sweep(self) -> None:
        """Close sessions that timed out and erase what is too old, for ever."""
        while True:
            await asyncio.sleep(min(30.0, self.settings.session_timeout_s / 4))
            with contextlib.suppress(AgentgymError):
                now = time.time()
                for user, session in await self.stored(
                    self.ledger.idle_sessions, now - self.settings.session_timeout_s
                ):
                    await self.close_session(user, session, "timeout")
                if self.settings.retention_days:
                    await self.stored(self.ledger.erase_before, now - 86400 * self.settings.retention_days)

    def _remember(self, turn: TurnRecord, delivered: bool, followed: bool) -> None:
        reader = self.readers.of(turn.user)
        reader.restore(turn, delivered, followed)
        self.readers.use(turn.user, turn.taken.session, turn.created)
