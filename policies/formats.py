"""How models write tool calls: the formats by name, each a parser and a renderer.

Parsing never raises and takes time in proportion to the text. What it promises of each format:

- Only the answer counts: what stands inside <think> is thinking, calls and all.
- A call is well formed or it is an error, which says what is wrong; nothing is guessed. Arguments stay byte for byte as
  the model wrote them.
- Results come from the environment: what follows a result that the model invented is text, and holds no calls.
- Prose that names a mark is prose.
"""

from __future__ import annotations

import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from agentgym.registry import TOOL_FORMATS
from agentgym.types import Message, Struct, ToolCall, ToolSpec

THINK, THINK_END = "<think>", "</think>"
RESULT_MARKS = ("<tool_response>", "[TOOL_RESULTS]", "<|start_header_id|>ipython", "<|start_header_id|>tool")
MAX_ERRORS = 16  # that are told of one message; what follows them is not read
MAX_MISSES = 64  # values that could not be read, told or not
INVENTED = "what follows a tool result in your own message was not read: results come from the environment alone"
TOO_MANY = "there are too many malformed calls: the rest of the message was not read"
UNFINISHED = "your thinking was cut off before it ended: nothing was answered"
CUT_OFF = "it is cut off before it ends"


class Parsed(Struct, frozen=True, kw_only=True):
    """What a message says: `content` is the text without the calls, `errors` what is wrong with malformed ones."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()


class Format(ABC):
    """One way to write calls. A subclass says which marks begin a call, and reads one."""

    name = ""
    marks: tuple[str, ...] = ()  # that may be special tokens of the model, and which its text must keep
    opening = r"(?!)"  # a regular expression of what begins a call; matches nothing across lines, in linear time

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), *, thinking: bool = False, key: str = "") -> Parsed:
        """The calls in a message.

        Args:
            tools: those on offer; their schemas say what untyped values are.
            thinking: whether the prompt has opened <think> already.
            key: what the ids of the calls are made from; the text by default.
        """
        text = printable(text)
        reading = Reading(text, tools)
        self._read_all(reading, thinking)
        seed = zlib.crc32((key or text).encode())
        calls = tuple(
            ToolCall(id=self.call_id(seed, index), name=printable(name), arguments=arguments)
            for index, (name, arguments) in enumerate(reading.calls)
        )
        return Parsed(content=reading.content(), calls=calls, errors=tuple(dict.fromkeys(reading.errors)))

    def render(self, message: Message) -> str:
        """A message as the model should write it: its content, then its calls."""
        parts = [message.content] if message.content else []
        return "\n".join([*parts, self.render_calls(message.tool_calls)] if message.tool_calls else parts)

    @abstractmethod
    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """The calls as the model should write them."""

    @abstractmethod
    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        """What a system message says about the tools, where the chat template says nothing."""

    @abstractmethod
    def read(self, reading: Reading, found: re.Match[str]) -> int:
        """Read the call that `found` begins into `reading`; returns where to go on, after `found` began."""

    def call_id(self, seed: int, index: int) -> str:
        """The id of a message's call."""
        return f"call_{seed:08x}_{index}"

    def _read_all(self, reading: Reading, thinking: bool) -> None:
        text = reading.text
        if thinking and THINK_END not in text:
            reading.errors.append(UNFINISHED)
            return
        at = self.whole(reading, _after(text, THINK_END, 0) if thinking else 0)
        while found := self._marks.search(text, at):
            mark = found[0]
            if mark == THINK:
                at = self.whole(reading, _after(text, THINK_END, found.end()))
            elif mark == THINK_END:  # all before it was thinking, opened by the prompt
                reading.forget()
                at = self.whole(reading, found.end())
            elif mark in RESULT_MARKS:
                if reading.calls or self._opening.search(text, found.end()):
                    reading.errors.append(INVENTED)
                return
            elif len(reading.errors) >= MAX_ERRORS or reading.misses >= MAX_MISSES:
                at = text.find(THINK_END, at)
                if at < 0:
                    reading.errors.append(TOO_MANY)
                    return
            else:
                at = max(self.read(reading, found), found.start() + 1)

    def whole(self, reading: Reading, at: int) -> int:
        """Read a message that is JSON and nothing else, and begins at `at`; returns where to go on."""
        return at

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile(self.opening, re.MULTILINE)

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        fixed = "|".join(map(re.escape, (THINK, THINK_END, *RESULT_MARKS)))
        return re.compile(f"{fixed}|{self.opening}", re.MULTILINE)


class Reading:
    """What has been read of one message."""

    def __init__(self, text: str, tools: Sequence[ToolSpec]) -> None:
        self.text = text
        self.tools = {tool.name: tool for tool in tools}
        self.calls: list[tuple[str, str]] = []  # name and arguments
        self.errors: list[str] = []
        self.misses = 0
        self._forgotten = 0
        self._mentioned: dict[tuple[str, ...], bool] = {}
        self.said = ""  # more content, from inside a call
        self._cuts: list[tuple[int, int]] = []  # of the text, where calls stand

    def call(self, name: str, arguments: str, start: int, end: int) -> None:
        """A call that stands at text[start:end]."""
        self.calls.append((name, arguments))
        self._cuts.append((start, end))

    def error(self, what: str) -> None:
        """A malformed call."""
        self.errors.append(what)

    def forget(self) -> None:
        """What came so far was thinking."""
        self.calls, self.errors, self._cuts, self.said = [], [], [], ""
        if self._forgotten < MAX_ERRORS:
            self._forgotten += 1
            self.misses = 0

    def content(self) -> str:
        """The text without the calls."""
        if not self._cuts:
            return self.text
        parts, at = [], 0
        for start, end in self._cuts:
            parts.append(self.text[at:start])
            at = max(at, end)
        return "".join([*parts, self.text[at:], self.said]).strip()

    def mentions(self, *words: str) -> bool:
        """Whether the text holds one of the words anywhere; looked for once."""
        if words not in self._mentioned:
            self._mentioned[words] = any(word in self.text for word in words)
        return self._mentioned[words]

    def skip(self, at: int) -> int:
        """The position of the next character that is no white space."""
        match = WHITE.match(self.text, at)
        return match.end() if match else at

    def value(self, at: int) -> tuple[Any, int]:
        """The JSON value at `at` and where it ends. Raises Malformed."""
        try:
            return DECODER.raw_decode(self.text, at)
        except (ValueError, RecursionError) as error:
            self.misses += 1
            raise Malformed(explain(error, self.text)) from None


class Malformed(Exception):
    """A value cannot be read; the message continues "the call is malformed: "."""


WHITE = re.compile(r"\s*")
HINTS = {"'": "JSON takes double quotes", "T": "JSON writes true", "F": "JSON writes false", "N": "JSON writes null"}


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)  # raw line breaks in texts are taken


def explain(error: Exception, text: str) -> str:
    """What is wrong with JSON, in words for whoever wrote it."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    at = error.pos
    if error.msg.startswith("Unterminated") or not text[at : at + 1000].strip():
        return CUT_OFF
    before = text[max(0, at - 20) : at].rstrip()
    near = text[max(0, at - 20) : at + 20]
    if text[at] in "}]" and before.endswith(","):
        what = "there is a comma before the closing bracket"
    else:
        what = HINTS.get(text[at], error.msg[0].lower() + error.msg[1:])
    return f"{what}, near {json.dumps(near, ensure_ascii=False)}"


class _Call(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


def call_from(value: Any, written: str, keys: tuple[str, ...] = ("arguments",)) -> tuple[str, str]:
    """Name and arguments of a call as JSON, the arguments byte for byte. Raises Malformed.

    Args:
        value: what `written` means.
        keys: what the arguments may be called.
    """
    if not isinstance(value, dict):
        raise Malformed('it must be an object such as {"name": ..., "arguments": {...}}')
    name, key = value.get("name"), next((key for key in keys if key in value), keys[0])
    if not isinstance(name, str) or not name:
        raise Malformed('"name" must be the name of a tool' if "name" in value else '"name" is missing')
    given = value.get(key, {})
    if not isinstance(given, dict):
        kind = "text" if isinstance(given, str) else "null" if given is None else type(given).__name__
        raise Malformed(f'"{key}" must be an object, not {kind}')
    if key not in value and len(value) > 1:
        others = ", ".join(f'"{other}"' for other in value if other != "name")
        raise Malformed(f'"{keys[0]}" is missing; there is {others[:80]}')
    try:
        exact = getattr(msgspec.json.decode(written, type=_Call), key)
        return name, bytes(exact).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return name, printable(json.dumps(given, ensure_ascii=False))


def items(written: str, n: int) -> list[str]:
    """The n items of a JSON list as they are written; empty texts where that cannot be told."""
    try:
        return [bytes(item).decode() for item in msgspec.json.decode(written, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return [""] * n


def arguments_of(call: ToolCall) -> Mapping[str, Any] | None:
    """The arguments of a call as a mapping; None if they are malformed."""
    try:
        decoded = json.loads(call.arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def printable(text: str) -> str:
    """Text that any encoding can carry: lone surrogates become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _after(text: str, mark: str, at: int) -> int:
    """Where `mark` ends; the end of the text if there is none."""
    found = text.find(mark, at)
    return len(text) if found < 0 else found + len(mark)


def make_format(name: str) -> Format:
    """The format registered as `name`; an unknown one answers with the nearest."""
    made: Format = TOOL_FORMATS.make(name)
    return made


def detect(template: str, prints_tools: bool) -> str:
    """Which format a chat template has the model write."""
    if "<function=" in template and "<parameter=" in template:
        return "qwen_xml"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template or not prints_tools:
        return "hermes"
    if "<|python_tag|>" in template or "ipython" in template:
        return "llama3"
    return "json"
