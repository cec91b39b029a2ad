"""The main job, stage by stage: evaluate, warm up, evaluate, train, evaluate; each done once, whatever interrupts it."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from agentgym.collect import TaskStream
from agentgym.config import Config
from agentgym.errors import ConfigError, TaskError, UsageError
from agentgym.evaluate import SOLVED, Evaluation, evaluate, select_tasks
from agentgym.judge import make_judge
from agentgym.models import resolve_model
from agentgym.plugins import import_modules
from agentgym.policy import ServingPolicy, TokenServer
from agentgym.pool import RolloutPool, training_sampling
from agentgym.registry import ENGINES, TASK_SETS
from agentgym.results import write_result
from agentgym.rollout import EpisodeRequest
from agentgym.run import Run
from agentgym.samples import samples_from
from agentgym.scoring import Scorer
from agentgym.teacher import Teacher, teaching
from agentgym.types import Sampling, Task
from agentgym.wrapping import make_env

if TYPE_CHECKING:
    from agentgym.trainers.process import LearnerProcess


class Progress(Protocol):
    """Told how far a piece of work is: what, done, total (0: unknown), and a remark."""

    def __call__(self, what: str, done: int, total: int, remark: str = "") -> None: ...


def engine_name(config: Config) -> str:
    """The engine that `engine.backend` means on this machine."""
    installed = importlib.util.find_spec("vllm") is not None
    if config.engine.backend == "vllm" and not installed:
        raise UsageError(
            "engine.backend=vllm, but vllm is not installed: run `make install`, or set engine.backend=transformers"
        )
    if config.engine.backend == "auto":
        return "vllm" if installed else "transformers"
    return config.engine.backend


@asynccontextmanager
async def serving(
    config: Config, model: Path, folder: Path, version: int, progress: Callable[[str], None]
) -> AsyncIterator[ServingPolicy]:
    """The policy of a config, started; stopped whatever happens."""
    policy: ServingPolicy = ENGINES.make(
        engine_name(config), config=config, model=model, folder=folder, version=version
    )
    try:
        await policy.start(progress)
        yield policy
    finally:
        await asyncio.shield(policy.close())


def load_tasks(config: Config, split: str) -> Sequence[Task]:
    """The tasks of a split; refused if there are none. Imports what the config imports first."""
    import_modules(config.imports, "imports:")
    tasks = TASK_SETS.make(config.tasks.name, **config.tasks.options).tasks(split)
    if not tasks:
        raise UsageError(f"tasks.name={config.tasks.name} has no tasks in the split {split!r}")
    return tasks


def check_start(config: Config, progress: Callable[[str], None] = lambda remark: None) -> Path:
    """Check what can be checked before anything is written: engine, tasks, environment, judge, model; returns its folder.

    Raises:
        UsageError: one of them cannot be.
    """
    engine_name(config)
    for split in ("train", "test"):
        tasks = load_tasks(config, split)
    make_env(tasks[0].env, config.env.options, config.env.wrappers)
    check_judging(config)
    return resolve_model(config.model.path, progress=progress)


def check_judging(config: Config) -> None:
    """Check that whoever scores turns can, and that there is a judge where scores or hints are wanted.

    Raises:
        ConfigError: a setting cannot work, or needs another.
    """
    from agentgym.policies.scripted import ScriptedPolicy

    algorithm = config.algorithm
    if config.judge.kind == "none" and algorithm.estimator == "step_wise":
        raise ConfigError("algorithm.estimator=step_wise compares scored turns: set judge.kind=verifier, rules or llm")
    if config.judge.kind == "none" and algorithm.w_opd:
        raise ConfigError(
            f"algorithm.w_opd={algorithm.w_opd:g} distils from hints, and nobody gives any: set judge.kind=verifier (for "
            "those of the environment), rules or llm; or algorithm.w_opd=0"
        )
    make_judge(config, ask=ScriptedPolicy(["0"]))


@asynccontextmanager
async def scoring(run: Run, policy: ServingPolicy, teacher: Teacher | None) -> AsyncIterator[Scorer]:
    """Whoever judges turns, and makes the teacher's prompts if one is asked; freed whatever happens."""
    config = run.config
    judge = make_judge(config, ask=policy, cache=run.store)
    hinted = policy.hinted if isinstance(policy, TokenServer) else None
    if config.algorithm.w_opd and hinted is None:
        raise UsageError(f"algorithm.w_opd needs an engine that renders hints: {type(policy).__name__} does not")
    scorer = Scorer(judge, run.store, config, run.stored, hinted if config.algorithm.w_opd else None, teacher)
    try:
        yield scorer
    finally:
        await asyncio.shield(scorer.close())


class Pipeline:
    """One run from its first evaluation to its report.

    What is done is in `run.progress`; a pipeline opened again on the same run skips it and goes on from the last
    whole checkpoint.
    """

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run, self.config, self.progress = run, run.config, progress
        self.teacher: Teacher | None = None
        self.held_out = select_tasks(load_tasks(run.config, "test"), run.config.evaluation.n_tasks)
        self.training = load_tasks(run.config, "train")

    async def go(self) -> dict[str, Any]:
        """Run all stages that are not done and return the result."""
        if not self._finished():
            async with AsyncExitStack() as stack:
                await self._stages(stack)
            self.run.save_progress(finished_steps=self.config.trainer.steps)
        return write_result(self.run)

    def _finished(self) -> bool:
        """Whether there is nothing left to do; a checkpoint that was deleted since is to be made again."""
        from agentgym.trainers import checkpoint

        steps = self.config.trainer.steps
        return self.run.progress.get("finished_steps") == steps and checkpoint.folder_of(
            self.run.checkpoints, steps
        ) == checkpoint.latest(self.run.checkpoints)

    async def _stages(self, stack: AsyncExitStack) -> None:
        from agentgym.trainers import checkpoint
        from agentgym.trainers.loop import publish, save_checkpoint
        from agentgym.trainers.process import LearnerProcess

        run, config = self.run, self.config
        base = check_start(config, partial(self._say, "model"))
        self.teacher = await stack.enter_async_context(teaching(config, base))
        found = checkpoint.latest(run.checkpoints)
        step = int(checkpoint.read_state(found)["step"]) if found else 0
        if step > config.trainer.steps:
            raise UsageError(f"{found} has more steps than trainer.steps={config.trainer.steps}: raise trainer.steps")
        run.store.rewind(step)
        run.metrics.rewind(step)
        kept = run.progress.get("evaluations", {})
        run.save_progress(evaluations={stage: body for stage, body in kept.items() if body["step"] <= step})
        run.save_config()
        version = run.store.add_version(step=step, life=run.life)

        learner = LearnerProcess(config, model=found or base, folder=run.folder)
        stack.push_async_callback(learner.close)
        starting = asyncio.create_task(learner.start(partial(self._say, "trainer")))
        stack.callback(starting.cancel)
        policy = await stack.enter_async_context(
            serving(config, found or base, run.folder, version, partial(self._say, "engine"))
        )
        pool = await stack.enter_async_context(RolloutPool(policy, config))
        await starting
        if found:
            await learner.load(found / "engine")

        if not found:
            await self._evaluate(pool, "base", 0)
            if config.warm_start.examples:
                await self._warm_start(learner, base)
                await publish(run, learner, policy, 0)
            await save_checkpoint(run, learner, 0)
        if config.warm_start.examples:
            await self._evaluate(pool, "before", 0)
        if step < config.trainer.steps:
            await self._train(pool, policy, learner, step)
        await self._evaluate(pool, "after", config.trainer.steps)

    async def _train(self, pool: RolloutPool, policy: ServingPolicy, learner: LearnerProcess, step: int) -> None:
        from agentgym.trainers.guard import measure_gap
        from agentgym.trainers.loop import Training

        stream = TaskStream(self.training, self.config.seed)
        with self._timed("train"):
            await measure_gap(self.run, pool, learner, stream)
            async with scoring(self.run, policy, self.teacher) as scorer:
                training = Training(
                    self.run, policy, pool, learner, stream, step=step, progress=self.progress, scorer=scorer,
                    evaluate=lambda step: self._success_at(pool, step),
                )  # fmt: skip
                await training.train()

    async def _warm_start(self, learner: LearnerProcess, base: Path) -> None:
        """Supervised training on what the oracle does: its episodes, token by token."""
        from agentgym.policies.scripted import OraclePolicy
        from agentgym.policies.template import ChatTemplate

        settings, run = self.config.warm_start, self.run
        with self._timed("warm_start"):
            model = self.config.model
            template = ChatTemplate(base, model.chat_template, model.tool_format)
            oracle = RolloutPool(OraclePolicy(template), self.config)
            tasks = self.training[: settings.examples]
            run.store.add_tasks(tasks)
            sampling = training_sampling(self.config.rollout)
            requests = [
                EpisodeRequest(
                    id=f"demonstrate-L{run.life}/{task.id}", group_id="", task=task, seed=0, sampling=sampling
                )
                for task in tasks
            ]
            samples = []
            async for trajectory in oracle.episodes(requests):
                run.store.add_trajectory(trajectory, stage="demonstrate", step=0, life=run.life)
                if trajectory.outcome == SOLVED:
                    samples += samples_from(trajectory, self.config.algorithm)[0]
                self.progress("demonstrations", len(samples), len(tasks))
            if not samples:
                raise TaskError(
                    f"the oracle solved none of {len(tasks)} tasks of {self.config.tasks.name}: no warm start"
                )
            samples.sort(key=lambda sample: sample.id)  # the order in which they ended must not matter
            metrics = await learner.sft(samples, progress=lambda done, total: self.progress("warm start", done, total))
            run.log(f"warm start on {len(samples)} demonstrations: {metrics}")

    async def _evaluate(self, pool: RolloutPool, stage: str, step: int) -> None:
        """Evaluate once; the result is kept in `progress.json`."""
        kept = self.run.progress.get("evaluations", {})
        done = kept.get(stage, {}).get("step") == step
        if done or not self.config.evaluation.before_and_after:
            return
        with self._timed(f"evaluate_{stage}"):
            found = await self._evaluation(pool, stage, step)
        self.run.save_progress(evaluations={**kept, stage: msgspec.to_builtins(found)})

    async def _success_at(self, pool: RolloutPool, step: int) -> float:
        return (await self._evaluation(pool, "during", step)).success

    async def _evaluation(self, pool: RolloutPool, stage: str, step: int) -> Evaluation:
        settings, run = self.config.evaluation, self.run
        return await evaluate(
            pool, self.held_out, run.store, stage=f"eval-{stage}", step=step, life=run.life, seed=run.config.seed,
            attempts=settings.attempts,
            sampling=Sampling(temperature=settings.temperature, max_tokens=self.config.rollout.max_tokens),
            progress=lambda done, total: self.progress(f"evaluate ({stage})", done, total),
        )  # fmt: skip

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Add the wall seconds of the block to `progress.json`."""
        began = time.monotonic()
        try:
            yield
        finally:
            stages = self.run.progress.get("stages", {})
            self.run.save_progress(stages={**stages, stage: stages.get(stage, 0.0) + time.monotonic() - began})

    def _say(self, what: str, remark: str) -> None:
        self.progress(what, 0, 0, remark)
