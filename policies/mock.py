"""A real HTTP server that answers as a policy server does, without a model: latency and faults to order, all counted.

    python -m agentgym.policies.mock --port 0 --token-s 0.01 --fault 500=0.1

Token in, token out in vLLM's shape, OpenAI's endpoints for text, and vLLM's endpoints for weights. Its tokens are
lower-case letters and spaces, with the code of the character as id: text in, out and back without a tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from agentgym.errors import EngineError, UsageError
from agentgym.policies.mock_answers import MODEL, Drawn, Sampled, chat_completion, completion, generated, ids_of
from agentgym.policies.mock_stream import stream
from agentgym.registry import nearest

ALPHABET = tuple(map(ord, "abcdefghijklmnopqrstuvwxyz "))
GENERATE, COMPLETE, CHAT = "/inference/v1/generate", "/v1/completions", "/v1/chat/completions"
SAMPLING = (GENERATE, COMPLETE, CHAT)
FAULTS = {
    "ok": "none",
    "500": "the engine failed",
    "503": "the server is too busy to take the request",
    "drop": "the connection ends before a word was said",
    "cut": "the connection ends in the middle of the body",
    "hang": "no answer, ever",
    "slow": "the body takes `slow_s`",
    "malformed": "the body is no JSON",
    "nonsense": "the body is JSON of another shape",
}
Answer = Callable[[Sequence[int], dict[str, Any], random.Random], Sequence[int]]
Handler = Callable[[dict[str, Any]], Awaitable[Any]]  # body and query to what is answered as JSON


class Refusal(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class MockPolicyServer:
    """Serves on loopback while it is entered; the same request with the same seed gets the same tokens.

    A request takes `latency_s` and `token_s` for each token, times a factor in 1 +- `jitter` that its seed decides. An
    answer has `length` tokens, or if None a seeded number up to the request's `max_tokens`; or it is what
    `answer(prompt ids, sampling parameters, random numbers)` returns. `faults` gives shares by name (see FAULTS) of
    what samples, drawn by `seed` in the order of arrival; `plan` orders them one by one. With a `key` all but /health
    ask for it. It can stand in for `VLLMPolicy.server`.

    Example:
        async with MockPolicyServer(token_s=0.01, faults={"500": 0.1}) as server:
            policy = HTTPPolicy(config, model=Path("model"), url=server.url)
    """

    def __init__(
        self,
        *,
        port: int = 0,
        key: str = "",
        seed: int = 0,
        latency_s: float = 0.0,
        token_s: float = 0.0,
        jitter: float = 0.0,
        length: int | None = None,
        answer: Answer | None = None,
        faults: Mapping[str, float] | None = None,
        slow_s: float = 1.0,
        version: int = 0,
    ) -> None:
        self.port, self.key, self.seed = port, key, seed
        self.latency_s, self.token_s, self.jitter, self.slow_s = latency_s, token_s, jitter, slow_s
        self.length = length
        self.answer = answer or self._letters
        self.faults = dict(faults or {})
        _check(self.faults)
        self.version = str(version)
        self.url = ""
        self.asked: Counter[str] = Counter()  # requests by path, whatever became of them
        self.met: Counter[str] = Counter()  # faults by name
        self.in_flight = self.most_in_flight = 0
        self.aborted = 0  # requests whose client hung up before it was answered
        self.refused = 0  # without the key
        self.updates: list[Any] = []  # the update_info of each weight update
        self._planned: dict[str, deque[str]] = {path: deque() for path in SAMPLING}
        self._draws, self._unseeded = random.Random(f"faults {seed}"), random.Random(f"tokens {seed}")
        self.going, self._pausing = asyncio.Event(), asyncio.Event()
        self.going.set()
        self._update = "none"
        self._runner: web.AppRunner | None = None
        self._handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health, ("GET", "/counters"): self._counters, ("GET", "/v1/models"): self._models,
            ("POST", GENERATE): self._generate, ("POST", COMPLETE): self._complete, ("POST", CHAT): self._chat,
            ("GET", "/weight_info"): self._weight_info, ("POST", "/update_weight_version"): self._set_version,
            ("POST", "/pause"): self._pause, ("POST", "/resume"): self._resume,
            ("POST", "/start_weight_update"): self._start_update, ("POST", "/update_weights"): self._update_weights,
            ("POST", "/finish_weight_update"): self._finish_update, ("POST", "/reset_prefix_cache"): self._reset_cache,
        }  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._runner is not None

    @property
    def counters(self) -> dict[str, Any]:
        """What was asked of it so far."""
        numbers = {name: getattr(self, name) for name in ("in_flight", "most_in_flight", "aborted", "refused")}
        return {**numbers, "asked": dict(self.asked), "met": dict(self.met)}

    def plan(self, *faults: str, path: str = GENERATE) -> None:
        """The next requests to `path` meet these faults, in this order, before any share is drawn."""
        _check(faults)
        self._planned.setdefault(path, deque()).extend(faults)

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Begin to serve; `url` says where."""
        app = web.Application(client_max_size=256 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=4096).start()
        except OSError as error:
            await self.stop()
            raise UsageError(f"port {self.port} is taken: end what listens on it, or take port 0") from error
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        progress(f"mock policy server at {self.url}")

    async def stop(self) -> None:
        """End, whatever is in flight; safe to call twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def failure(self, what: str) -> EngineError:
        """The error that says `what`."""
        return EngineError(f"{what}: mock policy server {self.url}")

    async def __aenter__(self) -> MockPolicyServer:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Count, ask for the key and meet the fault whose turn it is."""
        self.asked[request.path] += 1
        if self.key and request.path != "/health" and request.headers.get("Authorization") != f"Bearer {self.key}":
            self.refused += 1
            return web.Response(status=401)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        fault = self._fault(request.path)
        if fault != "ok":
            self.met[fault] += 1
        try:
            return await self._meet(fault, request)
        except asyncio.CancelledError:
            self.aborted += self.running and fault not in ("drop", "cut")
            raise
        finally:
            self.in_flight -= 1

    def _fault(self, path: str) -> str:
        if planned := self._planned.get(path):
            return planned.popleft()
        if not self.faults or path not in SAMPLING:
            return "ok"
        names, shares = list(self.faults), list(self.faults.values())
        return self._draws.choices([*names, "ok"], [*shares, max(0.0, 1 - sum(shares))])[0]

    async def _meet(self, fault: str, request: web.Request) -> web.StreamResponse:
        if fault in ("500", "503"):
            return _error(int(fault), FAULTS[fault])
        if fault == "drop":
            return _hang_up(request, web.Response())
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "malformed":
            return web.Response(body=b'{"choices": [', content_type="application/json")
        if fault == "nonsense":
            return _json({"choices": [{"text": 1}]})
        handler = self._handlers.get((request.method, request.path))
        if handler is None:
            return _error(404, f"no {request.method} {request.path} here")
        try:
            body = msgspec.json.decode(await request.read() or b"{}", type=dict[str, Any])
            if request.path == GENERATE and body.get("stream"):
                params = body.get("sampling_params") or {}
                drawn = self._draw(body.get("token_ids") or [], params)
                return await stream(self, request, drawn, params, cut=fault == "cut")
            answer = _json(await handler({**request.query, **body}))
        except Refusal as error:
            return _error(error.status, str(error))
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError) as error:
            return _error(400, f"{type(error).__name__}: {error}")
        return await self._trickle(fault, request, answer) if fault in ("slow", "cut") else answer

    async def _trickle(self, fault: str, request: web.Request, answer: web.Response) -> web.StreamResponse:
        body = bytes(answer.body or b"")  # type: ignore[arg-type]
        stream = web.StreamResponse(headers={"Content-Type": answer.content_type, "Content-Length": str(len(body))})
        await stream.prepare(request)
        size = max(1, len(body) // 10)
        for start in range(0, len(body), size):
            if fault == "cut" and start >= len(body) // 2:
                return _hang_up(request, stream)
            await stream.write(body[start : start + size])
            await asyncio.sleep(self.slow_s / 10 if fault == "slow" else 0)
        await stream.write_eof()
        return stream

    async def _sample(self, prompt: list[int], params: dict[str, Any]) -> Sampled:
        if params.get("stream"):
            raise Refusal(400, f"the mock streams {GENERATE} alone")
        ids, logprobs, timing, finish = self._draw(prompt, params)
        spans = await self._work(self.latency_s * timing, self.token_s * timing, len(ids))
        return Sampled(prompt, ids, logprobs, spans, finish)

    def _draw(self, prompt: list[int], params: dict[str, Any]) -> Drawn:
        if params.get("n", 1) != 1:
            raise Refusal(400, "the mock does not know n")
        if not prompt or any(not isinstance(id, int) or id < 0 for id in prompt):
            raise Refusal(400, "a prompt is a list of token ids that is not empty, or a text")
        limit = params.get("max_tokens") or 16
        seed = "greedy" if params.get("temperature") == 0 else params.get("seed")
        rng = self._unseeded
        if seed is not None:
            rng = random.Random(f"{self.seed} {seed} {zlib.crc32(repr(prompt).encode())}")
        timing = rng.uniform(1 - self.jitter, 1 + self.jitter)
        wanted = list(self.answer(prompt, params, rng))
        ids = wanted[:limit]
        logprobs = [-2 * rng.random() for _ in ids]
        return Drawn(ids, logprobs, timing, "length" if len(wanted) > limit else "stop")

    def _letters(self, prompt: Sequence[int], params: dict[str, Any], rng: random.Random) -> list[int]:
        """Letters, then the request's first stop token."""
        limit = params.get("max_tokens") or 16
        length = self.length or rng.randint(1, limit)
        return [*rng.choices(ALPHABET, k=length - 1), *(params.get("stop_token_ids") or ALPHABET)[:1]]

    async def _work(self, first_s: float, token_s: float, tokens: int) -> list[dict[str, Any]]:
        """Take the time of an answer, pauses not counted; returns which version sampled which of its tokens."""
        await self.going.wait()
        loop, left_s, start = asyncio.get_running_loop(), first_s + token_s * tokens, 0
        spans: list[dict[str, Any]] = []
        while True:
            version, began = self.version, loop.time()
            try:
                async with asyncio.timeout(left_s):
                    await self._pausing.wait()
            except TimeoutError:
                break
            left_s = max(0.0, left_s - (loop.time() - began))
            end = tokens - min(tokens, math.ceil(left_s / token_s)) if token_s else 0
            if end > start:
                spans.append({"version": version, "start": start, "end": end})
                start = end
            await self.going.wait()
        if start < tokens:
            spans.append({"version": version, "start": start, "end": tokens})
        return spans

    async def _generate(self, body: dict[str, Any]) -> Any:
        return generated(await self._sample(body.get("token_ids") or [], body.get("sampling_params") or {}), body)

    async def _complete(self, body: dict[str, Any]) -> Any:
        prompt = body.get("prompt", "")
        return completion(await self._sample(ids_of(prompt) if isinstance(prompt, str) else prompt, body), body)

    async def _chat(self, body: dict[str, Any]) -> Any:
        text = "".join(f"{message['role']}: {message.get('content') or ''}\n" for message in body.get("messages") or [])
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        return chat_completion(await self._sample(ids_of(text), {**body, "max_tokens": limit}), body)

    async def _health(self, body: dict[str, Any]) -> Any:
        return {}

    async def _counters(self, body: dict[str, Any]) -> Any:
        return self.counters

    async def _models(self, body: dict[str, Any]) -> Any:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "agentgym"}]}

    async def _weight_info(self, body: dict[str, Any]) -> Any:
        return {"weight_version": self.version}

    async def _set_version(self, body: dict[str, Any]) -> Any:
        self.version = str(body["new_version"])
        return {"success": True, "new_version": self.version}

    async def _pause(self, body: dict[str, Any]) -> Any:
        """Freeze what is in flight."""
        if body.get("mode") != "keep":
            raise Refusal(400, "the mock knows mode=keep alone")
        self.going.clear()
        self._pausing.set()
        return {"status": "paused"}

    async def _resume(self, body: dict[str, Any]) -> Any:
        self._pausing.clear()
        self.going.set()
        return {"status": "resumed"}

    async def _start_update(self, body: dict[str, Any]) -> Any:
        if self.going.is_set():  # it kills the real engine
            raise Refusal(500, "/start_weight_update without /pause")
        self._update = "started"
        return {"message": "Weight update started"}

    async def _update_weights(self, body: dict[str, Any]) -> Any:
        if self._update == "none":
            raise Refusal(500, "/update_weights without /start_weight_update")
        self.updates.append(body["update_info"])
        return {"message": "Weights updated"}

    async def _finish_update(self, body: dict[str, Any]) -> Any:
        if self._update == "none":
            raise Refusal(500, "/finish_weight_update without /start_weight_update")
        self._update = "none"
        self.version = str(body.get("weight_version") or self.version)
        return {"message": "Weight update finished"}

    async def _reset_cache(self, body: dict[str, Any]) -> Any:
        return {}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _error(status: int, why: str) -> web.Response:
    return _json({"error": {"message": why, "type": "mock", "code": status}}, status)


def _hang_up(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return answer


def _check(faults: Iterable[str]) -> None:
    if unknown := set(faults) - FAULTS.keys():
        raise UsageError(f"unknown fault {min(unknown)!r}{nearest(min(unknown), FAULTS)}; known: {', '.join(FAULTS)}")


async def _main(options: argparse.Namespace) -> None:
    faults = {name: float(share) for name, _, share in (fault.partition("=") for fault in options.fault)}
    values = {name: value for name, value in vars(options).items() if name != "fault"}
    async with MockPolicyServer(**values, faults=faults) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until the process is ended; prints the URL."""
    parser = argparse.ArgumentParser(prog="python -m agentgym.policies.mock", description=MockPolicyServer.__doc__)
    for name, kind in (("port", int), ("seed", int), ("length", int), ("key", str)):
        parser.add_argument(f"--{name}", type=kind, default="" if kind is str else None if name == "length" else 0)
    for name in ("latency-s", "token-s", "jitter"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=SHARE", help=", ".join(FAULTS))
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
