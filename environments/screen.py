"""What a terminal shows and how its keys are called: an emulator (pyte) fed with what the terminal prints."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Sequence
from typing import Any

import pyte

from agentgym.environments.pty import COLUMNS, ROWS

MAX_REPLY = 1024  # bytes that the emulator may answer to one look
MAX_MARKS = 4  # accents and their like piled up on one character
KEYS = {
    "Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Space": " ", "Backspace": "\x7f", "Delete": "\x1b[3~",
    "Insert": "\x1b[2~", "Up": "\x1b[A", "Down": "\x1b[B", "Right": "\x1b[C", "Left": "\x1b[D", "Home": "\x1b[H",
    "End": "\x1b[F", "PageUp": "\x1b[5~", "PageDown": "\x1b[6~", "F1": "\x1bOP", "F2": "\x1bOQ", "F3": "\x1bOR",
    "F4": "\x1bOS", "F5": "\x1b[15~", "F6": "\x1b[17~", "F7": "\x1b[18~", "F8": "\x1b[19~", "F9": "\x1b[20~",
    "F10": "\x1b[21~", "F11": "\x1b[23~", "F12": "\x1b[24~",
}  # fmt: skip


class Screen:
    """The screen of a terminal as text."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """An empty screen."""
        self.screen = _Answering(COLUMNS, ROWS)
        self.stream = pyte.Stream(self.screen)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.marks = 0

    def feed(self, data: bytes, lost: int = 0) -> bytes:
        """Take what the terminal printed; returns what a terminal answers to it (where the cursor is, and so on)."""
        if lost:
            self.reset()
        self.screen.answers.clear()
        text = self._few_marks(self.decoder.decode(data))
        for start in range(0, len(text), 4096):
            try:
                self.stream.feed(text[start : start + 4096])
            except Exception:  # sequences that no terminal knows; what was shown stays
                self.stream = pyte.Stream(self.screen)
        return bytes(self.screen.answers[:MAX_REPLY])

    def _few_marks(self, text: str) -> str:
        """The emulator's work grows with the square of the marks on one character."""
        if text.isascii():
            self.marks = 0
            return text
        kept = []
        for one in text:
            self.marks = self.marks + 1 if unicodedata.combining(one) else 0
            if self.marks <= MAX_MARKS:
                kept.append(one)
        return "".join(kept)

    def text(self) -> str:
        """The lines, without what is empty at their ends, and where the cursor is."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        cursor = self.screen.cursor
        return "\n".join([*lines, f"[cursor: line {cursor.y + 1}, column {cursor.x + 1}]"])


class _Answering(pyte.Screen):
    """A screen that keeps what it would answer."""

    def __init__(self, columns: int, lines: int) -> None:
        self.answers = bytearray()
        super().__init__(columns, lines)

    def write_process_input(self, data: str) -> None:
        if len(self.answers) < MAX_REPLY:
            self.answers += data.encode("utf-8", "replace")

    def report_device_status(self, mode: int, **kwargs: Any) -> None:
        super().report_device_status(mode)


def encode(keys: Sequence[str]) -> bytes:
    """The bytes of keys: a name of KEYS, `C-x` (control), `M-x` (alt), or else text to type as it is.

    Example:
        encode(["ls", "Enter", "C-c"]) == b"ls\\r\\x03"
    """
    return b"".join(_encode(key) for key in keys)


def _encode(key: str) -> bytes:
    if key in KEYS:
        return KEYS[key].encode()
    if len(key) == 3 and key[:2] == "C-" and key[2].upper() in "@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_":
        return bytes([ord(key[2].upper()) ^ 0x40])
    if len(key) == 3 and key[:2] == "M-" and key[2].isascii():
        return b"\x1b" + key[2].encode()
    return key.replace("\n", "\r").encode("utf-8", "replace")
