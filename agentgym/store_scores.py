"""The store's tables of judging: what each turn was judged to be, what became of it, and answers that were paid for.

A judgement is kept under (trajectory, turn) as soon as it is made, and the first one stands: a resumed run pays for
nothing twice. It lives and dies with its trajectory: one that was undone takes its judgements out of all counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from agentgym.database import Database
from agentgym.types import Judgement, Sample, Struct, Trajectory

SCORE_SCHEMA = """
CREATE TABLE judgements (
    trajectory_id TEXT NOT NULL, turn INTEGER NOT NULL, score REAL, hints INTEGER NOT NULL, reason TEXT NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (trajectory_id, turn));
CREATE TABLE judge_cache (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE turns (
    trajectory_id TEXT NOT NULL, turn INTEGER NOT NULL, sample_id TEXT, fate TEXT, PRIMARY KEY (trajectory_id, turn));
"""

# What a turn is trained by: it counts once. Any other fate is the reason why it was not trained.
TRAINED = ("hint and score", "hint only", "score only")

_encode = msgspec.msgpack.Encoder().encode
_judgement = msgspec.msgpack.Decoder(Judgement).decode


class TurnCounts(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Turns of the surviving history: how far each is, and why those that go no further do not."""

    collected: int  # of episodes with an outcome
    judged: int
    scored: int
    hinted: int
    assembled: int  # those whose fate is decided
    trained: dict[str, int]  # by what: TRAINED
    ready: dict[str, int]  # decided, and yet to be trained on
    unscored: dict[str, int]  # judged without a score, by reason
    rejected: dict[str, int]  # not trained on, by reason


class ScoreTables(Database):
    """The part of the store that holds judgements."""

    def add_judgement(self, judgement: Judgement) -> None:
        """Keep what came of judging a turn; the first judgement of it stands."""
        row = (judgement.trajectory_id, judgement.turn, judgement.score, len(judgement.hints), judgement.reason)
        self._write("INSERT OR IGNORE INTO judgements VALUES (?, ?, ?, ?, ?, ?)", (*row, _encode(judgement)))

    def judgements(self, trajectory_id: str) -> dict[int, Judgement]:
        """The judgements of a trajectory, by turn."""
        rows = self._all("SELECT turn, body FROM judgements WHERE trajectory_id = ? ORDER BY turn", (trajectory_id,))
        return {turn: _judgement(body) for turn, body in rows}

    def cached(self, key: str) -> str | None:
        """The answer that was kept under `key`, which stands for the whole content of a question."""
        rows = self._all("SELECT value FROM judge_cache WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def cache(self, key: str, value: str) -> None:
        """Keep an answer; the first one stands."""
        self._write("INSERT OR IGNORE INTO judge_cache VALUES (?, ?)", (key, value))

    def _add_turns(self, trajectory: Trajectory) -> None:
        rows = [(trajectory.id, turn.index) for turn in trajectory.turns]
        self._db.executemany("INSERT OR IGNORE INTO turns (trajectory_id, turn) VALUES (?, ?)", rows)

    def _decide_turns(self, sample: Sample, fates: Sequence[str]) -> None:
        rows = [
            (sample.trajectory_id, span.turn, sample.id, fate) for span, fate in zip(sample.spans, fates, strict=True)
        ]
        with self._telling():
            self._db.executemany("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?)", rows)

    def fates(self) -> dict[str, tuple[str, ...]]:
        """What each sample's turns are trained by, or why they are not, in order; of samples whose fate was kept."""
        found: dict[str, list[str]] = {}
        query = "SELECT sample_id, fate FROM turns WHERE sample_id IS NOT NULL ORDER BY trajectory_id, turn"
        for id, fate in self._rows(query):
            found.setdefault(id, []).append(fate)
        return {id: tuple(fates) for id, fates in found.items()}

    def turn_counts(self) -> TurnCounts:
        """How far the turns of the surviving history are."""
        query = """
            SELECT j.turn IS NOT NULL, j.score IS NOT NULL, COALESCE(j.hints, 0) > 0, j.reason, u.fate,
                c.step IS NOT NULL, COUNT(*)
            FROM turns u JOIN trajectories t ON t.id = u.trajectory_id AND t.undone = 0
            LEFT JOIN judgements j ON j.trajectory_id = u.trajectory_id AND j.turn = u.turn
            LEFT JOIN consumptions c ON c.sample_id = u.sample_id AND c.undone = 0
            GROUP BY 1, 2, 3, 4, 5, 6"""
        rows = self._all(query)

        def number(column: int) -> int:
            return sum(row[-1] for row in rows if row[column])

        return TurnCounts(
            collected=sum(row[-1] for row in rows),
            judged=number(0),
            scored=number(1),
            hinted=number(2),
            assembled=number(4),
            trained=_by((row[4], row[-1]) for row in rows if row[4] in TRAINED and row[5]),
            ready=_by((row[4], row[-1]) for row in rows if row[4] in TRAINED and not row[5]),
            unscored=_by((row[3], row[-1]) for row in rows if row[0] and not row[1]),
            rejected=_by((row[4], row[-1]) for row in rows if row[4] and row[4] not in TRAINED),
        )


def _by(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for what, number in found:
        counts[what] += number
    return dict(counts.most_common())
