"""A policy behind a URL that takes and returns token ids, as vLLM's `/inference/v1/generate` does.

It is made from plain keyword arguments, so that any process can ask: workers make it from an address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agentgym.config import Config
from agentgym.errors import EngineError
from agentgym.policies.serving import Sampled, TokenClient
from agentgym.policies.template import ChatTemplate
from agentgym.policy import Piece, PolicyAddress
from agentgym.types import FinishReason, Sampling

GENERATE = "/inference/v1/generate"
TRIES = 3
BACKOFF_S = 0.2  # before the second try; doubles
JSON = {"Content-Type": "application/json"}
BUSY = (429, 503)  # the server did not take the request
FINISH: dict[str | None, FinishReason] = {"length": "length", "abort": "abort"}


class Span(msgspec.Struct):
    """Output tokens [start, end) that one weight version sampled."""

    version: str
    start: int
    end: int


class Top(msgspec.Struct):
    """One of the likeliest tokens at a position."""

    token_id: int
    logprob: float


class LogProb(msgspec.Struct):
    """Of one sampled token."""

    logprob: float
    top_logprobs: list[Top] = []


class LogProbs(msgspec.Struct):
    """Of the sampled tokens, in order."""

    content: list[LogProb] | None = None


class Choice(msgspec.Struct):
    """One answer."""

    token_ids: tuple[int, ...]
    logprobs: LogProbs | None
    weight_versions: list[Span] | None = None
    finish_reason: str | None = "stop"


class Generated(msgspec.Struct):
    """What of the engine's answer counts."""

    choices: list[Choice]


class Event(msgspec.Struct):
    """One event of a stream: an answer's next tokens, or why there are no more."""

    choices: list[Choice] = []
    error: Any = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Generated).decode
_event = msgspec.json.Decoder(Event).decode


class HTTPPolicy(TokenClient):
    """Asks the engine at `url`, with the bearer `key` if there is one; holds thousands of requests in flight.

    `model` is the Hugging Face folder whose chat template and tokenizer render; `template` is the same ready-made, for
    where that folder may be gone. Its connections belong to the event loop of its first request.

    Example:
        policy = HTTPPolicy(config, model=Path("model"), url="http://127.0.0.1:8000", key="secret")
        completion = await policy(prompt, session=Session("a"), sampling=Sampling(seed=1))
        await policy.close()
    """

    def __init__(
        self,
        config: Config,
        *,
        url: str,
        key: str = "",
        model: Path | None = None,
        template: ChatTemplate | None = None,
    ) -> None:
        if template is None:
            if model is None:
                raise TypeError("HTTPPolicy needs a model folder or its template")
            template = ChatTemplate(model, config.model.chat_template, config.model.tool_format)
        super().__init__(config, template)
        self.url = url.rstrip("/")
        self._key = key
        self._http: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def address(self) -> PolicyAddress:
        """The template travels with it: other processes need no model folder, and never see another template."""
        options = {"config": self.config, "template": self.template, "url": self.url, "key": self._key}
        return PolicyAddress(factory=f"{HTTPPolicy.__module__}:HTTPPolicy", options=options)

    @property
    def http(self) -> aiohttp.ClientSession:
        """The open session, made at first use. Raises EngineError after `close`."""
        if self._closed:
            raise EngineError(f"the connection to {self.url} was closed")
        if self._http is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else None
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(), headers=headers
            )
        return self._http

    async def sample(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sampled:
        """Sample after `prompt_ids`; cancelling the task hangs up, which aborts the request in the engine."""
        body = {"token_ids": prompt_ids, "sampling_params": self._params(sampling)}
        answer = await self.post(GENERATE, body)
        try:
            return _sampled(_decode(answer).choices[0])
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            raise EngineError(f"{self.url}{GENERATE}: not understood: {error}: {answer[:200]!r}") from error

    async def stream(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Sample after `prompt_ids`, piece by piece; closing the iterator hangs up, which aborts the request.

        Raises:
            EngineError: it failed, its stream ended early, or it took longer than `engine.request_timeout_s`.
        """
        body = {"token_ids": prompt_ids, "sampling_params": self._params(sampling), "stream": True}
        finished = False
        async with aclosing(self._events(GENERATE, _encode(body))) as events:
            async for event in events:
                try:
                    found = _event(event)
                    piece = _piece(found.choices[0], sampling) if found.choices else None
                except (msgspec.MsgspecError, ValueError) as error:
                    raise EngineError(f"{self.url}{GENERATE}: not understood: {error}: {event[:200]!r}") from error
                if found.error is not None:
                    raise EngineError(f"{self.url}{GENERATE}: {str(found.error)[:300]}")
                if piece is not None:
                    finished = piece.finish_reason is not None
                    yield piece
        if not finished:
            raise EngineError(f"{self.url}{GENERATE}: the stream ended early")

    async def _events(self, path: str, data: bytes) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event, up to [DONE]; opened again as `post` does."""
        limit = self.config.engine.request_timeout_s
        deadline = asyncio.get_running_loop().time() + limit
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout_at(deadline):
                for attempt in range(1, TRIES + 1):
                    response = await self._open(path, data, last=attempt == TRIES)
                    if response is not None:
                        break
                    await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            assert response is not None
            held = b""
            while True:
                async with asyncio.timeout_at(deadline):
                    part = await response.content.readany()
                if not part:
                    return
                *lines, held = (held + part).split(b"\n")
                for line in lines:
                    event = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                    if event == b"[DONE]":
                        return
                    if event:
                        yield event
        except TimeoutError:
            raise EngineError(f"{self.url}{path} took longer than engine.request_timeout_s={limit:g} s") from None
        except aiohttp.ClientError as error:
            raise EngineError(f"{self.url}{path}: {error or type(error).__name__}") from error
        finally:
            if response is not None:
                response.close()

    async def _open(self, path: str, data: bytes, *, last: bool) -> aiohttp.ClientResponse | None:
        """The answer's beginning; None if another try may be made."""
        try:
            response = await self.http.post(self.url + path, data=data, headers=JSON)
        except aiohttp.ClientConnectionError:
            if last:
                raise
            return None
        if response.status == 200:
            return response
        answer = await response.read()
        if response.status in BUSY and not last:
            return None
        raise EngineError(f"{self.url}{path}: {response.status} {answer[:300].decode(errors='replace')}")

    async def post(self, path: str, body: Any = None) -> bytes:
        """POST `body` as JSON and return what came back.

        It tries again only where nobody can have the answer: the server could not be reached, hung up before it said a
        word, or was too busy to take the request.

        Raises:
            EngineError: no answer of status 200 within `engine.request_timeout_s`, all tries together.
        """
        limit = self.config.engine.request_timeout_s
        data = None if body is None else _encode(body)
        try:
            async with asyncio.timeout(limit):
                for attempt in range(1, TRIES):
                    answer = await self._try(path, data, last=False)
                    if answer is not None:
                        return answer
                    await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
                answer = await self._try(path, data, last=True)
                assert answer is not None
                return answer
        except TimeoutError:
            raise EngineError(f"{self.url}{path} took longer than engine.request_timeout_s={limit:g} s") from None

    async def _try(self, path: str, data: bytes | None, *, last: bool) -> bytes | None:
        """One try; None if another may be made."""
        began = False
        try:
            async with self.http.post(self.url + path, data=data, headers=JSON) as response:
                began = True
                answer = await response.read()
        except aiohttp.ClientError as error:
            if last or began or not isinstance(error, aiohttp.ClientConnectionError):
                raise EngineError(f"{self.url}{path}: {error or type(error).__name__}") from error
            return None
        if response.status in BUSY and not last:
            return None
        if response.status != 200:
            raise EngineError(f"{self.url}{path}: {response.status} {answer[:300].decode(errors='replace')}")
        return answer

    async def close(self) -> None:
        """Hang up; safe to call twice."""
        self._closed = True
        if self._http is not None:
            http, self._http = self._http, None
            await http.close()

    def _params(self, sampling: Sampling) -> dict[str, Any]:
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": self.template.stop_ids,
            "logprobs": sampling.top_logprobs,  # that of the sampled token comes in any case
        }
        if sampling.stop:
            params["stop"] = sampling.stop
        if sampling.frequency_penalty or sampling.presence_penalty:
            params["frequency_penalty"] = sampling.frequency_penalty
            params["presence_penalty"] = sampling.presence_penalty
        if sampling.json_schema is not None:
            params["structured_outputs"] = {"json": sampling.json_schema or {"type": "object"}}
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        return params


def _versions(choice: Choice) -> tuple[int, ...]:
    spans = choice.weight_versions or ()
    return tuple(version for span in spans for version in [int(span.version)] * (span.end - span.start))


def _piece(choice: Choice, sampling: Sampling) -> Piece:
    content = (choice.logprobs and choice.logprobs.content) or []
    if len(content) != len(choice.token_ids):
        raise ValueError(f"{len(choice.token_ids)} ids, {len(content)} log-probs")
    wanted = sampling.top_logprobs
    top = tuple(tuple((top.token_id, top.logprob) for top in entry.top_logprobs[:wanted]) for entry in content)
    finish = None if choice.finish_reason is None else FINISH.get(choice.finish_reason, "stop")
    return Piece(
        ids=choice.token_ids,
        logprobs=tuple(entry.logprob for entry in content),
        top=top if wanted else (),
        finish_reason=finish,
        versions=_versions(choice),
    )


def _sampled(choice: Choice) -> Sampled:
    versions = _versions(choice)
    logprobs = tuple(entry.logprob for entry in (choice.logprobs and choice.logprobs.content) or ())
    if not len(choice.token_ids) == len(logprobs) == len(versions):
        raise ValueError(f"{len(choice.token_ids)} ids, {len(logprobs)} log-probs, {len(versions)} versions")
    return Sampled(choice.token_ids, logprobs, versions, FINISH.get(choice.finish_reason, "stop"))
