"""Scoring: what came back after each turn is judged, beside collecting, and kept before anything is learned from it.

The next state of a turn is all that came back before the policy spoke again, in order, each message with its role. A
retry (the same request once more, nothing new in it) is never one: the turn before it stays unscored.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from agentgym.config import Config, JudgeConfig
from agentgym.errors import UsageError
from agentgym.judge import Judge
from agentgym.store import Store
from agentgym.teacher import Teacher, with_taught
from agentgym.types import WITH_OUTCOME, Exchange, Group, Judgement, Message, Prompt, Task, Trajectory, Turn

RETRIED = "retried: the same request came again"
TOO_LONG, UNTOLD = "too long for the context", "no place in the prompt"  # why a hint is not told to the teacher
SLACK_S = 30.0  # beyond what the judge's own deadlines add up to

# The teacher's prompts: for the prompt as served (`ids`) the same with each hint, None where that cannot be.
Hinted = Callable[[Prompt, tuple[int, ...], tuple[str, ...]], "list[tuple[int, ...] | None]"]


def exchanges(trajectory: Trajectory, task: Task | None = None) -> Iterator[tuple[Turn, Exchange]]:
    """Each turn of an episode as a judge sees it, in order; retried ones are left out.

    Example: a turn whose call of a tool was answered by the tool and by a user has both messages as its next state.
    """
    secrets = tuple(map(str, task.data.get("secrets", ()))) if task else ()
    kept = [turn for turn in trajectory.turns if turn.index not in retried(trajectory)]
    history = trajectory.messages[: len(trajectory.messages) - sum(1 + len(turn.next_state) for turn in kept)]
    for turn in kept:
        last = turn is trajectory.turns[-1]
        yield (
            turn,
            Exchange(
                trajectory_id=trajectory.id,
                turn=turn.index,
                task=task.instruction if task else "",
                history=history,
                response=turn.completion.message,
                next_state=turn.next_state,
                reward=turn.reward,
                info=turn.info,
                last=last,
                outcome=trajectory.outcome if last else None,
                secrets=secrets,
            ),
        )
        history += (turn.completion.message, *turn.next_state)


def retried(trajectory: Trajectory) -> set[int]:
    """The turns after which the very same request came again: what follows says nothing about them."""
    pairs = pairwise(trajectory.turns)
    return {turn.index for turn, after in pairs if after.completion.prompt_ids == turn.completion.prompt_ids}


class Scorer:
    """Judges the turns of finished episodes.

    consumes: trajectories that have ended, in any order; produces: one judgement per turn, in the store as soon as it is
    made, and the teacher's prompts with it; waits for: the judge, for at most `judge.concurrency` turns at once; is
    unblocked by: any judgement's end, which its deadline brings about at the latest. No episode waits for it; who wants
    to know what a group is worth does. What the store has already is not judged again.

    Args:
        judge: None where nobody judges; then nothing is done, and groups stay as they are.
        stored: calls the store without holding up the event loop (`Run.stored`).
        hinted: makes the teacher's prompts; None where no teacher is asked.
        teacher: one outside of the learner, asked as soon as there is a prompt.
    """

    def __init__(
        self,
        judge: Judge | None,
        store: Store,
        config: Config,
        stored: Callable[..., Awaitable[Any]],
        hinted: Hinted | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        self.judge, self.store, self.stored, self.hinted, self.teacher = judge, store, stored, hinted, teacher
        self.config = config
        self.deadline_s = deadline_s(config.judge)
        self.counts = {"waiting": 0, "scored": 0, "unscored": 0}
        self._places = asyncio.Semaphore(config.judge.concurrency)
        self._running: dict[str, asyncio.Task[tuple[Judgement, ...]]] = {}

    def take(self, ended: Iterable[Trajectory], task: Task | None = None) -> None:
        """Begin to judge episodes that have ended; returns at once."""
        for trajectory in ended:
            if self.judge is not None and trajectory.id not in self._running:
                self._running[trajectory.id] = asyncio.create_task(self._judge_all(trajectory, task))

    async def judged(self, group: Group) -> Group:
        """The group with the judgements of its members, which were taken before."""
        if self.judge is None:
            return group
        judgements = [await self._running[member.id] for member in group.trajectories]
        for member in group.trajectories:
            del self._running[member.id]
        return msgspec.structs.replace(group, judgements=tuple(judgements))

    def stats(self) -> dict[str, int]:
        """Turns that wait for the judge, and those that this process had scored or left unscored."""
        return dict(self.counts) if self.judge is not None else {}

    async def close(self) -> None:
        """Stop judging and free the judge; what was not judged yet is judged by the next life. Safe to call twice."""
        running = list(self._running.values())
        self._running.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self.judge is not None:
            await self.judge.close()

    async def _judge_all(self, trajectory: Trajectory, task: Task | None) -> tuple[Judgement, ...]:
        if trajectory.status not in WITH_OUTCOME:  # a failure of infrastructure or task is nothing to pay a judge for
            return ()
        known: dict[int, Judgement] = await self.stored(self.store.judgements, trajectory.id)
        missing = [pair for pair in exchanges(trajectory, task) if pair[0].index not in known]
        made = await asyncio.gather(*(self._judged(trajectory, turn, exchange) for turn, exchange in missing))
        known |= {judgement.turn: judgement for judgement in made}
        for index in retried(trajectory) - known.keys():
            known[index] = Judgement(trajectory_id=trajectory.id, turn=index, judge="", reason=RETRIED)
            await self.stored(self.store.add_judgement, known[index])
        return tuple(known[turn.index] for turn in trajectory.turns)

    async def _judged(self, trajectory: Trajectory, turn: Turn, exchange: Exchange) -> Judgement:
        self.counts["waiting"] += 1
        try:
            async with self._places:
                judgement = await self._asked(exchange)
            if judgement.hints and self.hinted:
                judgement = await asyncio.to_thread(self._with_prompts, trajectory, turn, exchange.history, judgement)
            if judgement.hinted and self.teacher is not None:
                judgement = await with_taught(self.teacher, judgement, turn.completion)
            await self.stored(self.store.add_judgement, judgement)
        finally:
            self.counts["waiting"] -= 1
        self.counts["scored" if judgement.score is not None else "unscored"] += 1
        return judgement

    async def _asked(self, exchange: Exchange) -> Judgement:
        """What the judge says; a judge that fails, or never answers, leaves the turn unscored."""
        assert self.judge is not None
        asking = asyncio.ensure_future(self.judge(exchange))
        try:
            await asyncio.wait({asking}, timeout=self.deadline_s)
        finally:
            asking.cancel()  # one that does not heed it is left behind
        error = None if not asking.done() or asking.cancelled() else asking.exception()
        if not asking.done():
            reason = f"the judge took longer than {self.deadline_s:g} s"
        elif error:
            reason = " ".join(f"the judge failed: {type(error).__name__}: {error}".split())[:500]
        elif asking.cancelled():
            reason = "the judge failed: it was cancelled"
        elif not _is_of(exchange, made := asking.result()):
            reason = f"the judge failed: it said {str(made)[:200]!r}"
        else:
            return made
        kind = self.config.judge.kind
        return Judgement(trajectory_id=exchange.trajectory_id, turn=exchange.turn, judge=kind, reason=reason)

    def _with_prompts(
        self, trajectory: Trajectory, turn: Turn, history: tuple[Message, ...], judgement: Judgement
    ) -> Judgement:
        """With the teacher's prompt for each hint; a hint that leaves no room for the response is refused."""
        assert self.hinted is not None
        served, room = turn.completion.prompt_ids, self.config.model.max_length - len(turn.completion.ids)
        try:
            made = self.hinted(Prompt(messages=history, tools=trajectory.tools), served, judgement.hints)
        except UsageError as error:  # of the chat template
            refused = tuple(f"cannot be told: {error}"[:200] for _ in judgement.hints)
            return msgspec.structs.replace(judgement, hints=(), refused_hints=judgement.refused_hints + refused)
        fits = [ids is not None and len(ids) <= room for ids in made]
        refused = tuple(UNTOLD if ids is None else TOO_LONG for ids, fit in zip(made, fits, strict=True) if not fit)
        return msgspec.structs.replace(
            judgement,
            hints=tuple(hint for hint, fit in zip(judgement.hints, fits, strict=True) if fit),
            hinted=tuple(tuple(ids) for ids, fit in zip(made, fits, strict=True) if fit and ids is not None),
            refused_hints=judgement.refused_hints + refused,
        )


def _is_of(exchange: Exchange, made: Judgement) -> bool:
    """Whether it is a judgement of this turn, whose score is a number or none."""
    if not isinstance(made, Judgement) or (made.trajectory_id, made.turn) != (exchange.trajectory_id, exchange.turn):
        return False
    return made.score is None or math.isfinite(made.score)


def deadline_s(judge: JudgeConfig) -> float:
    """Seconds after which a turn is given up: longer than all of a judge's own calls may take, one after another."""
    return judge.votes * (1 + judge.retries) * judge.timeout_s + SLACK_S
