"""The run's store: one SQLite file (WAL) that holds every task, trajectory, sample and weight version.

Ids make every write idempotent: writing the same row twice leaves one row. A *life* is one process's ownership of
the run; a resume begins a new life, and the rows of steps that it takes back are marked undone, never deleted.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from agentgym.errors import UsageError
from agentgym.types import Sample, Task, Trajectory

FORMAT = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS trajectories (
    id TEXT PRIMARY KEY, stage TEXT NOT NULL, step INTEGER NOT NULL, life INTEGER NOT NULL, group_id TEXT NOT NULL,
    task_id TEXT NOT NULL, status TEXT NOT NULL, outcome REAL, undone INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS trajectories_by_stage ON trajectories (stage, step);
CREATE TABLE IF NOT EXISTS samples (
    id TEXT PRIMARY KEY, trajectory_id TEXT NOT NULL, step INTEGER NOT NULL, advantages BLOB NOT NULL,
    rejected TEXT, consumed_step INTEGER, consumed_life INTEGER, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS samples_by_step ON samples (consumed_step);
CREATE TABLE IF NOT EXISTS versions (
    version INTEGER PRIMARY KEY, step INTEGER NOT NULL, life INTEGER NOT NULL, created REAL NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0);
"""

_encode = msgspec.msgpack.Encoder().encode
_trajectory = msgspec.msgpack.Decoder(Trajectory).decode
_sample = msgspec.msgpack.Decoder(Sample).decode
_task = msgspec.msgpack.Decoder(Task).decode
_advantages = msgspec.msgpack.Decoder(tuple[float, ...]).decode


class StoredSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample with its fate: consumed by which optimiser step, or rejected and why."""

    sample: Sample
    advantages: tuple[float, ...]
    step: int
    rejected: str | None
    consumed_step: int | None
    consumed_life: int | None


class Store:
    """The store of one run folder, for one process at a time."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        if read_only and not path.is_file():
            raise UsageError(f"no store at {path}: is this a run folder?")
        mode = "ro" if read_only else "rwc"
        self._db = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
        if not read_only:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (str(FORMAT),))
        found = int(self.meta("format") or 0)
        if found != FORMAT:
            raise UsageError(
                f"{path} has format {found}, this agentgym reads format {FORMAT}: use the version that made it"
            )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside are kept together or not at all."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # --- small facts ---------------------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def set_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # --- what was collected --------------------------------------------------------------------------------------

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO tasks VALUES (?, ?)", [(task.id, _encode(task)) for task in tasks])

    def task(self, id: str) -> Task | None:
        row = self._db.execute("SELECT body FROM tasks WHERE id = ?", (id,)).fetchone()
        return _task(row[0]) if row else None

    def add_trajectory(self, trajectory: Trajectory, *, stage: str, step: int, life: int) -> None:
        row = (
            trajectory.id, stage, step, life, trajectory.group_id, trajectory.task_id, trajectory.status,
            trajectory.outcome, _encode(trajectory),
        )  # fmt: skip
        self._db.execute(
            "INSERT OR IGNORE INTO trajectories (id, stage, step, life, group_id, task_id, status, outcome, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )

    def trajectories(self, *, stage: str, step: int | None = None, undone: bool = False) -> Iterator[Trajectory]:
        """Trajectories of a stage ("train", "demonstrate", "eval-..."), in the order they were written."""
        query = "SELECT body FROM trajectories WHERE stage = ? AND undone <= ?"
        values: list[Any] = [stage, int(undone)]
        if step is not None:
            query, values = f"{query} AND step = ?", [*values, step]
        for (body,) in self._db.execute(f"{query} ORDER BY rowid", values):
            yield _trajectory(body)

    def trajectory(self, id: str) -> Trajectory | None:
        row = self._db.execute("SELECT body FROM trajectories WHERE id = ?", (id,)).fetchone()
        return _trajectory(row[0]) if row else None

    def counts(self) -> dict[str, dict[str, int]]:
        """Trajectories by stage and status, undone ones apart."""
        found: dict[str, dict[str, int]] = {}
        query = "SELECT stage, CASE undone WHEN 1 THEN 'undone' ELSE status END AS fate, COUNT(*) FROM trajectories GROUP BY 1, 2"
        for stage, fate, number in self._db.execute(query):
            found.setdefault(stage, {})[fate] = number
        return found

    def failures(self) -> dict[str, int]:
        """Reasons of the episodes that have no reward, with how many had each."""
        found: Counter[str] = Counter()
        query = "SELECT body FROM trajectories WHERE status IN ('infrastructure', 'task')"
        for (body,) in self._db.execute(query):
            trajectory = _trajectory(body)
            found[f"{trajectory.status}: {trajectory.reason}"] += 1
        return dict(found.most_common())

    # --- what is trained on --------------------------------------------------------------------------------------

    def add_sample(
        self, sample: Sample, *, step: int, advantages: tuple[float, ...], rejected: str | None = None
    ) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO samples (id, trajectory_id, step, advantages, rejected, body) VALUES (?, ?, ?, ?, ?, ?)",
            (sample.id, sample.trajectory_id, step, _encode(advantages), rejected, _encode(sample)),
        )

    def consume(self, ids: Iterable[str], *, step: int, life: int) -> None:
        """Mark samples as trained on by the optimiser step `step`; a sample can be consumed once."""
        ids = list(ids)
        changed = 0
        for id in ids:
            query = "UPDATE samples SET consumed_step = ?, consumed_life = ? WHERE id = ? AND consumed_step IS NULL"
            changed += self._db.execute(query, (step, life, id)).rowcount
        if changed != len(ids):
            raise RuntimeError(
                f"step {step}: {len(ids) - changed} of {len(ids)} samples were consumed before or never stored"
            )

    def samples(self) -> Iterator[StoredSample]:
        """All samples, in the order they were written."""
        query = "SELECT advantages, step, rejected, consumed_step, consumed_life, body FROM samples ORDER BY rowid"
        for advantages, step, rejected, consumed_step, consumed_life, body in self._db.execute(query):
            yield StoredSample(
                sample=_sample(body), advantages=_advantages(advantages), step=step, rejected=rejected,
                consumed_step=consumed_step, consumed_life=consumed_life,
            )  # fmt: skip

    # --- weight versions -----------------------------------------------------------------------------------------

    def add_version(self, *, step: int, life: int) -> int:
        """A new weight version, made by `step`; numbers are never used twice, also across lives."""
        row = self._db.execute("SELECT COALESCE(MAX(version), -1) + 1 FROM versions").fetchone()
        self._db.execute(
            "INSERT INTO versions (version, step, life, created) VALUES (?, ?, ?, ?)", (row[0], step, life, time.time())
        )
        return int(row[0])

    def versions(self) -> list[dict[str, Any]]:
        """All weight versions, oldest first."""
        columns = ("version", "step", "life", "created", "undone")
        query = f"SELECT {', '.join(columns)} FROM versions ORDER BY version"
        return [dict(zip(columns, row, strict=True)) for row in self._db.execute(query)]

    def new_life(self) -> int:
        """Begin a new life of the run and return its number, from 0."""
        life = int(self.meta("life") or -1) + 1
        self.set_meta("life", str(life))
        return life

    def rewind(self, step: int) -> None:
        """Take back everything after training step `step`: the run goes on from the checkpoint of that step."""
        with self.transaction():
            self._db.execute("UPDATE trajectories SET undone = 1 WHERE stage = 'train' AND step > ?", (step,))
            self._db.execute("UPDATE versions SET undone = 1 WHERE step > ?", (step,))
            query = "UPDATE samples SET consumed_step = NULL, consumed_life = NULL, rejected = 'undone' WHERE step > ?"
            self._db.execute(query, (step,))
