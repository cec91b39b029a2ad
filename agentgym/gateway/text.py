"""Ids to text while they are sampled: characters are never split, stop strings are found across pieces, calls held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

REPLACEMENT = "\ufffd"
WINDOW = 24  # ids that are decoded again and again; characters reach over a few at most
THINK, THOUGHT = "<think>", "</think>"
# How a call begins, what must follow if it is one and no prose about calls, and how it ends ("": with the answer).
CALLS = (
    ("<tool_call>", ("{", "<", "["), "</tool_call>"),
    ("<function=", (), "</function>"),
    ("<function_call>", ("{",), "</function_call>"),
    ("[TOOL_CALLS]", (), ""),
    ("<|python_tag|>", (), ""),
    ("```json", ("{", "["), "```"),
)


class Delta(NamedTuple):
    """What became known: text of the answer and of its reasoning."""

    content: str = ""
    reasoning: str = ""


class Detokenizer:
    """Decodes a growing sequence of ids; the text is that of all ids decoded at once."""

    def __init__(self, decode: Callable[[tuple[int, ...]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []  # from the beginning of the window on
        self._said = 0  # characters of the window that were given out
        self._clean = 0  # ids of the window that end between two characters

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain after `ids`."""
        made = []
        for id in ids:
            self._ids.append(id)
            text = self._decode(tuple(self._ids))
            sure = _sure(text)
            if len(sure) > self._said:
                made.append(sure[self._said :])
                self._said = len(sure)
            if len(sure) == len(text):
                self._move(len(self._ids))
        return "".join(made)

    def finish(self) -> str:
        """What is left, whole or not."""
        text = self._decode(tuple(self._ids))
        left, self._said = text[self._said :], len(text)
        return left

    def _move(self, clean: int) -> None:
        """Begin the window at the last clean place, so that its first id has the context that it was decoded with."""
        if len(self._ids) > WINDOW and 0 < self._clean < clean:
            self._ids = self._ids[self._clean :]
            self._said = len(self._decode(tuple(self._ids)))
            clean = len(self._ids)
            self._clean = clean
        elif len(self._ids) <= WINDOW // 2 or not self._clean:
            self._clean = clean


class Stops:
    """Looks for stop strings in a text that comes in pieces; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """The text up to the first stop string, as far as it is certain."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(place, stop) for stop in self.stops if (place := self._held.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            given, self._held = self._held[:place], ""
            return given
        return self._give(self._held, max((overlap(self._held, stop) for stop in self.stops), default=0))

    def finish(self) -> str:
        """What was held back and is no stop string."""
        return self._give(self._held, 0) if self.found is None else ""

    def _give(self, text: str, held: int) -> str:
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


class Parts:
    """Tells reasoning, content and tool calls apart in a text that comes in pieces.

    `ended` is asked whether what looked like a call and has just ended was one: if not it is content. `bare`: an
    answer that begins as JSON does may be a call as a whole.
    """

    def __init__(
        self, *, tools: bool, thinking: bool = False, bare: bool = False, ended: Callable[[], bool] = lambda: True
    ) -> None:
        self.tools, self.bare, self._ended = tools, bare, ended
        self.state = "reasoning" if thinking else "start"
        self.content = ""  # given out so far
        self._held = ""
        self._mark = 0  # characters of the mark that began a call
        self._thought = False  # reasoning just ended: space before the answer is nobody's

    def push(self, text: str, last: bool = False) -> Delta:
        """What is certain; `last`: nothing follows."""
        self._held += text
        content, reasoning = [], []
        moved = True
        while moved:
            before = self.state, self._held
            if self.state == "start":
                self._start(last)
            elif self.state == "reasoning":
                reasoning.append(self._until(THOUGHT, last))
            elif self.state == "content":
                content.append(self._prose(last))
            else:
                content.append(self._call())
            moved = (self.state, self._held) != before and bool(self._held)
        self.content += "".join(content)
        return Delta("".join(content), "".join(reasoning))

    def _start(self, last: bool) -> None:
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._held, self.state = text[len(THINK) :], "reasoning"
        elif last or not THINK.startswith(text):
            self.state = "content"

    def _until(self, mark: str, last: bool) -> str:
        place = self._held.find(mark)
        if place < 0:
            held = 0 if last else overlap(self._held, mark)
            given, self._held = self._held[: len(self._held) - held], self._held[len(self._held) - held :]
            return given
        given, self._held = self._held[:place], self._held[place + len(mark) :]
        self.state, self._thought = "content", True
        return given

    def _prose(self, last: bool) -> str:
        if self._thought:
            self._held = self._held.lstrip()
            self._thought = not self._held
        if not self.tools:
            given, self._held = self._held, ""
            return given
        if self.bare and not self.content.strip():
            said = self._held.lstrip()
            if not said and not last:
                return ""
            if said.startswith(("{", "[")):
                self.state = "call "
                return ""
        found = [(place, mark, after, end) for mark, after, end in CALLS if (place := self._held.find(mark)) >= 0]
        if not found:
            held = 0 if last else max(overlap(self._held, mark) for mark, *_ in CALLS)
            given, self._held = self._held[: len(self._held) - held], self._held[len(self._held) - held :]
            return given
        place, mark, after, end = min(found)
        rest = self._held[place + len(mark) :].lstrip()
        if after and rest and not rest.startswith(after):  # prose that names the mark
            cut = place + len(mark)
        elif after and not rest and not last:  # it may be either
            cut = place
        else:
            cut, self.state, self._mark = place, f"call {end}", len(mark)
        given, self._held = self._held[:cut], self._held[cut:]
        return given

    def _call(self) -> str:
        """Swallow a call; what was none after all is given out."""
        end = self.state.removeprefix("call ")
        place = self._held.find(end, self._mark) if end else -1
        if place < 0:
            return ""
        cut = place + len(end)
        swallowed, self._held, self.state = self._held[:cut], self._held[cut:], "content"
        return "" if self._ended() else swallowed


def split_thinking(text: str, thinking: bool = False) -> tuple[str, str]:
    """A whole answer's reasoning and the rest."""
    parts = Parts(tools=False, thinking=thinking)
    delta = parts.push(text, last=True)
    return delta.reasoning, delta.content


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` begin `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)


def _sure(text: str) -> str:
    """Without what may become another character: three bytes at most wait for a fourth."""
    held = 0
    while held < 3 and text[: len(text) - held].endswith(REPLACEMENT):
        held += 1
    return text[: len(text) - held]
