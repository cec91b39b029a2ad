"""The learner in processes of its own, one per rank, called over pipes.

Whoever trains imports no torch here, a crash of the engine is an error and not the end of the run, and the processes
die with their owner, whatever happens to it.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import multiprocess
from multiprocess.connection import wait

from agentgym import errors
from agentgym.config import Config
from agentgym.errors import AgentgymError, DeadlineError, LearnerError
from agentgym.types import Sample, ScoredSample

PR_SET_PDEATHSIG = 1


class LearnerProcess:
    """`Learner` with the same methods, awaited; one call at a time.

    A call that is cancelled, fails on one rank of several, or takes longer than `trainer.step_timeout_s` leaves the
    learner closed, because its ranks may no longer agree.

    Example:
        learner = LearnerProcess(config, model=Path("model"), folder=Path("runs/a"))
        await learner.start()
        metrics = await learner.step(samples)
        await learner.close()
    """

    def __init__(self, config: Config, model: Path, folder: Path) -> None:
        self.config, self.model, self.folder = config, model, folder
        self.log = folder / "learner.log"
        self._ranks: list[tuple[Any, Connection]] = []  # process and our end of its pipe
        self._lock = asyncio.Lock()
        self._meeting: Path | None = None  # where the ranks find one another

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start the ranks and load the model; returns when they are ready.

        Raises:
            LearnerError: a rank died.
            UsageError: the model cannot be trained.
        """
        progress("starting the trainer")
        self.folder.mkdir(parents=True, exist_ok=True)
        meeting = self.folder / "ranks"  # in the run folder: one that is killed leaves nothing elsewhere
        shutil.rmtree(meeting, ignore_errors=True)
        meeting.mkdir()
        self._meeting = meeting
        world = self.config.trainer.ranks
        context = multiprocess.get_context("spawn")
        # Here and not in a thread: a process whose parent wants to outlive it dies with the *thread* that started it.
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, self.config, self.model, rank, world, str(meeting.resolve()), self.log, os.getpid()),
                name=f"agentgym-learner-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        await self._call(None)
        progress("the trainer is ready")

    async def step(self, samples: Sequence[ScoredSample]) -> dict[str, float]:
        """As `Learner.step`."""
        metrics: dict[str, float] = await self._call("step", list(samples))
        return metrics

    async def sft(
        self,
        samples: Sequence[Sample],
        batch_size: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> dict[str, float]:
        """As `Learner.sft`; the deadline is that of each optimiser step."""
        arguments = (list(samples), batch_size, epochs, learning_rate)
        metrics: dict[str, float] = await self._call("sft", *arguments, progress=progress)
        return metrics

    async def logprobs(self, samples: Sequence[Sample]) -> list[list[float | None]]:
        """As `Learner.logprobs`."""
        found: list[list[float | None]] = await self._call("logprobs", list(samples))
        return found

    async def publish(self, directory: Path) -> None:
        """As `Learner.publish`."""
        await self._call("publish", directory)

    async def save(self, directory: Path) -> None:
        """As `Learner.save`."""
        await self._call("save", directory)

    async def load(self, directory: Path) -> None:
        """As `Learner.load`."""
        await self._call("load", directory)

    async def close(self) -> None:
        """End the ranks; safe to call twice and at any time. They hold nothing that is not already on the disk."""
        self._kill()

    async def _call(self, method: str | None, *args: Any, progress: Callable[..., None] | None = None) -> Any:
        async with self._lock:
            if not self._ranks:
                raise LearnerError(f"the trainer is not running: see {self.log}")
            loop = asyncio.get_running_loop()

            def tell(*news: Any) -> None:
                if progress is not None:
                    loop.call_soon_threadsafe(progress, *news)

            try:
                return await asyncio.to_thread(self._exchange, method, args, tell)
            except AgentgymError as error:
                if len(self._ranks) > 1 or isinstance(error, DeadlineError):
                    self._kill()
                raise
            except BaseException:  # cancelled: the answer would come when nobody waits for it
                self._kill()
                raise

    def _exchange(self, method: str | None, args: tuple[Any, ...], tell: Callable[..., None]) -> Any:
        """Send a request to all ranks and wait for all answers; returns that of rank 0."""
        pending = {connection: process for process, connection in self._ranks}
        first = self._ranks[0][1]
        limit = self.config.trainer.step_timeout_s
        request = pickle.dumps((method, args))
        answer = None
        try:
            for connection in pending if method else ():
                connection.send_bytes(request)
            deadline = time.monotonic() + limit
            while pending:
                ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise DeadlineError(
                        f"the trainer took longer than trainer.step_timeout_s={limit:g}: raise it, or see {self.log}"
                    )
                for connection in ready:
                    kind, *content = pickle.loads(connection.recv_bytes())
                    if kind == "progress":
                        deadline = time.monotonic() + limit
                        tell(*content)
                    elif kind == "error":
                        raise getattr(errors, content[0])(content[1])
                    else:
                        del pending[connection]
                        answer = content[0] if connection is first else answer
        except (EOFError, OSError) as error:
            raise self._death() from error
        return answer

    def _death(self) -> LearnerError:
        """Why a rank no longer answers."""
        ended = [process for process, _ in self._ranks if process.join(timeout=1.0) or process.exitcode is not None]
        self._kill()
        codes = {process.exitcode for process in ended}
        if -signal.SIGKILL in codes:
            return LearnerError("the trainer was killed, probably out of memory: lower trainer.micro_batch_tokens")
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.is_file() else []
        last = f": {lines[-1]}" if lines else ""
        return LearnerError(f"the trainer died (exit code {', '.join(map(str, codes))}); see {self.log}{last}")

    def _kill(self) -> None:
        ranks, self._ranks = self._ranks, []
        for process, _ in ranks:
            process.kill()
        for process, connection in ranks:
            process.join(timeout=10.0)
            connection.close()
        if self._meeting is not None:
            shutil.rmtree(self._meeting, ignore_errors=True)
            self._meeting = None


def _serve(
    connection: Connection, config: Config, model: Path, rank: int, world: int, rendezvous: str, log: Path, owner: int
) -> None:
    """A rank's life: answer requests until the pipe closes."""
    _settle(log, owner, rank, world)

    def tell(*news: Any) -> None:
        connection.send_bytes(pickle.dumps(news))

    def report(done: int, total: int) -> None:
        if rank == 0:
            tell("progress", done, total)

    learner = None
    with log.open("a") as out:
        while True:
            try:
                if learner is None:
                    learner, answer = _learner(config, model, rank, world, rendezvous), None
                else:
                    method, args = pickle.loads(connection.recv_bytes())
                    more = {"progress": report} if method == "sft" else {}
                    answer = getattr(learner, method)(*args, **more)
            except (EOFError, ConnectionResetError):
                return
            except Exception as error:
                traceback.print_exc(file=out)
                out.flush()
                tell("error", *_described(error, log))
                if learner is None:
                    return
            else:
                tell("result", answer)


def _settle(log: Path, owner: int, rank: int, world: int) -> None:
    """Make this process what a rank must be, before torch is imported."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:  # it died before we asked to die with it
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
    threads = max(1, len(os.sched_getaffinity(0)) // world)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": str(threads),
        # threads that wait must sleep: the inference engine needs the cores
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "KMP_BLOCKTIME": "0",
        "HF_HUB_OFFLINE": "1",  # the model is a folder
    }
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine


def _learner(config: Config, model: Path, rank: int, world: int, rendezvous: str) -> Any:
    """Join the other ranks and load the model."""
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # Its build takes half a minute, and one that is killed hangs all later ones.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{rendezvous}/ranks", rank=rank, world_size=world
    )
    deepspeed.init_distributed("nccl" if on_gpu else "gloo", auto_mpi_discovery=False, verbose=False)
    from agentgym.trainers.learner import Learner

    return Learner(config, model)


def _described(error: Exception, log: Path) -> tuple[str, str]:
    """An error's class and message, for the owner to raise."""
    if isinstance(error, AgentgymError) and hasattr(errors, type(error).__name__):
        return type(error).__name__, str(error)
    lines = str(error).strip().splitlines() or [""]
    if "inline_container" in str(error) or getattr(error, "errno", None) == errno.ENOSPC:  # how torch says it
        return "LearnerError", f"the disk is full or not writable: free some space and resume ({lines[0][:200]})"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        what = "out of memory: lower trainer.micro_batch_tokens, or set trainer.gradient_checkpointing=true"
        return "LearnerError", f"{what} ({lines[0][:200]})"
    return "LearnerError", f"{type(error).__name__}: {lines[0][:300]} (details in {log})"
