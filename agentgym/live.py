"""A gateway that learns: engine, endpoint, judge and trainer put together for one run folder."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from agentgym.config import Config
from agentgym.errors import UsageError
from agentgym.gateway.serve import served
from agentgym.gateway.service import Gateway
from agentgym.pipeline import scoring, serving
from agentgym.run import Run
from agentgym.teacher import teaching

Say = Callable[[str, str], None]  # what, and what goes on with it


class Live(NamedTuple):
    """What is running."""

    gateway: Gateway
    url: str
    learning: asyncio.Task[None] | None  # ends with an alarm of the guard rails; None where nothing is learned


def check_live(config: Config) -> None:
    """Raise UsageError for a config that cannot learn from what it serves."""
    if config.live.learn and config.judge.kind == "none":
        raise UsageError("live.learn=true needs somebody who judges: set judge.kind to rules, verifier or llm")


@asynccontextmanager
async def live(run: Run, base: Path, listening: socket.socket, say: Say) -> AsyncIterator[Live]:
    """Serve, and with `live.learn` train on what is served; goes on from the last checkpoint of the run.

    What was trained on since then is ready again: its weights are gone, and it is trained on once more.
    """
    from agentgym.trainers import checkpoint

    config = run.config
    check_live(config)
    found = checkpoint.latest(run.checkpoints)
    step = int(checkpoint.read_state(found)["step"]) if found else 0
    run.store.rewind(step)
    run.metrics.rewind(step)
    version = run.store.add_version(step=step, life=run.life)
    async with AsyncExitStack() as stack:
        policy = await stack.enter_async_context(
            serving(config, found or base, run.folder, version, partial(say, "engine"))
        )
        store = run.folder / "store.sqlite"
        gateway, url = await stack.enter_async_context(
            served(policy, config, store, model=config.model.path, listening=listening)
        )
        await gateway.feed.reopen()
        learning = await _learn(stack, run, base, found, step, gateway, say) if config.live.learn else None
        yield Live(gateway, url, learning)


async def _learn(
    stack: AsyncExitStack, run: Run, base: Path, found: Path | None, step: int, gateway: Gateway, say: Say
) -> asyncio.Task[None]:
    """Start the learner beside the gateway; it ends with the stack."""
    from agentgym.trainers.live import LiveTraining
    from agentgym.trainers.loop import save_checkpoint
    from agentgym.trainers.process import LearnerProcess

    config, policy = run.config, gateway.policy
    teacher = await stack.enter_async_context(teaching(config, base))
    learner = LearnerProcess(config, model=found or base, folder=run.folder)
    stack.push_async_callback(learner.close)
    await learner.start(partial(say, "trainer"))
    if found:
        await learner.load(found / "engine")
    else:
        await save_checkpoint(run, learner, 0)
    scorer = await stack.enter_async_context(scoring(run, policy, teacher))
    training = LiveTraining(run, gateway.feed, policy, learner, scorer, step=step)
    task = asyncio.create_task(training.go())

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])
        if training.saved < training.step and not training.stopped:
            await save_checkpoint(run, learner, training.step)

    stack.push_async_callback(end)
    return task
