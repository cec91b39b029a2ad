"""The serving contract, the same for each backend, on a tiny model in float32."""

import asyncio
import os
from functools import cache
from itertools import pairwise

import msgspec
import psutil
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from agentgym.config import Config
from agentgym.errors import EngineError, UsageError
from agentgym.models import make_tiny, resolve_model
from agentgym.policies.transformers import TransformersPolicy
from agentgym.policy import ContextOverflow, Session
from agentgym.types import Message, Prompt, Sampling

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

BACKENDS = ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)]
only_transformers = pytest.mark.parametrize("policy", BACKENDS[:1], indirect=True)
only_vllm = pytest.mark.parametrize("policy", BACKENDS[1:], indirect=True)
MAX_LENGTH = 512


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Weights of one shape and three seeds."""
    made = [resolve_model("tiny")]
    for seed in (1, 2):
        made.append(tmp_path_factory.mktemp(f"seed{seed}"))
        make_tiny(made[-1], seed=seed)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def policy(request, folders, tmp_path_factory):
    config = Config()
    config.engine.dtype, config.engine.max_num_seqs, config.engine.kv_cache_gib = "float32", 16, 0.25
    config.model.max_length = MAX_LENGTH
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "vllm":
        from agentgym.policies.vllm import VLLMPolicy as Chosen
    else:
        Chosen = TransformersPolicy
    made = Chosen(config, model=folders[0], folder=folder)
    await made.start()
    made.served = {0: folders[0]}  # folder by version
    yield made
    group = engine_group(made)
    await made.close()
    assert [process for process in processes(group) if process.status() != psutil.STATUS_ZOMBIE] == []


def engine_group(policy):
    if isinstance(policy, TransformersPolicy):
        return None
    (leader,) = psutil.Process(policy.server._process.pid).children()
    return leader.pid


def processes(group):
    found = []
    for process in psutil.process_iter() if group else ():
        try:
            if os.getpgid(process.pid) == group:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


async def serve(policy, folder):
    version = policy.version + 1
    policy.served[version] = folder
    await policy.update_weights(folder, version)
    return version


def ask(policy, content="Hello", session=None, **sampling):
    prompt = Prompt(messages=(Message(role="user", content=content),))
    return policy(prompt, session=session or Session("s"), sampling=Sampling(**{"max_tokens": 24, **sampling}))


@cache
def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def reference(folder, completion, sampling=None):
    """Log-probs of the completion's ids by one forward pass of transformers: temperature, then top-k."""
    ids = torch.tensor([completion.prompt_ids + completion.ids])
    with torch.no_grad():
        logits_TV = load(folder)(ids).logits[0, len(completion.prompt_ids) - 1 : -1] / completion.temperature
    if sampling and sampling.top_k:
        logits_TV[logits_TV < logits_TV.topk(sampling.top_k).values[:, -1:]] = -torch.inf
    return logits_TV.log_softmax(-1).gather(1, torch.tensor(completion.ids)[:, None])[:, 0]


def gap(policy, completion):
    """The largest |reference - served| of a completion, each token by the weights of its own version."""
    served = torch.tensor(completion.logprobs)
    references = {version: reference(policy.served[version], completion) for version in set(completion.versions)}
    expected = torch.stack([references[version][index] for index, version in enumerate(completion.versions)])
    return float((expected - served).abs().max())


async def test_a_completion_is_whole(policy):
    session = Session("s")
    completion = await ask(policy, session=session, seed=1)
    assert len(completion.ids) == len(completion.logprobs) == len(completion.versions) > 0
    assert set(completion.versions) == {policy.version}
    assert not completion.mixed
    prompt = Prompt(messages=(Message(role="user", content="Hello"),))
    assert completion.prompt_ids == policy.template.encode_prompt(Session("t"), prompt)
    assert completion.message == policy.template.decode_response(completion.ids)
    assert session.ids == completion.prompt_ids + completion.ids
    assert session.n_messages == 2
    assert completion.seconds > 0


async def test_turns_extend_one_sequence(policy):
    session = Session("s")
    messages = (Message(role="user", content="Hello"),)
    first = await policy(Prompt(messages=messages), session=session, sampling=Sampling(max_tokens=8, seed=5))
    messages += (first.message, Message(role="user", content="Go on"))
    second = await policy(Prompt(messages=messages), session=session, sampling=Sampling(max_tokens=8, seed=6))
    so_far = first.prompt_ids + first.ids
    assert second.prompt_ids[: len(so_far)] == so_far
    assert session.broken == 0


async def test_ids_are_served_as_they_are(policy):
    ids = (1, 50, 51, 52)
    completion = await policy(Prompt(ids=ids), session=Session("s"), sampling=Sampling(max_tokens=3))
    assert completion.prompt_ids == ids


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_transformers(policy, temperature):
    completion = await ask(policy, temperature=temperature, seed=2)
    assert completion.temperature == temperature
    assert gap(policy, completion) < 1e-3


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_right_after_each_update(policy, folders, temperature):
    question = "The same question, long enough to fill more than one block of the prefix cache."
    seen = []
    for folder in (folders[1], folders[2]):
        version = await serve(policy, folder)
        completion = await ask(policy, question, temperature=temperature, seed=3)
        assert set(completion.versions) == {version} == {policy.version}
        assert gap(policy, completion) < 1e-3
        seen.append(completion.ids)
    assert seen[0] != seen[1]


async def test_truncated_distributions_are_renormalised(policy):
    sampling = Sampling(top_k=5, max_tokens=24, seed=4)
    completion = await policy(Prompt(ids=(1, 60, 61)), session=Session("s"), sampling=sampling)
    expected = reference(policy.served[policy.version], completion, sampling)
    assert torch.allclose(expected, torch.tensor(completion.logprobs), atol=1e-3)


async def test_seeds_repeat_whatever_else_is_served(policy):
    alone = await ask(policy, seed=7)
    together = await asyncio.gather(*[ask(policy, seed=seed) for seed in (7, 8, 9)])
    assert together[0].ids == alone.ids
    assert together[1].ids != together[2].ids


async def test_greedy_repeats(policy):
    first, second = await ask(policy, temperature=0.0), await ask(policy, temperature=0.0)
    assert first.ids == second.ids
    assert torch.allclose(reference(policy.served[policy.version], msgspec.structs.replace(first, temperature=1.0)),
                          torch.tensor(first.logprobs), atol=1e-3)  # fmt: skip


async def test_finish_reasons_and_stop_tokens(policy):
    stop = set(policy.template.stop_ids)
    completions = await asyncio.gather(*[ask(policy, seed=seed, max_tokens=200) for seed in range(32)])
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        assert not stop & set(completion.ids[:-1])
        assert (completion.ids[-1] in stop) == (completion.finish_reason == "stop")
        assert completion.finish_reason == "stop" or len(completion.ids) == 200


async def test_stop_strings(policy):
    free = await ask(policy, seed=11, max_tokens=40)
    word = policy.template.decode_response(free.ids[5:6]).content
    stopped = await ask(policy, seed=11, max_tokens=40, stop=(word,))
    assert stopped.finish_reason == "stop"
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert word in stopped.message.content


async def test_overflow_and_the_last_places(policy):
    room = Sampling(max_tokens=100)
    with pytest.raises(ContextOverflow):
        await policy(Prompt(ids=(50,) * MAX_LENGTH), session=Session("s"), sampling=room)
    completion = await policy(Prompt(ids=(50,) * (MAX_LENGTH - 3)), session=Session("s"), sampling=room)
    assert len(completion.ids) <= 3


async def test_an_unknown_token_id_is_an_engine_error(policy):
    with pytest.raises(EngineError):
        await policy(Prompt(ids=(1, 999_999)), session=Session("s"), sampling=Sampling())
    assert (await ask(policy)).ids


async def test_updates_under_load_lose_nothing(policy, folders):
    load = [asyncio.create_task(ask(policy, f"Question {n}", seed=n, max_tokens=400)) for n in range(16)]
    for folder in (folders[1], folders[2], folders[0]):
        await asyncio.sleep(0.3)
        await serve(policy, folder)
    completions = await asyncio.gather(*load)
    for completion in completions:
        assert all(earlier <= later for earlier, later in pairwise(completion.versions))
        assert len(completion.ids) == len(completion.logprobs) == len(completion.versions)
        assert gap(policy, completion) < 1e-3  # of every token, also after a change of weights in its middle
    assert any(completion.mixed for completion in completions)


@only_transformers
async def test_a_request_made_while_others_are_taken_in_is_not_lost(policy):
    waiting, updates = policy._waiting, policy._updates
    await ask(policy, max_tokens=2)
    assert policy._waiting is waiting and policy._updates is updates, "whoever is about to put something holds the list"


async def test_many_long_prompts_at_once_keep_their_seeds(policy):
    def long(seed):
        prompt = Prompt(ids=(1, *((50 + seed + step) % 200 for step in range(400))))
        return policy(prompt, session=Session("s"), sampling=Sampling(seed=seed, max_tokens=8))

    together = await asyncio.gather(*[long(seed) for seed in range(16)])
    assert max(gap(policy, completion) for completion in together) < 1e-3
    assert (await long(15)).ids == together[15].ids


async def test_requests_begun_while_weights_change_wait_for_the_new_ones(policy, folders):
    load = [asyncio.create_task(ask(policy, seed=n, max_tokens=300)) for n in range(4)]
    await asyncio.sleep(0.1)
    update = asyncio.create_task(serve(policy, folders[1]))
    during = [asyncio.create_task(ask(policy, f"During {n}", seed=n)) for n in range(4)]
    await update
    after = await ask(policy, "After")
    assert set(after.versions) == {policy.version}
    for completion in await asyncio.gather(*load, *during):
        assert gap(policy, completion) < 1e-3


async def test_a_cancelled_update_is_whole(policy, folders):
    policy.served[policy.version + 1] = folders[2]
    update = asyncio.create_task(policy.update_weights(folders[2], policy.version + 1))
    await asyncio.sleep(0.03)
    update.cancel()
    await asyncio.gather(update, return_exceptions=True)
    for seed in range(2):
        assert gap(policy, await ask(policy, seed=seed)) < 1e-3


async def test_weights_of_another_model_leave_the_old_ones_serving(policy, folders, tmp_path):
    from safetensors.torch import load_file, save_file

    state = load_file(folders[1] / "model.safetensors")
    version = policy.version
    for name, change in (("absent", None), ("model.norm.weight", torch.zeros(3))):
        broken = {key: tensor for key, tensor in state.items() if key != "model.norm.weight"}
        save_file(broken if change is None else broken | {name: change}, tmp_path / "model.safetensors")
        with pytest.raises(UsageError, match=r"model\.norm\.weight"):
            await policy.update_weights(tmp_path, version + 1)
    (tmp_path / "model.safetensors").write_bytes((folders[1] / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(UsageError, match="cut short"):
        await policy.update_weights(tmp_path, version + 1)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no weights"):
        await policy.update_weights(tmp_path, version + 1)
    assert policy.version == version
    assert gap(policy, await ask(policy, seed=1)) < 1e-3


async def test_a_cancelled_request_frees_its_place(policy):
    tasks = [asyncio.create_task(ask(policy, seed=n, max_tokens=480)) for n in range(16)]
    await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(end, asyncio.CancelledError) for end in ends) >= 4  # the others were short
    for _ in range(50):
        if await running(policy) == 0:
            break
        await asyncio.sleep(0.05)
    assert await running(policy) == 0
    assert (await ask(policy)).ids


async def running(policy):
    """How many requests are being decoded."""
    if isinstance(policy, TransformersPolicy):
        return len(policy.batch.requests)
    async with policy.client.http.get(policy.server.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


async def test_a_completion_that_takes_too_long_is_an_engine_error(policy):
    limit, policy.config.engine.request_timeout_s = policy.config.engine.request_timeout_s, 0.1
    try:
        with pytest.raises(EngineError, match="request_timeout_s"):
            await ask(policy, temperature=0.0, max_tokens=480)
    finally:
        policy.config.engine.request_timeout_s = limit
    assert (await ask(policy)).ids


@only_vllm
async def test_without_the_cure_the_tied_head_stays_stale(policy, folders):
    gaps = []
    for refresh_head in (False, True):
        await serve(policy, folders[0])
        policy.served[policy.version + 1] = folders[2]
        await policy._post("/pause?mode=keep&clear_cache=false")
        await policy._load(folders[2], policy.version + 1, refresh_head=refresh_head)
        await policy._post("/resume")
        gaps.append(gap(policy, await ask(policy, seed=1)))
    assert gaps[0] > 0.1
    assert gaps[1] < 1e-3


@only_vllm
async def test_every_path_but_health_asks_for_the_key(policy):
    import aiohttp

    async with aiohttp.ClientSession() as http:
        for path in (
            "/weight_info",
            "/is_paused",
            "/metrics",
            "/v1/models",
            "/docs",
            "/ping",
            "/version",
            "/server_info",
        ):
            async with http.get(policy.server.url + path) as response:
                assert (path, response.status) == (path, 401)
        for path in ("/pause", "/collective_rpc", "/update_weights", "/inference/v1/generate", "/abort_requests"):
            async with http.post(policy.server.url + path, json={}) as response:
                assert (path, response.status) == (path, 401)
        wrong = {"Authorization": "Bearer wrong"}
        async with http.get(policy.server.url + "/weight_info", headers=wrong) as response:
            assert response.status == 401
        async with http.get(policy.server.url + "/health") as response:
            assert response.status == 200


@only_vllm
async def test_the_key_is_on_no_command_line(policy):
    key = policy.server.headers["Authorization"].removeprefix("Bearer ")
    lines = [" ".join(process.cmdline()) for process in processes(engine_group(policy))]
    assert lines
    assert not any(key in line for line in lines)


@only_vllm
async def test_an_idle_engine_burns_no_cores(policy):
    await ask(policy)
    await asyncio.sleep(2)
    group = processes(engine_group(policy))
    before = sum(sum(process.cpu_times()[:2]) for process in group)
    await asyncio.sleep(2)
    assert sum(sum(process.cpu_times()[:2]) for process in group) - before < 0.5
