"""Where episodes run: the contract, in this process, and in worker processes of this machine."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from agentgym.config import Config
from agentgym.env import Env
from agentgym.policy import Policy, PolicyAddress
from agentgym.remote import RemoteWorker, closed, lost
from agentgym.rollout import EpisodeRequest, run_episode
from agentgym.types import Task, Trajectory
from agentgym.worker import Setup, policy_timeout, registered_env

MAX_FAILED_STARTS = 3  # in a row, of the workers in one place


class Executor(ABC):
    """Runs episodes somewhere; each request that goes in comes out as one trajectory.

    An executor never raises for what happens to an episode or to the process that runs it: where a worker was lost, the
    trajectory is an infrastructure failure with `info["worker_lost"]`. It tries nothing again: its caller does.
    """

    async def start(self) -> None:
        """Be ready for episodes; safe to call twice. Raises AgentgymError if that cannot be."""

    @abstractmethod
    async def run(self, request: EpisodeRequest, *, alone: bool = False) -> Trajectory:
        """Run one episode; cancelling it frees its environment and its request to the engine at once.

        `alone`: with no other episode in the same process, because it may be what ended the last one.
        """

    async def close(self) -> None:
        """Free everything that the executor made; what still runs there ends as cancelled. Safe to call twice."""

    def stats(self) -> dict[str, float]:
        """What there is to see: numbers by name."""
        return {}


class InlineExecutor(Executor):
    """Runs episodes in this process's event loop, in the tasks that ask for them; it makes nothing of its own."""

    def __init__(self, policy: Policy, config: Config, make_env: Callable[[Task], Env] | None = None) -> None:
        self.policy, self.config = policy, config
        self.make_env = make_env or registered_env(config)

    async def run(self, request: EpisodeRequest, *, alone: bool = False) -> Trajectory:
        timeout_s = policy_timeout(self.config)
        return await run_episode(request, self.policy, self.make_env, self.config.rollout, timeout_s)


class LocalExecutor(Executor):
    """Runs episodes in `rollout.workers` processes, each with many at once.

    A worker that dies, is silent for `rollout.worker_timeout_s` or takes more than `rollout.worker_memory_gib` is
    killed with everything that it started, and replaced. Silence is counted in time that this process's loop was
    listening: no clock that jumps, and no loop that was blocked here, costs a worker its life.
    """

    def __init__(self, address: PolicyAddress, config: Config, make_env: Callable[[Task], Env] | None = None) -> None:
        self.config = config
        self.setup = Setup(config, address, make_env)
        self.replaced = 0
        self.lag_s = 0.0  # of this process's loop
        self._ready: set[RemoteWorker] = set()
        self._alive: set[RemoteWorker] = set()
        self._changed = asyncio.Event()  # a worker became ready, or none will
        self._given_up: list[str] = []  # why, one for each place that stays empty
        self._tasks: list[asyncio.Task[None]] = []
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._lane = asyncio.Lock()
        self._loner: RemoteWorker | None = None

    async def start(self) -> None:
        """Start the workers; returns when all are ready. Raises AgentgymError if one cannot start."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        if not self._starting.done():
            await asyncio.shield(self._starting)
        self._starting.result()

    async def _start(self) -> None:
        self._packed = self.setup.pack()
        first = [self._new() for _ in range(self.config.rollout.workers)]
        try:
            await asyncio.gather(*(worker.start() for worker in first))
        except BaseException:
            await asyncio.gather(*(worker.kill("not wanted") for worker in first if not worker.ended.done()))
            raise
        self._ready.update(first)
        self._tasks = [asyncio.create_task(self._keep(worker)) for worker in first]
        self._tasks.append(asyncio.create_task(self._watch()))

    async def run(self, request: EpisodeRequest, *, alone: bool = False) -> Trajectory:
        """Run one episode in the worker that has the fewest.

        consumes: the request; produces: one trajectory; waits for: a worker, then for the episode there; is unblocked
        by: a worker that becomes ready, the episode's end, the worker's end, and by close.
        """
        await self.start()
        if alone:
            return await self._run_alone(request)
        while not self._ready:
            if self._closed:
                return closed(request)
            if len(self._given_up) == self.config.rollout.workers:
                return lost(request, self._given_up[-1])
            self._changed.clear()
            await self._changed.wait()
        return await min(self._ready, key=lambda worker: worker.load).run(request)

    async def close(self) -> None:
        self._closed = True
        if self._starting is not None:
            if not self._starting.done():
                self._starting.cancel()
            await asyncio.wait([self._starting])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._ready.clear()
        patience_s = self.config.rollout.close_timeout_s + 1
        await asyncio.gather(*(worker.stop(patience_s) for worker in list(self._alive)))
        self._changed.set()

    def stats(self) -> dict[str, float]:
        """Workers that are ready, episodes that they run, the longest lag of their loops and this one's, replacements."""
        return {
            "workers": len(self._ready),
            "running": sum(worker.load for worker in self._alive),
            "lag_s": max((worker.lag_s for worker in self._ready), default=0.0),
            "own_lag_s": self.lag_s,
            "replaced": self.replaced,
        }

    async def _run_alone(self, request: EpisodeRequest) -> Trajectory:
        """Run one episode in a worker kept for such, one after another.

        consumes: the request; produces: one trajectory; waits for: its turn, then as `run`; is unblocked by: the end of
        the one before it, then as `run`.
        """
        async with self._lane:
            if self._closed:
                return closed(request)
            if self._loner is None or self._loner.ended.done():
                self._loner = self._new()
                try:
                    await self._loner.start()
                except Exception as error:
                    return closed(request) if self._closed else lost(request, str(error))
            return await self._loner.run(request)

    async def _keep(self, worker: RemoteWorker) -> None:
        """Keep one place filled with a worker, the first of which runs already.

        consumes: nothing; produces: ready workers, one after another; waits for: the end of the one there is, and the
        start of the next; is unblocked by: either. It gives up when several in a row cannot start.
        """
        failures, why = 0, ""
        while failures < MAX_FAILED_STARTS:
            await asyncio.wait([worker.ended])
            self._ready.discard(worker)
            worker = self._new()
            try:
                await worker.start()
            except Exception as error:
                why = f"no other could start: {error}"
                failures += 1
            else:
                failures = 0
                self.replaced += 1
                self._ready.add(worker)
                self._changed.set()
        self._given_up.append(why)
        self._changed.set()

    async def _watch(self) -> None:
        """Kill workers that are silent or too large.

        consumes: nothing; produces: the ends of such workers; waits for: time; is unblocked by: time alone.
        """
        settings = self.config.rollout
        tick = min(0.5, settings.worker_timeout_s / 10)
        loop = asyncio.get_running_loop()
        killing: set[asyncio.Task[None]] = set()
        last = loop.time()
        while True:
            await asyncio.sleep(tick)
            now = loop.time()
            self.lag_s = max(0.0, now - last - tick)
            elapsed, last = min(now - last, 2 * tick), now  # if more, this loop was not listening
            for worker in [worker for worker in self._alive if worker.pid and not worker.verdict]:
                why = worker.check(elapsed, settings.worker_timeout_s, settings.worker_memory_gib * 2**30)
                if why:
                    self._ready.discard(worker)
                    killing.add(task := asyncio.create_task(worker.kill(why)))
                    task.add_done_callback(killing.discard)

    def _new(self) -> RemoteWorker:
        worker = RemoteWorker(self._packed)
        self._alive.add(worker)
        worker.ended.add_done_callback(lambda _: self._alive.discard(worker))
        return worker
