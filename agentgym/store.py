"""The run's store: one SQLite file (WAL) that holds every task, trajectory, sample and weight version.

Ids make every write idempotent: writing the same row twice leaves one row. A *life* is one process's ownership of
the run; a resume begins a new life, and what it takes back is marked undone, never deleted. What survives is one
history: in it every sample is consumed at most once, which a unique index enforces.

Calls may come from any thread; one is done at a time.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentgym.errors import UsageError
from agentgym.store_scores import SCORE_SCHEMA, ScoreTables
from agentgym.types import WITH_OUTCOME, Sample, Task, Trajectory

FORMAT = 2
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE tasks (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE groups (id TEXT PRIMARY KEY, step INTEGER NOT NULL, number INTEGER NOT NULL, position INTEGER NOT NULL);
CREATE TABLE trajectories (
    id TEXT PRIMARY KEY, stage TEXT NOT NULL, step INTEGER NOT NULL, life INTEGER NOT NULL, group_id TEXT NOT NULL,
    task_id TEXT NOT NULL, status TEXT NOT NULL, outcome REAL, version INTEGER NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL);
CREATE INDEX trajectories_by_stage ON trajectories (stage, step);
CREATE INDEX trajectories_by_group ON trajectories (group_id);
CREATE TABLE samples (
    id TEXT PRIMARY KEY, trajectory_id TEXT NOT NULL, step INTEGER NOT NULL, advantages BLOB NOT NULL, rejected TEXT,
    body BLOB NOT NULL);
CREATE TABLE consumptions (
    sample_id TEXT NOT NULL, step INTEGER NOT NULL, life INTEGER NOT NULL, undone INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (sample_id, step, life));
CREATE UNIQUE INDEX consumed_once ON consumptions (sample_id) WHERE undone = 0;
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, step INTEGER NOT NULL, life INTEGER NOT NULL, created REAL NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0);
"""

_encode = msgspec.msgpack.Encoder().encode
_trajectory = msgspec.msgpack.Decoder(Trajectory).decode
_sample = msgspec.msgpack.Decoder(Sample).decode
_task = msgspec.msgpack.Decoder(Task).decode
_advantages = msgspec.msgpack.Decoder(tuple[float | None, ...]).decode


class StoredSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample with its fate in the surviving history: trained on by which step, or rejected and why, or waiting."""

    sample: Sample
    advantages: tuple[float | None, ...]
    step: int
    rejected: str | None
    consumed_step: int | None
    consumed_life: int | None


class Store(ScoreTables):
    """The store of one run folder, for one process at a time."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(path, read_only=read_only)
        with self._telling():
            if not read_only:
                self._prepare()
            found = int(self.meta("format") or 0)
        if found != FORMAT:
            self.close()
            remedy = "resume the run, which brings it up to date" if found == 1 else "use the version that made it"
            raise UsageError(f"{path} has format {found}, this agentgym reads format {FORMAT}: {remedy}")

    def _prepare(self) -> None:
        """Make the tables of a new file; one of format 1 had none for judging, and gets them."""
        with self.transaction():
            if not self._has_table("meta"):
                self._create(SCHEMA)
            elif self.meta("format") != "1":
                return
            self._create(SCORE_SCHEMA)
            self.set_meta("format", str(FORMAT))

    # --- small facts ---------------------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        rows = self._all("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def set_meta(self, key: str, value: str) -> None:
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def new_life(self) -> int:
        """Begin a new life of the run and return its number, from 0."""
        with self.transaction():
            life = int(self.meta("life") or -1) + 1
            self.set_meta("life", str(life))
        return life

    # --- what was collected --------------------------------------------------------------------------------------

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        with self.transaction():
            self._db.executemany(
                "INSERT OR IGNORE INTO tasks VALUES (?, ?)", [(task.id, _encode(task)) for task in tasks]
            )

    def task(self, id: str) -> Task | None:
        rows = self._all("SELECT body FROM tasks WHERE id = ?", (id,))
        return _task(rows[0][0]) if rows else None

    def start_group(self, id: str, *, step: int, number: int) -> int:
        """The position in the stream of the task that the group works on: its old one, or the next that none has."""
        with self.transaction():
            query = "INSERT OR IGNORE INTO groups SELECT ?, ?, ?, COALESCE(MAX(position), -1) + 1 FROM groups"
            self._db.execute(query, (id, step, number))
            return int(self._all("SELECT position FROM groups WHERE id = ?", (id,))[0][0])

    def groups_started(self, step: int) -> int:
        """How many groups of a step were ever started."""
        return int(self._all("SELECT COUNT(*) FROM groups WHERE step = ?", (step,))[0][0])

    def add_trajectory(self, trajectory: Trajectory, *, stage: str, step: int, life: int) -> None:
        newest = max((version for turn in trajectory.turns for version in turn.completion.versions), default=-1)
        row = (
            trajectory.id, stage, step, life, trajectory.group_id, trajectory.task_id, trajectory.status,
            trajectory.outcome, newest, _encode(trajectory),
        )  # fmt: skip
        query = (
            "INSERT OR IGNORE INTO trajectories (id, stage, step, life, group_id, task_id, status, outcome, version, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        with self.transaction():
            self._db.execute(query, row)
            if stage == "train" and trajectory.status in WITH_OUTCOME:
                self._add_turns(trajectory)

    def trajectories(self, *, stage: str, step: int | None = None, undone: bool = False) -> Iterator[Trajectory]:
        """Trajectories of a stage ("train", "demonstrate", "eval-..."), in the order they were written."""
        query = "SELECT body FROM trajectories WHERE stage = ? AND undone <= ?"
        values: list[Any] = [stage, int(undone)]
        if step is not None:
            query, values = f"{query} AND step = ?", [*values, step]
        for (body,) in self._rows(f"{query} ORDER BY rowid", values):
            yield _trajectory(body)

    def trajectory(self, id: str) -> Trajectory | None:
        rows = self._all("SELECT body FROM trajectories WHERE id = ?", (id,))
        return _trajectory(rows[0][0]) if rows else None

    def members(self, group_id: str) -> list[Trajectory]:
        """The episodes of a group that survive; those that have no reward through no fault of theirs are left out."""
        query = "SELECT body FROM trajectories WHERE group_id = ? AND undone = 0 AND status NOT IN ('infrastructure', 'cancelled')"
        return [_trajectory(body) for (body,) in self._all(query, (group_id,))]

    def counts(self) -> dict[str, dict[str, int]]:
        """Trajectories by stage and status, undone ones apart."""
        found: dict[str, dict[str, int]] = {}
        query = "SELECT stage, CASE undone WHEN 1 THEN 'undone' ELSE status END AS fate, COUNT(*) FROM trajectories GROUP BY 1, 2"
        for stage, fate, number in self._all(query):
            found.setdefault(stage, {})[fate] = number
        return found

    def failures(self) -> dict[str, int]:
        """Reasons of the episodes that have no reward, with how many had each."""
        found: Counter[str] = Counter()
        for (body,) in self._rows("SELECT body FROM trajectories WHERE status IN ('infrastructure', 'task')"):
            trajectory = _trajectory(body)
            found[f"{trajectory.status}: {trajectory.reason}"] += 1
        return dict(found.most_common())

    # --- what is trained on --------------------------------------------------------------------------------------

    def add_sample(
        self,
        sample: Sample,
        *,
        step: int,
        advantages: tuple[float | None, ...],
        rejected: str | None = None,
        fates: Sequence[str] | None = None,
    ) -> None:
        """Keep a sample; in a history that was taken back it may have been scored otherwise, which this replaces.

        `fates` says of each span what its turn is trained by, or why it is not.
        """
        self._write(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "step = excluded.step, advantages = excluded.advantages, rejected = excluded.rejected, body = excluded.body",
            (sample.id, sample.trajectory_id, step, _encode(advantages), rejected, _encode(sample)),
        )
        if fates is not None:
            self._decide_turns(sample, fates)

    def consume(self, ids: Iterable[str], *, step: int, life: int) -> None:
        """Mark samples as trained on by `step`; one that the surviving history has trained on already is refused."""
        for id in ids:
            if not self._all("SELECT 1 FROM samples WHERE id = ?", (id,)):
                raise RuntimeError(f"step {step}: the sample {id} was never stored")
            try:
                self._write("INSERT INTO consumptions (sample_id, step, life) VALUES (?, ?, ?)", (id, step, life))
            except sqlite3.IntegrityError as error:
                raise RuntimeError(f"step {step}: the sample {id} was trained on before") from error

    def samples(self) -> Iterator[StoredSample]:
        """All samples of trajectories that survive, in the order they were written."""
        query = """
            SELECT s.advantages, s.step, s.rejected, c.step, c.life, s.body
            FROM samples s JOIN trajectories t ON t.id = s.trajectory_id AND t.undone = 0
            LEFT JOIN consumptions c ON c.sample_id = s.id AND c.undone = 0 ORDER BY s.rowid"""
        for advantages, step, rejected, consumed_step, consumed_life, body in self._rows(query):
            yield StoredSample(
                sample=_sample(body), advantages=_advantages(advantages), step=step, rejected=rejected,
                consumed_step=consumed_step, consumed_life=consumed_life,
            )  # fmt: skip

    def sample_counts(self) -> dict[str, int]:
        """Samples of the surviving history: trained on, waiting, or rejected by reason."""
        query = """
            SELECT CASE WHEN c.step IS NOT NULL THEN 'trained' WHEN s.rejected IS NULL THEN 'waiting'
            ELSE 'rejected: ' || s.rejected END AS state, COUNT(*)
            FROM samples s JOIN trajectories t ON t.id = s.trajectory_id AND t.undone = 0
            LEFT JOIN consumptions c ON c.sample_id = s.id AND c.undone = 0 GROUP BY state ORDER BY state"""
        return dict(self._all(query))

    def consumed(self) -> dict[int, int]:
        """How many samples each step of the surviving history has trained on."""
        return dict(self._all("SELECT step, COUNT(*) FROM consumptions WHERE undone = 0 GROUP BY step ORDER BY step"))

    # --- weight versions -----------------------------------------------------------------------------------------

    def add_version(self, *, step: int, life: int) -> int:
        """A new weight version, made by `step`; numbers are never used twice, also across lives."""
        with self.transaction():
            version = int(self._all("SELECT COALESCE(MAX(version), -1) + 1 FROM versions")[0][0])
            query = "INSERT INTO versions (version, step, life, created) VALUES (?, ?, ?, ?)"
            self._db.execute(query, (version, step, life, time.time()))
        return version

    def versions(self) -> list[dict[str, Any]]:
        """All weight versions, oldest first."""
        columns = ("version", "step", "life", "created", "undone")
        rows = self._all(f"SELECT {', '.join(columns)} FROM versions ORDER BY version")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def steps_of_versions(self) -> dict[int, int]:
        """Which training step made each weight version of the surviving history."""
        return dict(self._all("SELECT version, step FROM versions WHERE undone = 0"))

    def rewind(self, step: int) -> None:
        """Take back everything that follows from training steps after `step`: the run goes on from that checkpoint.

        Their versions and consumptions are undone, and so is every episode that such a version had a part in. Episodes
        that older versions sampled stay, and are trained on when their step comes again. Evaluations of undone weights
        are deleted.
        """
        with self.transaction():
            self._db.execute("UPDATE versions SET undone = 1 WHERE step > ?", (step,))
            self._db.execute("UPDATE consumptions SET undone = 1 WHERE step > ?", (step,))
            self._db.execute(
                "UPDATE trajectories SET undone = 1 WHERE stage = 'train' AND step > ? "
                "AND (version IN (SELECT version FROM versions WHERE undone = 1) "
                "OR status IN ('infrastructure', 'cancelled'))",  # these are run again
                (step,),
            )
            self._db.execute("DELETE FROM trajectories WHERE stage = 'eval-during' AND step > ?", (step,))
