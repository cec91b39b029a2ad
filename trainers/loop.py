"""The training loop: collect, learn, publish, remember; one step after another."""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentgym.collect import Collected, TaskStream, collect
from agentgym.policy import ServingPolicy
from agentgym.pool import RolloutPool, training_sampling
from agentgym.run import Run
from agentgym.trainers import checkpoint
from agentgym.trainers.assemble import Assembled, assemble, collection_metrics, has_spread
from agentgym.trainers.guard import check_guards
from agentgym.trainers.process import LearnerProcess

Progress = Callable[[str, int, int], None]


class Training:
    """What the loop works with. Serving, collecting and training take turns here.

    `version` is the weight version that serves; `step` counts the training steps that are done.
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
        evaluate: Callable[[int], Awaitable[float]] | None = None,
        progress: Progress = lambda what, done, total: None,
    ) -> None:
        self.run, self.config = run, run.config
        self.policy, self.pool, self.learner, self.stream = policy, pool, learner, stream
        self.step = step
        self.evaluate = evaluate
        self.progress = progress

    async def train(self) -> None:
        """Train until `trainer.steps` are done; raises GuardError if a guard rail is crossed."""
        while self.step < self.config.trainer.steps:
            self.progress("train", self.step, self.config.trainer.steps)
            began = time.monotonic()
            collected = await self.collect()
            assembled = assemble(collected, self.config.algorithm)
            metrics = collection_metrics(collected, assembled)
            metrics["collect_seconds"] = time.monotonic() - began
            if assembled.ready:
                metrics |= await self.learn(assembled)
            self.step += 1
            self.commit(assembled, trained=bool(assembled.ready))
            if self.config.evaluation.every and self.evaluate and self.step % self.config.evaluation.every == 0:
                metrics["eval_success"] = await self.evaluate(self.step)
            self.run.metrics.write(self.step, version=self.policy.version, **metrics)
            check_guards(self.step, metrics, self.config.guard)
            if self.step % self.config.trainer.checkpoint_every == 0 or self.step == self.config.trainer.steps:
                await self.save()

    async def collect(self) -> Collected:
        """The groups of the next step, every trajectory in the store before anything is learned from it."""
        rollout, run, step = self.config.rollout, self.run, self.step + 1
        return await collect(
            self.pool,
            self.stream,
            prefix=f"train-L{run.life}-s{step:05d}",
            wanted=rollout.groups_per_step,
            limit=round(rollout.groups_per_step * max(1.0, rollout.oversample)),
            size=rollout.group_size,
            sampling=training_sampling(rollout),
            useful=lambda group: has_spread(group, self.config.algorithm),
            keep=lambda trajectory: run.store.add_trajectory(trajectory, stage="train", step=step, life=run.life),
        )

    async def learn(self, assembled: Assembled) -> dict[str, float]:
        """Train on the samples and serve the new weights."""
        began = time.monotonic()
        metrics = await self.learner.step(list(assembled.ready), version=self.policy.version)
        trained = time.monotonic()
        await publish(self.run, self.learner, self.policy, self.step + 1)
        seconds = {"train_seconds": trained - began, "publish_seconds": time.monotonic() - trained}
        return metrics | seconds

    def commit(self, assembled: Assembled, *, trained: bool) -> None:
        """Write the samples and which step consumed them, in one transaction."""
        store, step = self.run.store, self.step
        with store.transaction():
            for scored in assembled.ready:
                store.add_sample(scored.sample, step=step, advantages=scored.advantages)
            for scored, reason in assembled.rejected:
                store.add_sample(scored.sample, step=step, advantages=scored.advantages, rejected=reason)
            if trained:
                store.consume((scored.sample.id for scored in assembled.ready), step=step, life=self.run.life)

    async def save(self) -> None:
        """A whole checkpoint: model, optimiser, schedule, random state and data position."""
        await save_checkpoint(self.run, self.learner, step=self.step, position=self.stream.position)


async def publish(run: Run, learner: LearnerProcess, policy: ServingPolicy, step: int) -> int:
    """Serve the learner's weights under a new version, made by `step`, and return it."""
    version = run.store.add_version(step=step, life=run.life)
    directory = run.folder / "weights" / f"v{version:06d}"
    await learner.publish(directory)
    await policy.update_weights(directory, version)
    shutil.rmtree(directory, ignore_errors=True)
    return version


async def save_checkpoint(run: Run, learner: LearnerProcess, *, step: int, position: int) -> Path:
    """Write the checkpoint of `step` and delete the oldest beyond `trainer.keep_checkpoints`."""
    with checkpoint.writing(run.checkpoints, step, {"step": step, "position": position}) as folder:
        await learner.publish(folder)
        await learner.save(folder / "engine")
    checkpoint.prune(run.checkpoints, run.config.trainer.keep_checkpoints)
    return checkpoint.folder_of(run.checkpoints, step)
