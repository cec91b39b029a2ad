"""What a command costs in each sandbox against the ways not taken: a `docker exec`, or a bash of its own, for each.

    python -m benchmarks.run sandbox

Times are medians in milliseconds, and `best` ones beside them: on a busy machine these tell more. `load` is the machine's
load before and after. `docker_exec` is `docker exec` through the SDK, on the same container. `grading` is one small
repository with one test: `of_tests` is the share of the time that the tests themselves take.
"""

from __future__ import annotations

import asyncio
import os
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
from agentgym.environments.swe_grade import Instance, grade_patch, trees_of
from agentgym.environments.warm import close_pools, fill

SAMPLES = 200
FEW = 20
MANY = 64
LIMITS = Limits(memory_mb=256, processes=64, disk_mb=32)


async def measure(folder: Path) -> dict[str, Any]:
    """Each kind that works here."""
    kinds = ["plain", *([] if why_not() else ["bubblewrap"]), *([] if no_docker() else ["docker"])]
    load = os.getloadavg()[0]
    found: dict[str, Any] = {kind: await _kind(kind) for kind in kinds}
    found["bash_for_each_ms"] = await _median(FEW, _bash)
    if "docker" in kinds:
        found |= await _docker()
        found["builtin_of_docker_exec"] = found["docker"]["builtin_ms"] / found["docker_exec_ms"]
    if len(kinds) > 1:
        found["grading"] = await _grading(kinds[1])
    return found | {"load": [load, os.getloadavg()[0]]}


async def _grading(kind: str) -> dict[str, float]:
    files = {"gcd.py": "def gcd(a, b):\n    return gcd(a % b, b) if b else a\n"}
    test = "import pytest\nfrom gcd import gcd\n@pytest.mark.parametrize('n', range(9))\ndef test_gcd(n):\n    assert gcd(6 * n, 6) == 6\n"
    fixed = {"gcd.py": "def gcd(a, b):\n    return gcd(b, a % b) if b else a\n", "test_gcd.py": test}
    source, solved = ({"kind": "files", "files": one} for one in (files, fixed))
    instance = Instance(
        source=source, fixed=solved, test_paths=("test_gcd.py",), fail_to_pass=("test_gcd.py::test_gcd",)
    )
    trees, seconds, of_tests = trees_of(instance), list[float](), list[float]()
    for _ in range(FEW // 4):
        begun = time.perf_counter()
        report = await grade_patch(instance, trees, trees.patch, kind=kind)
        assert report.resolved, report
        seconds.append(time.perf_counter() - begun)
        of_tests.append(report.test_seconds / seconds[-1])
    return {"ms": statistics.median(seconds) * 1e3, "of_tests": statistics.median(of_tests)}


async def _kind(kind: str) -> dict[str, float]:
    begun = time.perf_counter()
    sandbox = open_sandbox(kind, LIMITS)
    await sandbox.start()
    await sandbox.run(":")
    start_ms = (time.perf_counter() - begun) * 1e3
    try:
        builtin = await _times(SAMPLES, lambda: sandbox.run("X=1"))
        program = await _times(SAMPLES, lambda: sandbox.run("/bin/true"))
        return {
            "start_ms": start_ms,
            "builtin_ms": statistics.median(builtin),
            "builtin_best_ms": min(builtin),
            "program_ms": statistics.median(program),
            "program_best_ms": min(program),
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
    ready = await _times(FEW, take)
    box = opened[0]
    assert isinstance(box, DockerSandbox)
    exec_ms = await _times(FEW, lambda: asyncio.to_thread(_exec, box.id))
    for one in opened:
        await one.close()
    await close_pools()
    return {
        "ready_from_pool_ms": statistics.median(ready),
        "ready_from_pool_best_ms": min(ready),
        "docker_exec_ms": statistics.median(exec_ms),
        "docker_exec_best_ms": min(exec_ms),
        **await _many(),
    }


async def _many() -> dict[str, float]:
    """Start MANY containers at once, and what memory each takes."""
    begun = time.perf_counter()
    boxes = [DockerSandbox(Spec(image="base", limits=LIMITS)) for _ in range(MANY)]
    try:
        await asyncio.gather(*(box.start() for box in boxes))
        seconds = time.perf_counter() - begun
        taken = await asyncio.to_thread(_memory, {box.id for box in boxes})
        results = await asyncio.gather(*(box.run("echo hi", 60) for box in boxes))
        assert all(result.stdout == "hi\n" for result in results)
    finally:
        await asyncio.gather(*(box.close() for box in boxes))
    return {"containers_at_once": MANY, "containers_per_second": MANY / seconds, "mb_each": taken / MANY / 1e6}


def _memory(containers: set[str]) -> int:
    """Bytes of the containers' processes and of those that look after each, what they share counted in parts."""
    total = 0
    for shim in psutil.process_iter(["name", "cmdline"]):
        if "containerd-shim" in (shim.info["name"] or "") and containers & set(shim.info["cmdline"] or []):
            for one in (shim, *shim.children(recursive=True)):
                total += one.memory_full_info().pss
    return total


async def _times(samples: int, work: Callable[[], Awaitable[Any]]) -> list[float]:
    times = []
    for _ in range(samples):
        begun = time.perf_counter()
        await work()
        times.append((time.perf_counter() - begun) * 1e3)
    return times


async def _median(samples: int, work: Callable[[], Awaitable[Any]]) -> float:
    return statistics.median(await _times(samples, work))


async def _fork(sandbox: Sandbox) -> None:
    await (await sandbox.fork()).close()


async def _bash() -> None:
    await asyncio.to_thread(subprocess.run, ["bash", "-c", "X=1"], check=True)


def _exec(container: str) -> None:
    api = client().api
    api.exec_start(api.exec_create(container, ["bash", "-c", "X=1"])["Id"])
