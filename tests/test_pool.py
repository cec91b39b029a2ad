import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.collect import TaskStream, collect
from agentgym.config import load_config
from agentgym.executors import Executor
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest, failed
from agentgym.types import Group, Sampling, Task, Trajectory
from tests.fakes import EchoEnv, TokenPolicy, Words, word_task


def request(index: int) -> EpisodeRequest:
    return EpisodeRequest(id=f"e{index}", group_id="g", task=word_task("yes", index), seed=index, sampling=Sampling())


async def test_no_barrier_a_slow_episode_delays_nobody_else():
    def make(task: Task) -> EchoEnv:
        slow = task.id.endswith("/0")
        return EchoEnv(fault=lambda at: asyncio.sleep(0.3 if slow else 0.001) if at == "step" else None)

    pool = RolloutPool(TokenPolicy(), load_config(), make)
    began, ended = time.monotonic(), {}
    async for trajectory in pool.episodes([request(index) for index in range(32)]):
        ended[trajectory.id] = time.monotonic() - began
    assert len(ended) == 32
    assert list(ended)[-1] == "e0"
    assert sum(seconds < 0.3 for seconds in ended.values()) == 31


async def test_no_more_episodes_at_once_than_allowed():
    running, most = 0, 0

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    pool = RolloutPool(
        TokenPolicy(), load_config(None, ["rollout.concurrency=3"]), lambda task: EchoEnv(fault=lambda at: count())
    )
    assert len([trajectory async for trajectory in pool.episodes([request(index) for index in range(12)])]) == 12
    assert most == 3


async def test_an_infrastructure_failure_is_tried_again_with_the_same_seed_then_kept():
    failures = iter([True, True, False])

    def fault(at: str) -> None:
        if at == "reset" and next(failures):
            raise OSError("no space")

    policy = TokenPolicy()
    pool = RolloutPool(policy, load_config(), lambda task: EchoEnv(fault=fault))
    trajectory = await pool.episode(request(1))
    assert (trajectory.status, trajectory.info["attempts"]) == ("completed", 3)

    always = RolloutPool(policy, load_config(), lambda task: EchoEnv(fault=lambda at: 1 / 0))
    trajectory = await always.episode(request(1))
    assert (trajectory.status, trajectory.outcome, trajectory.info["attempts"]) == ("infrastructure", None, 3)
    assert sum(always.retried.values()) == 3


async def test_one_failing_episode_leaves_the_others_of_its_group():
    def make(task: Task) -> EchoEnv:
        made.append(task)
        return EchoEnv(fault=(lambda at: 1 / 0) if len(made) in (3, 9, 10) else None)

    made: list[Task] = []
    pool = RolloutPool(TokenPolicy(), load_config(None, ["rollout.retries=0"]), make)
    group = await pool.group("g", word_task("yes"), 0, Sampling(), 8)
    assert [member.status for member in group.trajectories].count("completed") == 7
    assert [member.id for member in group.trajectories] == [f"g-m{index}" for index in range(8)]


def test_the_stream_goes_on_exactly_where_it_was_across_epochs():
    tasks = Words(n_train=10).tasks("train")
    whole = TaskStream(tasks, seed=5)
    order = [next(whole).id for _ in range(25)]
    resumed = TaskStream(tasks, seed=5, position=13)
    assert [next(resumed).id for _ in range(12)] == order[13:]
    assert sorted(order[:10]) == sorted(order[10:20]) == sorted(task.id for task in tasks)
    assert order[:10] != order[10:20]


def test_a_position_has_its_task_whatever_was_asked_before():
    tasks = Words(n_train=5).tasks("train")
    forward = [TaskStream(tasks, 3).at(position) for position in range(20)]
    stream = TaskStream(tasks, 3)
    mixed = [5, 0, 4, 19, 2, 11, 7, 10, 1]
    assert [stream.at(position) for position in mixed] == [forward[position] for position in mixed]


async def test_groups_without_spread_are_replaced_up_to_the_limit():
    async def start(number: int) -> Group:
        return Group(id=f"g{number}", task_id="t", trajectories=())

    found = await collect(start, wanted=3, limit=8, useful=lambda group: group.id not in ("g0", "g2"))
    assert [group.id for group in found.groups] == ["g1", "g3", "g4"]
    assert [group.id for group in found.dropped] == ["g0", "g2"]

    found = await collect(start, wanted=3, limit=4, useful=lambda group: False)
    assert (len(found.groups), len(found.dropped)) == (0, 4)


async def test_groups_that_an_earlier_life_started_are_all_run():
    started = []

    async def start(number: int) -> Group:
        started.append(number)
        return Group(id=f"g{number}", task_id="t", trajectories=())

    found = await collect(start, wanted=2, limit=6, useful=lambda group: True, first=4)
    assert sorted(started) == [0, 1, 2, 3]
    assert len(found.groups) == 4


async def test_a_group_that_fails_ends_the_others():
    ended = []

    async def start(number: int) -> Group:
        if number == 1:
            raise OSError("the disk is gone")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)
        raise AssertionError

    with pytest.raises(OSError, match="the disk is gone"):
        await collect(start, wanted=3, limit=3, useful=lambda group: True)
    assert sorted(ended) == [0, 2]


class Chance(Executor):
    """Ends each attempt at an episode as its script says."""

    def __init__(self, script: dict[str, list[str]]) -> None:
        self.script = {id: iter(ends) for id, ends in script.items()}
        self.alone: list[str] = []
        self.seeds: dict[str, set[int]] = {}

    async def run(self, request: EpisodeRequest, *, alone: bool = False) -> Trajectory:
        self.seeds.setdefault(request.id, set()).add(request.seed)
        if alone:
            self.alone.append(request.id)
        await asyncio.sleep(0)
        end = next(self.script[request.id])
        if end == "lost":
            return failed(request, "infrastructure", "lost", worker_lost=True)
        return failed(request, end, end)


ENDS = st.sampled_from(["completed", "truncated", "task", "infrastructure", "lost"])


THRICE = [load_config(None, ["rollout.retries=2", f"rollout.concurrency={concurrency}"]) for concurrency in range(1, 5)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ENDS, min_size=3, max_size=3), max_size=12), st.sampled_from(THRICE))
def test_whatever_happens_each_request_has_one_trajectory(ends, config):
    async def run() -> None:
        executor = Chance({f"e{index}": attempts for index, attempts in enumerate(ends)})
        pool = RolloutPool(TokenPolicy(), config, executor=executor)
        ended = [trajectory async for trajectory in pool.episodes([request(index) for index in range(len(ends))])]
        assert sorted(trajectory.id for trajectory in ended) == sorted(executor.script)
        for trajectory in ended:
            attempts = ends[int(trajectory.id[1:])]
            bad = [end in ("infrastructure", "lost") for end in attempts]
            tries = bad.index(False) + 1 if False in bad else 3
            assert trajectory.info["attempts"] == tries
            assert (trajectory.status == "infrastructure") == (False not in bad)
            assert executor.alone.count(trajectory.id) == int(tries == 3 and "lost" in attempts[:2])
            assert len(executor.seeds[trajectory.id]) == 1

    asyncio.run(run())
