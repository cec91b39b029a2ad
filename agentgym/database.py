"""One SQLite file (WAL): transactions that are kept together or not at all, and errors told in one line.

Calls may come from any thread; one is done at a time.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgym.errors import InfrastructureError, UsageError

CHUNK = 256  # rows read under one lock
REMEDIES = {
    "full": "free some space and resume the run",
    "locked": "see that nobody else writes to it",
    "readonly": "make it writable",
    "unable to open": "see that its folder can be written to",
    "not a database": "it is damaged: restore it from a copy, or begin a new run",
    "malformed": "it is damaged: restore it from a copy, or begin a new run",
}


class Database:
    """An open file; a subclass knows its tables."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        if read_only and not path.is_file():
            raise UsageError(f"no store at {path}: is this a run folder?")
        self.path = path
        self._lock = threading.RLock()
        uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        with self._telling():
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30, check_same_thread=False)
            if not read_only:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")  # what was said to be kept is on the disk

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside are kept together or not at all; other threads wait for its end. One inside is part of it."""
        with self._telling():
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Do it alone; what the disk or another process does to us is told in one line."""
        with self._lock:
            try:
                yield
            except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
                if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                    raise
                remedy = next((said for part, said in REMEDIES.items() if part in str(error)), "resume the run")
                raise InfrastructureError(f"{self.path}: {error}: {remedy}") from error

    def _all(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._telling():
            return self._db.execute(query, values).fetchall()

    def _has_table(self, name: str) -> bool:
        return bool(self._all("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)))

    def _create(self, schema: str) -> None:
        for statement in schema.split(";"):
            self._db.execute(statement)

    def _write(self, query: str, values: Sequence[Any] = ()) -> None:
        with self._telling():
            self._db.execute(query, values)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Rows in chunks, so that a long reading keeps nobody waiting."""
        with self._telling():
            cursor = self._db.execute(query, values)
        while True:
            with self._telling():
                rows = cursor.fetchmany(CHUNK)
            if not rows:
                return
            yield from rows
