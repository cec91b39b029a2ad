"""The client half of a served policy, against a real server that fails in every way to order."""

import asyncio
import io
import pickle
import socket
import threading
import time

import pytest

from agentgym.config import Config, load_config
from agentgym.env import Env
from agentgym.errors import EngineError
from agentgym.models import resolve_model
from agentgym.policies import serving
from agentgym.policies.http import HTTPPolicy
from agentgym.policies.mock import GENERATE, MockPolicyServer
from agentgym.policies.template import ChatTemplate
from agentgym.policy import ContextOverflow, Session
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Message, Observation, Prompt, Sampling, StepResult, Task
from agentgym.worker import make_policy


@pytest.fixture(scope="module")
def model():
    return resolve_model("tiny")


@pytest.fixture(scope="module")
def template(model):
    return ChatTemplate(model)


def settings(timeout_s=10.0):
    config = Config()
    config.engine.request_timeout_s = timeout_s
    return config


def ask(policy, content="Hello", session=None, **sampling):
    prompt = Prompt(messages=(Message(role="user", content=content),))
    return policy(
        prompt, session=session or Session("s"), sampling=Sampling(**{"max_tokens": 16, "seed": 1, **sampling})
    )


async def until(holds, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_completion_is_what_the_engine_sampled(model):
    async with MockPolicyServer(key="secret", version=5) as server:
        policy = HTTPPolicy(settings(), model=model, url=server.url + "/", key="secret")
        session = Session("s")
        first = await ask(policy, session=session, temperature=0.7)
        assert len(first.ids) == len(first.logprobs) == len(first.versions) > 0
        assert set(first.versions) == {5}
        assert first.temperature == 0.7
        assert first.message == policy.template.decode_response(first.ids)
        assert session.ids == first.prompt_ids + first.ids
        assert (await ask(policy)).ids == first.ids != (await ask(policy, seed=2)).ids
        await policy.close()
        await policy.close()
        with pytest.raises(EngineError, match="was closed"):
            await ask(policy)


async def test_the_wrong_key_is_an_engine_error_that_does_not_show_it(template):
    async with MockPolicyServer(key="right-one") as server:
        policy = HTTPPolicy(settings(), template=template, url=server.url, key="wrong-one")
        with pytest.raises(EngineError, match="401") as caught:
            await ask(policy)
        assert "wrong-one" not in str(caught.value)
        assert server.asked[GENERATE] == 1
        await policy.close()


def test_the_key_is_in_no_text(template):
    from rich.console import Console
    from rich.pretty import pretty_repr

    policy = HTTPPolicy(settings(), template=template, url="http://127.0.0.1:1", key="sesame")
    for thing in (policy, policy.address):
        assert "sesame" not in repr(thing) + str(thing) + pretty_repr(thing)
    console = Console(file=io.StringIO())
    with console.capture() as captured:
        console.print(policy.address)
    assert "sesame" not in captured.get()
    assert policy.address.options["key"] == "sesame"


async def test_an_address_makes_the_same_policy_elsewhere_without_the_model_folder(template):
    async with MockPolicyServer(key="secret") as server:
        policy = HTTPPolicy(settings(), template=template, url=server.url, key="secret")
        address = pickle.loads(pickle.dumps(policy.address))
        assert not any("model" in name for name in address.options)
        other = make_policy(address)
        mine, theirs = await ask(policy), await ask(other)
        assert (theirs.prompt_ids, theirs.ids, theirs.message) == (mine.prompt_ids, mine.ids, mine.message)
        await policy.close()
        await other.close()


def test_neither_model_nor_template_is_refused():
    with pytest.raises(TypeError, match="model folder or its template"):
        HTTPPolicy(settings(), url="http://127.0.0.1:1")


@pytest.mark.parametrize("fault", ["503", "drop"])
async def test_what_nobody_can_have_answered_is_tried_again(template, fault):
    async with MockPolicyServer() as server:
        policy = HTTPPolicy(settings(), template=template, url=server.url)
        expected = await ask(policy)
        server.plan(fault, fault)
        assert (await ask(policy)).ids == expected.ids
        assert server.asked[GENERATE] == 4
        server.plan(fault, fault, fault)
        with pytest.raises(EngineError, match=GENERATE):
            await ask(policy)
        assert server.asked[GENERATE] == 7
        assert (await ask(policy)).ids == expected.ids
        await policy.close()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("500", "500 .*the engine failed"),
        ("cut", "payload|Payload|body"),
        ("malformed", "not understood"),
        ("nonsense", "not understood"),
    ],
)
async def test_what_was_answered_badly_is_an_engine_error_at_once(template, fault, says):
    async with MockPolicyServer() as server:
        policy = HTTPPolicy(settings(), template=template, url=server.url)
        session = Session("s")
        server.plan(fault)
        with pytest.raises(EngineError, match=says):
            await ask(policy, session=session)
        assert server.asked[GENERATE] == 1
        assert session.ids == ()
        assert (await ask(policy)).ids
        await policy.close()


@pytest.mark.parametrize("fault", ["hang", "slow"])
async def test_time_outs_are_engine_errors_and_count_as_aborted(template, fault):
    async with MockPolicyServer(slow_s=30, faults={fault: 1}) as server:
        policy = HTTPPolicy(settings(0.3), template=template, url=server.url)
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"engine\.request_timeout_s=0\.3"):
            await ask(policy)
        assert time.monotonic() - began < 2
        await until(lambda: server.aborted == 1 and server.in_flight == 0)
        await policy.close()


async def test_all_tries_together_have_one_deadline(template):
    async with MockPolicyServer(faults={"503": 1}) as server:
        policy = HTTPPolicy(settings(0.3), template=template, url=server.url)
        with pytest.raises(EngineError, match="request_timeout_s"):
            await ask(policy)
        assert server.asked[GENERATE] == 2
        await policy.close()


async def test_a_slow_body_arrives_whole(template):
    async with MockPolicyServer(slow_s=0.5) as server:
        policy = HTTPPolicy(settings(), template=template, url=server.url)
        fast = await ask(policy)
        server.plan("slow")
        slow = await ask(policy)
        assert slow.ids == fast.ids
        assert slow.seconds > 0.4
        await policy.close()


async def test_a_server_that_is_not_there_or_goes_away(template):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        policy = HTTPPolicy(settings(), template=template, url=f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(EngineError, match="onnect"):
            await ask(policy)
        await policy.close()
    server = MockPolicyServer(faults={"hang": 1})
    await server.start()
    policy = HTTPPolicy(settings(), template=template, url=server.url)
    asked = asyncio.create_task(ask(policy))
    await until(lambda: server.in_flight == 1)
    await server.stop()
    with pytest.raises(EngineError):
        await asked
    await policy.close()


async def test_a_server_that_comes_back_is_found(template):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    policy = HTTPPolicy(settings(), template=template, url=f"http://127.0.0.1:{port}")
    asked = asyncio.create_task(ask(policy))
    await asyncio.sleep(0.05)
    async with MockPolicyServer(port=port):
        assert (await asked).ids
        await policy.close()


async def test_cancelling_hangs_up_at_once_and_is_no_error_of_the_engine(template):
    async with MockPolicyServer(token_s=1.0, length=30) as server:
        policy = HTTPPolicy(settings(), template=template, url=server.url)
        asked = [asyncio.create_task(ask(policy, max_tokens=30, seed=seed)) for seed in range(20)]
        await until(lambda: server.in_flight == 20)
        for task in asked:
            task.cancel()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        await until(lambda: server.aborted == 20 and server.in_flight == 0)
        await policy.close()


async def test_a_thousand_requests_are_in_flight_at_once(template):
    async with MockPolicyServer(latency_s=3.0, length=4) as server:
        policy = HTTPPolicy(settings(60.0), template=template, url=server.url)
        asked = [asyncio.create_task(ask(policy, seed=seed)) for seed in range(1000)]
        made = await asyncio.gather(*asked)
        assert server.most_in_flight == 1000
        assert server.asked[GENERATE] == 1000
        assert len({completion.ids for completion in made}) > 900
        await policy.close()


async def test_a_prompt_too_long_is_not_sent(template):
    config = settings()
    config.model.max_length = 64
    async with MockPolicyServer() as server:
        policy = HTTPPolicy(config, template=template, url=server.url)
        with pytest.raises(ContextOverflow):
            await policy(Prompt(ids=(5,) * 64), session=Session("s"), sampling=Sampling())
        made = await policy(Prompt(ids=(5,) * 61), session=Session("s"), sampling=Sampling(max_tokens=50))
        assert len(made.ids) <= 3
        assert server.asked[GENERATE] == 1
        await policy.close()


async def test_only_long_prompts_are_tokenised_in_a_thread(model):
    threads = []

    class Watched(ChatTemplate):
        def encode_prompt(self, session, prompt):
            threads.append(threading.current_thread() is threading.main_thread())
            return super().encode_prompt(session, prompt)[:100]

    async with MockPolicyServer() as server:
        policy = HTTPPolicy(settings(), template=Watched(model), url=server.url)
        short, long = await ask(policy, "x " * 100), await ask(policy, "x " * serving.LONG)
        assert threads == [True, False]
        assert len(short.prompt_ids) <= len(long.prompt_ids) == 100
        await policy.close()


class Say(Env):
    """One turn in which anything may be said."""

    async def reset(self, *, seed=None, options=None):
        return Observation(messages=(Message(role="user", content=options["task"].instruction),)), {}

    async def step(self, action):
        return StepResult(Observation(messages=()), float(bool(action.content)), True, False, {})

    async def close(self):
        pass


async def test_workers_ask_by_themselves_and_one_in_five_faults_costs_nothing(template):
    config = load_config(None, ["rollout.workers=2", "rollout.concurrency=64", "rollout.retries=8"])
    async with MockPolicyServer(key="secret", latency_s=0.05, faults={"500": 0.1, "drop": 0.1}) as server:
        policy = HTTPPolicy(config, template=template, url=server.url, key="secret")
        requests = [
            EpisodeRequest(
                id=str(index), group_id="", task=Task(id=str(index), env="say", instruction=f"Say {index}."),
                seed=index, sampling=Sampling(max_tokens=8),
            )
            for index in range(64)
        ]  # fmt: skip
        async with RolloutPool(policy, config, lambda task: Say()) as pool:
            ended = [trajectory async for trajectory in pool.episodes(requests)]
            direct = await policy(
                Prompt(messages=ended[0].messages[:1]),
                session=Session("s"),
                sampling=Sampling(max_tokens=8, seed=None),
            )
        assert {trajectory.status for trajectory in ended} == {"completed"}
        assert len(ended) == 64
        assert ended[0].turns[0].completion.prompt_ids == direct.prompt_ids
        assert server.met["500"] > 0
        assert server.refused == 0
        await policy.close()
