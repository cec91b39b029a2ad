import pytest

from agentgym.collect import TaskStream
from agentgym.config import GuardConfig, load_config
from agentgym.errors import GuardError
from agentgym.pool import RolloutPool
from agentgym.run import Run
from agentgym.trainers.guard import check_gap, check_guards, measure_gap
from tests.fakes import EchoEnv, TokenPolicy, Words, completion


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"kl": 2.0}, "step 3: kl is 2, above"),
        ({"truncated_share": 0.9}, r"raise rollout\.max_tokens"),
        ({"infrastructure_share": 0.6}, "see the reasons"),
        ({"entropy": 0.01}, "entropy is 0.01, below guard.min_entropy=0.1"),
    ],
)
def test_a_metric_beyond_its_threshold_stops_the_run(metrics, says):
    with pytest.raises(GuardError, match=says):
        check_guards(3, metrics, GuardConfig(max_truncated=0.5, min_entropy=0.1))


def test_metrics_within_their_thresholds_and_missing_ones_pass():
    check_guards(3, {"kl": 0.1, "entropy": 0.5}, GuardConfig(min_entropy=0.1))
    check_guards(3, {}, GuardConfig(min_entropy=0.1))


@pytest.mark.parametrize("gap", [0.2, float("nan"), float("inf")])
def test_a_gap_that_is_too_large_or_no_number_stops_the_run(gap):
    with pytest.raises(GuardError, match="they do not run the same weights or the same precision"):
        check_gap("at the start", gap, GuardConfig(gap_mean=0.12))


class Learner:
    """Computes log-probs that differ from the engine's by `gap`."""

    def __init__(self, gap: float) -> None:
        self.gap = gap

    async def logprobs(self, samples):
        return [[None if p is None else p + self.gap for p in sample.logprobs] for sample in samples]


async def measure(tmp_path, learner, policy):
    run = Run.create(load_config(None, [f"dir={tmp_path}"]))
    try:
        pool = RolloutPool(policy, run.config, lambda task: EchoEnv())
        return await measure_gap(run, pool, learner, TaskStream(Words().tasks("train"), 0))
    finally:
        run.close()


async def test_the_gap_is_measured_on_fresh_episodes(tmp_path):
    found = await measure(tmp_path, Learner(0.05), TokenPolicy(lambda p: "abc"))
    assert (found["gap_mean"], found["gap_max"]) == (pytest.approx(0.05), pytest.approx(0.05))
    assert found["gap_tokens"] == 16 * 3


async def test_a_gap_that_cannot_be_measured_says_why(tmp_path):
    class Cut(TokenPolicy):
        async def __call__(self, prompt, *, session, sampling):
            return completion((1,), (2, 3), "ab", finish_reason="length")

    with pytest.raises(GuardError, match=r"16 of 16: truncated \(raise rollout.max_tokens"):
        await measure(tmp_path, Learner(0.0), Cut())
