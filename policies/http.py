"""A policy behind a URL that takes and returns token ids, as vLLM's `/inference/v1/generate` does.

It is made from plain keyword arguments, so that any process can ask: workers make it from an address.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agentgym.config import Config
from agentgym.errors import EngineError
from agentgym.policies.serving import Sampled, TokenClient
from agentgym.policies.template import ChatTemplate
from agentgym.policy import PolicyAddress
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


class LogProb(msgspec.Struct):
    """Of one sampled token."""

    logprob: float


class LogProbs(msgspec.Struct):
    """Of the sampled tokens, in order."""

    content: list[LogProb] | None = None


class Choice(msgspec.Struct):
    """One answer."""

    token_ids: tuple[int, ...]
    logprobs: LogProbs
    weight_versions: list[Span] | None = None
    finish_reason: str | None = "stop"


class Generated(msgspec.Struct):
    """What of the engine's answer counts."""

    choices: list[Choice]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Generated).decode


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
            template = ChatTemplate(model, config.model.chat_template)
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
            "logprobs": 0,  # of the sampled token alone
        }
        if sampling.stop:
            params["stop"] = sampling.stop
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        return params


def _sampled(choice: Choice) -> Sampled:
    versions: list[int] = []
    for span in choice.weight_versions or ():
        versions += [int(span.version)] * (span.end - span.start)
    logprobs = tuple(entry.logprob for entry in choice.logprobs.content or ())
    if not len(choice.token_ids) == len(logprobs) == len(versions):
        raise ValueError(f"{len(choice.token_ids)} ids, {len(logprobs)} log-probs, {len(versions)} versions")
    return Sampled(choice.token_ids, logprobs, tuple(versions), FINISH.get(choice.finish_reason, "stop"))
