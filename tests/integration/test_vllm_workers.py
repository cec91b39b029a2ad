"""Worker processes that ask a real vLLM server themselves, and what is left of it when one of its processes is killed."""

import subprocess
import sys
import time

import psutil
import pytest

from agentgym.config import load_config
from agentgym.models import resolve_model
from agentgym.policies.vllm import VLLMPolicy
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Sampling
from tests.fakes import EchoEnv, word_task

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

START = """
import asyncio, sys, time
from pathlib import Path
from agentgym.config import load_config
from agentgym.models import resolve_model
from agentgym.policies.vllm_server import VLLMServer
config = load_config(None, ["engine.dtype=float32", "engine.kv_cache_gib=0.25"])
server = VLLMServer(config, model=resolve_model("tiny"), folder=Path(sys.argv[1]))
asyncio.run(server.start())
print("up", flush=True)
time.sleep(1000)
"""


def config_of(*more):
    return load_config(None, ["engine.dtype=float32", "engine.kv_cache_gib=0.25", "engine.max_num_seqs=16", *more])


async def test_episodes_in_two_workers_ask_one_server(tmp_path):
    config = config_of("rollout.workers=2", "rollout.retries=0")
    model = resolve_model("tiny")
    policy = VLLMPolicy(config, model=model, folder=tmp_path)
    assert policy.address is None
    await policy.start()
    try:
        sampling = Sampling(max_tokens=12)
        tasks = [word_task("ab"[index % 2], index) for index in range(16)]
        requests = [
            EpisodeRequest(id=task.id, group_id="", task=task, seed=index, sampling=sampling)
            for index, task in enumerate(tasks)
        ]
        async with RolloutPool(policy, config, lambda task: EchoEnv(turns=2)) as pool:
            assert pool.executor.stats()["workers"] == 2
            first = {made.id: made async for made in pool.episodes(requests)}
            await policy.update_weights(model, 1)
            second = {made.id: made async for made in pool.episodes(requests)}
        here = {
            made.id: made
            async for made in RolloutPool(policy, config_of(), lambda task: EchoEnv(turns=2)).episodes(requests)
        }
    finally:
        await policy.close()
    for version, found in ((0, first), (1, second), (1, here)):
        assert {made.status for made in found.values()} == {"completed"}
        completions = [turn.completion for made in found.values() for turn in made.turns]
        assert len(completions) == 32
        assert {number for completion in completions for number in completion.versions} == {version}
    for made in here.values():  # the same seeds and weights: the same tokens, wherever the episode runs
        for there in (first[made.id], second[made.id]):
            assert [turn.completion.ids for turn in there.turns] == [turn.completion.ids for turn in made.turns]


def role(processes):
    """The processes of a server by what they do; the first two in the tree are its supervisors."""
    names = ["supervisor", "second supervisor", "API server"]
    found = dict(zip(names, processes, strict=False))
    for process in processes[3:]:
        name = process.name()
        if name.startswith("VLLM::"):
            found["engine" if "Eng" in name else "worker"] = process
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "victim",
    [
        "supervisor",
        pytest.param("second supervisor", marks=SLOW),
        pytest.param("API server", marks=SLOW),
        pytest.param("engine", marks=SLOW),
        pytest.param("worker", marks=SLOW),
        pytest.param("owner", marks=SLOW),
    ],
)
def test_whichever_process_is_killed_nothing_is_left(victim, tmp_path):
    command = [sys.executable, "-c", START, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout.readline() == "up\n"
            everything = psutil.Process(owner.pid).children(recursive=True)
            chosen = role(everything) | {"owner": psutil.Process(owner.pid)}
            if victim not in chosen:
                pytest.skip(f"this build of vLLM has no process for its {victim}")
            chosen[victim].kill()
            deadline = time.monotonic() + 10
            alive = everything
            while alive and time.monotonic() < deadline:
                time.sleep(0.1)
                alive = [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
            assert alive == []
        finally:
            owner.kill()
