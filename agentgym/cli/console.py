"""What the commands share: running a coroutine until it is stopped, and showing progress."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

T = TypeVar("T")
err = Console(stderr=True)
out = Console()

PLAIN_EVERY_S = 10.0
TICK_S = 1.0


def run(work: Coroutine[Any, Any, T], *, when_stopped: str = "") -> T:
    """Run `work`; Ctrl-C and TERM cancel it, let it clean up, and exit with 130 and 143. A second one ends it at once.

    The handlers are Python's own and not the loop's: an environment that blocks the loop must not make the run deaf.
    What the run started ends with it in any case.
    """
    stopped_by: list[int] = []

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: int, frame: Any) -> None:
            stopped_by.append(number)
            if len(stopped_by) > 1:
                os.write(2, b"stopped at once\n")
                os._exit(128 + number)
            os.write(2, b"stopping (once more: at once)\n")
            loop.call_soon_threadsafe(task.cancel)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
        return await work

    with suppress(asyncio.CancelledError, KeyboardInterrupt):
        return asyncio.run(main())
    err.print(f"stopped. {when_stopped}".strip(), soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(128 + (stopped_by[0] if stopped_by else signal.SIGINT))


class ProgressView:
    """Progress of long work: a live bar on a terminal, a line at least every ten seconds elsewhere.

    Args:
        doing: what moves inside a piece of work just now, in words; asked for whenever nobody tells it.
    """

    def __init__(self, doing: Callable[[str], str] = lambda what: "") -> None:
        self._live = err.is_terminal
        self._doing = doing
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[remark]}", style="dim", markup=False), console=err,
        )  # fmt: skip
        self._tasks: dict[str, Any] = {}
        self._said: dict[str, float] = {}
        self._last = ("", 0, 0, "")  # what was told last
        self._told_at = self._began = time.monotonic()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> ProgressView:
        if self._live:
            self._bars.start()
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticker.join()
        if self._live:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int, remark: str = "") -> None:
        """Tell how far `what` is: `done` of `total` (0: unknown)."""
        if self._live:
            self._show(what, done, total, remark)
        else:
            self._tell(what, done, total, remark)

    def _show(self, what: str, done: int, total: int, remark: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total or None, remark=remark)
        self._bars.update(self._tasks[what], completed=done, total=total or None, remark=remark[-60:])

    def _tell(self, what: str, done: int, total: int, remark: str) -> None:
        now = time.monotonic()
        finished = bool(total) and done >= total
        self._last = (what, done, total, remark)
        if what in self._said and now - self._said[what] < PLAIN_EVERY_S and not finished:
            return
        self._line(what, done, total, remark)

    def _line(self, what: str, done: int, total: int, remark: str) -> None:
        self._told_at = self._said[what] = now = time.monotonic()
        amount = f" {done}/{total}" if total else ""
        print(f"[{now - self._began:6.0f}s] {what}{amount} {remark}".rstrip(), file=sys.stderr, flush=True)

    def _tick(self) -> None:
        """Tell again how far the last work is, and what moves inside it, when nobody else did."""
        while not self._ended.wait(TICK_S):
            what, done, total, remark = self._last
            if self._live and self._tasks:
                what, bar = list(self._tasks.items())[-1]
                if doing := self._doing(what):
                    self._bars.update(bar, remark=doing[-60:])
            elif what and not (total and done >= total) and time.monotonic() - self._told_at >= PLAIN_EVERY_S:
                self._line(what, done, total, remark or self._doing(what))


def in_words(doing: dict[str, Any]) -> dict[str, str]:
    """What a run's loops do or wait for (`Run.doing`, or `live.json` of its folder)."""
    found = {"trainer": str(doing["trainer"])} if "trainer" in doing else {}
    ahead = sorted(int(key.partition("/")[2]) for key in doing if key.startswith("collecting/"))
    for step in ahead:
        done, wanted = doing[f"collecting/{step}"]
        state = "ready, waits for the trainer" if done >= wanted else "being collected"
        found[f"episodes of step {step}"] = f"{done} of {wanted} groups; {state}"
    pool = doing.get("pool", {})
    if pool:
        found["pool"] = ", ".join(f"{name} {value:g}" for name, value in pool.items())
    if judge := doing.get("judge", {}):
        found["judge"] = ", ".join(f"{value} turns {name}" for name, value in judge.items())
    return found


def print_json(value: Any) -> None:
    """Machine-readable output of a command's `--json`."""
    print(json.dumps(value, indent=1))
