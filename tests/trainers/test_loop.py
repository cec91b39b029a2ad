"""The invariants of the training loop and its collectors, whatever takes how long."""

import asyncio
import random
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agentgym.collect import TaskStream
from agentgym.config import AlgorithmConfig, load_config
from agentgym.errors import EngineError, GuardError
from agentgym.judge import Judge
from agentgym.metrics import read_metrics
from agentgym.policy import ServingPolicy
from agentgym.pool import RolloutPool
from agentgym.run import Run
from agentgym.samples import samples_from
from agentgym.scoring import Scorer
from agentgym.store import Store
from agentgym.trainers.audit import audit
from agentgym.trainers.loop import Training
from agentgym.trainers.signals import staleness
from agentgym.types import Exchange, Message, ScoredSample, Trajectory, Turn
from tests.fakes import EchoEnv, ScriptedJudge, Words, completion, hinted

STEPS = 5


class TimedPolicy(ServingPolicy):
    """Says the task's word or not, after a random while; its version is what it was told last."""

    def __init__(self, seed: int, wait_s: float) -> None:
        self.version, self.random, self.wait_s = 0, random.Random(seed), wait_s
        self.asked = 0

    async def start(self, progress: Any = None) -> None: ...

    async def __call__(self, prompt, *, session, sampling):
        self.asked += 1
        version = self.version
        await asyncio.sleep(self.random.uniform(0, self.wait_s))
        text = self.random.choice(["a b", "neither"])
        ids = tuple(ord(c) for c in text)
        served = (*session.ids, 1)
        session.ids, session.n_messages = (*served, *ids), len(prompt.messages) + 1
        return completion(
            served, ids, text, versions=(version,) * len(ids), message=Message(role="assistant", content=text)
        )

    async def update_weights(self, directory: Path, version: int) -> None:
        self.version = version


class TimedLearner:
    """Takes a random while for a step, and writes down what it was given."""

    def __init__(self, seed: int, wait_s: float, policy: TimedPolicy) -> None:
        self.random, self.wait_s, self.policy = random.Random(seed), wait_s, policy
        self.steps: list[list[Any]] = []
        self.scored: list[ScoredSample] = []
        self.staleness: list[int] = []
        self.asked_meanwhile = 0

    async def step(self, samples):
        asked, version = self.policy.asked, self.policy.version
        await asyncio.sleep(self.random.uniform(0, self.wait_s))
        self.asked_meanwhile += self.policy.asked - asked
        self.steps.append([scored.sample for scored in samples])
        self.scored += samples
        self.staleness += [version - v for scored in samples for v in scored.sample.versions if v >= 0]
        return {"loss": 0.0}

    async def publish(self, directory: Path) -> None:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)

    async def save(self, directory: Path) -> None:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)


async def train(
    folder: Path,
    seed: int,
    staleness: int,
    policy_s: float,
    learner_s: float,
    *overrides: str,
    judge: Judge | None = None,
    turns: int = 1,
) -> Any:
    config = load_config(
        None,
        [f"dir={folder}", f"rollout.max_staleness={staleness}", f"trainer.steps={STEPS}", "rollout.groups_per_step=2",
         "rollout.group_size=3", "trainer.checkpoint_every=2", *overrides],
    )  # fmt: skip
    run = Run.create(config)
    run.store.add_version(step=0, life=run.life)
    policy = TimedPolicy(seed, policy_s)
    learner = TimedLearner(seed, learner_s, policy)
    pool = RolloutPool(policy, config, lambda task: EchoEnv(turns))
    scorer = Scorer(judge, run.store, config, run.stored, hinted if config.algorithm.w_opd else None)
    training = Training(
        run, policy, pool, learner, TaskStream(Words(n_train=7).tasks("train"), seed), scorer=scorer
    )  # fmt: skip
    try:
        await training.train()
        return run, learner, list(run.store.samples()), audit(run.store, config)
    finally:
        await scorer.close()
        run.close()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000), staleness=st.integers(0, 3), policy_s=st.sampled_from([0, 0.004]),
    learner_s=st.sampled_from([0, 0.01]),
)  # fmt: skip
def test_every_step_is_trained_once_in_order_on_tokens_no_staler_than_allowed(seed, staleness, policy_s, learner_s):
    with tempfile.TemporaryDirectory() as folder:
        run, learner, samples, found = asyncio.run(train(Path(folder), seed, staleness, policy_s, learner_s))
        assert [line["step"] for line in read_metrics(run.folder)] == list(range(1, STEPS + 1))
    assert found.problems == ()
    assert max(learner.staleness, default=0) <= staleness
    assert min(learner.staleness, default=0) >= 0
    trained = [sample.id for step in learner.steps for sample in step]
    assert len(trained) == len(set(trained)) == found.trained
    assert {s.sample.id for s in samples if s.consumed_step is not None} == set(trained)
    steps_of = [int(sample.group_id[7:12]) for step in learner.steps for sample in step]
    assert steps_of == sorted(steps_of), "a later step's samples were trained on first"


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_without_staleness_nothing_is_asked_while_the_learner_works(seed):
    for policy_s, learner_s in ((0.0, 0.01), (0.005, 0.0)):
        with tempfile.TemporaryDirectory() as folder:
            _, learner, _, _ = asyncio.run(train(Path(folder), seed, 0, policy_s, learner_s, "rollout.oversample=1"))
        assert learner.asked_meanwhile == 0
        assert set(learner.staleness) <= {0}


def test_collecting_goes_on_while_the_learner_works(tmp_path):
    _, learner, _, _ = asyncio.run(train(tmp_path, 0, 2, 0.002, 0.05))
    assert learner.asked_meanwhile > 0


def test_a_failure_ends_the_collectors_that_run_ahead(tmp_path, monkeypatch):
    async def fails(self, samples):
        raise EngineError("gone")

    monkeypatch.setattr(TimedLearner, "step", fails)

    async def work() -> int:
        with pytest.raises(EngineError, match="gone"):
            await train(tmp_path, 0, 3, 0.002, 0.0)
        await asyncio.sleep(0)
        return len([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    assert asyncio.run(work()) == 0


HYBRID = ("algorithm.preset=hybrid", "judge.kind=rules")


def opinion(exchange: Exchange) -> Any:
    """Some turns are unscored; what says the word is good; what does not gets a hint."""
    if zlib.crc32(f"{exchange.trajectory_id} {exchange.turn}".encode()) % 4 == 0:
        return None
    good = exchange.task.split()[-1].strip(".") in exchange.response.content
    return 1 if good else (-1, ("say the word that you were asked for",))


@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(seed=st.integers(0, 10_000), staleness=st.integers(0, 2), judge_s=st.sampled_from([0.0, 0.003]))
def test_with_a_judge_every_turn_is_judged_once_and_the_books_balance(seed, staleness, judge_s):
    judge = ScriptedJudge(opinion, judge_s)
    with tempfile.TemporaryDirectory() as folder:
        run, learner, samples, found = asyncio.run(
            train(Path(folder), seed, staleness, 0.001, 0.0, *HYBRID, judge=judge, turns=3)
        )
        lines = read_metrics(run.folder)
        store = Store(run.folder / "store.sqlite", read_only=True)
        counts = store.turn_counts()
        store.close()
    assert found.problems == ()
    assert len(judge.asked) == len(set(judge.asked)) == counts.judged == counts.collected == counts.assembled
    assert counts.ready == {} and sum(counts.trained.values()) + sum(counts.rejected.values()) == counts.collected
    assert counts.unscored == {"nothing to say": counts.judged - counts.scored}
    per_step = [sum(v for k, v in line.items() if k.startswith("turns/")) for line in lines]
    assert sum(per_step) == counts.collected
    for scored in learner.scored:
        hints = scored.hinted or ((),) * len(scored.advantages)
        for span, advantage, prompts in zip(scored.sample.spans, scored.advantages, hints, strict=True):
            trained = any(scored.sample.mask[span.start : span.end])
            assert not trained or advantage is not None or prompts, "a turn without a term is masked"
            assert trained or not prompts
    assert {s.sample.id for s in samples if s.consumed_step} == {scored.sample.id for scored in learner.scored}


def test_a_run_that_died_between_scoring_and_training_judges_nothing_twice(tmp_path, monkeypatch):
    async def dies(self, samples):
        raise EngineError("killed here")

    first = ScriptedJudge(opinion)
    with monkeypatch.context() as patched:
        patched.setattr(TimedLearner, "step", dies)
        with pytest.raises(EngineError, match="killed here"):
            asyncio.run(train(tmp_path, 4, 0, 0.001, 0.0, *HYBRID, judge=first, turns=3))
    folder = next(tmp_path.glob("*-s0"))
    assert first.asked

    second = ScriptedJudge(lambda exchange: -1)

    async def resume() -> Any:
        run = Run.open(folder)
        run.store.rewind(0)
        run.store.add_version(step=0, life=run.life)
        policy = TimedPolicy(5, 0.0)
        learner = TimedLearner(5, 0.0, policy)
        scorer = Scorer(second, run.store, run.config, run.stored, hinted)
        pool = RolloutPool(policy, run.config, lambda task: EchoEnv(3))
        stream = TaskStream(Words(n_train=7).tasks("train"), 4)
        try:
            await Training(run, policy, pool, learner, stream, scorer=scorer).train()
            return audit(run.store, run.config), run.store.turn_counts(), learner
        finally:
            await scorer.close()
            run.close()

    found, counts, learner = asyncio.run(resume())
    assert found.problems == ()
    assert not set(first.asked) & set(second.asked)
    assert counts.judged == counts.collected == len(first.asked) + len(second.asked)
    trained = {sample.trajectory_id for sample in learner.steps[0]}
    assert trained & {id for id, _ in first.asked}, "what the first life judged is trained on by the second"


def test_a_judge_that_is_slow_delays_no_episode(tmp_path):
    """All episodes of a group have ended before the first judgement is made."""
    ended: list[float] = []

    class Slow(ScriptedJudge):
        async def __call__(self, exchange):
            ended.append(time.monotonic())
            await asyncio.sleep(0.5)
            return await super().__call__(exchange)

    began = time.monotonic()
    overrides = (
        *HYBRID,
        "trainer.steps=1",
        "rollout.groups_per_step=1",
        "rollout.oversample=1",
        "rollout.group_size=8",
    )
    asyncio.run(train(tmp_path, 0, 0, 0.01, 0.0, *overrides, judge=Slow(opinion), turns=1))
    assert len(ended) == 8
    assert max(ended) - min(ended) < 0.45, "no episode waited for another one's judgement"
    assert time.monotonic() - began > 0.5


def test_a_step_that_lost_its_episodes_to_infrastructure_stops_the_run(tmp_path):
    async def work() -> None:
        config = load_config(
            None, [f"dir={tmp_path}", "rollout.retries=0", "rollout.groups_per_step=2", "rollout.group_size=2"]
        )
        run = Run.create(config)
        policy = TimedPolicy(0, 0)
        pool = RolloutPool(policy, config, lambda task: EchoEnv(fault=lambda at: 1 / 0))
        try:
            await Training(run, policy, pool, TimedLearner(0, 0, policy), TaskStream(Words().tasks("train"), 0)).train()
        finally:
            run.close()

    with pytest.raises(GuardError, match=r"infrastructure_share is 1, above .*see the reasons"):
        asyncio.run(work())


def test_staleness_counts_weights_and_not_version_numbers_or_steps_without_an_update():
    def scored(*versions: int) -> ScoredSample:
        body = completion((1,), (2,) * len(versions), versions=versions)
        trajectory = Trajectory(
            id="t",
            task_id="k",
            group_id="g",
            env="e",
            seed=0,
            status="completed",
            turns=(Turn(index=0, completion=body),),
        )
        return ScoredSample(sample=samples_from(trajectory, AlgorithmConfig())[0][0], advantages=(1.0,))

    # version 3 is version 2's weights after a resume, and steps 3 and 4 made none
    made_by = {0: 0, 1: 1, 2: 2, 3: 2, 4: 5}
    assert staleness([scored(4)], made_by) == {"staleness_mean": 0.0, "staleness_max": 0.0}
    assert staleness([scored(2, 3)], made_by) == {"staleness_mean": 1.0, "staleness_max": 1.0}
    assert staleness([scored(1, 4)], made_by) == {"staleness_mean": 1.0, "staleness_max": 2.0}
    assert staleness([], made_by) == {"staleness_mean": 0.0, "staleness_max": 0.0}
