"""Whom a judge asks: OpenAI-compatible servers of all manners, and the run's own engine."""

import asyncio
import json

import pytest
from aiohttp import web

from agentgym.errors import EngineError, UsageError
from agentgym.judge import make_judge
from agentgym.models import resolve_model
from agentgym.policies.judge_ask import MAX_BYTES
from agentgym.policies.mock import CHAT, MockPolicyServer
from agentgym.policies.mock_judge import saying, verdict
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.policies.transformers import TransformersPolicy
from agentgym.policy import ContextOverflow, Policy
from agentgym.types import Completion, Message
from tests.policies.test_judge_llm import ask, config_for, exchange


class Endpoint:
    """A chat endpoint whose answers `reply(body, number)` gives as (status, JSON)."""

    def __init__(self, reply):
        self.reply, self.bodies = reply, []

    async def __aenter__(self):
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{path:.*}", self._serve)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *error):
        await self.runner.cleanup()

    async def _serve(self, request):
        assert request.path == "/v1/chat/completions"
        body = await request.json()
        self.bodies.append((body, dict(request.headers)))
        status, answer = self.reply(body, len(self.bodies))
        return web.json_response(answer, status=status)


def says(body, score=1, **choice):
    form = body["messages"][1]["content"].rpartition('"code": "')[2]
    text = json.dumps({"reason": "", "code": form[:8], "score": score, "hint": ""})
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}]}


async def test_json_is_asked_for_by_schema_with_the_key_of_the_environment(monkeypatch):
    monkeypatch.setenv("AGENTGYM_TEST_KEY", "sk-1")
    async with Endpoint(lambda body, number: (200, says(body))) as server:
        [judgement] = await ask(server.url, exchange(), judge_votes=1, judge_key_env="AGENTGYM_TEST_KEY")
    body, headers = server.bodies[0]
    assert judgement.score == 1 and headers["Authorization"] == "Bearer sk-1"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("mock", 0.7, 400)
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["code"]["enum"][0] in body["messages"][1]["content"]
    codes = {entry["messages"][1]["content"].rpartition('"code": "')[2][:8] for entry, _ in server.bodies}
    assert "sk-1" not in json.dumps(body) and len(codes) == 1


async def test_codes_and_fences_are_drawn_anew_for_each_call():
    async with Endpoint(lambda body, number: (200, says(body))) as server:
        await ask(server.url, exchange(), judge_votes=8)
    drawn = [
        (body["messages"][1]["content"][1:9], body["messages"][1]["content"].rpartition('"code": "')[2][:8])
        for body, _ in server.bodies
    ]
    assert len({code for pair in drawn for code in pair}) == 16


async def test_a_server_that_refuses_the_schema_is_asked_without():
    def reply(body, number):
        return (400, {"error": "unknown field response_format"}) if "response_format" in body else (200, says(body))

    async with Endpoint(reply) as server:
        judge = make_judge(config_for(server.url, judge_votes=1))
        scores = [(await judge(exchange(text))).score for text in "ab"]
        await judge.close()
    assert scores == [1, 1] and ["response_format" in body for body, _ in server.bodies] == [True, False, False]


async def test_a_refusal_that_is_not_about_the_schema_is_told_and_the_schema_kept():
    def reply(body, number):
        return (404, {"error": "no such model"}) if number <= 2 else (200, says(body))

    async with Endpoint(reply) as server:
        judge = make_judge(config_for(server.url, judge_votes=1))
        first, second = await judge(exchange("a")), await judge(exchange("b"))
        await judge.close()
    assert first.score is None and "no such model" in first.reason and second.score == 1
    assert ["response_format" in body for body, _ in server.bodies] == [True, False, True]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_not_tried_again(status):
    async with Endpoint(lambda body, number: (status, {"error": "bad key"})) as server:
        [judgement] = await ask(server.url, exchange(), judge_votes=1)
    assert judgement.score is None and str(status) in judgement.reason and len(server.bodies) == 1


async def test_a_question_too_long_for_the_model_is_asked_with_less():
    def reply(body, number):
        long = len(body["messages"][1]["content"]) > 5000
        return (400, {"error": "maximum context length is 2048 tokens"}) if long else (200, says(body))

    made_long = exchange("x" * 50_000, history=(Message(role="user", content="y" * 50_000),))
    async with Endpoint(reply) as server:
        [judgement] = await ask(server.url, made_long, judge_votes=1)
    lengths = [len(body["messages"][1]["content"]) for body, _ in server.bodies]
    assert judgement.score == 1 and lengths == sorted(lengths, reverse=True) and len(lengths) == 2


async def test_a_question_that_cannot_fit_leaves_the_turn_unscored():
    async with Endpoint(lambda body, number: (400, {"error": "prompt is too long"})) as server:
        [judgement] = await ask(server.url, exchange(), judge_votes=1)
    assert "does not fit the judge's context" in judgement.reason and "judge.history_chars" in judgement.reason
    assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"choices": []}, "not understood"),
        ({"choices": [{"message": {"content": 7}}]}, "not understood"),
        ([], "not understood"),
        ({"choices": [{"message": {"content": None, "refusal": "I will not judge."}}]}, "no verdict"),
        ({"choices": [{"message": {"content": "x" * (2 * MAX_BYTES)}}]}, "more than 1 MiB"),
    ],
)
async def test_an_answer_of_another_shape_is_no_vote(answer, why):
    async with Endpoint(lambda body, number: (200, answer)) as server:
        [judgement] = await ask(server.url, exchange(), judge_votes=1, judge_retries=0)
    assert judgement.score is None and why in judgement.reason


async def test_an_answer_that_was_cut_off_is_no_vote():
    def reply(body, number):
        answer = says(body, finish_reason="length")
        answer["choices"][0]["message"]["content"] += " although"
        return 200, answer

    async with Endpoint(reply) as server:
        [judgement] = await ask(server.url, exchange(), judge_votes=1)
    assert judgement.score is None and "cut off" in judgement.reason


async def test_a_redirect_is_not_followed():
    """It would take the key elsewhere."""
    async with MockPolicyServer(answer=saying(verdict(1))) as other:
        app = web.Application()

        async def away(request):
            raise web.HTTPTemporaryRedirect(f"{other.url}{CHAT}")

        app.router.add_post("/{path:.*}", away)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        [judgement] = await ask(f"http://127.0.0.1:{runner.addresses[0][1]}", exchange(), judge_votes=1)
        await runner.cleanup()
        assert judgement.score is None and "307" in judgement.reason and not other.asked


def own(prompt, score=1):
    code = prompt.messages[1].content.rpartition('"code": "')[2][:8]
    return json.dumps({"reason": "", "code": code, "score": score, "hint": ""})


async def test_the_runs_own_engine_can_judge_in_sessions_of_its_own():
    class Recorder(ScriptedPolicy):
        sessions: list = []

        async def __call__(self, prompt, *, session, sampling):
            self.sessions.append((session.id, session.n_messages))
            return await super().__call__(prompt, session=session, sampling=sampling)

    policy = Recorder(own)
    judge = make_judge(config_for(), ask=policy)
    assert (await judge(exchange())).score == 1
    assert len({id for id, _ in policy.sessions}) == 3 and {covered for _, covered in policy.sessions} == {0}
    await judge.close()


class Failing(Policy):
    """Raises `error`, or waits for ever if it is None."""

    def __init__(self, error):
        self.error, self.asked = error, 0

    async def __call__(self, prompt, *, session, sampling) -> Completion:
        self.asked += 1
        if self.error is None:
            await asyncio.Event().wait()
        raise self.error


@pytest.mark.parametrize(
    ("error", "asked", "why"),
    [
        (EngineError("the engine died"), 2, "the engine died"),
        (ContextOverflow("900 tokens leave no room in 512"), 4, "does not fit the judge's context"),
        (UsageError("the chat template refuses the conversation"), 1, "refuses the conversation"),
        (None, 2, "no answer within"),
    ],
)
async def test_an_engine_that_fails_leaves_the_turn_unscored(error, asked, why):
    policy = Failing(error)
    judge = make_judge(config_for(judge_votes=1, judge_retries=1, judge_timeout_s=0.3), ask=policy)
    judgement = await judge(exchange())
    assert judgement.score is None and why in judgement.reason and policy.asked == asked


async def test_a_tiny_model_judges_through_its_engine_token_in_token_out(tmp_path):
    """Its answers are noise: no vote, no crash, and a prompt that does not fit is shortened until it does."""
    config = config_for(judge_votes=2, judge_max_tokens=8, engine_dtype="float32", model_max_length=4096)
    policy = TransformersPolicy(config, model=resolve_model("tiny"), folder=tmp_path)
    await policy.start()
    try:
        judgement = await make_judge(config, ask=policy)(exchange("<|im_end|>" * 500))
    finally:
        await policy.close()
    assert judgement.votes == (None, None) and judgement.reason.startswith("no valid vote")
