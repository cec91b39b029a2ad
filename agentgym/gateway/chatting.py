"""Chat and text completions: a checked request to a response, whole or streamed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentgym.errors import AgentgymError
from agentgym.gateway import answers
from agentgym.gateway.asking import Asking, Event, TokenLogprob
from agentgym.gateway.problems import Problem, failed, invalid
from agentgym.gateway.reading import DONE as YES
from agentgym.gateway.reading import Facts
from agentgym.gateway.requests import ChatRequest, Common, CompletionRequest, clean, plain, read
from agentgym.gateway.service import Gateway
from agentgym.gateway.wires import DONE, EventStream, as_json, event, unless_gone

MAX_PROMPTS = 64


async def chat(gateway: Gateway, request: Request, body: bytes, user: str) -> Response:
    """POST /v1/chat/completions."""
    asked: ChatRequest = read(body, ChatRequest)
    asking = await gateway.chat(asked, user, facts(request, asked))
    headers = turn_headers(asking)
    if not asked.stream:
        async with accounted([asking]):
            logprobs, finish = await unless_gone(request.receive, gathered([asking]))
        made = answers.chat(asking, asked.model, logprobs, finish)
        gateway.delivered(asking.ask)
        return as_json(made, headers=headers)
    async with accounted([asking]):
        events = await unless_gone(request.receive, begun(asking))
    stream = _chat_events(gateway, asking, events, asked)
    return EventStream(stream, headers=headers, send_timeout_s=gateway.settings.send_timeout_s)


async def complete(gateway: Gateway, request: Request, body: bytes, user: str) -> Response:
    """POST /v1/completions."""
    asked: CompletionRequest = read(body, CompletionRequest)
    prompts = prompts_of(asked)
    begin: Callable[..., Any] = gateway.complete
    askings = [await begin(asked, prompt, user, facts(request, asked)) for prompt in prompts]
    echoes = [(prompt if isinstance(prompt, str) else "") if asked.echo else "" for prompt in prompts]
    headers = turn_headers(askings[0])
    if not asked.stream:
        async with accounted(askings):
            logprobs, finish = await unless_gone(request.receive, gathered(askings))
        made = answers.text(askings, asked.model, logprobs, finish, echoes)
        for asking in askings:
            gateway.delivered(asking.ask)
        return as_json(made, headers=headers)
    stream = _text_events(gateway, askings, asked, echoes)
    return EventStream(stream, headers=headers, send_timeout_s=gateway.settings.send_timeout_s)


def facts(request: Request, asked: Common) -> Facts:
    """What headers and body say about where a request belongs; headers first."""
    header = request.headers.get
    done = header("x-session-done")
    retries = header("x-stainless-retry-count", "0")
    return Facts(
        messages=(),
        session=plain(header("x-session-id") or asked.session_id or "")[:200] or None,
        turn_type=plain(header("x-turn-type") or asked.turn_type or "")[:40],
        parent_session=plain(header("x-parent-session-id") or "")[:200],
        done=done.strip().lower() in YES if done is not None else bool(asked.session_done),
        retry=retries.isdigit() and int(retries) > 0,
    )


def turn_headers(asking: Asking) -> dict[str, str]:
    """How the request was taken, and by which weights it is answered."""
    return {
        "X-Agentgym-Turn": asking.ask.taken.header(),
        "X-Session-Id": asking.ask.taken.session.encode("ascii", "replace").decode(),
        "X-Agentgym-Version": str(asking.policy.version),
    }


def prompts_of(asked: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a text completion, each text or ids."""
    prompt: Any = asked.prompt
    if isinstance(prompt, str):
        prompts: list[Any] = [clean(prompt)]
    elif all(isinstance(item, int) for item in prompt):
        prompts = [prompt]
    elif any(isinstance(item, int) for item in prompt):
        raise invalid("a prompt is a text, a list of token ids, or a list of either", "prompt", "invalid_type")
    else:
        prompts = [clean(item) if isinstance(item, str) else item for item in prompt]
    if not prompts or not all(prompts):
        raise invalid("the prompt is empty", "prompt")
    if len(prompts) > MAX_PROMPTS:
        raise invalid(f"{len(prompts)} prompts are more than {MAX_PROMPTS}", "prompt")
    return prompts


@asynccontextmanager
async def accounted(askings: Sequence[Asking]) -> AsyncIterator[None]:
    """Whatever happens meanwhile, no request is left open."""
    try:
        yield
    except BaseException:
        for asking in askings:
            await asyncio.shield(asking.abandon())
        raise


async def gathered(askings: Sequence[Asking]) -> tuple[dict[int, list[TokenLogprob]], dict[int, str]]:
    """Wait for all answers; log-probs and why each ended, by its place among all.

    Raises:
        Problem: an answer failed.
    """
    logprobs: dict[int, list[TokenLogprob]] = defaultdict(list)
    finish: dict[int, str] = {}
    offset = 0
    try:
        for asking in askings:
            async with aclosing(asking.events()) as events:
                async for found in events:
                    logprobs[offset + found.choice] += found.logprobs
                    if found.finish:
                        finish[offset + found.choice] = found.finish
            offset += asking.ask.n
    except AgentgymError as error:
        raise engine_failed(error) from error
    return logprobs, finish


async def begun(asking: Asking) -> AsyncGenerator[Event, None]:
    """The events, of which there is one at least: what fails at once is an error, not a stream.

    Raises:
        Problem: the engine failed.
    """
    events = asking.events()
    try:
        first = await anext(events)
    except AgentgymError as error:
        raise engine_failed(error) from error
    except BaseException:
        await events.aclose()
        raise
    return _again(first, events)


async def _again(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        yield first
        async for found in events:
            yield found


def engine_failed(error: Exception) -> Problem:
    """An engine's failure, without what it said about itself."""
    said = str(error).splitlines()[0] if str(error) else ""
    if "took longer than" in said:
        return failed("The engine took too long.", 503)
    return failed("The engine failed to answer; ask again.", 503)


async def _chat_events(
    gateway: Gateway, asking: Asking, events: AsyncGenerator[Event, None], asked: ChatRequest
) -> AsyncGenerator[bytes, None]:
    calls: dict[int, int] = defaultdict(int)
    try:
        async with aclosing(events):
            for choice in range(asking.ask.n):
                yield event(_with_null(asked, answers.chat_first(asking, asked.model, choice)))
            async for found in events:
                for chunk in answers.chat_chunks(asking, asked.model, found, calls[found.choice]):
                    yield event(_with_null(asked, chunk))
                calls[found.choice] += len(found.calls)
    except AgentgymError as error:
        yield event(engine_failed(error).body)
        return
    if asked.wants_usage:
        yield event(answers.chat_usage(asking, asked.model))
    gateway.delivered(asking.ask)  # before the last word: many hang up on it
    yield DONE


async def _text_events(
    gateway: Gateway, askings: Sequence[Asking], asked: CompletionRequest, echoes: list[str]
) -> AsyncGenerator[bytes, None]:
    offset = 0
    try:
        for asking, echo in zip(askings, echoes, strict=True):
            said = [len(echo)] * asking.ask.n
            for choice in range(asking.ask.n if echo else 0):
                first = Event(choice, content=echo)
                yield event(_with_null(asked, answers.text_chunk(asking, asked.model, offset + choice, first, 0)))
            async with aclosing(asking.events()) as events:
                async for found in events:
                    place, at = offset + found.choice, said[found.choice]
                    yield event(_with_null(asked, answers.text_chunk(asking, asked.model, place, found, at)))
                    said[found.choice] += len(found.content)
            gateway.delivered(asking.ask)
            offset += asking.ask.n
    except AgentgymError as error:
        yield event(engine_failed(error).body)
        return
    finally:
        for asking in askings:
            await asyncio.shield(asking.abandon())
    if asked.wants_usage:
        yield event(answers.text_usage(askings, asked.model))
    yield DONE


def _with_null(asked: Common, chunk: dict[str, Any]) -> dict[str, Any]:
    """With usage asked for, each chunk but the last says that it has none."""
    return {**chunk, "usage": None} if asked.wants_usage else chunk
