"""Streams of tokens: the same as what `sample` gives, piece by piece, whoever hangs up."""

import asyncio
from contextlib import aclosing

import pytest
import pytest_asyncio

from agentgym.config import Config
from agentgym.errors import EngineError
from agentgym.models import make_tiny, resolve_model
from agentgym.policies.http import HTTPPolicy
from agentgym.policies.mock import MockPolicyServer
from agentgym.types import Sampling

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
BACKENDS = ["transformers", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.slow])]
PROMPT = (1, 30, 40, 50)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def policy(request, tmp_path_factory):
    config = Config()
    config.engine.dtype, config.engine.max_num_seqs, config.engine.kv_cache_gib = "float32", 16, 0.25
    config.model.max_length = 512
    if request.param == "vllm":
        from agentgym.policies.vllm import VLLMPolicy as Chosen
    else:
        from agentgym.policies.transformers import TransformersPolicy as Chosen
    made = Chosen(config, model=resolve_model("tiny"), folder=tmp_path_factory.mktemp(request.param))
    await made.start()
    yield made
    await made.close()


async def gathered(policy, sampling, prompt=PROMPT):
    async with aclosing(policy.stream(prompt, sampling)) as pieces:
        return [piece async for piece in pieces]


def joined(pieces, name):
    return tuple(item for piece in pieces for item in getattr(piece, name))


async def test_a_stream_is_what_sample_gives(policy):
    sampling = Sampling(max_tokens=12, seed=3)
    pieces, whole = await gathered(policy, sampling), await policy.sample(PROMPT, sampling)
    assert joined(pieces, "ids") == whole.ids
    assert joined(pieces, "logprobs") == pytest.approx(whole.logprobs, abs=1e-4)
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == whole.finish_reason
    assert pieces[-1].versions == whole.versions
    assert len(pieces) >= len(whole.ids) / 2  # as they come, not all at the end


async def test_the_likeliest_tokens_are_told(policy):
    pieces = await gathered(policy, Sampling(max_tokens=5, temperature=0, top_logprobs=3))
    ids, logprobs, top = (joined(pieces, name) for name in ("ids", "logprobs", "top"))
    assert [len(found) for found in top] == [3] * len(ids)
    assert [found[0][0] for found in top] == list(ids)  # greedy takes the likeliest
    assert [found[0][1] for found in top] == pytest.approx(logprobs, abs=1e-5)
    assert all(list(found) == sorted(found, key=lambda pair: -pair[1]) for found in top)


async def test_penalties_forbid_repetition(policy):
    plain = await policy.sample(PROMPT, Sampling(max_tokens=60, temperature=0))
    varied = await policy.sample(
        PROMPT, Sampling(max_tokens=60, temperature=0, presence_penalty=2, frequency_penalty=2)
    )
    assert len(set(varied.ids)) / len(varied.ids) > len(set(plain.ids)) / len(plain.ids)


async def test_a_stop_string_ends_a_stream(policy):
    text = policy.template.decode_response(
        joined(await gathered(policy, Sampling(max_tokens=40, temperature=0)), "ids")
    )
    stop = text.content[10:12]
    pieces = await gathered(policy, Sampling(max_tokens=40, temperature=0, stop=(stop,)))
    said = policy.template.decode_response(joined(pieces, "ids")).content
    assert stop in said and text.content.startswith(said)
    assert pieces[-1].finish_reason == "stop"


async def test_hanging_up_frees_the_engine(policy):
    for _ in range(40):  # more than it can decode at once
        async with aclosing(policy.stream(PROMPT, Sampling(max_tokens=500, seed=1))) as pieces:
            await anext(pieces)
    async with asyncio.timeout(10):
        assert len((await policy.sample(PROMPT, Sampling(max_tokens=3))).ids) >= 1


async def test_a_stream_survives_an_update_and_knows_its_versions(policy, tmp_path):
    make_tiny(tmp_path, seed=7)
    version = policy.version + 1
    sampling = Sampling(max_tokens=400, seed=5)
    pieces = []
    async with aclosing(policy.stream(PROMPT, sampling)) as stream:
        async for piece in stream:
            pieces.append(piece)
            if len(pieces) == 5:
                update = asyncio.create_task(policy.update_weights(tmp_path, version))
    await update
    versions = pieces[-1].versions
    assert len(versions) == len(joined(pieces, "ids"))
    assert set(versions) == {version - 1, version}
    assert list(versions) == sorted(versions)


@pytest.mark.vllm
async def test_vllm_holds_an_answer_to_a_schema(policy):
    import json

    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    sampling = Sampling(max_tokens=60, json_schema=schema)
    if not policy.structured:
        with pytest.raises(EngineError, match="schema"):
            await gathered(policy, sampling)
        return
    said = policy.template.decode_response(joined(await gathered(policy, sampling), "ids")).content
    assert json.loads(said)["n"] in (1, 2)


async def test_what_a_server_does_to_a_stream():
    config = Config()
    config.engine.request_timeout_s = 2
    async with MockPolicyServer(length=20, token_s=0.002) as server:
        asked = HTTPPolicy(config, url=server.url, model=resolve_model("tiny"))
        sampling = Sampling(max_tokens=20, seed=1, top_logprobs=2)
        try:
            server.plan("503", "drop", "ok")
            pieces = await gathered(asked, sampling)
            assert [len(piece.ids) for piece in pieces] == [1] * 20
            assert pieces[-1].versions == (0,) * 20 and len(pieces[0].top[0]) == 2
            for fault in ("500", "cut", "hang", "malformed", "nonsense"):
                server.plan(fault)
                with pytest.raises(EngineError):
                    await gathered(asked, sampling)
            async with aclosing(asked.stream(PROMPT, Sampling(max_tokens=20, seed=1))) as stream:
                await anext(stream)
            for _ in range(200):
                await asyncio.sleep(0.01)
                if server.aborted:
                    break
            assert server.aborted == 2 and not server.in_flight  # the one that hung, and this one
        finally:
            await asked.close()
