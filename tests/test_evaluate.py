import json

import msgspec
import pytest

from agentgym.config import load_config
from agentgym.errors import InfrastructureError, TaskError, UsageError
from agentgym.evaluate import evaluate, select_tasks
from agentgym.pool import RolloutPool
from agentgym.results import comparison, final_evaluation, write_evaluation
from agentgym.store import Store
from agentgym.types import Sampling
from tests.fakes import EchoEnv, TokenPolicy, Words


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store.sqlite")
    yield made
    made.close()


def pool(policy: TokenPolicy, fault=None) -> RolloutPool:
    return RolloutPool(policy, load_config(None, ["rollout.retries=0"]), lambda task: EchoEnv(fault=fault))


async def test_success_by_task_and_family(store):
    tasks = Words(n_test=8).tasks("test")
    found = await evaluate(
        pool(TokenPolicy(lambda p: "a")), tasks, store, stage="eval", sampling=Sampling(), attempts=2
    )
    assert found.success_N == (1.0, 0.0) * 4
    assert found.success == 0.5
    assert found.by_family() == {"say": 0.5}
    assert found.pass_at(1) == found.pass_at(2) == 0.5
    assert 0.1 < found.interval[0] < 0.5 < found.interval[1] < 0.9


async def test_a_broken_task_counts_as_a_failure_and_is_told(store):
    def fault(at: str) -> None:
        if at == "step":
            raise TaskError("its verifier is broken")

    tasks = Words(n_test=4).tasks("test")
    found = await evaluate(pool(TokenPolicy(lambda p: "a b"), fault), tasks, store, stage="eval", sampling=Sampling())
    assert (found.success, found.errors, len(found.success_N)) == (0.0, 4, 4)


async def test_lost_attempts_are_no_success_rate_and_are_run_again(store):
    """An engine that dies in an evaluation must not look like a model that cannot do anything."""
    tasks = Words(n_test=4).tasks("test")
    with pytest.raises(InfrastructureError, match=r"4 of 4 attempts were lost, the last one because ZeroDivisionError"):
        await evaluate(pool(TokenPolicy(), lambda at: 1 / 0), tasks, store, stage="eval", sampling=Sampling())
    found = await evaluate(pool(TokenPolicy(lambda p: "a b")), tasks, store, stage="eval", sampling=Sampling())
    assert (found.success, found.errors) == (1.0, 0)


async def test_tasks_and_attempts_share_no_random_numbers(store):
    policy = TokenPolicy(lambda p: "a")
    await evaluate(pool(policy), Words(n_test=8).tasks("test"), store, stage="eval", sampling=Sampling(), attempts=4)
    seeds = [sampling.seed for sampling in policy.samplings]
    assert len(set(seeds)) == 32
    again = TokenPolicy(lambda p: "a")
    await evaluate(pool(again), Words(n_test=8).tasks("test"), store, stage="again", sampling=Sampling(), attempts=4)
    assert sorted(sampling.seed for sampling in again.samplings) == sorted(seeds), "the same evaluation repeats itself"


async def test_it_goes_on_where_it_was(store):
    tasks = Words(n_test=8).tasks("test")
    first, second = TokenPolicy(lambda p: "a"), TokenPolicy(lambda p: "b")
    await evaluate(pool(first), tasks[:5], store, stage="eval", sampling=Sampling())
    found = await evaluate(pool(second), tasks, store, stage="eval", sampling=Sampling())
    assert (len(first.samplings), len(second.samplings)) == (5, 3)
    assert found.success_N == (1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0)


async def test_comparison_is_paired_by_task(store, tmp_path):
    tasks = Words(n_test=40).tasks("test")
    a = await evaluate(pool(TokenPolicy(lambda p: "a")), tasks, store, stage="a", sampling=Sampling())
    ab = await evaluate(pool(TokenPolicy(lambda p: "ab")), tasks, store, stage="ab", sampling=Sampling())
    found = comparison(a, ab)
    assert found["difference"] == 0.5
    assert 0.3 < found["interval"][0] < 0.5 < found["interval"][1] < 0.7
    assert found["p_value"] < 0.001
    same = comparison(a, a)
    assert (same["difference"], same["p_value"]) == (0.0, 1.0)
    assert same["interval"] == pytest.approx([-0.0876, 0.0876], abs=1e-3)  # Wilson's bound of 40 of 40
    other = await evaluate(pool(TokenPolicy()), tasks[:3], store, stage="c", sampling=Sampling())
    with pytest.raises(ValueError, match="different tasks"):
        comparison(a, other)

    write_evaluation(tmp_path, a, model="m")
    assert final_evaluation(tmp_path) == a
    assert json.loads((tmp_path / "result.json").read_text())["success"] == 0.5
    with pytest.raises(UsageError, match="no finished evaluation"):
        final_evaluation(tmp_path / "nothing")


async def test_an_interval_has_a_width_where_nothing_was_solved(store):
    tasks = Words(n_test=10).tasks("test")
    found = await evaluate(
        pool(TokenPolicy(lambda p: "c")), tasks, store, stage="eval", sampling=Sampling(), attempts=2
    )
    assert found.success == 0.0
    assert found.interval == pytest.approx((0.0, 0.2775327998628892))  # Wilson, 0 of 10


def test_selecting_tasks():
    tasks = Words(n_test=8).tasks("test")
    assert len(select_tasks(tasks, 0)) == 8
    assert select_tasks(tasks, 3) == list(tasks[:3])
    families = [msgspec.structs.replace(task, family=family) for task, family in zip(tasks, "aaaaabbc", strict=True)]
    assert [task.family for task in select_tasks(families, 5)] == ["a", "a", "b", "b", "c"]
