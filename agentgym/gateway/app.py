"""The web application around a gateway: who may ask, what is answered where, and OpenAI's shapes for all that goes wrong."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgym.errors import AgentgymError
from agentgym.gateway import chatting, responses
from agentgym.gateway.describe import document
from agentgym.gateway.keys import Keys, Limits, check_origin
from agentgym.gateway.monitor import Monitor
from agentgym.gateway.problems import Problem, failed, invalid, no_model, not_found
from agentgym.gateway.requests import FeedbackRequest, plain, read
from agentgym.gateway.service import Gateway
from agentgym.gateway.stored import add_stored
from agentgym.gateway.wires import as_json, read_body

log = logging.getLogger("agentgym.gateway")
Work = Callable[[Gateway, Request, bytes, str], Awaitable[Response]]


def make_app(gateway: Gateway, keys: Keys) -> FastAPI:
    """The application; the caller enters `gateway` and serves this."""
    app = FastAPI(title="agentgym gateway", docs_url="/docs", redoc_url=None, openapi_url="/openapi.json")
    monitor, settings = Monitor(gateway), gateway.settings
    limits = Limits(settings.requests_per_minute, settings.concurrency)
    app.state.gateway, app.state.monitor = gateway, monitor

    def user_of(request: Request, named: Any = None) -> str:
        header = request.headers
        if keys.path is None:
            check_origin(header.get("host"), header.get("origin"))
        return plain(keys.user_of(header.get("authorization"), header.get("x-user-id") or named))[:200]

    def posted(path: str, work: Work) -> None:
        """A route that answers a body, within the limits of whose key it is."""

        async def route(request: Request) -> Response:
            user = user_of(request)  # before the body is read
            body = await read_body(request, settings)
            user = user_of(request, _named(body) if keys.path is None else None)
            limits.begin(user)
            try:
                response = await work(gateway, request, body, user)
            except BaseException:
                limits.end(user)
                raise
            return _Releasing(response, lambda: limits.end(user))

        app.add_api_route(path, route, methods=["POST"], include_in_schema=False)

    posted("/v1/chat/completions", chatting.chat)
    posted("/v1/completions", chatting.complete)
    posted("/v1/responses", responses.respond)
    posted("/v1/feedback", _feedback)
    _add_models(app, gateway, user_of)
    _add_data(app, gateway, user_of)
    add_stored(app, gateway, user_of)

    @app.get("/healthz", include_in_schema=False)
    async def health() -> Response:
        running = getattr(getattr(gateway.policy, "server", None), "running", True)
        status = {
            "status": "ok" if running else "engine down",
            "model": gateway.model,
            "version": gateway.policy.version,
        }
        return as_json(status, 200 if running else 503)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(await monitor.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    app.openapi = lambda: document(app.title, bool(keys.path))  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_middleware(_Outermost, monitor=monitor)
    return app


async def _feedback(gateway: Gateway, request: Request, body: bytes, user: str) -> Response:
    given: FeedbackRequest = read(body, FeedbackRequest)
    if given.thumb is None and given.score is None and not given.text and not given.correction:
        raise invalid("feedback needs at least one of thumb, score, text and correction", "thumb")
    kept = await gateway.add_feedback(given, user)
    return as_json({"object": "feedback", **msgspec.to_builtins(kept)})


def _add_models(app: FastAPI, gateway: Gateway, user_of: Callable[..., str]) -> None:
    began = int(time.time())

    def told(name: str) -> dict[str, Any]:
        limit = gateway.config.model.max_length
        return {"id": name, "object": "model", "created": began, "owned_by": "agentgym", "max_model_len": limit}

    @app.get("/v1/models", include_in_schema=False)
    async def models(request: Request) -> Response:
        user_of(request)
        return as_json({"object": "list", "data": [told(name) for name in gateway.names]})

    @app.get("/v1/models/{name:path}", include_in_schema=False)
    async def model(request: Request, name: str) -> Response:
        user_of(request)
        if not gateway.knows(name):
            raise no_model(name, gateway.names)
        return as_json(told(name))


def _add_data(app: FastAPI, gateway: Gateway, user_of: Callable[..., str]) -> None:
    """What a user may do with what is kept of them."""
    ledger = gateway.ledger

    @app.get("/v1/sessions", include_in_schema=False)
    async def sessions(request: Request) -> Response:
        user, query = user_of(request), request.query_params
        try:
            limit = min(1000, max(1, int(query.get("limit", "100"))))
            before = float(query["before"]) if "before" in query else None
        except ValueError:
            raise invalid("limit and before are numbers", "limit") from None
        found = await gateway.stored(ledger.sessions, user, limit=limit, before=before)
        return as_json({"object": "list", "data": found, "has_more": len(found) == limit})

    @app.get("/v1/export", include_in_schema=False)
    async def export(request: Request) -> Response:
        lines = (msgspec.json.encode(turn) + b"\n" for turn in ledger.export(user_of(request)))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @app.get("/v1/sessions/{id:path}", include_in_schema=False)
    async def session(request: Request, id: str) -> Response:
        user = user_of(request)
        turns = await gateway.stored(lambda: list(ledger.export(user, id)))
        if not turns:
            raise not_found(f"no session '{id[:100]}' of yours")
        return as_json({"object": "list", "data": turns, "has_more": False})

    @app.post("/v1/sessions/{id:path}/close", include_in_schema=False)
    async def close(request: Request, id: str) -> Response:
        closed = await gateway.close_session(user_of(request), id)
        return as_json({"id": id, "object": "session.closed", "turns_that_waited": closed})

    @app.delete("/v1/sessions", include_in_schema=False)
    async def erase_all(request: Request) -> Response:
        erased = await gateway.erase(user_of(request))
        return as_json({"object": "sessions.deleted", "deleted": True, "turns": erased})

    @app.delete("/v1/sessions/{id:path}", include_in_schema=False)
    async def erase(request: Request, id: str) -> Response:
        erased = await gateway.erase(user_of(request), id)
        if not erased:
            raise not_found(f"no session '{id[:100]}' of yours")
        return as_json({"id": id, "object": "session.deleted", "deleted": True, "turns": erased})


def _named(body: bytes) -> str | None:
    """The user that a body names."""
    try:
        return msgspec.json.decode(body, type=_Named).user or None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class _Named(msgspec.Struct):
    user: str | None = None


class _Releasing(Response):
    """A response after which something is given back, however it ends."""

    def __init__(self, inner: Response, release: Callable[[], None]) -> None:
        self.inner, self.release, self.background = inner, release, None
        self.status_code = inner.status_code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.inner(scope, receive, send)
        finally:
            self.release()


async def _http_problem(request: Request, error: Exception) -> Response:
    """No such path, or not by this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        problem = Problem(
            f"Unknown request URL: {request.method} {request.url.path[:200]}.", status=404, code="unknown_url"
        )
    else:
        problem = Problem(str(error.detail), status=error.status_code, code=str(error.detail).lower().replace(" ", "_"))
    return as_json(problem.body, problem.status, dict(error.headers or {}))


class _Outermost:
    """Counts requests and turns whatever escapes into an answer; the log tells where and never what was said."""

    def __init__(self, app: ASGIApp, monitor: Monitor) -> None:
        self.app, self.monitor = app, monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.monitor.in_flight.inc()
        try:
            await self.app(scope, receive, told)
        except Problem as problem:
            await as_json(problem.body, problem.status, problem.headers)(scope, receive, told)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:
            answer = _problem_of(error)
            if status == 0:
                await as_json(answer.body, answer.status)(scope, receive, told)
        finally:
            self.monitor.in_flight.dec()
            route = getattr(scope.get("route"), "path", "other")
            self.monitor.requests.labels(route, str(status)).inc()
            self.monitor.seconds.labels(route).observe(time.monotonic() - began)


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, AgentgymError):
        log.error("%s: %s", type(error).__name__, str(error).splitlines()[0] if str(error) else "")
        return failed("The server cannot do this now; ask again.", 503)
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("a request failed: %s\n%s", type(error).__name__, where)
    return failed("The server had an error while processing your request.")
