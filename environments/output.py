"""The output of commands: kept within bounds, made valid text, and split where a command ends."""

from __future__ import annotations

import asyncio
import re

# Escape sequences of terminals: with parameters (CSI), with a text (OSC, DCS and their like), and the short ones.
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


class Kept:
    """Output within `limit` bytes: half head, half tail."""

    def __init__(self, limit: int) -> None:
        self.half = max(limit // 2, 1)
        self.head, self.tail = bytearray(), bytearray()
        self.total = 0

    def add(self, chunk: bytes | bytearray) -> None:
        """Keep what there is room for."""
        self.total += len(chunk)
        room = self.half - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        if len(self.tail) > 2 * self.half:
            del self.tail[: -self.half]

    def raw(self) -> bytes:
        """What was kept, byte for byte."""
        return bytes(self.head + self.tail[-self.half :])

    @property
    def dropped(self) -> int:
        """How many bytes are missing from the middle."""
        return self.total - len(self.head) - min(len(self.tail), self.half)

    def text(self) -> str:
        """The output as valid text without escape sequences, and with a note where something is missing."""
        if not self.dropped:
            return plain_text(self.raw())
        head, tail = plain_text(bytes(self.head)), plain_text(bytes(self.tail[-self.half :]))
        return f"{head}\n[... {self.dropped} bytes left out ...]\n{tail}"


def plain_text(raw: bytes) -> str:
    """Valid text without the escape sequences of terminals."""
    return ESCAPES.sub("", raw.decode("utf-8", "replace"))


class Stream:
    """One of a shell's two output streams. The end of a command is marked by a word that nobody could know before.

    What comes between two commands, from jobs in the background, belongs to the next one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept = Kept(limit)
        self.word = b""
        self.pending = bytearray()  # may hold the start of the word
        self.later = bytearray()  # came after the word
        self.marked: asyncio.Future[bytes] | None = None

    def expect(self, word: bytes) -> asyncio.Future[bytes]:
        """A future of what stands between `word` and the NUL after it."""
        self.word = word
        self.marked = asyncio.get_running_loop().create_future()
        return self.marked

    def feed(self, chunk: bytes) -> None:
        """Take what came."""
        if self.marked is None:
            self.kept.add(chunk)
        elif self.marked.done():
            self.later += chunk
        else:
            self.pending += chunk
            self._look(self.marked)

    def take(self) -> Kept:
        """What was kept until now; from here on it is the next command's."""
        self._release(len(self.pending))
        kept, self.kept = self.kept, Kept(self.limit)
        self.kept.add(self.later)
        self.later.clear()
        self.marked = None
        return kept

    def _look(self, marked: asyncio.Future[bytes]) -> None:
        at = self.pending.find(self.word)
        self._release(at if at >= 0 else len(self.pending) - len(self.word) + 1)
        end = self.pending.find(b"\0") if at >= 0 else -1
        if end >= 0:
            marked.set_result(bytes(self.pending[len(self.word) : end]))
            self.later += self.pending[end + 1 :]
            self.pending.clear()

    def _release(self, count: int) -> None:
        if count > 0:
            self.kept.add(self.pending[:count])
            del self.pending[:count]
