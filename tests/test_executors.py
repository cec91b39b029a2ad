"""Episodes in worker processes: whatever happens to those, each request comes out as one trajectory."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentgym
from agentgym.config import Config, load_config
from agentgym.environments.adapter import FromGymnasium
from agentgym.errors import InfrastructureError, UsageError
from agentgym.executors import InlineExecutor, LocalExecutor
from agentgym.policy import PolicyAddress
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Sampling, Task, Trajectory
from tests.fakes import DeafEnv, Parrot, StubbornEnv, TokenPolicy, word_task

pytestmark = pytest.mark.timeout(90)


def small(*overrides: str) -> Config:
    base = ["rollout.workers=1", "rollout.worker_timeout_s=20", "rollout.retries=1", "rollout.close_timeout_s=2"]
    return load_config(None, [*base, *overrides])


def request(word: str = "yes", index: int = 0) -> EpisodeRequest:
    return EpisodeRequest(id=f"e{index}", group_id="g", task=word_task(word, index), seed=index, sampling=Sampling())


def stubborn(task: Task) -> StubbornEnv:
    return StubbornEnv()


def workers() -> list[psutil.Process]:
    """The processes that run episodes: children of this process's supervisors."""
    children = psutil.Process().children()
    return [grandchild for child in children for grandchild in child.children() if "spawn_main" in str(child.cmdline())]


def gone(process: psutil.Process) -> bool:
    """Ended: a zombie is only waiting for whoever inherited it."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def until(true, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)


async def test_many_episodes_in_two_workers_all_come_back_and_are_shared_out():
    config = small("rollout.workers=2", "rollout.concurrency=256")
    async with RolloutPool(Parrot(), config, stubborn) as pool:
        assert isinstance(pool.executor, LocalExecutor)
        running = asyncio.create_task(collect(pool, [request("sleep 0.5", index) for index in range(256)]))
        await until(lambda: pool.executor.stats()["running"] == 256)
        assert {worker.load for worker in pool.executor._ready} == {128}
        found = await running
        stats = pool.executor.stats()
        assert (stats["workers"], stats["running"], stats["replaced"]) == (2, 0, 0)
        assert set(stats) == {"workers", "running", "lag_s", "own_lag_s", "replaced"}
    assert sorted(found) == sorted(f"e{index}" for index in range(256))
    assert {trajectory.status for trajectory in found.values()} == {"completed"}
    assert {trajectory.outcome for trajectory in found.values()} == {1.0}
    assert workers() == []


async def collect(pool: RolloutPool, requests: list[EpisodeRequest]) -> dict[str, Trajectory]:
    return {trajectory.id: trajectory async for trajectory in pool.episodes(requests)}


async def test_a_dead_or_silent_or_swollen_worker_is_replaced_and_named():
    config = small("rollout.worker_timeout_s=1.5", "rollout.worker_memory_gib=0.3", "rollout.retries=0")
    async with RolloutPool(Parrot(), config, stubborn) as pool:
        for word, end in {
            "exit 3": "exit code 3",
            "kill": "killed by SIGKILL",
            "block 60": "no heartbeat for 1.5 s",
            "leak 350": r"out of memory: 0\.[34] GiB, more than rollout\.worker_memory_gib",
        }.items():
            trajectory = await pool.episode(request(word))
            assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)
            assert re.match(f"the worker process ended: {end}", trajectory.reason)
        assert (await pool.episode(request())).outcome == 1.0
        assert pool.executor.stats()["replaced"] == 4


async def test_faults_of_an_environment_leave_the_worker_alone():
    async with RolloutPool(Parrot(), small("rollout.retries=0"), stubborn) as pool:
        reasons = [(await pool.episode(request(word))).reason for word in ("raise boom", "nonsense", "quit now")]
        assert reasons[0] == "ValueError: boom"
        assert reasons[1].startswith("TypeError: an observation holds")
        assert reasons[2] == "SystemExit: now"
        assert pool.executor.stats()["replaced"] == 0


async def test_what_cannot_be_cancelled_costs_its_worker():
    config = small("rollout.step_timeout_s=0.2", "rollout.close_timeout_s=0.3", "rollout.retries=0")
    async with RolloutPool(Parrot(), config, lambda task: DeafEnv()) as pool:
        trajectory = await pool.episode(request())
    assert trajectory.reason == "the worker process ended: step took longer than 0.2 s and cannot be cancelled"


async def test_a_lost_episode_runs_again_with_the_same_seed(tmp_path):
    async with RolloutPool(Parrot(), small(), stubborn) as pool:
        trajectory = await pool.episode(request(f"once {tmp_path / 'mark'}", 7))
    assert (trajectory.status, trajectory.outcome, trajectory.seed) == ("completed", 1.0, 7)
    assert trajectory.info["attempts"] == 2
    assert dict(pool.retried) == {"the worker process ended: exit code 9": 1}


async def test_one_that_kills_its_worker_each_time_takes_no_other_down():
    async with RolloutPool(Parrot(), small("rollout.retries=2"), stubborn) as pool:
        words = ["exit 1"] + ["sleep 0.3"] * 15
        found = await collect(pool, [request(word, index) for index, word in enumerate(words)])
    assert {id for id, trajectory in found.items() if trajectory.status != "completed"} == {"e0"}
    assert found["e0"].reason == "the worker process ended: exit code 1"
    assert all(trajectory.info["attempts"] <= 3 for trajectory in found.values())


async def test_cancelling_frees_the_environment_in_the_worker_at_once(tmp_path):
    class Watched(StubbornEnv):
        async def close(self):
            (tmp_path / "closed").touch()

    async with RolloutPool(Parrot(), small(), lambda task: Watched()) as pool:
        running = asyncio.create_task(pool.episode(request("sleep 60")))
        await until(lambda: pool.executor.stats()["running"] == 1)
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: (tmp_path / "closed").exists(), 2)
        await until(lambda: pool.executor.stats()["running"] == 0, 2)
        assert (await pool.episode(request())).outcome == 1.0


async def test_closing_ends_what_runs_as_cancelled_and_leaves_nothing():
    pool = RolloutPool(Parrot(), small(), stubborn)
    await pool.start()
    await pool.start()
    running = asyncio.create_task(pool.episode(request("sleep 60")))
    await until(lambda: pool.executor.stats()["running"] == 1)
    began = time.monotonic()
    await pool.close()
    await pool.close()
    assert time.monotonic() - began < 5
    trajectory = await running
    assert (trajectory.status, trajectory.reason) == ("cancelled", "the pool was closed")
    assert workers() == []
    assert (await pool.episode(request())).status == "cancelled"


async def test_what_a_worker_started_ends_with_it():
    async with RolloutPool(Parrot(), small("rollout.retries=0"), stubborn) as pool:
        trajectory = await pool.episode(request("leave 7654"))
    assert trajectory.reason == "the worker process ended: exit code 5"
    assert [
        process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "7654"]
    ] == []


async def test_a_loop_that_was_blocked_here_costs_no_worker_its_life():
    async with RolloutPool(Parrot(), small("rollout.worker_timeout_s=1.5"), stubborn) as pool:
        await pool.episode(request())
        time.sleep(2.5)  # noqa: ASYNC251 (what is tested)
        assert (await pool.episode(request())).info["attempts"] == 1
        await asyncio.sleep(0.3)
        assert pool.executor.stats()["replaced"] == 0


async def test_a_stopped_worker_is_silent_and_ctrl_c_is_its_owners():
    async with RolloutPool(Parrot(), small("rollout.worker_timeout_s=2"), stubborn) as pool:
        await pool.start()
        (worker,) = workers()
        worker.send_signal(signal.SIGINT)
        assert (await pool.episode(request())).info["attempts"] == 1
        worker.send_signal(signal.SIGSTOP)
        trajectory = await pool.episode(request())
        assert (trajectory.status, trajectory.info["attempts"]) == ("completed", 2)
        assert dict(pool.retried) == {"the worker process ended: no heartbeat for 2 s": 1}


async def test_a_killed_supervisor_takes_its_worker_with_it():
    async with RolloutPool(Parrot(), small(), stubborn) as pool:
        await pool.start()
        (worker,) = workers()
        running = asyncio.create_task(pool.episode(request("sleep 1")))
        await until(lambda: pool.executor.stats()["running"] == 1)
        worker.parent().kill()
        assert (await running).info["attempts"] == 2
        assert dict(pool.retried) == {"the worker process ended: killed by SIGKILL": 1}
        await until(lambda: gone(worker))


SCRIPT = """
import asyncio, dataclasses, re
import agentgym
from agentgym.config import load_config
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Message, Observation, Sampling, StepResult, Task
from tests.fakes import Parrot

GREETING = "hello"

class Base(agentgym.Env):
    async def reset(self, *, seed=None, options=None):
        return Observation(messages=(Message(role="user", content=greet(seed)),)), {}

@agentgym.register("mine")
class Mine(Base):
    def __init__(self, again=1):
        super().__init__()
        self.again = again
    async def reset(self, *, seed=None, options=None):
        return await super().reset(seed=seed)
    async def step(self, action):
        return StepResult(Observation(messages=()), float(re.match(GREETING, action.content) is not None), True, False, {})
    async def close(self):
        pass

def greet(seed):
    return f"{GREETING} {seed}"

async def main():
    config = load_config(None, ["rollout.workers=1", "env.options.again=2"])
    async with RolloutPool(Parrot(), config) as pool:
        task = Task(id="t", env="mine", instruction="", seed=5)
        request = EpisodeRequest(id="e", group_id="g", task=task, seed=1, sampling=Sampling())
        trajectory = await pool.episode(request)
        print(trajectory.status, trajectory.outcome, trajectory.messages[0].content, trajectory.reason, flush=True)
        WAIT

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_environments_of_a_script_work_even_without_a_guard(how, tmp_path):
    program = SCRIPT.replace("WAIT", "pass")
    (tmp_path / "train.py").write_text(program)
    argument = str(tmp_path / "train.py") if how == "script" else "-"
    done = subprocess.run(
        [sys.executable, argument], input=program if how == "stdin" else "", capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("completed 1.0 hello 5 terminated\n", "")


def test_nothing_outlives_a_killed_owner(tmp_path):
    program = SCRIPT.replace("WAIT", "await asyncio.sleep(60)")
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    with owner:
        assert owner.stdout.readline().startswith("completed")
        family = psutil.Process(owner.pid).children(recursive=True)
        assert len(family) >= 2
        owner.kill()
    _gone, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


async def test_a_registered_environment_that_cannot_travel_is_refused_where_it_is_asked_for():
    from agentgym.registry import ENVIRONMENTS

    frames = sys._getframe()
    ENVIRONMENTS.register("stuck here", lambda: frames)
    try:
        async with RolloutPool(Parrot(), small("rollout.retries=0")) as pool:
            task = Task(id="t", env="stuck here", instruction="")
            asked = EpisodeRequest(id="e", group_id="g", task=task, seed=0, sampling=Sampling())
            trajectory = await pool.episode(asked)
    finally:
        del ENVIRONMENTS._factories["stuck here"]
    assert trajectory.status == "infrastructure"
    assert "'stuck here' cannot be sent to a worker process" in trajectory.reason


@pytest.mark.parametrize(
    ("factory", "options", "kind", "message"),
    [
        ("tests.fakes:Nobody", {}, InfrastructureError, "AttributeError.*Nobody"),
        ("agentgym.policies.scripted:ScriptedPolicy", {"script": []}, UsageError, "at least one message"),
    ],
)
async def test_a_policy_that_cannot_be_made_there_is_an_error_at_the_start(factory, options, kind, message):
    executor = LocalExecutor(PolicyAddress(factory=factory, options=options), small("rollout.workers=2"))
    with pytest.raises(kind, match=message):
        await executor.start()
    await executor.close()
    assert workers() == []


async def test_workers_need_an_address_and_a_number():
    assert isinstance(RolloutPool(TokenPolicy(), small()).executor, InlineExecutor)
    assert isinstance(RolloutPool(Parrot(), small("rollout.workers=0")).executor, InlineExecutor)


async def test_when_no_worker_can_start_any_more_episodes_end_and_say_why(tmp_path):
    address = PolicyAddress(factory="tests.fakes:Fragile", options={"folder": str(tmp_path), "times": 1})
    executor = LocalExecutor(address, small(), stubborn)
    async with RolloutPool(Parrot(), small("rollout.retries=1"), executor=executor) as pool:
        words = ["exit 1", "yes", "yes"]
        found = await collect(pool, [request(word, index) for index, word in enumerate(words)])
        assert found["e0"].status == "infrastructure"
        late = await pool.episode(request())
    assert late.status == "infrastructure"
    assert late.reason.startswith("the worker process ended: ") and late.reason.endswith("RuntimeError: made 1 times")


async def test_sandboxed_tasks_of_a_registered_environment_are_solved_in_workers():
    tasks = agentgym.make_tasks("terminal/basics").tasks("test")[:8]
    config = small("rollout.workers=2")
    executor = LocalExecutor(PolicyAddress(factory="agentgym.policies.scripted:OraclePolicy"), config)
    async with RolloutPool(Parrot(), config, executor=executor) as pool:
        asked = [
            EpisodeRequest(id=task.id, group_id="", task=task, seed=1, sampling=Sampling(max_tokens=64))
            for task in tasks
        ]
        found = await collect(pool, asked)
    assert {id: trajectory.outcome for id, trajectory in found.items()} == {task.id: 1.0 for task in tasks}


class BlockingGym(gymnasium.Env):
    """A synchronous environment that blocks its thread for 0.2 s a step."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        time.sleep(0.2)
        return int(action), 1.0, True, False, {}


async def test_synchronous_environments_block_nobody_but_themselves():
    config = small("rollout.worker_timeout_s=3")
    address = PolicyAddress(factory="agentgym.policies.scripted:ScriptedPolicy", options={"script": ["2"]})
    executor = LocalExecutor(address, config, lambda task: FromGymnasium(BlockingGym))
    async with RolloutPool(Parrot(), config, executor=executor) as pool:
        await pool.episode(request())
        began = time.monotonic()
        found = await collect(pool, [request("", index) for index in range(32)])
        assert time.monotonic() - began < 32 * 0.2 / 2
    assert {(trajectory.status, trajectory.outcome) for trajectory in found.values()} == {("completed", 1.0)}


WORDS = st.lists(st.sampled_from(["yes", "raise x", "nonsense", "exit 1", "kill", "block 9", "quit"]), max_size=4)


@settings(max_examples=3, deadline=None)
@given(WORDS)
def test_real_workers_lose_nothing_whatever_their_episodes_do(words):
    async def run() -> None:
        config = small("rollout.workers=2", "rollout.worker_timeout_s=1", "rollout.retries=1")
        async with RolloutPool(Parrot(), config, stubborn) as pool:
            ended = [end async for end in pool.episodes([request(word, index) for index, word in enumerate(words)])]
        assert sorted(end.id for end in ended) == [f"e{index}" for index in range(len(words))]
        for end in ended:
            assert (end.status == "completed") == (words[int(end.id[1:])] == "yes")

    asyncio.run(run())
