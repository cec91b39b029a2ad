"""Live training: turns that a gateway served become samples one by one, and an update fires on a count or on a time.

There are no groups: a turn's advantage is its score minus the running mean of its user's (`RunningBaseline`). What a
user said outright (a thumb, a score, a correction) counts for more than what the judge makes of the reply.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from agentgym.errors import GuardError
from agentgym.gateway.feed import Feed
from agentgym.gateway.records import CompletedTurn
from agentgym.policy import ServingPolicy
from agentgym.run import Run
from agentgym.samples import samples_from
from agentgym.scoring import Scorer
from agentgym.trainers import checkpoint
from agentgym.trainers.assemble import TERM, UNSCORED
from agentgym.trainers.credit import RunningBaseline
from agentgym.trainers.guard import check_guards
from agentgym.trainers.loop import publish, save_checkpoint
from agentgym.trainers.process import LearnerProcess
from agentgym.types import Group, Judgement, ScoredSample, Trajectory, Turn

STAGE = "live"
AT_ONCE = 64  # turns that are judged at once, or wait for the judgement of one before them
ENDINGS = {"regenerated": -1.0}  # what an ending without a reply says of an answer: asked for another one


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that waits for an update."""

    scored: ScoredSample
    user: str
    fate: str
    since: float  # monotonic seconds


class LiveTraining:
    """Learns from what a gateway serves.

    consumes: completed turns of the feed, each once; produces: weight versions, metrics, checkpoints, and a fate for
    every turn; waits for: judgements, then for `live.min_samples` samples, or for one that was ready `live.max_wait_s`
    ago; is unblocked by: either. Serving never waits for it. Nothing is dropped: what is ready waits for as long as it
    must, and a turn that was not trained on when the process ended is given out again.

    An alarm of the guard rails takes the weights back to the last checkpoint and stops the learning, not the serving.
    """

    def __init__(
        self, run: Run, feed: Feed, policy: ServingPolicy, learner: LearnerProcess, scorer: Scorer, *, step: int = 0
    ) -> None:
        self.run, self.feed, self.policy, self.learner, self.scorer = run, feed, policy, learner, scorer
        self.config, self.step, self.saved = run.config, step, step
        self.baseline = RunningBaseline()
        self.ready: list[Ready] = []
        self.stopped = ""  # why it learns no more
        self._judged: asyncio.Queue[asyncio.Task[tuple[CompletedTurn, Trajectory, Judgement]]] = asyncio.Queue(AT_ONCE)
        self._news = asyncio.Event()

    async def go(self) -> None:
        """Learn until cancelled, or until an alarm stops the learning."""
        await self._remember()
        async with asyncio.TaskGroup() as loops:
            working = [loops.create_task(loop()) for loop in (self._judge, self._credit, self._train)]
            await working[-1]  # only an alarm ends it
            for task in working:
                task.cancel()

    async def _remember(self) -> None:
        """The scores of earlier lives, in their order, are what later ones are compared with."""
        for user, score in await self.run.stored(self._earlier):
            self.baseline.advantage(user, score)

    def _earlier(self) -> list[tuple[str, float]]:
        store, settled, found = self.run.store, self._settled(), []
        for trajectory in store.trajectories(stage=STAGE):
            score = score_of(trajectory, store.judgements(trajectory.id).get(0))
            if score is not None and trajectory.id in settled:
                found.append((trajectory.group_id, score))
        return found

    def _settled(self) -> set[str]:
        """Live turns that an earlier life dealt with; the others come again, and are counted then."""
        kept = self.run.store.samples()
        return {entry.sample.trajectory_id for entry in kept if entry.rejected or entry.consumed_step is not None}

    async def _judge(self) -> None:
        async for completed in self.feed.completed():
            await self._judged.put(asyncio.create_task(self._judged_turn(completed)))

    async def _judged_turn(self, completed: CompletedTurn) -> tuple[CompletedTurn, Trajectory, Judgement]:
        trajectory = trajectory_of(completed)
        await self.run.stored(
            self.run.store.add_trajectory, trajectory, stage=STAGE, step=self.step, life=self.run.life
        )
        if not trajectory.turns[0].next_state and not trajectory.turns[0].info:
            nothing = Judgement(trajectory_id=trajectory.id, turn=0, judge="", reason="nothing came back")
            return completed, trajectory, nothing
        self.scorer.take([trajectory])
        group = Group(id=trajectory.group_id, task_id=STAGE, trajectories=(trajectory,))
        (judgements,) = (await self.scorer.judged(group)).judgements
        return completed, trajectory, judgements[0]

    async def _credit(self) -> None:
        """In the order in which turns were completed, whatever the order of their judgements."""
        while True:
            completed, trajectory, judgement = await (await self._judged.get())
            score = score_of(trajectory, judgement)
            advantage = None if score is None else self.baseline.advantage(trajectory.group_id, score)
            scored, fate = credited(trajectory, judgement, advantage, self.run)
            if completed.turn.caveat and fate in TERM.values():
                fate = f"sampled otherwise ({completed.turn.caveat})"
            if fate in TERM.values():
                user = completed.turn.user
                self.ready.append(Ready(scored=scored, user=user, fate=fate, since=time.monotonic()))
                self._news.set()
            else:
                await self._reject(scored, fate)
            self.run.show({"ready": len(self.ready)})

    async def _reject(self, scored: ScoredSample, reason: str) -> None:
        await self.run.stored(
            self.run.store.add_sample, scored.sample, step=self.step, advantages=scored.advantages, rejected=reason
        )
        await self.feed.settle(scored.sample.trajectory_id, f"rejected: {reason}")

    async def _train(self) -> None:
        live = self.config.live
        while not self.stopped:
            oldest = min((one.since for one in self.ready), default=None)
            left = None if oldest is None else oldest + live.max_wait_s - time.monotonic()
            if len(self.ready) < live.min_samples and (left is None or left > 0):
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), left)
                continue
            await self._expire()
            batch = fair_share(self.ready, live.max_share)
            if batch:
                await self._update(batch)

    async def _expire(self) -> None:
        """Set aside what was sampled too many updates ago."""
        if not self.config.live.max_age:
            return
        made_by = await self.run.stored(self.run.store.steps_of_versions)
        for one in list(self.ready):
            sampled = max((made_by.get(v, 0) for v in one.scored.sample.versions if v >= 0), default=0)
            if self.step - sampled > self.config.live.max_age:
                self.ready.remove(one)
                await self._reject(one.scored, "expired")

    async def _update(self, batch: Sequence[Ready]) -> None:
        """One update: learn, serve the new weights, and say so of every turn in it."""
        metrics = await self.learner.step([one.scored for one in batch])
        try:
            check_guards(self.step + 1, metrics, self.config.guard)
        except GuardError as alarm:
            await self._roll_back(str(alarm))
            return
        step = self.step + 1
        await publish(self.run, self.learner, self.policy, step)
        await self.run.stored(self._commit, batch, step)
        self.step = step
        for one in batch:
            await self.feed.settle(one.scored.sample.trajectory_id, f"trained: {one.fate}")
            self.ready.remove(one)
        users = Counter(one.user for one in batch)
        waited = time.monotonic() - min(one.since for one in batch)
        self.run.metrics.write(
            self.step,
            version=self.policy.version,
            samples=len(batch),
            users=len(users),
            waited_seconds=waited,
            **metrics,
        )
        self.run.show({"step": self.step, "ready": len(self.ready)}, now=True)
        if self.step % self.config.trainer.checkpoint_every == 0:
            await save_checkpoint(self.run, self.learner, self.step)
            self.saved = self.step

    def _commit(self, batch: Sequence[Ready], step: int) -> None:
        store = self.run.store
        with store.transaction():
            for one in batch:
                store.add_sample(one.scored.sample, step=step, advantages=one.scored.advantages, fates=(one.fate,))
            store.consume((one.scored.sample.id for one in batch), step=step, life=self.run.life)

    async def _roll_back(self, why: str) -> None:
        """Serve the weights of the last checkpoint again and learn no more; what was trained since is ready again."""
        self.stopped = why
        self.run.log(f"learning stopped, back to step {self.saved}: {why}")
        self.run.show({"stopped": why}, now=True)
        found = checkpoint.latest(self.run.checkpoints)
        assert found is not None  # one is made before the first turn is learned from
        await self.learner.load(found / "engine")
        await self.run.stored(self.run.store.rewind, self.saved)
        self.step = self.saved
        await publish(self.run, self.learner, self.policy, self.step)
        await self.feed.reopen()


def trajectory_of(completed: CompletedTurn) -> Trajectory:
    """A served turn as an episode of one turn."""
    turn = completed.turn
    info: dict[str, Any] = {}
    if (said := completed.feedback) is not None:
        if said.score is not None or said.thumb is not None:
            info["score"] = said.score if said.score is not None else 1.0 if said.thumb == "up" else -1.0
        if hint := said.correction or said.text:
            info["hint"] = hint
    elif completed.ending in ENDINGS:
        info["score"] = ENDINGS[completed.ending]
    return Trajectory(
        id=turn.id,
        task_id=STAGE,
        group_id=turn.user,
        env=STAGE,
        seed=0,
        status="completed",
        reason=completed.ending,
        turns=(Turn(index=0, completion=turn.completion, next_state=completed.next_state, info=info),),
        messages=(*turn.messages, turn.completion.message, *completed.next_state),
        tools=turn.tools,
        started=turn.created,
    )


def score_of(trajectory: Trajectory, judgement: Judgement | None) -> float | None:
    """What the user said outright, or what the judge made of the reply; nothing where there was neither."""
    said = trajectory.turns[0].info.get("score")
    if said is not None:
        return float(said)
    replied = bool(trajectory.turns[0].next_state)
    return judgement.score if judgement is not None and replied else None


def credited(
    trajectory: Trajectory, judgement: Judgement, advantage: float | None, run: Run
) -> tuple[ScoredSample, str]:
    """The sample of a served turn, and what it is trained by, or why it is not."""
    algorithm = run.config.algorithm
    (sample,), reasons = samples_from(trajectory, algorithm)
    hinted = judgement.hinted if algorithm.w_opd else ()
    has_score = bool(algorithm.w_rl) and advantage is not None
    if reasons:
        fate = reasons[0]
    elif has_score or hinted:
        fate = TERM[has_score, bool(hinted)]
    else:
        fate = f"{UNSCORED}: {judgement.reason or trajectory.reason}"
    taught = (judgement.taught,) if hinted and judgement.taught else ()
    scored = ScoredSample(sample=sample, advantages=(advantage,), hinted=(hinted,) if hinted else (), taught=taught)
    return scored, fate


def fair_share(ready: Sequence[Ready], max_share: float) -> list[Ready]:
    """The samples of the next update, oldest first: of each user at most a share of them, where there are others."""
    users = Counter(one.user for one in ready)
    if len(users) < 2:
        return list(ready)
    others = {user: len(ready) - number for user, number in users.items()}
    allowed = {
        user: max(1, int(others[user] * max_share / (1.0 - max_share))) if max_share < 1 else len(ready)
        for user in users
    }
    chosen, taken = [], Counter[str]()
    for one in ready:
        if taken[one.user] < allowed[one.user]:
            taken[one.user] += 1
            chosen.append(one)
    return chosen
