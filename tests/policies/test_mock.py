"""The mock policy server: the shapes of a real one, latency and faults to order, and counters that are right."""

import asyncio
import shutil
import subprocess
import sys
import time

import aiohttp
import pytest

from agentgym.config import Config
from agentgym.errors import EngineError, UsageError
from agentgym.models import resolve_model
from agentgym.policies.mock import CHAT, COMPLETE, GENERATE, MockPolicyServer
from agentgym.policies.vllm import VLLMPolicy
from agentgym.policy import Session
from agentgym.types import Prompt, Sampling


async def post(server, path, body=None, **headers):
    async with aiohttp.ClientSession() as http, http.post(server.url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def generate(server, **params):
    status, answer = await post(server, GENERATE, {"token_ids": [1, 2, 3], "sampling_params": params})
    assert status == 200
    return answer["choices"][0]


async def test_the_same_seed_samples_the_same_tokens():
    async with MockPolicyServer() as server, MockPolicyServer(jitter=0.5, latency_s=0.01) as other:
        first = await generate(server, seed=1, max_tokens=40)
        await generate(server, max_tokens=4)
        assert await generate(server, seed=1, max_tokens=40) == first == await generate(other, seed=1, max_tokens=40)
        assert (await generate(server, seed=2, max_tokens=40))["token_ids"] != first["token_ids"]
        greedy = [await generate(server, temperature=0, seed=seed, max_tokens=40) for seed in (1, 2)]
        assert greedy[0] == greedy[1]
        free = [await generate(server, max_tokens=40) for _ in range(2)]
        assert free[0] != free[1]


async def test_answers_end_by_length_or_with_a_stop_token():
    async with MockPolicyServer(length=8) as server:
        whole = await generate(server, seed=1, max_tokens=20, stop_token_ids=[7])
        assert (len(whole["token_ids"]), whole["token_ids"][-1], whole["finish_reason"]) == (8, 7, "stop")
        short = await generate(server, seed=1, max_tokens=5, stop_token_ids=[7])
        assert (short["token_ids"], short["finish_reason"]) == (whole["token_ids"][:5], "length")
        assert len(short["logprobs"]["content"]) == 5
        assert all(entry["logprob"] <= 0 for entry in short["logprobs"]["content"])
        assert short["weight_versions"] == [{"version": "0", "start": 0, "end": 5}]


async def test_an_answer_to_order():
    async with MockPolicyServer(answer=lambda prompt, params, rng: [*prompt, 9]) as server:
        assert (await generate(server, max_tokens=20))["token_ids"] == [1, 2, 3, 9]


async def test_openai_endpoints_carry_ids_and_logprobs():
    async with MockPolicyServer(length=6) as server:
        asked = {"prompt": "hi", "max_tokens": 9, "seed": 1, "logprobs": 0, "return_token_ids": True}
        _, text = await post(server, COMPLETE, asked)
        choice = text["choices"][0]
        assert choice["prompt_token_ids"] == [104, 105]
        assert choice["text"] == "".join(map(chr, choice["token_ids"])) == "".join(choice["logprobs"]["tokens"])
        assert len(choice["logprobs"]["token_logprobs"]) == 6
        assert text["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}
        _, by_ids = await post(server, COMPLETE, {**asked, "prompt": [104, 105]})
        assert by_ids["choices"] == text["choices"]

        messages = [{"role": "user", "content": "hi"}]
        asked = {"model": "m", "messages": messages, "max_tokens": 9, "logprobs": True, "return_token_ids": True}
        _, chat = await post(server, CHAT, asked)
        choice = chat["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "".join(map(chr, choice["token_ids"]))}
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == list(choice["message"]["content"])
        assert (chat["model"], bytes(chat["prompt_token_ids"])) == ("m", b"user: hi\n")
        _, plain = await post(server, CHAT, {"messages": messages})
        assert "prompt_token_ids" not in plain
        assert plain["choices"][0]["logprobs"] is None
        async with aiohttp.ClientSession() as http, http.get(server.url + "/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "mock"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (GENERATE, {"token_ids": []}, 400),
        (GENERATE, {"token_ids": [1, -1]}, 400),
        (GENERATE, {"token_ids": "text"}, 400),
        (GENERATE, [1], 400),
        (CHAT, {"messages": [{"content": "x"}]}, 400),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "stream": True}, 400),
        ("/update_weight_version", {}, 400),
        ("/pause?mode=abort", None, 400),
        ("/start_weight_update", None, 500),
        ("/update_weights", {"update_info": {}}, 500),
        ("/finish_weight_update", {}, 500),
        ("/nowhere", None, 404),
    ],
)
async def test_what_it_refuses(path, body, status):
    async with MockPolicyServer() as server:
        found, answer = await post(server, path, body)
        assert (found, answer["error"]["code"]) == (status, status)
        assert await generate(server, seed=1)


async def test_the_key_is_asked_for_everywhere_but_at_health():
    async with MockPolicyServer(key="secret") as server, aiohttp.ClientSession() as http:
        for path, status in (("/health", 200), ("/v1/models", 401), ("/counters", 401)):
            async with http.get(server.url + path) as response:
                assert (path, response.status) == (path, status)
        assert (await post(server, "/resume", Authorization="Bearer secret"))[0] == 200
        async with http.post(server.url + "/resume", headers={"Authorization": "Bearer wrong"}) as response:
            assert response.status == 401
        assert server.counters["refused"] == 3


async def test_latency_is_fixed_plus_per_token():
    async with MockPolicyServer(latency_s=0.1, token_s=0.02, length=10) as server:
        began = time.monotonic()
        await asyncio.gather(*(generate(server, seed=seed, max_tokens=10) for seed in range(20)))
        assert 0.3 <= time.monotonic() - began < 2
        assert server.most_in_flight == 20
        assert server.in_flight == 0
        assert server.asked == {GENERATE: 20}


async def test_shares_of_faults_are_drawn_by_the_seed():
    async def met(seed):
        async with MockPolicyServer(faults={"500": 0.3, "malformed": 0.2}, seed=seed, length=1) as server:
            found = []
            async with aiohttp.ClientSession() as http:
                for _ in range(100):
                    async with http.post(server.url + GENERATE, json={"token_ids": [1]}) as response:
                        found.append((response.status, await response.read() == b'{"choices": ['))
            return found, server.met

    first, again, other = await met(1), await met(1), await met(2)
    assert first == again != other
    assert 15 <= first[1]["500"] <= 45
    assert 8 <= first[1]["malformed"] <= 35


def test_an_unknown_fault_answers_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'drop'"):
        MockPolicyServer(faults={"drp": 0.5})
    with pytest.raises(UsageError, match="did you mean 'hang'"):
        MockPolicyServer().plan("hangs")


async def test_what_hangs_and_is_given_up_counts_as_aborted():
    async with MockPolicyServer() as server:
        server.plan("hang", "hang", "ok")
        asked = [asyncio.create_task(generate(server)) for _ in range(2)]
        await asyncio.sleep(0.3)
        assert server.in_flight == 2
        asked[0].cancel()
        await asyncio.sleep(0.3)
        assert (server.in_flight, server.aborted) == (1, 1)
        assert (await generate(server, seed=1))["token_ids"]
        asked[1].cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    assert server.in_flight == 0


async def test_a_taken_port_is_an_error_of_one_line():
    async with MockPolicyServer() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            await MockPolicyServer(port=port).start()


async def test_tokens_before_and_after_a_pause_have_their_own_versions():
    async with MockPolicyServer(token_s=0.02, length=20) as server:
        asked = asyncio.create_task(generate(server, max_tokens=20, seed=1))
        await asyncio.sleep(0.2)
        await post(server, "/pause?mode=keep")
        waiting = asyncio.create_task(generate(server, max_tokens=20, seed=1))
        await asyncio.sleep(0.6)
        assert not asked.done()
        for path, body in (
            ("/start_weight_update", None),
            ("/update_weights", {"update_info": {"files": ["a"]}}),
            ("/finish_weight_update", {"weight_version": "7"}),
            ("/resume", None),
        ):
            assert (await post(server, path, body))[0] == 200
        first, second = (await asked)["weight_versions"]
        assert (first["version"], first["start"], second["version"], second["end"]) == ("0", 0, "7", 20)
        assert first["end"] == second["start"]
        assert 2 <= first["end"] <= 18
        assert (await waiting)["weight_versions"] == [{"version": "7", "start": 0, "end": 20}]
        assert (await waiting)["token_ids"] == (await asked)["token_ids"]
        assert server.updates == [{"files": ["a"]}]


async def test_it_stands_in_for_the_server_of_a_vllm_policy(tmp_path):
    model = resolve_model("tiny")
    shutil.copy(model / "model.safetensors", tmp_path)
    policy = VLLMPolicy(Config(), model=model, folder=tmp_path, version=3)
    policy.server = server = MockPolicyServer(key="secret", token_s=0.01, length=40)
    await policy.start()
    try:
        ask = asyncio.create_task(
            policy(Prompt(ids=(1, 2)), session=Session("s"), sampling=Sampling(max_tokens=40, seed=1))
        )
        await asyncio.sleep(0.2)
        await policy.update_weights(tmp_path, 4)
        made = await ask
        assert (made.versions[0], made.versions[-1], made.mixed, len(made.ids)) == (3, 4, True, 40)
        assert server.updates[0]["files"] == [str(tmp_path / "model.safetensors")]
        server.plan("500", path="/update_weights")
        with pytest.raises(EngineError, match="/update_weights: 500"):
            await policy.update_weights(tmp_path, 5)
        after = await policy(Prompt(ids=(1, 2)), session=Session("s"), sampling=Sampling(max_tokens=4))
        assert set(after.versions) == {policy.version} == {4}
    finally:
        await policy.close()
    assert not server.running
    assert policy.address is None


def test_the_command_prints_its_url():
    command = [sys.executable, "-m", "agentgym.policies.mock", "--port", "0", "--fault", "500=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()

            async def ask():
                async with aiohttp.ClientSession() as http:
                    async with http.post(url + GENERATE, json={"token_ids": [1]}) as response:
                        failed = response.status
                    async with http.get(url + "/counters") as response:
                        return failed, (await response.json())["met"]

            assert asyncio.run(ask()) == (500, {"500": 1})
        finally:
            process.kill()
