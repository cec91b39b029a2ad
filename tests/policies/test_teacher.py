"""A teacher behind HTTP: its numbers against the model's own, and what is refused at start or costs a term."""

import asyncio
import time
from contextlib import asynccontextmanager

import msgspec
import pytest
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from agentgym.config import load_config
from agentgym.errors import ConfigError, EngineError, UsageError
from agentgym.models import resolve_model
from agentgym.policies.teacher import HTTPTeacher
from agentgym.policies.template import ChatTemplate
from agentgym.policies.vllm_server import VLLMServer
from agentgym.teacher import make_teacher

PROMPT, RESPONSE = (1, 40, 41, 42, 2), (60, 61, 7, 2)


class Engine:
    """vLLM's two endpoints over a real model; `spoil` changes what it told, `plan` what it does with each request."""

    def __init__(self, model, *, most=20, tokens=lambda ids: ids, spoil=lambda told: told, plan=(), key=""):
        self.network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
        self.template = ChatTemplate(model)
        self.most, self.tokens, self.spoil, self.plan, self.key = most, tokens, spoil, list(plan), key
        self.asked = 0

    async def completions(self, request):
        self.asked += 1
        what = self.plan.pop(0) if self.plan else "ok"
        if what == "hang":
            await asyncio.sleep(30)
        if what != "ok":
            return web.Response(status=what, text="as planned")
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401, text="no key")
        body = await request.json()
        k, ids = body["prompt_logprobs"], body["prompt"]
        if k > self.most:
            return web.Response(status=400, text=f"prompt_logprobs of at most {self.most}")
        return web.json_response({"choices": [{"text": "", "prompt_logprobs": self.spoil(self.told(ids, k))}]})

    def told(self, ids, k):
        logprobs = torch.log_softmax(self.network(torch.tensor([ids])).logits[0], -1)
        told = [None]
        for t in range(1, len(ids)):
            chosen = {ids[t], *logprobs[t - 1].topk(k).indices.tolist()} if k else {ids[t]}
            told.append({str(id): {"logprob": float(logprobs[t - 1, id]), "decoded_token": "x"} for id in chosen})
        return told

    async def tokenize(self, request):
        body = await request.json()
        ids = self.template.tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"]).ids
        return web.json_response({"tokens": self.tokens(ids), "count": len(ids)})


@asynccontextmanager
async def serving(engine, *, tokenize=True):
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/completions", engine.completions)
    if tokenize:
        app.router.add_post("/tokenize", engine.tokenize)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
    finally:
        await runner.cleanup()


def config_for(url, *more):
    given = ("model.path=tiny", "algorithm.w_opd=1", "teacher.kind=http", f"teacher.url={url}", "teacher.model=t")
    return load_config(None, [*given, "algorithm.opd=token", *more])


@asynccontextmanager
async def teaching(engine, *more, **serve):
    async with serving(engine, **serve) as url:
        teacher = make_teacher(config_for(url, *more), resolve_model("tiny"))
        assert isinstance(teacher, HTTPTeacher)
        try:
            yield teacher
        finally:
            await teacher.close()


@pytest.fixture(scope="module")
def tiny():
    return resolve_model("tiny")


@pytest.fixture(scope="module")
def expected(tiny):
    network = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    logprobs = torch.log_softmax(network(torch.tensor([[*PROMPT, *RESPONSE]])).logits[0], -1)
    return logprobs[len(PROMPT) - 1 : -1]


async def test_the_logprobs_are_those_of_the_response(tiny, expected):
    async with teaching(Engine(tiny)) as teacher:
        await teacher.start()
        taught = await teacher.score(PROMPT, RESPONSE)
    assert taught.logprobs == pytest.approx([float(expected[t, id]) for t, id in enumerate(RESPONSE)], abs=1e-9)
    assert taught.top_ids == taught.top == ()


async def test_its_likeliest_tokens_come_where_they_are_needed(tiny, expected):
    async with teaching(Engine(tiny), "algorithm.opd=topk_kl", "algorithm.opd_k=3") as teacher:
        await teacher.start()
        taught = await teacher.score(PROMPT, RESPONSE)
    assert [list(ids) for ids in taught.top_ids] == expected.topk(3).indices.tolist()
    assert torch.allclose(torch.tensor(taught.top, dtype=torch.float64), expected.topk(3).values, atol=1e-9)
    assert len(taught.logprobs) == len(RESPONSE)


async def test_of_equal_logprobs_the_lower_id_is_the_likelier(tiny):
    def tied(told):
        return [entry and {id: {"logprob": -1.0} for id in sorted({*entry, "9", "200"})} for entry in told]

    async with teaching(Engine(tiny, spoil=tied), "algorithm.opd=topk_kl", "algorithm.opd_k=2") as teacher:
        taught = await teacher.score(PROMPT, RESPONSE)
    assert all(list(ids) == sorted(ids) and len(ids) == 2 for ids in taught.top_ids)


async def test_another_vocabulary_is_refused_at_start(tiny):
    async with teaching(Engine(tiny, tokens=lambda ids: [*ids[:30], ids[30] + 1, *ids[31:]])) as teacher:
        with pytest.raises(UsageError, match=r"another vocabulary.*number 30 differs"):
            await teacher.start()


async def test_a_vocabulary_without_our_special_tokens_is_refused(tiny):
    """Plain text would be written alike."""

    class Plain(Engine):
        async def tokenize(self, request):
            body = await request.json()
            ids = self.template._plain_tokenizer.encode(body["prompt"], add_special_tokens=False).ids
            return web.json_response({"tokens": ids})

    async with teaching(Plain(tiny)) as teacher:
        with pytest.raises(UsageError, match="another vocabulary"):
            await teacher.start()


async def test_who_cannot_be_compared_is_refused(tiny):
    async with teaching(Engine(tiny), tokenize=False) as teacher:
        with pytest.raises(UsageError, match="tokenizer cannot be compared"):
            await teacher.start()


async def test_who_tells_no_logprobs_is_refused_at_start(tiny):
    async with teaching(Engine(tiny, spoil=lambda told: None)) as teacher:
        with pytest.raises(UsageError, match="told 0 log-probs of 8 ids"):
            await teacher.start()


async def test_who_does_not_tell_its_likeliest_tokens_is_refused_for_modes_that_need_them(tiny):
    def alone(told):
        return [entry and dict([next(iter(entry.items()))]) for entry in told]

    class Terse(Engine):
        def told(self, ids, k):
            return super().told(ids, 0)

    async with teaching(Terse(tiny), "algorithm.opd=topk_kl") as teacher:
        with pytest.raises(UsageError, match=r"1 of the 4 likeliest tokens: set algorithm.opd=token"):
            await teacher.start()
    async with teaching(Engine(tiny, most=2), "algorithm.opd=topk_kl") as teacher:
        with pytest.raises(UsageError, match="at most 2"):
            await teacher.start()
    async with teaching(Terse(tiny, spoil=alone)) as teacher:
        await teacher.start()  # the sampled token is enough for opd=token


async def test_nobody_there_is_an_engine_error(tiny):
    teacher = make_teacher(config_for("http://127.0.0.1:9/v1", "teacher.timeout_s=5"), tiny)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9/tokenize"):
        await teacher.start()
    await teacher.close()
    await teacher.close()


async def test_what_may_pass_is_tried_again(tiny):
    engine = Engine(tiny, plan=[500, 429])
    async with teaching(engine) as teacher:
        assert len((await teacher.score(PROMPT, RESPONSE)).logprobs) == len(RESPONSE)
    assert engine.asked == 3


@pytest.mark.parametrize(("plan", "asked"), [([500, 500, 500], 3), ([400], 1)])
async def test_a_call_that_fails_for_good_is_an_error_and_no_zeros(tiny, plan, asked):
    engine = Engine(tiny, plan=plan)
    async with teaching(engine) as teacher:
        with pytest.raises(EngineError, match="as planned"):
            await teacher.score(PROMPT, RESPONSE)
    assert engine.asked == asked


@pytest.mark.slow
async def test_a_call_has_a_deadline(tiny):
    async with teaching(Engine(tiny, plan=["hang"]), "teacher.timeout_s=0.3") as teacher:
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"teacher\.timeout_s=0\.3"):
            await teacher.score(PROMPT, RESPONSE)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda told: told[:-1], "told 8 log-probs of 9 ids"),
        (lambda told: [*told[:6], *told[7:], told[6]], "other tokens than those of the response"),
        (lambda told: [*told[:-1], None], "other tokens"),
        (lambda told: "nonsense", "not understood"),
        (lambda told: [*told[:-1], {"2": {"logprob": "NaN"}}], "not understood"),
    ],
)  # fmt: skip
async def test_an_answer_about_other_tokens_is_none(tiny, spoil, said):
    async with teaching(Engine(tiny, spoil=spoil)) as teacher:
        with pytest.raises(EngineError, match=said):
            await teacher.score(PROMPT, RESPONSE)


async def test_minus_infinity_is_no_number(tiny):
    """vLLM writes it as -9999."""
    spoil = lambda told: [*told[:-1], {"2": {"logprob": -9999.0}}]  # noqa: E731
    async with teaching(Engine(tiny, spoil=spoil)) as teacher:
        taught = await teacher.score(PROMPT, RESPONSE)
    assert taught.logprobs[-1] is None and None not in taught.logprobs[:-1]


async def test_the_key_goes_with_each_call(tiny, monkeypatch):
    monkeypatch.setenv("TEACHERS_KEY", "secret")
    async with teaching(Engine(tiny, key="secret"), "teacher.key_env=TEACHERS_KEY") as teacher:
        assert (await teacher.score(PROMPT, RESPONSE)).logprobs
    monkeypatch.delenv("TEACHERS_KEY")
    with pytest.raises(ConfigError, match="TEACHERS_KEY"):
        make_teacher(config_for("http://127.0.0.1:9/v1", "teacher.key_env=TEACHERS_KEY"), tiny)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["algorithm.opd=hybrid_topk"], "student's likeliest"),
        (["teacher.url=''"], "needs teacher.url"),
        (["rollout.temperature=0.7"], "temperature 1 only"),
    ],
)  # fmt: skip
def test_what_a_teacher_behind_http_cannot_do_is_refused_with_the_config(keys, said):
    with pytest.raises(ConfigError, match=said):
        config_for("http://127.0.0.1:9/v1", *keys)


@pytest.mark.parametrize("url", ["nonsense", "ftp://host/v1", "http://user:pass@host/v1"])
def test_a_url_that_cannot_be_is_refused(tiny, url):
    with pytest.raises(ConfigError, match=r"teacher\.url"):
        make_teacher(config_for(url), tiny)


@pytest.mark.parametrize("keys", [["algorithm.w_opd=0"], ["teacher.kind=self"], ["teacher.kind=reference"]])
def test_a_teacher_in_the_learner_is_nobody_outside(tiny, keys):
    assert make_teacher(config_for("http://127.0.0.1:9/v1", *keys), tiny) is None


def test_a_template_without_a_place_for_the_hint_is_refused():
    with pytest.raises(ConfigError, match=r"hints.template.*\{hint\}"):
        load_config(None, ["hints.template=Look"])


async def test_what_it_said_can_be_stored(tiny):
    async with teaching(Engine(tiny), "algorithm.opd=topk_kl") as teacher:
        taught = await teacher.score(PROMPT, RESPONSE)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(taught), type=type(taught)) == taught


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_real_vllm_teaches(tiny, expected, tmp_path, monkeypatch):
    config = load_config(
        None, ["engine.dtype=float32", "engine.kv_cache_gib=0.25", "model.max_length=64", "rollout.max_tokens=8"]
    )
    server = VLLMServer(config, model=tiny, folder=tmp_path)
    await server.start()
    monkeypatch.setenv("TEACHERS_KEY", server.key)
    given = (f"teacher.model={tiny}", "teacher.key_env=TEACHERS_KEY", "algorithm.opd=topk_kl", "algorithm.opd_k=3")
    teacher = make_teacher(config_for(f"{server.url}/v1", *given), tiny)
    try:
        await teacher.start()
        taught = await teacher.score(PROMPT, RESPONSE)
        with pytest.raises(EngineError, match="400"):
            await teacher.score(PROMPT * 13, RESPONSE)  # longer than its context
        greedy = make_teacher(
            config_for(f"{server.url}/v1", *given, "algorithm.opd=topk_kl", "algorithm.opd_k=21"), tiny
        )
        with pytest.raises(UsageError, match="log-probs"):
            await greedy.start()
        await greedy.close()
    finally:
        await teacher.close()
        await server.stop()
    assert taught.logprobs == pytest.approx([float(expected[t, id]) for t, id in enumerate(RESPONSE)], abs=1e-4)
    assert [list(ids) for ids in taught.top_ids] == expected.topk(3).indices.tolist()
    assert torch.allclose(torch.tensor(taught.top, dtype=torch.float64), expected.topk(3).values, atol=1e-4)
