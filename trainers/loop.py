"""The training loop: collect, learn, publish, remember; one step after another, while the next ones are collected."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from agentgym.collect import Collected, TaskStream, collect
from agentgym.lag import LagMeter
from agentgym.policy import ServingPolicy
from agentgym.pool import RolloutPool, cancel, training_sampling
from agentgym.rollout import EpisodeRequest
from agentgym.run import Run
from agentgym.scoring import Scorer
from agentgym.trainers import checkpoint
from agentgym.trainers.assemble import Assembled, assemble, is_useful
from agentgym.trainers.guard import check_guards, measure_gap
from agentgym.trainers.process import LearnerProcess
from agentgym.trainers.signals import collection_metrics, staleness
from agentgym.types import Group

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


class Training:
    """The trainer's loop and the collectors that run ahead of it; `step` counts the training steps that are done.

    consumes: the episodes of step 1, 2, 3, ... in this order, each once; produces: a weight version per step, metrics,
    checkpoints; waits for: the collector of the next step, then the learner; is unblocked by: the last group of that
    step. Up to `rollout.max_staleness` further steps are collected meanwhile, never more: that is the back-pressure,
    and it bounds how many versions behind a token can be. With 0 collecting and training take turns.
    """

    def __init__(
        self,
        run: Run,
        policy: ServingPolicy,
        pool: RolloutPool,
        learner: LearnerProcess,
        stream: TaskStream,
        *,
        step: int = 0,
        scorer: Scorer | None = None,
        evaluate: Callable[[int], Awaitable[float]] | None = None,
        progress: Progress = lambda what, done, total: None,
    ) -> None:
        self.run, self.config = run, run.config
        self.policy, self.pool, self.learner, self.stream = policy, pool, learner, stream
        self.step = self.saved = step
        self.scorer = scorer or Scorer(None, run.store, run.config, run.stored)
        self.evaluate = evaluate
        self.progress = progress
        self.collecting: dict[int, asyncio.Task[Collected]] = {}

    async def train(self) -> None:
        """Train until `trainer.steps` are done; raises GuardError if a guard rail is crossed."""
        async with LagMeter() as lag, self.collectors():
            while self.step < self.config.trainer.steps:
                self.progress("train", self.step, self.config.trainer.steps)
                began = time.monotonic()
                collected = await self.next_collected()
                waited = time.monotonic() - began
                assembled = await asyncio.to_thread(assemble, collected, self.config.algorithm)
                metrics = collection_metrics(collected, assembled) | {
                    "wait_seconds": waited,
                    "loop_lag_seconds": lag.take(),
                }
                if assembled.ready:
                    metrics |= await self.learn(assembled)
                self.step += 1
                await self.run.stored(self.commit, assembled)
                if self.evaluate and self.config.evaluation.every and self.step % self.config.evaluation.every == 0:
                    metrics["eval_success"] = await self.evaluate(self.step)
                self.run.metrics.write(self.step, version=self.policy.version, **metrics)
                check_guards(self.step, metrics, self.config.guard)
                if self.step % self.config.guard.gap_every == 0:
                    await measure_gap(self.run, self.pool, self.learner, self.stream)
                if self.step % self.config.trainer.checkpoint_every == 0 or self.step == self.config.trainer.steps:
                    await self.save()
            self.progress("train", self.step, self.config.trainer.steps)

    async def save(self) -> None:
        """A checkpoint of the step that was done last, unless there is one."""
        if self.saved < self.step:
            await save_checkpoint(self.run, self.learner, self.step)
            self.saved = self.step

    @asynccontextmanager
    async def collectors(self) -> AsyncIterator[None]:
        """End the collectors that run ahead, whatever ended the training."""
        try:
            yield
        finally:
            await cancel(list(self.collecting.values()))

    async def next_collected(self) -> Collected:
        """The episodes of the next step; collectors of the steps that may run ahead of it are started as well."""
        ahead = min(self.step + 1 + self.config.rollout.max_staleness, self.config.trainer.steps)
        for step in range(self.step + 1, ahead + 1):
            if step not in self.collecting:
                self.collecting[step] = asyncio.create_task(self.collect(step))
        self.run.show({"step": self.step, "trainer": f"waits for the episodes of step {self.step + 1}"}, now=True)
        try:
            collected = await self.collecting.pop(self.step + 1)
        except asyncio.CancelledError:  # stopped between two steps: what was learned since the last checkpoint is kept
            await self.save()
            raise
        self.run.doing.pop(f"collecting/{self.step + 1}", None)
        return collected

    async def collect(self, step: int) -> Collected:
        """The collector of one step.

        consumes: tasks of the stream; produces: groups of episodes, each in the store before anything is learned from
        it; waits for: places in the pool; is unblocked by: any group's end.
        """
        rollout = self.config.rollout
        return await collect(
            lambda number: self.group(step, number),
            wanted=rollout.groups_per_step,
            limit=round(rollout.groups_per_step * max(1.0, rollout.oversample)),
            useful=lambda group: is_useful(group, self.config.algorithm),
            first=await self.run.stored(self.run.store.groups_started, step),
            progress=lambda done, total: self.run.show(
                {f"collecting/{step}": [done, total], "pool": self.pool.executor.stats(), "judge": self.scorer.stats()}
            ),
        )

    async def group(self, step: int, number: int) -> Group:
        """Run the episodes of a group that the store does not have: all of them, unless an earlier life was stopped.

        Each is judged as soon as it has ended, beside those that still run; the group is whole when all are judged.
        """
        run, size = self.run, self.config.rollout.group_size
        id = f"train-s{step:05d}-g{number:03d}"
        position = await run.stored(run.store.start_group, id, step=step, number=number)
        task = self.stream.at(position)
        found = {trajectory.seed: trajectory for trajectory in await run.stored(run.store.members, id)}
        requests = [
            EpisodeRequest(
                id=f"{id}-m{member}-L{run.life}",
                group_id=id,
                task=task,
                seed=position * 1009 + member,
                sampling=training_sampling(self.config.rollout),
            )
            for member in range(size)
        ]
        self.scorer.take(found.values(), task)
        async for trajectory in self.pool.episodes([request for request in requests if request.seed not in found]):
            await run.stored(run.store.add_trajectory, trajectory, stage="train", step=step, life=run.life)
            found[trajectory.seed] = trajectory
            self.scorer.take([trajectory], task)
        group = Group(id=id, task_id=task.id, trajectories=tuple(found[request.seed] for request in requests))
        return await self.scorer.judged(group)

    async def learn(self, assembled: Assembled) -> dict[str, float]:
        """Train on the samples and serve the new weights."""
        self.run.show({"trainer": f"trains step {self.step + 1}"}, now=True)
        began = time.monotonic()
        metrics = await self.learner.step(list(assembled.ready))
        metrics |= staleness(assembled.ready, await self.run.stored(self.run.store.steps_of_versions))
        trained = time.monotonic()
        self.run.show({"trainer": f"publishes the weights of step {self.step + 1}"}, now=True)
        await publish(self.run, self.learner, self.policy, self.step + 1)
        return metrics | {"train_seconds": trained - began, "publish_seconds": time.monotonic() - trained}

    def commit(self, assembled: Assembled) -> None:
        """Write the samples and which step consumed them, in one transaction; resume undoes it with the checkpoint."""
        store, step = self.run.store, self.step
        with store.transaction():
            for scored, reason in [*((scored, None) for scored in assembled.ready), *assembled.rejected]:
                store.add_sample(
                    scored.sample, step=step, advantages=scored.advantages, rejected=reason,
                    fates=assembled.fates[scored.sample.id],
                )  # fmt: skip
            store.consume((scored.sample.id for scored in assembled.ready), step=step, life=self.run.life)


async def publish(run: Run, learner: LearnerProcess, policy: ServingPolicy, step: int) -> int:
    """Serve the learner's weights under a new version, made by `step`, and return it."""
    version = await run.stored(run.store.add_version, step=step, life=run.life)
    directory = run.folder / "weights" / f"v{version:06d}"
    await learner.publish(directory)
    await policy.update_weights(directory, version)
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
    return version


async def save_checkpoint(run: Run, learner: LearnerProcess, step: int) -> Path:
    """Write a whole checkpoint of `step` and delete the oldest beyond `trainer.keep_checkpoints`.

    Where the run stands in the data needs no place in it: the store knows which tasks were given out.
    """
    run.show({"trainer": f"saves the checkpoint of step {step}"}, now=True)
    async with in_thread(checkpoint.writing(run.checkpoints, step, {"step": step})) as folder:
        await learner.publish(folder)
        await learner.save(folder / "engine")
    await asyncio.to_thread(checkpoint.prune, run.checkpoints, run.config.trainer.keep_checkpoints)
    return checkpoint.folder_of(run.checkpoints, step)


@asynccontextmanager
async def in_thread(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """`manager`, entered and left in a thread: flushing gigabytes to a disk takes long."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        if not await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(manager.__exit__, None, None, None)
