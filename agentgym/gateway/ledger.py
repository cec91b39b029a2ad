"""The gateway's tables in the run's store: turns, feedback, sessions; durable before an answer ends.

A turn is main and waits for its next state, then is ready, then has the fate that a learner gives it; or it was never
for learning, and its fate says why. Every row is of one user: it can be listed, exported and erased. What is erased
is overwritten in the file. Calls may come from any thread; one is done at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agentgym.database import Database
from agentgym.gateway.records import CompletedTurn, Ending, Feedback, TurnRecord
from agentgym.types import Message

SCHEMA = """
CREATE TABLE IF NOT EXISTS gateway_turns (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, completion TEXT NOT NULL, user TEXT NOT NULL,
    session TEXT NOT NULL, kind TEXT NOT NULL, label TEXT NOT NULL, relation TEXT NOT NULL, state TEXT NOT NULL,
    parent TEXT, delivered INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, tokens INTEGER NOT NULL,
    fate TEXT NOT NULL, ending TEXT, alternative TEXT, ended REAL, next_state BLOB, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS gateway_turns_by_session ON gateway_turns (user, session);
CREATE INDEX IF NOT EXISTS gateway_turns_by_fate ON gateway_turns (fate, ended);
CREATE INDEX IF NOT EXISTS gateway_turns_by_completion ON gateway_turns (completion);
CREATE TABLE IF NOT EXISTS gateway_feedback (
    completion TEXT NOT NULL, user TEXT NOT NULL, created REAL NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (completion, user));
CREATE TABLE IF NOT EXISTS gateway_sessions (
    user TEXT NOT NULL, id TEXT NOT NULL, started REAL NOT NULL, used REAL NOT NULL, closed TEXT,
    PRIMARY KEY (user, id));
CREATE INDEX IF NOT EXISTS gateway_sessions_by_use ON gateway_sessions (closed, used)
"""
WAITING, READY = "waiting", "ready"

_encode = msgspec.msgpack.Encoder().encode
_turn = msgspec.msgpack.Decoder(TurnRecord).decode
_messages = msgspec.msgpack.Decoder(tuple[Message, ...]).decode
_feedback = msgspec.msgpack.Decoder(Feedback).decode


class Ledger(Database):
    """The gateway's tables in the file `path`."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(path, read_only=read_only)
        if not read_only:
            with self._telling():
                self._db.execute("PRAGMA secure_delete=ON")
            with self.transaction():
                self._create(SCHEMA)

    # --- turns -------------------------------------------------------------------------------------------------------

    def add(self, turn: TurnRecord, *, now: float) -> None:
        """Keep a turn; the same id again changes nothing."""
        taken = turn.taken
        values = (
            turn.id, turn.id.split("/")[0], turn.user, taken.session, taken.kind, taken.label, taken.relation, turn.state,
            taken.parent, turn.created, len(turn.completion.ids), _fate(turn), zlib.compress(_encode(turn), 1),
        )  # fmt: skip
        with self.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO gateway_turns (id, completion, user, session, kind, label, relation, state, parent, "
                "created, tokens, fate, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            self._use(turn.user, taken.session, now)

    def use(self, user: str, session: str, now: float) -> None:
        """A session was used; one that was closed is open again."""
        with self.transaction():
            self._use(user, session, now)

    def _use(self, user: str, session: str, now: float) -> None:
        self._db.execute(
            "INSERT INTO gateway_sessions VALUES (?, ?, ?, ?, NULL) ON CONFLICT (user, id) DO UPDATE SET "
            "used = MAX(used, excluded.used), closed = NULL",
            (user, session, now, now),
        )

    def delivered(self, id: str) -> None:
        """The client has the whole answer."""
        self._write("UPDATE gateway_turns SET delivered = 1 WHERE completion = ?", (id,))

    def follow(
        self,
        id: str,
        ending: Ending,
        *,
        now: float,
        next_state: tuple[Message, ...] = (),
        alternative: str | None = None,
    ) -> None:
        """What became of a turn's wait. A reply counts for more than a regeneration; what a learner took stays."""
        weaker = ("regenerated", "unchosen", "timeout") if ending == "reply" else ()
        marks = ", ".join("?" * len(weaker))
        with self.transaction():
            self._db.execute(
                "UPDATE gateway_turns SET fate = ?, ending = ?, next_state = ?, alternative = ?, ended = ? WHERE id = ? "
                f"AND (fate = ? OR (fate = ? AND (ending IN ({marks}) OR (ending = 'reply' AND ? = 'reply'))))",
                (READY, ending, _encode(next_state), alternative, now, id, WAITING, READY, *weaker, ending),
            )
            if ending == "reply":  # the other answers to the same request were not chosen
                self._db.execute(
                    "UPDATE gateway_turns SET fate = ?, ending = 'unchosen', alternative = ?, ended = ? "
                    "WHERE completion = ? AND id != ? AND fate = ?",
                    (READY, id, now, id.split("/")[0], id, WAITING),
                )

    def close_session(self, user: str, session: str, why: Ending, *, now: float) -> int:
        """Close a session: its turns wait no longer. Returns how many waited."""
        with self.transaction():
            self._db.execute("UPDATE gateway_sessions SET closed = ? WHERE user = ? AND id = ?", (why, user, session))
            return self._db.execute(
                "UPDATE gateway_turns SET fate = ?, ending = ?, ended = ? WHERE user = ? AND session = ? AND fate = ?",
                (READY, why, now, user, session, WAITING),
            ).rowcount

    def idle_sessions(self, before: float) -> list[tuple[str, str]]:
        """(user, id) of the open sessions that nobody has used since."""
        return self._all("SELECT user, id FROM gateway_sessions WHERE closed IS NULL AND used < ?", (before,))

    def turn(self, id: str) -> TurnRecord | None:
        rows = self._all("SELECT body FROM gateway_turns WHERE id = ?", (id,))
        return _turn(zlib.decompress(rows[0][0])) if rows else None

    def owner(self, completion: str) -> str | None:
        """The user who asked for a completion (or one answer of it)."""
        rows = self._all("SELECT user FROM gateway_turns WHERE id = ? OR completion = ?", (completion, completion))
        return rows[0][0] if rows else None

    def recent(self, limit: int) -> list[tuple[TurnRecord, bool, bool]]:
        """The last turns, oldest first, whether each was delivered, and whether a reply came: for after a restart."""
        query = "SELECT body, delivered, ending FROM gateway_turns ORDER BY number DESC LIMIT ?"
        rows = self._all(query, (limit,))
        return [
            (_turn(zlib.decompress(body)), bool(delivered), ending == "reply") for body, delivered, ending in rows[::-1]
        ]

    # --- for the learner ---------------------------------------------------------------------------------------------

    def ready(self, limit: int = 256) -> list[CompletedTurn]:
        """Completed turns that no learner has dealt with, in the order in which they were completed."""
        query = (
            "SELECT t.body, t.ending, t.next_state, t.alternative, t.ended, f.body FROM gateway_turns t "
            "LEFT JOIN gateway_feedback f ON f.completion = t.id AND f.user = t.user "
            "WHERE t.fate = ? ORDER BY t.ended, t.number LIMIT ?"
        )
        return [
            CompletedTurn(
                turn=_turn(zlib.decompress(body)), ending=ending, next_state=_messages(state) if state else (),
                alternative=alternative, feedback=_feedback(feedback) if feedback else None, ended=ended,
            )
            for body, ending, state, alternative, ended, feedback in self._all(query, (READY, limit))
        ]  # fmt: skip

    def settle(self, id: str, fate: str) -> None:
        """What a learner made of a turn: "trained", "scored", "rejected: why"; it is not ready any more."""
        self._write("UPDATE gateway_turns SET fate = ? WHERE id = ? AND fate != ?", (fate, id, WAITING))

    def reopen(self) -> int:
        """Make those turns ready again whose training was taken back with the weights it made; returns how many."""
        query = (
            "UPDATE gateway_turns SET fate = ? WHERE fate LIKE 'trained%' AND id NOT IN (SELECT s.trajectory_id "
            "FROM samples s JOIN consumptions c ON c.sample_id = s.id AND c.undone = 0)"
        )
        with self.transaction():
            return self._db.execute(query, (READY,)).rowcount

    def add_feedback(self, feedback: Feedback) -> None:
        """Keep feedback; of one user about one completion the later wins."""
        self._write(
            "INSERT INTO gateway_feedback VALUES (?, ?, ?, ?) ON CONFLICT (completion, user) DO UPDATE SET "
            "created = excluded.created, body = excluded.body WHERE excluded.created >= created",
            (feedback.completion_id, feedback.user, feedback.created, _encode(feedback)),
        )

    def feedback(self, completion: str, user: str) -> Feedback | None:
        rows = self._all("SELECT body FROM gateway_feedback WHERE completion = ? AND user = ?", (completion, user))
        return _feedback(rows[0][0]) if rows else None

    def fates(self) -> dict[str, int]:
        """How many turns met which fate; their sum is that of all turns."""
        return dict(self._all("SELECT fate, COUNT(*) FROM gateway_turns GROUP BY fate ORDER BY fate"))

    def taken(self) -> dict[str, int]:
        """How many turns were taken how: "main: continued", "side: title", ..."""
        query = (
            "SELECT kind || ': ' || CASE kind WHEN 'side' THEN label ELSE relation END AS how, COUNT(*) "
            "FROM gateway_turns GROUP BY how ORDER BY how"
        )
        return dict(self._all(query))

    def counts(self) -> dict[str, dict[str, int]]:
        """Fates and how turns were taken; empty where no gateway ever served."""
        return {"fates": self.fates(), "taken": self.taken()} if self._has_table("gateway_turns") else {}

    def overview(self, limit: int) -> list[dict[str, Any]]:
        """How the last turns were taken, why, and what became of them; the newest last."""
        if not self._has_table("gateway_turns"):
            return []
        query = "SELECT body, fate, ending FROM gateway_turns ORDER BY number DESC LIMIT ?"
        found = []
        for body, fate, ending in self._all(query, (limit,))[::-1]:
            turn = _turn(zlib.decompress(body))
            taken = msgspec.to_builtins(turn.taken)
            taken.pop("next_state", None)
            found.append(
                {
                    "id": turn.id,
                    "user": turn.user,
                    "created": turn.created,
                    "state": turn.state,
                    "label": "",
                    **taken,
                    "fate": fate,
                    "ending": ending,
                }
            )
        return found

    # --- a user's data -----------------------------------------------------------------------------------------------

    def sessions(self, user: str, *, limit: int = 100, before: float | None = None) -> list[dict[str, Any]]:
        """A user's sessions, the last used first."""
        query = (
            "SELECT s.id, s.started, s.used, s.closed, COUNT(t.id), COALESCE(SUM(t.kind = 'main'), 0), "
            "COALESCE(SUM(t.tokens), 0) FROM gateway_sessions s LEFT JOIN gateway_turns t ON t.user = s.user AND "
            "t.session = s.id WHERE s.user = ? AND s.used < ? GROUP BY s.id ORDER BY s.used DESC LIMIT ?"
        )
        names = ("id", "started", "used", "closed", "turns", "main_turns", "tokens")
        values = (user, 1e18 if before is None else before, limit)
        return [{"object": "session", **dict(zip(names, row, strict=True))} for row in self._all(query, values)]

    def page(self, user: str, *, limit: int, after: str | None, descending: bool) -> list[TurnRecord]:
        """A user's turns in order, those after the turn `after`."""
        beyond, order = ("<", "DESC") if descending else (">", "ASC")
        query = (
            f"SELECT body FROM gateway_turns WHERE user = ? AND (? IS NULL OR number {beyond} "
            f"(SELECT number FROM gateway_turns WHERE id = ?)) ORDER BY number {order} LIMIT ?"
        )
        return [_turn(zlib.decompress(body)) for (body,) in self._all(query, (user, after, after, limit))]

    def erase_turn(self, id: str) -> None:
        """Erase one answer."""
        with self.transaction():
            self._erase_turns([id])

    def export(self, user: str, session: str | None = None) -> Iterator[dict[str, Any]]:
        """All that is kept of a user (or of one session), as plain data, turn by turn."""
        query = (
            "SELECT t.fate, t.ending, t.delivered, t.next_state, t.body, f.body FROM gateway_turns t "
            "LEFT JOIN gateway_feedback f ON f.completion = t.id AND f.user = t.user WHERE t.user = ? AND "
            "(? IS NULL OR t.session = ?) ORDER BY t.number"
        )
        for fate, ending, delivered, state, body, feedback in self._rows(query, (user, session, session)):
            yield {
                "object": "turn", **msgspec.to_builtins(_turn(zlib.decompress(body))), "fate": fate, "ending": ending,
                "delivered": bool(delivered), "next_state": msgspec.to_builtins(_messages(state)) if state else [],
                "feedback": msgspec.to_builtins(_feedback(feedback)) if feedback else None,
            }  # fmt: skip

    def erase(self, user: str, session: str | None = None) -> int:
        """Erase all that is kept of a user, or of one session; returns how many turns that were.

        What was trained on stays in the weights; a learner's own rows about a turn carry its id, and go too.
        """
        query = "SELECT id FROM gateway_turns WHERE user = ? AND (? IS NULL OR session = ?)"
        with self.transaction():
            ids = [id for (id,) in self._all(query, (user, session, session))]
            self._erase_turns(ids)
            self._db.execute(
                "DELETE FROM gateway_sessions WHERE user = ? AND (? IS NULL OR id = ?)", (user, session, session)
            )
            if session is None:
                self._db.execute("DELETE FROM gateway_feedback WHERE user = ?", (user,))
        with self._telling():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nothing of it stays in the log
        return len(ids)

    def erase_before(self, when: float) -> int:
        """Erase the turns that were made before `when` (the retention time); returns how many."""
        with self.transaction():
            ids = [id for (id,) in self._all("SELECT id FROM gateway_turns WHERE created < ?", (when,))]
            self._erase_turns(ids)
            self._db.execute(
                "DELETE FROM gateway_sessions WHERE used < ? AND NOT EXISTS (SELECT 1 FROM gateway_turns t WHERE "
                "t.user = gateway_sessions.user AND t.session = gateway_sessions.id)",
                (when,),
            )
        return len(ids)

    def _erase_turns(self, ids: list[str]) -> None:
        values = [(id,) for id in ids]
        self._db.executemany("DELETE FROM gateway_turns WHERE id = ?", values)
        self._db.executemany("DELETE FROM gateway_feedback WHERE completion = ?", values)
        if self._has_table("trajectories"):  # what was made of them for training
            self._db.executemany("DELETE FROM samples WHERE trajectory_id = ?", values)
            self._db.executemany("DELETE FROM trajectories WHERE id = ?", values)
            for table in ("judgements", "turns"):
                if self._has_table(table):
                    self._db.executemany(f"DELETE FROM {table} WHERE trajectory_id = ?", values)


def _fate(turn: TurnRecord) -> str:
    """Where a turn stands when its answer ends."""
    if turn.state != "complete":
        return f"rejected: {turn.state}"
    if turn.taken.kind == "side":
        return f"rejected: side ({turn.taken.label})"
    if not turn.completion.ids:
        return f"rejected: {turn.caveat if turn.caveat == 'redacted' else 'empty'}"
    return WAITING
