"""A worker process: one event loop in which many episodes run, each beside its environment and asking the policy itself.

Requests go in and trajectories come out over one pipe; `agentgym.remote` is the other end.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import msgspec
from multiprocess.reduction import ForkingPickler

from agentgym import errors
from agentgym.config import Config
from agentgym.env import Env
from agentgym.errors import AgentgymError, UsageError
from agentgym.policy import Policy, PolicyAddress
from agentgym.registry import ENVIRONMENTS, TASK_SETS, WRAPPERS
from agentgym.rollout import EpisodeRequest, failed, run_episode
from agentgym.supervise import supervised
from agentgym.types import Task, Trajectory
from agentgym.wire import (
    LIMIT,
    Beat,
    Cancel,
    Cancelled,
    Ended,
    Ready,
    Refused,
    Start,
    Stuck,
    decode_to_worker,
    encode,
    frames,
    receive,
    send,
)  # fmt: skip
from agentgym.wrapping import make_env

PROBE_S = 0.1  # between measurements of the loop's lag
REGISTRIES = {"environments": ENVIRONMENTS, "task sets": TASK_SETS, "wrappers": WRAPPERS}


class Setup:
    """What a worker needs to know, as bytes that a new Python can read.

    Classes and functions of `__main__` (a script, a notebook) travel whole, together with the globals that they use.
    A registered factory that cannot travel is refused only where it is asked for.
    """

    def __init__(self, config: Config, address: PolicyAddress, make_env: Callable[[Task], Env] | None) -> None:
        self.parts = {"config": config, "address": address, "make_env": make_env}

    def pack(self) -> bytes:
        """Raises UsageError if `make_env` cannot travel."""
        try:
            parts = {name: _dump(part) for name, part in self.parts.items()}
        except Exception as error:
            raise UsageError(f"make_env cannot be sent to a worker process: {error}") from error
        shipped: dict[str, dict[str, bytes]] = {}
        for kind, registry in REGISTRIES.items():
            shipped[kind] = {name: _dump_factory(name, factory) for name, factory in registry.factories.items()}
        return pickle.dumps((parts, shipped))


def unpack(packed: bytes) -> dict[str, Any]:
    """The parts of a Setup; its registered names are known here from now on."""
    parts, shipped = pickle.loads(packed)
    for kind, factories in shipped.items():
        for name, factory in factories.items():
            REGISTRIES[kind].register(name, _load_factory(name, factory))
    return {name: ForkingPickler.loads(part) for name, part in parts.items()}


def serve(pipe: Any, owner: int) -> None:
    """A worker's life: the target of its process."""
    supervised(owner)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    code = 1
    try:
        code = loop.run_until_complete(_serve(pipe))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of environments that hang keep nothing alive


async def _serve(pipe: Any) -> int:
    end = socket.socket(fileno=os.dup(pipe.fileno()))
    pipe.close()
    reader, writer = await asyncio.open_connection(sock=end, limit=LIMIT)
    packed = await receive(reader)
    if packed is None:
        return 0
    try:
        setup = unpack(packed)
        policy = make_policy(setup["address"])
    except Exception as error:
        send(writer, encode(_refusal(error)))
        await writer.drain()
        return 1
    send(writer, encode(Ready(pid=os.getpid())))
    await Worker(reader, writer, policy, setup["config"], setup["make_env"]).run()
    return 0


class Worker:
    """The inside of a worker process."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        policy: Policy,
        config: Config,
        make_env: Callable[[Task], Env] | None,
    ) -> None:
        self.reader, self.writer, self.policy, self.config = reader, writer, policy, config
        self.make_env = make_env or registered_env(config)
        self.episodes: dict[int, asyncio.Task[bytes]] = {}

    async def run(self) -> None:
        """Run episodes until it is told to stop.

        consumes: Start, Cancel and Stop from the pipe; produces: an episode's task for each Start; waits for: the next
        frame and nothing else; is unblocked by: any frame, and by the end of the owner, which closes the pipe.
        """
        beating = asyncio.create_task(self._beat())
        async for frame in frames(self.reader):
            said = decode_to_worker(frame)
            if isinstance(said, Start):
                task = self.episodes[said.key] = asyncio.create_task(self._episode(said.key, said.request))
                task.add_done_callback(partial(self._ended, said.key))
            elif isinstance(said, Cancel):
                if said.key in self.episodes:
                    self.episodes[said.key].cancel()
            else:
                break
        running = list(self.episodes.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=self.config.rollout.close_timeout_s)
        beating.cancel()
        await self.policy.close()

    async def _episode(self, key: int, request: EpisodeRequest) -> bytes:
        """Run one episode; whatever comes of it, the owner hears of its end once.

        consumes: the request; produces: one Ended or Cancelled; waits for: the episode; is unblocked by: its end and by Cancel.
        """
        timeout_s = policy_timeout(self.config)
        trajectory = await run_episode(request, self.policy, self.make_env, self.config.rollout, timeout_s, self._stuck)
        return encode(Ended(key=key, trajectory=_raw(request, trajectory)))

    def _ended(self, key: int, task: asyncio.Task[bytes]) -> None:
        """Tell the owner; a task that was cancelled before it ran has no code of its own to do so."""
        del self.episodes[key]
        lost = task.cancelled() or task.exception() is not None
        send(self.writer, encode(Cancelled(key=key)) if lost else task.result())

    def _stuck(self, reason: str) -> None:
        send(self.writer, encode(Stuck(reason=reason)))

    async def _beat(self) -> None:
        """Say that the loop runs, and how late it is.

        consumes: nothing; produces: a Beat every now and then; waits for: time; is unblocked by: time alone, so that
        its silence means that something blocks the loop.
        """
        every = min(1.0, self.config.rollout.worker_timeout_s / 5)
        loop = asyncio.get_running_loop()
        while True:
            lag, until = 0.0, loop.time() + every
            while loop.time() < until:
                before = time.monotonic()
                await asyncio.sleep(min(PROBE_S, every))
                lag = max(lag, time.monotonic() - before - min(PROBE_S, every))
            send(self.writer, encode(Beat(lag_s=lag, running=len(self.episodes))))


def make_policy(address: PolicyAddress) -> Policy:
    """The policy at an address."""
    module, _, name = address.factory.partition(":")
    policy: Policy = getattr(importlib.import_module(module), name)(**address.options)
    return policy


def registered_env(config: Config) -> Callable[[Task], Env]:
    """Makes the environment that a task names, with the config's options and wrappers."""
    return lambda task: make_env(task.env, config.env.options, config.env.wrappers)


def policy_timeout(config: Config) -> float:
    """Seconds for one policy call: the engine's own deadline tells more, so it comes first."""
    return config.engine.request_timeout_s + 5


def _raw(request: EpisodeRequest, trajectory: Trajectory) -> msgspec.Raw:
    """A trajectory as bytes inside another message; one that cannot be encoded is a failed one."""
    try:
        return msgspec.Raw(encode(trajectory))
    except Exception as error:
        reason = f"the trajectory cannot be stored: {type(error).__name__}: {error}"[:500]
        return msgspec.Raw(encode(failed(request, "infrastructure", reason)))


def _refusal(error: Exception) -> Refused:
    known = isinstance(error, AgentgymError) and hasattr(errors, type(error).__name__)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    return Refused(kind=type(error).__name__ if known else "InfrastructureError", reason=reason)


def _dump(value: Any) -> bytes:
    buffer = BytesIO()
    ForkingPickler(buffer, recurse=True).dump(value)
    return buffer.getvalue()


def _dump_factory(name: str, factory: Any) -> bytes:
    try:
        return _dump(factory)
    except Exception as error:
        return _dump(Untravelled(name, f"{type(error).__name__}: {error}"))


def _load_factory(name: str, packed: bytes) -> Any:
    try:
        return ForkingPickler.loads(packed)
    except Exception as error:
        return Untravelled(name, f"{type(error).__name__}: {error}")


class Untravelled:
    """Stands where a factory would be that cannot be sent to another process."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why

    def __call__(self, **options: Any) -> Any:
        raise UsageError(f"{self.name!r} cannot be sent to a worker process: {self.why}")
