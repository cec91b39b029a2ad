"""Evaluation: attempts at held-out tasks, kept in a store, with honest statistics."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from agentgym import stats
from agentgym.errors import InfrastructureError
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.store import Store
from agentgym.types import Sampling, Task, Trajectory

SOLVED = 1.0  # an outcome of full marks
JUDGED = ("completed", "truncated", "task")  # what says something about model and task; the rest is run again
MAX_LOST = 0.1  # share of attempts lost to infrastructure failures above which an evaluation says nothing


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Success of one checkpoint on N tasks with K attempts each.

    An attempt that an infrastructure or task failure ended counts as a failure, and in `errors`: nothing is dropped.
    """

    stage: str
    task_ids: tuple[str, ...]
    families: tuple[str, ...]  # of each task
    success_N: tuple[float, ...]  # share of the attempts that solved each task
    outcome_mean: float
    attempts: int
    errors: int
    step: int = 0  # training steps of the checkpoint
    seconds: float = 0.0

    @property
    def success(self) -> float:
        """avg@k: mean over tasks of the share of attempts that solved it."""
        return float(np.mean(self.success_N)) if self.success_N else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the success rate: a bootstrap by task, or Wilson's over tasks where that says nothing.

        With one attempt a task Wilson's is the better one; where every task came out alike a bootstrap has no width.
        """
        n = len(self.success_N)
        if self.attempts == 1 or len(set(self.success_N)) == 1:
            return stats.wilson_95(round(self.success * n), n)
        return stats.bootstrap_mean(self.success_N)

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k (2107.03374, equation 1), k <= attempts."""
        solved = [round(share * self.attempts) for share in self.success_N]
        return float(np.mean([stats.pass_at_k(self.attempts, c, k) for c in solved]))

    def by_family(self) -> dict[str, float]:
        """Success rate of each family of tasks."""
        found: dict[str, list[float]] = {}
        for family, share in zip(self.families, self.success_N, strict=True):
            found.setdefault(family, []).append(share)
        return {family: float(np.mean(shares)) for family, shares in sorted(found.items())}


async def evaluate(
    pool: RolloutPool,
    tasks: Sequence[Task],
    store: Store,
    *,
    stage: str,
    sampling: Sampling,
    attempts: int = 1,
    seed: int = 0,
    step: int = 0,
    life: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Attempt each task `attempts` times; what the store already has of this stage and step is not run again.

    Raises:
        InfrastructureError: too many attempts were lost; those that were not are kept, and the rest can be run later.
    """
    store.add_tasks(tasks)
    wanted = [
        EpisodeRequest(
            id=f"{stage}-{step}/{task.id}#{attempt}",
            group_id=f"{stage}-{step}/{task.id}",
            task=task,
            seed=zlib.crc32(f"{seed}/{task.id}/{attempt}".encode()),  # tasks must not share their random numbers
            sampling=sampling,
        )
        for task in tasks
        for attempt in range(attempts)
    ]
    kept = store.trajectories(stage=stage, step=step)
    found = {trajectory.id: trajectory for trajectory in kept if trajectory.status in JUDGED}
    missing = [request for request in wanted if request.id not in found]
    progress(len(wanted) - len(missing), len(wanted))
    async for trajectory in pool.episodes(missing):
        if trajectory.status in JUDGED:
            await asyncio.to_thread(store.add_trajectory, trajectory, stage=stage, step=step, life=life)
        found[trajectory.id] = trajectory
        progress(len(found), len(wanted))
    lost = [member for member in found.values() if member.status not in JUDGED]
    if len(lost) > MAX_LOST * len(wanted):
        raise InfrastructureError(
            f"{stage}: {len(lost)} of {len(wanted)} attempts were lost, the last one because {lost[-1].reason}: mend it and "
            "call the same command again, which runs them anew"
        )
    return summarise(stage, tasks, [found[request.id] for request in wanted], attempts, step)


def summarise(
    stage: str, tasks: Sequence[Task], trajectories: Sequence[Trajectory], attempts: int, step: int = 0
) -> Evaluation:
    """The evaluation that `trajectories` make: `attempts` of each task, in the tasks' order."""
    outcomes = [trajectory.outcome or 0.0 for trajectory in trajectories]
    solved_NK = np.array([outcome >= SOLVED for outcome in outcomes], dtype=float).reshape(len(tasks), attempts)
    return Evaluation(
        stage=stage,
        task_ids=tuple(task.id for task in tasks),
        families=tuple(task.family for task in tasks),
        success_N=tuple(float(share) for share in solved_NK.mean(axis=1)),
        outcome_mean=float(np.mean(outcomes)) if outcomes else 0.0,
        attempts=attempts,
        step=step,
        errors=sum(trajectory.outcome is None for trajectory in trajectories),
    )


def select_tasks(tasks: Sequence[Task], n: int) -> list[Task]:
    """`n` tasks, the same number of each family as far as there are any, in their order; all if n is 0."""
    if not n or n >= len(tasks):
        return list(tasks)
    seen: Counter[str] = Counter()
    ranked = []
    for position, task in enumerate(tasks):
        ranked.append((seen[task.family], position))
        seen[task.family] += 1
    return [tasks[position] for _, position in sorted(sorted(ranked)[:n], key=lambda rank: rank[1])]
