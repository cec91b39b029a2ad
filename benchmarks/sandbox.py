"""What a command costs in each sandbox against the ways not taken: a `docker exec`, or a bash of its own, for each.

    python -m benchmarks.run sandbox

Times are medians in milliseconds. `docker_exec` is `docker exec` through the SDK, on the same container.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from agentgym.environments.bubblewrap import why_not
from agentgym.environments.containers import Spec, client, no_docker
from agentgym.environments.docker import DockerSandbox
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox
from agentgym.environments.warm import close_pools, fill

SAMPLES = 200
FEW = 20
MANY = 64
LIMITS = Limits(memory_mb=256, processes=64, disk_mb=32)


async def measure(folder: Path) -> dict[str, Any]:
    """Each kind that works here."""
    kinds = ["plain", *([] if why_not() else ["bubblewrap"]), *([] if no_docker() else ["docker"])]
    found: dict[str, Any] = {kind: await _kind(kind) for kind in kinds}
    found["bash_for_each_ms"] = await _median(FEW, _bash)
    if "docker" in kinds:
        found |= await _docker()
        found["builtin_of_docker_exec"] = found["docker"]["builtin_ms"] / found["docker_exec_ms"]
    return found


async def _kind(kind: str) -> dict[str, float]:
    begun = time.perf_counter()
    sandbox = open_sandbox(kind, LIMITS)
    await sandbox.start()
    await sandbox.run(":")
    start_ms = (time.perf_counter() - begun) * 1e3
    try:
        return {
            "start_ms": start_ms,
            "builtin_ms": await _median(SAMPLES, lambda: sandbox.run("X=1")),
            "program_ms": await _median(SAMPLES, lambda: sandbox.run("/bin/true")),
            "fork_ms": await _median(FEW // 4, lambda: _fork(sandbox)),
        }
    finally:
        await sandbox.close()


async def _docker() -> dict[str, Any]:
    pool = await fill(Spec(image="base", limits=LIMITS), FEW)
    opened: list[Sandbox] = []

    async def take() -> None:
        opened.append(open_sandbox("docker", LIMITS, warm=FEW))
        await opened[-1].start()
        await opened[-1].run(":")

    pool.size = 0  # nothing starts meanwhile
    ready_ms = await _median(FEW, take)
    box = opened[0]
    assert isinstance(box, DockerSandbox)
    exec_ms = await _median(FEW, lambda: asyncio.to_thread(_exec, box.id))
    for one in opened:
        await one.close()
    await close_pools()
    return {"ready_from_pool_ms": ready_ms, "docker_exec_ms": exec_ms, **await _many()}


async def _many() -> dict[str, float]:
    """Start MANY containers at once, and what memory each takes."""
    before, begun = psutil.virtual_memory().available, time.perf_counter()
    boxes = [DockerSandbox(Spec(image="base", limits=LIMITS)) for _ in range(MANY)]
    try:
        await asyncio.gather(*(box.start() for box in boxes))
        seconds = time.perf_counter() - begun
        taken = before - psutil.virtual_memory().available
        results = await asyncio.gather(*(box.run("echo hi", 60) for box in boxes))
        assert all(result.stdout == "hi\n" for result in results)
    finally:
        await asyncio.gather(*(box.close() for box in boxes))
    return {"containers_at_once": MANY, "containers_per_second": MANY / seconds, "mb_each": taken / MANY / 1e6}


async def _median(samples: int, work: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(samples):
        begun = time.perf_counter()
        await work()
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


async def _fork(sandbox: Sandbox) -> None:
    await (await sandbox.fork()).close()


async def _bash() -> None:
    await asyncio.to_thread(subprocess.run, ["bash", "-c", "X=1"], check=True)


def _exec(container: str) -> None:
    api = client().api
    api.exec_start(api.exec_create(container, ["bash", "-c", "X=1"])["Id"])
