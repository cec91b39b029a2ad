"""What a run measures: one JSON line per write in metrics.jsonl, and the same numbers for TensorBoard in events/."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

FILE = "metrics.jsonl"
EVENTS = "events"


class MetricsWriter:
    """Appends metrics to a run folder; one writer at a time, and a resumed run goes on in the same file.

    Example:
        with MetricsWriter(folder) as metrics:
            metrics.write(3, reward_mean=0.5, kl=float("nan"))  # {"step": 3, "reward_mean": 0.5, "kl": null}
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        self._events = _event_writer(self.path.parent / EVENTS)

    def write(self, step: int, **values: float | int | str | bool | None) -> None:
        """Append one line; it is on its way to the disk when this returns. Non-finite numbers become null."""
        line = {"step": step} | {name: _finite(value) for name, value in values.items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._events:
            self._events.add_event(_scalars(step, line))
            self._events.flush()

    def rewind(self, step: int) -> None:
        """Forget what was written for steps after `step`: they were undone and will be written again."""
        kept = [line for line in read_metrics(self.path.parent) if line["step"] <= step]
        self._file.close()
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        draft.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        if self._events:
            self._events.add_event(_restart(step + 1))

    def close(self) -> None:
        """Close the files; safe to call twice."""
        self._file.close()
        if self._events:
            self._events.close()
            self._events = None

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics in order, a torn last one left out; empty if there are none."""
    path = Path(folder) / FILE
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _finite(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _drop_torn_line(path: Path) -> None:
    """A killed process may leave half a line: whatever comes after the last newline goes."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _event_writer(folder: Path) -> Any:
    """TensorBoard's own writer, which loads no torch; None where TensorBoard is not installed."""
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        return None
    return EventFileWriter(str(folder))


def _scalars(step: int, line: Mapping[str, Any]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [
        Summary.Value(tag=name, simple_value=float(value))
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float)
    ]
    return Event(step=step, wall_time=time.time(), summary=Summary(value=values))


def _restart(step: int) -> Any:
    """Tells TensorBoard to forget events from `step` on."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    return Event(step=step, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START))
