"""The gateway before the real engines, on the tiny model: streams across updates of the weights, held answers, hanging up."""

import asyncio
import json
from contextlib import AsyncExitStack

import openai
import pytest

from agentgym.gateway.serve import served
from agentgym.models import make_tiny, resolve_model
from agentgym.registry import ENGINES
from tests.gateway.conftest import tiny_config

BACKENDS = ["transformers", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.slow])]
STREAMS, UPDATES = 6, 4


@pytest.fixture(params=BACKENDS)
async def gateway(request, tmp_path):
    config = tiny_config()
    policy = ENGINES.make(request.param, config=config, model=resolve_model("tiny"), folder=tmp_path)
    await policy.start()
    try:
        async with AsyncExitStack() as stack:
            made, url = await stack.enter_async_context(served(policy, config, tmp_path / "store.sqlite"))
            client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=100)
            yield made, await stack.enter_async_context(client)
    finally:
        await policy.close()


@pytest.mark.timeout(240)
async def test_weights_change_under_load_and_nothing_is_refused_or_cut(gateway, tmp_path):
    gateway, client = gateway
    folders = [tmp_path / f"weights{number}" for number in range(UPDATES)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        make_tiny(folder, seed=number + 1)
    begun, done = asyncio.Event(), asyncio.Event()

    async def converse(number):
        messages, turns = [{"role": "user", "content": f"Hello from {number}"}], 0
        while not done.is_set() or not turns:
            stream = await client.chat.completions.create(
                model="tiny", messages=messages, stream=True, max_tokens=24, logprobs=True, seed=number
            )
            text, finish = "", None
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if text:
                    begun.set()
                finish = chunk.choices[0].finish_reason or finish
            assert finish in ("stop", "length")
            messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "More"}][-8:]
            turns += 1
        return turns

    async def update():
        await begun.wait()
        for version, folder in enumerate(folders, 1):
            await asyncio.sleep(0.2)
            await gateway.policy.update_weights(folder, version)
        done.set()

    _, *turns = await asyncio.gather(update(), *(converse(number) for number in range(STREAMS)))
    kept = [turn for turn, *_ in gateway.ledger.recent(10_000)]
    assert len(kept) == sum(turns) and all(turn.state == "complete" for turn in kept)
    for turn in kept:
        completion = turn.completion
        assert len(completion.ids) == len(completion.logprobs) == len(completion.versions) > 0
        assert list(completion.versions) == sorted(completion.versions) and -1 not in completion.versions
    assert {version for turn in kept for version in turn.completion.versions} >= {0, UPDATES - 1}
    assert len({turn.taken.session for turn in kept}) == STREAMS and {turn.taken.kind for turn in kept} == {"main"}
    await _hanging_up_frees(client, gateway)
    await _held(client, gateway)


async def _hanging_up_frees(client, gateway):
    streams = [
        await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": f"Long {number}"}], stream=True, max_tokens=900
        )
        for number in range(3)
    ]
    for stream in streams:
        await anext(aiter(stream))
        await stream.close()
    for _ in range(200):
        await asyncio.sleep(0.05)
        if gateway.ledger.fates().get("rejected: aborted") == 3:
            return
    states = [turn.state for turn, *_ in gateway.ledger.recent(3)]
    raise AssertionError(states)


async def _held(client, gateway):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    asked = {
        "model": "tiny", "messages": [{"role": "user", "content": "A number"}], "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }  # fmt: skip
    if gateway.policy.structured:
        made = await client.chat.completions.create(**asked)
        assert json.loads(made.choices[0].message.content)["n"] in (1, 2)
    else:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**asked)
