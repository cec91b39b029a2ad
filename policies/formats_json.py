"""Calls as JSON between marks: Hermes (and Qwen 2.5, 3), plain blocks, and OpenAI's messages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentgym.policies.formats import (
    CUT_OFF,
    MAX_MISSES,
    Format,
    Malformed,
    Parsed,
    Reading,
    call_from,
    items,
    printable,
)
from agentgym.types import ToolCall, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
HERMES_PREAMBLE = """# Tools

You may call one or more functions to assist with the user query. You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
BLOCK_PREAMBLE = """You have these tools:
{tools}

To call one, write a block like this, with nothing else in it; several calls take several blocks:
```json
{{"name": "TOOL", "arguments": {{"ARGUMENT": "VALUE"}}}}
```"""
FENCE = re.compile(r"^[ \t]*```[^\n`]*$", re.MULTILINE)
CALL_LIKE = re.compile(r"""\[?\s*\{\s*["'](?:name|arguments|parameters)["']\s*:""")
NAMED = re.compile(r"""["'](?:arguments|parameters)["']\s*:""")
ENDING = re.compile("|".join(map(re.escape, (CLOSE, "</think>", "<tool_response>"))))
NEXT = re.compile("|".join(map(re.escape, (OPEN, CLOSE, "</think>", "<tool_response>"))))
SHOULD = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'


def listed(tools: Sequence[ToolSpec]) -> str:
    """The tools, one line of JSON each."""
    return "\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools)


class Hermes(Format):
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes and Qwen 2.5 and 3 write it."""

    name = "hermes"
    marks = (OPEN, CLOSE)
    opening = re.escape(OPEN)

    def read(self, reading: Reading, found: re.Match[str]) -> int:
        text, body = reading.text, reading.skip(found.end())
        if text[body : body + 1] not in ("{", "["):
            return self._no_json(reading, found, body)
        try:
            value, end = reading.value(body)
            after = reading.skip(end)
            closed = text.startswith(CLOSE, after)
            if not closed and after < len(text) and not text.startswith((OPEN, "<tool_response>", "<think>"), after):
                raise Malformed(f"something follows the JSON object: {text[after : after + 20]!r}")
            name, arguments = call_from(value, text[body:end])
        except Malformed as malformed:
            reading.error(f"a tool call is malformed: {malformed}; it should be {SHOULD}")
            return self._end_of(text, body)
        end = after + len(CLOSE) if closed else end
        reading.call(name, arguments, found.start(), end)
        return end

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(
            f'{OPEN}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments or "{}"}}}\n{CLOSE}'
            for call in calls
        )

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        return HERMES_PREAMBLE.format(tools=listed(tools))

    def _no_json(self, reading: Reading, found: re.Match[str], body: int) -> int:
        """A mark without JSON after it: prose that names the mark, or a call in some other form."""
        text = reading.text
        if body == len(text):
            reading.error(f"a tool call is malformed: {CUT_OFF}; it should be {SHOULD}")
            return body
        following = NEXT.search(text, body)
        inside = text[body : following.start()] if following else ""
        if following and following[0] == CLOSE and any(sign in inside for sign in "{(=:"):
            reading.error(f"a tool call is malformed: {inside.strip()[:40]!r} is no JSON object; it should be {SHOULD}")
            return following.end()
        return found.end()

    def _end_of(self, text: str, body: int) -> int:
        """Where a malformed call ends: after its closing mark. What looks like a call inside it may be data."""
        match = ENDING.search(text, body)
        return len(text) if match is None else match.end() if match[0] == CLOSE else match.start()


class JsonBlock(Format):
    """A ```json block that holds {"name": ..., "arguments": {...}} or a list of such; or a message of nothing else."""

    name = "json"
    opening = r"(?:^|(?<=</think>))[ \t]*```[^\n`]*$"

    def read(self, reading: Reading, found: re.Match[str]) -> int:
        text, body = reading.text, reading.skip(found.end())
        if not CALL_LIKE.match(text, body):
            closing = FENCE.search(text, found.end())
            return closing.end() if closing else len(text)
        try:
            value, end = reading.value(body)
            after = reading.skip(end)
            if text[after : after + 3] not in ("```", ""):
                raise Malformed(f"something follows the JSON in its block: {text[after : after + 20]!r}")
            self._take(reading, value, body, end, (found.start(), min(after + 3, len(text))))
        except Malformed as malformed:
            closing = FENCE.search(text, body)
            end = closing.start() if closing else len(text)
            if self._meant(reading, text[body:end]):
                reading.error(f"a tool call is malformed: {malformed}")
            return closing.end() if closing else len(text)
        return min(after + 3, len(text))

    def whole(self, reading: Reading, at: int) -> int:
        start = reading.skip(at)
        if not CALL_LIKE.match(reading.text, start) or reading.misses >= MAX_MISSES:
            return at
        try:
            value, end = reading.value(start)
            if reading.skip(end) < len(reading.text):
                return at
            self._take(reading, value, start, end, (start, end))
        except Malformed as malformed:
            if not self._meant(reading, reading.text[start:]):
                return at
            reading.error(f"a tool call is malformed: {malformed}")
        return len(reading.text)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(
            f'```json\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments or "{}"}}}\n```'
            for call in calls
        )

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        return BLOCK_PREAMBLE.format(tools=listed(tools))

    def _take(self, reading: Reading, value: Any, start: int, end: int, whole: tuple[int, int]) -> None:
        values = value if isinstance(value, list) else [value]
        if not all(self._is_call(reading, one) for one in values):
            return  # data of some other kind
        written = reading.text[start:end]
        each = items(written, len(values)) if isinstance(value, list) else [written]
        made = [call_from(one, exact, KEYS) for one, exact in zip(values, each, strict=True)]
        for name, arguments in made:
            reading.call(name, arguments, *whole)

    def _is_call(self, reading: Reading, value: Any) -> bool:
        return isinstance(value, dict) and (any(key in value for key in KEYS) or value.get("name") in reading.tools)

    def _meant(self, reading: Reading, text: str) -> bool:
        """Whether malformed JSON was to be a call."""
        return bool(NAMED.search(text))


KEYS = ("arguments", "parameters")
LIKE_OPENAI = re.compile(r"""\[?\s*\{\s*["']""")


class OpenAI(Format):
    """A message as OpenAI's API has it: its `tool_calls`, whose arguments are JSON in a string."""

    name = "openai"

    def read(self, reading: Reading, found: re.Match[str]) -> int:
        return found.end()

    def whole(self, reading: Reading, at: int) -> int:
        text, start = reading.text, reading.skip(at)
        if not LIKE_OPENAI.match(text, start) or not reading.mentions("tool_calls", "function"):
            return at
        if reading.misses >= MAX_MISSES:
            return at
        try:
            value, end = reading.value(start)
        except Malformed as malformed:
            reading.error(f"the message is malformed: {malformed}")
            return len(text)
        parsed = from_openai(value if isinstance(value, dict) else {"tool_calls": value})
        reading.errors += parsed.errors
        for call in parsed.calls:
            reading.call(call.name, call.arguments, start, end)
        reading.said = parsed.content if parsed.calls else ""
        return end

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return json.dumps({"tool_calls": [to_openai(call) for call in calls]}, ensure_ascii=False)

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        shape = '{"tool_calls": [{"type": "function", "function": {"name": "TOOL", "arguments": "{...}"}}]}'
        return (
            f"You have these tools:\n{listed(tools)}\n\nTo call some, answer with this JSON and nothing else:\n{shape}"
        )


def to_openai(call: ToolCall) -> dict[str, Any]:
    """A call as OpenAI's `tool_calls` list has it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def from_openai(message: dict[str, Any]) -> Parsed:
    """What an assistant message of OpenAI's API says; arguments stay as they are, malformed or not."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls, errors = [], []
    given = message.get("tool_calls") or []
    for index, one in enumerate(given if isinstance(given, list) else [given]):
        function = one.get("function") if isinstance(one, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            errors.append(f"tool call {index + 1} is malformed: function.name is missing")
            continue
        arguments = function.get("arguments", "{}")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        id = str(one.get("id") or f"call_{index}")
        calls.append(ToolCall(id=printable(id), name=printable(name), arguments=printable(text)))
    return Parsed(content=printable(str(content or "")), calls=tuple(calls), errors=tuple(errors))
