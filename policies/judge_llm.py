"""The judge that asks a language model: m votes on each turn, each of them a call that may fail without the others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import Counter
from typing import Any

import msgspec

from agentgym.config import Config
from agentgym.errors import ConfigError
from agentgym.judge import JudgeCache
from agentgym.policies.judge import HintingJudge, Verdict
from agentgym.policies.judge_ask import Answer, Asker, PolicyAsker, TooLong, Unanswered, URLAsker, backoff
from agentgym.policies.judge_parse import Parsed, parse
from agentgym.policies.judge_prompt import Budget, answer_schema, content_key, judge_messages
from agentgym.policy import Policy
from agentgym.types import Exchange

SHRINKS = 3  # how often what is shown is halved until the question fits the model's context
MIN_CHARS = 200
WAITS_S = 5.0  # between all tries of a call, together
NOTHING = "nothing came back after the response"

_answer = msgspec.json.Decoder(Answer).decode


class LLMJudge(HintingJudge):
    """Asks `judge.url`, or without one the run's own engine `ask`, for `judge.votes` votes at once.

    A call has `judge.timeout_s`, is tried again `judge.retries` times where that may help, and costs one vote if it
    fails for good. A turn without a valid vote is unscored, with the reasons. Answers are kept in `cache`, failures are
    not.

    Raises:
        ConfigError: settings that cannot work.
    """

    kind = "llm"

    def __init__(self, config: Config, *, ask: Policy | None = None, cache: JudgeCache | None = None) -> None:
        super().__init__(config)
        self.settings = config.judge
        self.hinting = config.hints.source in ("judge", "both")
        self.asker: Asker
        if self.settings.url:
            self.asker = URLAsker(self.settings)
        elif ask is not None:
            self.asker = PolicyAsker(self.settings, ask, config.model.path)
        else:
            raise ConfigError("judge.kind=llm needs judge.url, or the run's own engine to ask")
        self.cache = cache
        self.calls: Counter[str] = Counter()  # "asked", "kept" (answers from the cache), "failed", "invalid" (votes)
        self._places = asyncio.Semaphore(self.settings.concurrency)

    async def verdict(self, exchange: Exchange) -> Verdict:
        if not exchange.next_state and not exchange.last:
            return Verdict((None,) * self.settings.votes, reason=NOTHING)
        found = await asyncio.gather(*(self._vote(exchange, number) for number in range(self.settings.votes)))
        reasons = Counter(one.reason for one in found if one.vote is None)
        told = "; ".join(f"{reason} ({count} of {len(found)})" for reason, count in reasons.most_common())
        hints = tuple(one.hint for one in found if one.vote is not None and one.hint)
        return Verdict(tuple(one.vote for one in found), hints, told and f"no valid vote: {told}")

    async def close(self) -> None:
        await self.asker.close()

    async def _vote(self, exchange: Exchange, number: int) -> Parsed:
        key = self._key(exchange, number) if self.cache else ""
        answer = await self._kept(key)
        if answer is None:
            try:
                answer = await self._asked(exchange)
            except Unanswered as error:
                self.calls["failed"] += 1
                return Parsed(reason=str(error))
            if self.cache:
                await asyncio.to_thread(self.cache.cache, key, msgspec.json.encode(answer).decode())
        parsed = parse(answer.text, answer.code, bind=self.settings.bind, cut_off=answer.cut_off)
        self.calls["invalid"] += parsed.vote is None
        return parsed

    def _key(self, exchange: Exchange, number: int) -> str:
        """Of who is asked, what, and for which vote."""
        settings = self.settings
        who = [self.kind, self.asker.identity, settings.temperature, settings.max_tokens]
        budget = Budget(settings.history_chars, settings.next_state_chars)
        content = json.dumps([*who, content_key(exchange, budget, self.hinting), number])
        return hashlib.sha256(content.encode()).hexdigest()

    async def _kept(self, key: str) -> Answer | None:
        kept = await asyncio.to_thread(self.cache.cached, key) if self.cache else None
        if kept is None:
            return None
        try:
            answer = _answer(kept)
        except msgspec.MsgspecError:  # kept by another version
            return None
        self.calls["kept"] += 1
        return answer

    async def _asked(self, exchange: Exchange) -> Answer:
        """An answer within the tries and the time that a call has. Raises Unanswered."""
        settings = self.settings
        failure = Unanswered(f"no answer within {1 + settings.retries} x {settings.timeout_s:g} s")
        async with self._places:
            try:
                async with asyncio.timeout((1 + settings.retries) * settings.timeout_s + WAITS_S):
                    for attempt in range(1, settings.retries + 2):
                        try:
                            return await self._once(exchange)
                        except Unanswered as error:
                            failure = error
                            if not error.again or attempt > settings.retries:
                                break
                        await backoff(attempt)
            except TimeoutError:
                pass  # between two tries, or in the last one
        raise failure

    async def _once(self, exchange: Exchange) -> Answer:
        """One try; a question that is too long for the model is asked again with half of what it shows."""
        halved = 0
        while True:
            try:
                return await self._call(exchange, halved)
            except TooLong as error:
                if halved == SHRINKS:
                    reason = f"the question does not fit the judge's context ({error}): lower judge.history_chars"
                    raise Unanswered(reason, again=False) from error
                halved += 1

    async def _call(self, exchange: Exchange, halved: int) -> Answer:
        settings = self.settings
        fence, code = secrets.token_hex(4), secrets.token_hex(4)
        budget = Budget(
            max(MIN_CHARS, settings.history_chars >> halved), max(MIN_CHARS, settings.next_state_chars >> halved)
        )
        messages = judge_messages(exchange, fence=fence, code=code, budget=budget, hints=self.hinting)
        schema: dict[str, Any] = answer_schema(code, self.hinting, self.asker.bounds)
        self.calls["asked"] += 1
        try:
            async with asyncio.timeout(settings.timeout_s):
                text, cut_off = await self.asker(messages, schema)
        except TimeoutError:
            raise Unanswered(f"no answer within judge.timeout_s={settings.timeout_s:g} s") from None
        return Answer(text=text, code=code, cut_off=cut_off)
