"""Between sockets and answers: bodies read within limits, streams written until the client is gone, whichever is first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from agentgym.config import GatewayConfig
from agentgym.gateway.problems import too_large, too_slow

T = TypeVar("T")
DRAIN_S, DRAIN_BYTES = 1.0, 256 << 20


async def read_body(request: Request, settings: GatewayConfig) -> bytes:
    """The whole body.

    Raises:
        Problem: it is too large, or takes too long.
        ClientDisconnect: the client went away.
    """
    limit = int(settings.max_body_mib * 2**20)
    too_big = too_large(f"The request body is larger than {settings.max_body_mib:g} MiB.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        await _drain(request.stream())
        raise too_big
    parts, size, stream = [], 0, request.stream()
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for part in stream:
                size += len(part)
                parts.append(part)
                if size > limit:
                    break
    except TimeoutError:
        raise too_slow("The request body did not arrive in time.") from None
    if size > limit:
        await _drain(stream)
        raise too_big
    return b"".join(parts)


async def _drain(stream: AsyncGenerator[bytes, None]) -> None:
    """Read on for a moment: most clients hear an answer only when they have sent everything."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            async for part in stream:
                size += len(part)
                if size > DRAIN_BYTES:
                    return


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do the work; a client that goes away cancels it.

    Raises:
        ClientDisconnect: it went away.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.shield(asyncio.wait({task, gone}))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events from a generator of encoded events; closed, which frees the engine, when the client is gone.

    A client that does not take an event within `send_timeout_s` is gone as well.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], *, headers: dict[str, str], send_timeout_s: float) -> None:
        self.events, self.send_timeout_s = events, send_timeout_s
        self.status_code, self.background = 200, None
        self.init_headers({**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._write(send))
        except (ClientDisconnect, OSError, TimeoutError):
            return

    async def _write(self, send: Send) -> None:
        async with aclosing(self.events) as events:
            await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in events:
                await self._send(send, {"type": "http.response.body", "body": event, "more_body": True})
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self.send_timeout_s):
            await send(message)


def event(value: Any, name: str = "") -> bytes:
    """A server-sent event that holds `value` as JSON."""
    data = b"data: " + msgspec.json.encode(value) + b"\n\n"
    return f"event: {name}\n".encode() + data if name else data


DONE = b"data: [DONE]\n\n"


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response that holds `value` as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")
