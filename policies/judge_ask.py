"""Who a judge asks: any OpenAI-compatible URL, or the run's own engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Protocol

import aiohttp
import msgspec

from agentgym.config import JudgeConfig
from agentgym.errors import AgentgymError, ConfigError, InfrastructureError
from agentgym.policies.endpoint import Endpoint
from agentgym.policy import ContextOverflow, Policy, Session
from agentgym.types import Message, Prompt, Sampling, Struct, new_id

MAX_BYTES = 1 << 20  # of a reply
MAX_TEXT = 400  # characters of a text in an answer, where the engine can bound it
TRANSIENT = (408, 409, 425, 429)  # and 5xx: worth another try
REFUSED = (400, 404, 415, 422, 501)  # how servers refuse a response_format that they do not know
TOO_LONG = re.compile(r"context|too long|too many tokens|max_model_len", re.IGNORECASE)


class Answer(Struct, frozen=True, kw_only=True):
    """What was answered, and the code that had to be repeated; kept in the cache as it is."""

    text: str
    code: str
    cut_off: bool = False


class Unanswered(Exception):
    """A call that failed; `again`: another try may help."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(" ".join(reason.split())[:300])
        self.again = again


class TooLong(Unanswered):
    """The question does not fit the model's context."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, again=False)


class Asker(Protocol):
    """Takes a question to a model."""

    identity: str  # who answers: kept answers of another one do not count
    bounds: int | None  # the length of texts in an answer that it can be held to

    async def __call__(self, messages: Sequence[Message], schema: dict[str, Any]) -> tuple[str, bool]:
        """The answer's text, and whether it was cut off. Raises Unanswered."""

    async def close(self) -> None:
        """Free everything; safe to call twice."""


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Said
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Reply).decode


class URLAsker:
    """Asks `judge.url` by chat completions; JSON by schema until the server refuses it.

    Raises:
        ConfigError: no URL of http, no model, or the variable that should hold the key is empty.
    """

    bounds: int | None = None

    def __init__(self, settings: JudgeConfig) -> None:
        self.settings = settings
        self.endpoint = Endpoint.of("judge", url=settings.url, model=settings.model, key_env=settings.key_env)
        self.url = f"{self.endpoint.base}/chat/completions"
        self.identity = f"{self.url} {settings.model}"
        self._structured = True
        self._http: aiohttp.ClientSession | None = None

    async def __call__(self, messages: Sequence[Message], schema: dict[str, Any]) -> tuple[str, bool]:
        body = {
            "model": self.settings.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self.settings.temperature,
            "max_tokens": self.settings.max_tokens,
        }
        if self._structured:
            form = {"name": "verdict", "schema": schema, "strict": True}
            status, reply = await self._post({**body, "response_format": {"type": "json_schema", "json_schema": form}})
            if status not in REFUSED or TOO_LONG.search(reply[:2000].decode(errors="replace")):
                return self._read(status, reply)
        status, reply = await self._post(body)
        answer = self._read(status, reply)
        self._structured = False  # it was the schema that it refused
        return answer

    async def _post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if self._http is None:
            self._http = self.endpoint.connect()
        try:
            async with self._http.post(self.url, data=_encode(body), allow_redirects=False) as response:
                return response.status, await _read_all(response)
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"{self.url}: {error or type(error).__name__}") from error

    def _read(self, status: int, reply: bytes) -> tuple[str, bool]:
        start = reply[:2000].decode(errors="replace")
        if status != 200:
            if status in (400, 413, 422) and TOO_LONG.search(start):
                raise TooLong(f"{self.url}: {status} {start}")
            raise Unanswered(f"{self.url}: {status} {start}", again=status in TRANSIENT or status >= 500)
        try:
            choice = _decode(reply).choices[0]
        except (msgspec.MsgspecError, ValueError, IndexError, RecursionError) as error:
            raise Unanswered(f"{self.url}: not understood: {error or type(error).__name__}") from error
        return choice.message.content or "", choice.finish_reason == "length"

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()


class PolicyAsker:
    """Asks the run's own engine, in a session of its own for each vote; JSON by schema where the engine can."""

    def __init__(self, settings: JudgeConfig, policy: Policy, model: str) -> None:
        if settings.model or settings.key_env:
            raise ConfigError("judge.model and judge.key_env go with judge.url; without one the run's own model judges")
        self.settings, self.policy = settings, policy
        self.identity = f"own {model}"
        self._structured = bool(getattr(policy, "structured", False))
        self.bounds = MAX_TEXT if self._structured else None

    async def __call__(self, messages: Sequence[Message], schema: dict[str, Any]) -> tuple[str, bool]:
        sampling = Sampling(
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            json_schema=schema if self._structured else None,
        )
        try:
            completion = await self.policy(
                Prompt(messages=tuple(messages)), session=Session(f"judge-{new_id()}"), sampling=sampling
            )
        except ContextOverflow as error:
            raise TooLong(str(error)) from error
        except InfrastructureError as error:
            raise Unanswered(str(error)) from error
        except AgentgymError as error:  # such as a chat template that refuses a system message
            raise Unanswered(str(error), again=False) from error
        if completion.finish_reason == "abort":
            raise Unanswered("the engine aborted the answer")
        return completion.message.content, completion.finish_reason == "length"

    async def close(self) -> None:
        """The engine is the run's."""


async def _read_all(response: aiohttp.ClientResponse) -> bytes:
    """The body; raises Unanswered for one that does not end."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise Unanswered(f"{response.url}: a reply of more than {MAX_BYTES >> 20} MiB")
    return b"".join(parts)


async def backoff(attempt: int) -> None:
    """Wait before try `attempt` + 1: 0.25 s, doubled each time, 4 s at most."""
    await asyncio.sleep(min(4.0, 0.25 * 2 ** (attempt - 1)))
