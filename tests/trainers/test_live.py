"""Learning from what a gateway served: every turn is accounted for, nothing is trained on twice, alarms go back."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import UsageError
from agentgym.gateway.feed import Feed
from agentgym.gateway.ledger import Ledger
from agentgym.gateway.records import Feedback, Taken, TurnRecord
from agentgym.live import check_live
from agentgym.run import Run
from agentgym.scoring import Scorer
from agentgym.trainers import checkpoint
from agentgym.trainers.live import LiveTraining, Ready, fair_share
from agentgym.trainers.loop import save_checkpoint
from agentgym.trainers.process import LearnerProcess
from agentgym.types import Completion, Message
from tests.fakes import ScriptedJudge, hinted
from tests.trainers.conftest import small_config

LIKED, DISLIKED = "Thanks!", "No, that is wrong."


class Served:
    """The weights that were published."""

    def __init__(self) -> None:
        self.version, self.versions = 0, []

    async def update_weights(self, directory: Path, version: int) -> None:
        assert (directory / "model.safetensors").is_file()
        self.version = version
        self.versions.append(version)


def turn(number: int, user: str = "ann", caveat: str = "") -> TurnRecord:
    prompt, ids = (10, 11, 12, number), (20 + number, 30, 2)
    return TurnRecord(
        id=f"chatcmpl-{number}",
        user=user,
        taken=Taken(kind="main", why="the first", relation="new", session=f"s{number}"),
        state="complete",
        created=float(number),
        messages=(Message(role="user", content="Hello"),),
        caveat=caveat,
        completion=Completion(
            prompt_ids=prompt,
            ids=ids,
            logprobs=(-5.0, -5.5, -6.0),
            versions=(0,) * 3,
            finish_reason="stop",
            message=Message(role="assistant", content="Hi"),
        ),
    )


def judged(exchange: Any) -> Any:
    said = exchange.next_state[-1].content if exchange.next_state else ""
    return (1, ()) if said == LIKED else (-1, ("Say it more warmly.",)) if said == DISLIKED else None


class Gatekeeper:
    """A ledger with its feed, as a gateway keeps them."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self.feed = Feed(self.ledger, self.stored)

    async def stored(self, work: Any, *given: Any) -> Any:
        return work(*given)

    def served(self, number: int, reply: str | None, **more: Any) -> None:
        """One turn and what came after it."""
        self.ledger.add(turn(number, **more), now=float(number))
        state = () if reply is None else (Message(role="user", content=reply),)
        ending = "timeout" if reply is None else "reply"
        self.ledger.follow(f"chatcmpl-{number}", ending, now=float(number), next_state=state)
        self.feed.wake()


@asynccontextmanager
async def learning(run: Run, model: Path, gate: Gatekeeper, judge: Any = None):
    """Live training on the run, from its last checkpoint."""
    found = checkpoint.latest(run.checkpoints)
    step = int(checkpoint.read_state(found)["step"]) if found else 0
    run.store.rewind(step)
    run.store.add_version(step=step, life=run.life)
    await gate.feed.reopen()
    learner, policy = LearnerProcess(run.config, model=found or model, folder=run.folder), Served()
    await learner.start()
    try:
        if found:
            await learner.load(found / "engine")
        else:
            await save_checkpoint(run, learner, 0)
        scorer = Scorer(judge or ScriptedJudge(judged), run.store, run.config, run.stored, hinted)
        training = LiveTraining(run, gate.feed, policy, learner, scorer, step=step)
        task = asyncio.create_task(training.go())
        yield training, policy, task
        task.cancel()
        await asyncio.wait([task])
    finally:
        await learner.close()


async def until(true: Any, task: asyncio.Task[None], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            if task.done():
                task.result()
            await asyncio.sleep(0.05)


def live_run(tiny: Path, folder: Path, *overrides: str) -> Run:
    config = small_config(
        tiny, f"dir={folder}", "live.learn=true", "live.min_samples=3", "judge.kind=rules", "algorithm.w_opd=1",
        "algorithm.opd_k=2", "trainer.checkpoint_every=1000", *overrides,
    )  # fmt: skip
    return Run.create(config, folder / "live")


@pytest.mark.deepspeed
@pytest.mark.timeout(180)
async def test_every_turn_is_trained_waits_or_is_rejected_with_the_reason(tiny: Path, tmp_path: Path) -> None:
    run = live_run(tiny, tmp_path)
    gate = Gatekeeper(run.folder / "store.sqlite")
    async with learning(run, tiny, gate) as (training, policy, task):
        gate.served(1, LIKED)
        gate.served(2, "What time is it?")
        gate.served(3, None)
        gate.served(4, LIKED, caveat="greedy")
        gate.served(5, DISLIKED)
        await until(lambda: len(training.ready) == 2, task)
        assert training.step == 0
        gate.ledger.add_feedback(Feedback(completion_id="chatcmpl-6", user="ann", thumb="down", created=1.0))
        gate.served(6, "Go on")
        await until(lambda: training.step == 1 and not training.ready, task)
        gate.served(7, LIKED)
        await until(lambda: len(training.ready) == 1, task)
    assert policy.versions == [1]
    fates = {row["id"]: row["fate"] for row in gate.ledger.overview(20)}
    assert fates == {
        "chatcmpl-1": "trained: score only",
        "chatcmpl-2": "rejected: unscored: nothing to say",
        "chatcmpl-3": "rejected: unscored: nothing came back",
        "chatcmpl-4": "rejected: sampled otherwise (greedy)",
        "chatcmpl-5": "trained: hint and score",
        "chatcmpl-6": "trained: score only",
        "chatcmpl-7": "ready",
    }
    assert run.store.consumed() == {1: 3}
    kept = {entry.sample.trajectory_id: entry for entry in run.store.samples()}
    # b is the mean of everybody's earlier scores: 0, then 1, then (1 + 1 - 1) / 3 (the greedy turn has a score, too)
    assert [kept[f"chatcmpl-{n}"].advantages for n in (1, 5, 6)] == [(1.0,), (-2.0,), (pytest.approx(-4 / 3),)]
    run.close()


@pytest.mark.deepspeed
@pytest.mark.timeout(180)
async def test_what_was_trained_after_the_last_checkpoint_is_trained_once_more(tiny: Path, tmp_path: Path) -> None:
    run = live_run(tiny, tmp_path)
    gate = Gatekeeper(run.folder / "store.sqlite")
    async with learning(run, tiny, gate) as (training, _, task):
        for number in (1, 2, 3):
            gate.served(number, LIKED if number % 2 else DISLIKED)
        await until(lambda: training.step == 1, task)
    run.close()  # as after a kill: no checkpoint since step 0

    again = Run.open(tmp_path / "live")
    judge = ScriptedJudge(judged)
    async with learning(again, tiny, gate, judge) as (training, policy, task):
        await until(lambda: training.step == 1, task)
    assert judge.asked == []  # what was judged is not paid for again
    assert policy.versions == [3]  # never a number that was used before
    assert again.store.consumed() == {1: 3}
    assert set(gate.ledger.fates()) == {"trained: score only", "trained: hint and score"}
    again.close()


@pytest.mark.deepspeed
@pytest.mark.timeout(180)
async def test_an_alarm_goes_back_to_the_last_checkpoint_and_stops_the_learning(tiny: Path, tmp_path: Path) -> None:
    run = live_run(tiny, tmp_path, "guard.min_entropy=100")
    gate = Gatekeeper(run.folder / "store.sqlite")
    async with learning(run, tiny, gate) as (training, policy, task):
        for number in (1, 2, 3):
            gate.served(number, LIKED if number % 2 else DISLIKED)
        async with asyncio.timeout(60):
            await task
        assert "min_entropy" in training.stopped
    assert policy.versions == [1]  # the weights of step 0 again
    assert run.store.consumed() == {} and gate.ledger.fates() == {"ready": 3}
    assert "min_entropy" in (run.folder / "log.txt").read_text()
    run.close()


def waiting(*users: str) -> list[Ready]:
    return [Ready(scored=None, user=user, fate="score only", since=0.0) for user in users]  # type: ignore[arg-type]


def test_no_user_has_more_than_the_share_where_there_are_others() -> None:
    assert len(fair_share(waiting(*"aaaaaa"), 0.5)) == 6
    chosen = [one.user for one in fair_share(waiting(*"aaaaaabbc"), 0.5)]
    assert chosen == ["a", "a", "a", "b", "b", "c"]
    assert len(fair_share(waiting(*"aaab"), 1.0)) == 4


def test_learning_without_a_judge_is_refused(tiny: Path) -> None:
    with pytest.raises(UsageError, match=r"judge\.kind"):
        check_live(small_config(tiny, "live.learn=true"))
