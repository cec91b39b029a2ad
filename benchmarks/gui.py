"""What a step in the browser costs: text and screenshots, one context and many, and whether resets leave memory behind.

    python -m benchmarks.run gui            # a minute; 100 resets
    python -m benchmarks.gui 1000           # with so many resets

The steps are clicks on a page of the size of a form. `load` is the machine's when it began, per core: on a busy machine
these figures say little.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from agentgym.environments.gui import GuiEnv
from agentgym.environments.gui_browser import close_browser, no_browser
from agentgym.types import Message, Task

WARM, STEPS = 10, 200
CONTEXTS = 8
RESETS = 100
PAGE = (
    """<h1>Form</h1><button onclick="n.textContent = +n.textContent + 1">Count</button><output id=n>0</output>"""
    + "".join(f"<p><label>Field {index} <input></label> <a href=/>link {index}</a></p>" for index in range(12))
)
TASK = Task(id="bench", env="gui", instruction="Click.", data={"site": "pages", "pages": {"/": PAGE}})
CLICK = Message(role="assistant", content="```action\nclick e3\n```")


async def measure(folder: Path, resets: int = RESETS) -> dict[str, Any]:
    """Everything, in milliseconds and steps per second."""
    if why := no_browser():
        return {"skipped": why}
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    times = await _steps("text", STEPS)
    found = {
        "load": load,
        "text_step_ms_p50": statistics.median(times),
        "text_step_ms_p95": sorted(times)[int(len(times) * 0.95)],
        "screenshot_step_ms_p50": statistics.median(await _steps("both", STEPS // 2)),
        **await _rate("text"),
        **await _rate("both"),
        **await _resets(resets),
    }
    close_browser()
    return found


async def _open(observation: str) -> GuiEnv:
    env = GuiEnv(observation=observation, max_steps=10**9, protocol="block")
    await env.reset(options={"task": TASK})
    for _ in range(WARM):
        await env.step(CLICK)
    return env


async def _steps(observation: str, count: int) -> list[float]:
    env = await _open(observation)
    times = [await _timed(env) for _ in range(count)]
    await env.close()
    return times


async def _timed(env: GuiEnv) -> float:
    begun = time.perf_counter()
    result = await env.step(CLICK)
    assert "action_error" not in result.info
    return (time.perf_counter() - begun) * 1e3


async def _rate(observation: str) -> dict[str, float]:
    """Steps per second of many contexts, and the CPU time of one step in all processes, which the load changes little."""
    envs = await asyncio.gather(*(_open(observation) for _ in range(CONTEXTS)))
    begun, spent = time.perf_counter(), _cpu_s()

    async def play(env: GuiEnv) -> None:
        for _ in range(STEPS // 4):
            await _timed(env)

    await asyncio.gather(*map(play, envs))
    steps, kind = CONTEXTS * (STEPS // 4), "text" if observation == "text" else "screenshot"
    rate = {
        f"{kind}_steps_per_s": steps / (time.perf_counter() - begun),
        f"{kind}_step_cpu_ms": (_cpu_s() - spent) / steps * 1e3,
    }
    await asyncio.gather(*(env.close() for env in envs))
    return rate


async def _resets(count: int) -> dict[str, float]:
    """What a reset takes, and how much more memory there is after `count` of them than after half of them."""
    env = GuiEnv(protocol="block")
    begun, before = time.perf_counter(), 0.0
    for index in range(count):
        await env.reset(options={"task": TASK})
        await env.step(CLICK)
        if index == count // 2:
            before = _memory_mb()
    each = (time.perf_counter() - begun) / count * 1e3
    after = _memory_mb()
    await env.close()
    return {"reset_ms": each, "resets": count, "memory_mb": after, "memory_growth_mb": after - before}


def _processes() -> list[psutil.Process]:
    """This process, the driver and the browser's."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def _memory_mb() -> float:
    gc.collect()
    return sum(process.memory_info().rss for process in _processes()) / 1e6


def _cpu_s() -> float:
    return sum(sum(process.cpu_times()[:2]) for process in _processes())


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else RESETS
    print(json.dumps(asyncio.run(measure(Path(), wanted)), indent=1))
