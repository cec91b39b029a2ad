"""A teacher behind HTTP: a vLLM server (or whoever speaks as it does) that returns the log-probs of a prompt's ids.

It is asked by `/v1/completions` with `prompt_logprobs`: a prompt and the response after it go out as ids, the log-prob
of each of them comes back, and with `algorithm.opd=topk_kl` or a support of its own also those of its k likeliest. Which
ids it is asked about it cannot be told, so `hybrid_topk` with the student's support is refused when the config is read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agentgym.config import Config
from agentgym.errors import EngineError, UsageError
from agentgym.policies.endpoint import Endpoint
from agentgym.policies.template import ChatTemplate
from agentgym.teacher import Teacher
from agentgym.types import Taught

COMPLETIONS, TOKENIZE = "/completions", "/tokenize"
TRIES = 3
BACKOFF_S = 0.25  # before the second try; doubles
MAX_BYTES = 256 << 20  # of a reply
FLOOR = -9999.0  # how vLLM writes a log-prob of minus infinity
PROBES = 192  # tokens of the vocabulary that both sides must know alike
PROBE_TEXT = "Count 1234567 files in\n\n  /tmp/a_b  \té 你好 🙂 def f(x):\n\treturn x != 0.5\r\n"


class _LogProb(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[int, _LogProb] | None] | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Refused(Exception):
    """The server took the request and said no."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{status} {why}")
        self.status = status


class HTTPTeacher(Teacher):
    """Asks `teacher.url`, an OpenAI-compatible base URL, for `teacher.model`; `judge.concurrency` calls at once.

    Example:
        teacher = HTTPTeacher(config, model=Path("model"))
        await teacher.start()
        taught = await teacher.score(prompt_ids, response_ids)
    """

    def __init__(self, config: Config, *, model: Path) -> None:
        settings = config.teacher
        self.endpoint = Endpoint.of("teacher", url=settings.url, model=settings.model, key_env=settings.key_env)
        self.base = self.endpoint.base
        self.settings = settings
        self.top = 0 if config.algorithm.opd == "token" else config.algorithm.opd_k
        self.template = ChatTemplate(model, config.model.chat_template, config.model.tool_format)
        self._places = asyncio.Semaphore(config.judge.concurrency)
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Compare tokens on both sides, then have a few ids scored.

        Raises:
            UsageError: other tokens, or none of the log-probs that are needed.
            EngineError: it cannot be reached.
        """
        who = f"teacher.url={self.settings.url}"
        ours = self._tokens_of(text := self._probe())
        try:
            theirs = await self._tokenized(text)
        except _Refused as error:
            raise UsageError(
                f"{who}: its tokenizer cannot be compared with the model's ({error}): a server with /tokenize is needed"
            ) from error
        if ours != theirs:
            at = next(
                (t for t, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
            )
            raise UsageError(
                f"{who}: {self.settings.model} has another vocabulary than the model in training (of {len(ours)} tokens "
                f"number {at} differs): take a teacher with the same tokenizer"
            )
        try:
            await self._asked(ours[:2], ours[2:8])
        except _Refused as error:
            raise UsageError(f"{who}: it returns no log-probs of a prompt's ids ({error})") from error
        except _Untold as error:
            raise UsageError(f"{who}: {error}") from error

    async def score(self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...]) -> Taught:
        """The log-probs of a response's ids after a prompt; None for one that is not finite.

        Raises:
            EngineError: no answer in `teacher.timeout_s`, or one that is not about these ids.
        """
        try:
            return await self._asked(prompt_ids, response_ids)
        except (_Refused, _Untold) as error:
            raise EngineError(f"the teacher at {self.base}: {error}") from error

    async def close(self) -> None:
        """Hang up; safe to call twice."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _asked(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Taught:
        ids = [*prompt_ids, *response_ids]
        body = {
            "model": self.settings.model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": self.top,
        }  # fmt: skip
        reply = await self._post(self.base + COMPLETIONS, body)
        try:
            told = msgspec.json.decode(reply, type=_Reply).choices[0].prompt_logprobs
        except (msgspec.MsgspecError, ValueError, IndexError, RecursionError) as error:
            raise _Untold(f"its answer is not understood: {error}") from error
        if told is None or len(told) != len(ids):
            raise _Untold(f"it told {len(told or ())} log-probs of {len(ids)} ids of a prompt")
        return _taught(told[len(prompt_ids) :], response_ids, self.top)

    def _probe(self) -> str:
        """Text whose tokens tell one vocabulary from another: plain, special, and some of each part of it."""
        tokenizer = self.template.tokenizer
        specials = [tokenizer.id_to_token(id) or "" for id in sorted(self.template.special_ids)[:PROBES]]
        size = tokenizer.get_vocab_size()
        some = [tokenizer.decode([id]) for id in range(0, size, max(1, size // PROBES))]
        return PROBE_TEXT + "".join(specials) + "\n".join(text for text in some if "�" not in text)

    def _tokens_of(self, text: str) -> list[int]:
        return list(self.template.tokenizer.encode(text, add_special_tokens=False).ids)

    async def _tokenized(self, text: str) -> list[int]:
        root = self.base.removesuffix("/v1")
        body = {"model": self.settings.model, "prompt": text, "add_special_tokens": False}
        reply = await self._post(root + TOKENIZE, body)
        try:
            return msgspec.json.decode(reply, type=_Tokens).tokens
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _Refused(200, f"not understood: {error}") from error

    async def _post(self, url: str, body: dict[str, Any]) -> bytes:
        """The body of the answer; what may pass is tried again, all within `teacher.timeout_s`."""
        data, limit = msgspec.json.encode(body), self.settings.timeout_s
        async with self._places:
            try:
                async with asyncio.timeout(limit):
                    for attempt in range(1, TRIES):
                        try:
                            return await self._try(url, data)
                        except (aiohttp.ClientError, OSError):
                            await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
                        except _Refused as error:
                            if error.status not in (408, 429) and error.status < 500:
                                raise
                            await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
                    return await self._try(url, data)
            except TimeoutError:
                raise EngineError(f"{url} took longer than teacher.timeout_s={limit:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                raise EngineError(f"{url}: {error or type(error).__name__}") from error

    async def _try(self, url: str, data: bytes) -> bytes:
        if self._http is None:
            self._http = self.endpoint.connect()
        async with self._http.post(url, data=data, allow_redirects=False) as response:
            parts, size = [], 0
            async for part in response.content.iter_any():
                parts.append(part)
                if (size := size + len(part)) > MAX_BYTES:
                    raise _Refused(413, f"a reply of more than {MAX_BYTES >> 20} MiB")
            if response.status != 200:
                raise _Refused(response.status, " ".join(b"".join(parts)[:300].decode(errors="replace").split()))
            return b"".join(parts)


class _Untold(Exception):
    """An answer without what was asked for."""


def _taught(told: Sequence[dict[int, _LogProb] | None], ids: Sequence[int], top: int) -> Taught:
    """What was told of the ids of a response; raises `_Untold` if it is about others or holds too few of the likeliest."""
    logprobs: list[float | None] = []
    top_ids: list[tuple[int, ...]] = []
    tops: list[tuple[float, ...]] = []
    for t, (id, entry) in enumerate(zip(ids, told, strict=True)):
        if not entry or id not in entry:
            raise _Untold(f"it scored other tokens than those of the response (at {t})")
        logprobs.append(_finite(entry[id].logprob))
        likeliest = sorted(entry, key=lambda one: (-entry[one].logprob, one))[:top]
        if len(likeliest) < top:
            raise _Untold(f"it tells {len(likeliest)} of the {top} likeliest tokens: set algorithm.opd=token")
        if top:
            top_ids.append(tuple(likeliest))
            tops.append(tuple(entry[one].logprob for one in likeliest))
    return Taught(logprobs=tuple(logprobs), top_ids=tuple(top_ids), top=tuple(tops))


def _finite(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) and logprob > FLOOR else None
