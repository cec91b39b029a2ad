"""Calls as XML, as Qwen3-Coder and Qwen3.5 write them: each argument between marks of its own, as plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentgym.policies.formats import CUT_OFF, Format, Reading, arguments_of
from agentgym.policies.formats_json import listed
from agentgym.types import ToolCall, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_END, PARAMETER_END = "</function>", "</parameter>"
PREAMBLE = """# Tools

You have access to the following functions:

<tools>
{tools}
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>"""
INSIDE = re.compile(r"<parameter=([^<>\n]{1,256})>|</function>|</tool_call>|<function=|</think>|<tool_response>")
FUNCTION = re.compile(r"<function=([^<>\n]{1,256})>")
SPELLINGS = {"True": True, "False": False, "None": None}  # what the template itself prints
SHOULD = "it should be <tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>"


class QwenXML(Format):
    """<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>.

    The tool's schema says what a value is: text is taken as it is, without the line breaks beside the marks; anything
    else is read as JSON, and stays text if it is none, for the tool to refuse. No value is ever evaluated.
    """

    name = "qwen_xml"
    marks = (OPEN, CLOSE)
    opening = "<tool_call>|<function=[^<>\n]{1,256}>"

    def read(self, reading: Reading, found: re.Match[str]) -> int:
        text, start = reading.text, found.start()
        function = FUNCTION.match(text, reading.skip(found.end()) if found[0] == OPEN else start)
        if function is None:
            return self._no_function(reading, found)
        arguments: dict[str, Any] = {}
        at = function.end()
        while True:
            inside = INSIDE.search(text, at)
            between = text[at : inside.start() if inside else len(text)].strip()
            if inside is None or between or inside[0] in ("<function=", "</think>", "<tool_response>"):
                what = f"{between[:40]!r} stands outside of its parameters" if between else CUT_OFF
                return self._malformed(reading, what, at)
            if inside[1] is None:
                break
            key, at = inside[1].strip(), inside.end()
            end = self._value_end(text, at)
            if end < 0 or self._swallowed(reading, function[1], at, end):
                what = CUT_OFF if PARAMETER_END not in text[at:] else f"parameter {key!r} is not closed"
                return self._malformed(reading, what, at)
            if key in arguments:
                return self._malformed(reading, f"parameter {key!r} is there twice", at)
            arguments[key] = self._value(reading, function[1], key, text[at:end])
            at = end + len(PARAMETER_END)
        if inside[0] != FUNCTION_END:
            return self._malformed(reading, "</function> is missing", at)
        end = inside.end()
        if found[0] == OPEN and text.startswith(CLOSE, reading.skip(end)):
            end = reading.skip(end) + len(CLOSE)
        reading.call(function[1].strip(), json.dumps(arguments, ensure_ascii=False), start, end)
        return end

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(map(_render, calls))

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        return PREAMBLE.format(tools=listed(tools))

    def _value_end(self, text: str, at: int) -> int:
        """Where a value ends: at the mark that another mark of the call follows, since a value may hold marks."""
        while (end := text.find(PARAMETER_END, at)) >= 0:
            if FOLLOWS.match(text, end + len(PARAMETER_END)):
                return end
            at = end + 1
        return -1

    def _swallowed(self, reading: Reading, function: str, at: int, end: int) -> bool:
        """Whether a value holds what begins another parameter of the tool: its own end is missing."""
        tool = reading.tools.get(function.strip())
        known = tool.parameters.get("properties", {}) if tool else {}
        return any(found[1].strip() in known for found in STARTS.finditer(reading.text, at, end))

    def _value(self, reading: Reading, function: str, key: str, written: str) -> Any:
        value = written.removeprefix("\n").removesuffix("\n")
        tool = reading.tools.get(function.strip())
        schema = tool.parameters.get("properties", {}).get(key, {}) if tool else {}
        if is_text(schema):
            return value
        try:
            return json.loads(value, parse_constant=str)
        except (ValueError, RecursionError):
            return SPELLINGS.get(value.strip(), value)

    def _no_function(self, reading: Reading, found: re.Match[str]) -> int:
        """A mark without a function after it: prose that names the mark, or a call in some other form."""
        text, body = reading.text, reading.skip(found.end())
        if body == len(text):
            reading.error(f"a tool call is malformed: {CUT_OFF}; {SHOULD}")
        elif text[body] == "{" or text.startswith("<function", body):
            return self._malformed(reading, "no <function=NAME> follows <tool_call>", body)
        return found.end()

    def _malformed(self, reading: Reading, what: str, at: int) -> int:
        reading.error(f"a tool call is malformed: {what}; {SHOULD}")
        reading.misses += 1
        ends = ENDING.search(reading.text, at)
        return len(reading.text) if ends is None else ends.end() if ends[0] == CLOSE else ends.start()


ENDING = re.compile("</tool_call>|</think>|<tool_response>")
FOLLOWS = re.compile(r"\s*(?:<parameter=|</function>|</tool_call>|\Z)")
STARTS = re.compile(r"^[ \t]*<parameter=([^<>\n]{1,256})>[ \t]*$", re.MULTILINE)


def is_text(schema: Any) -> bool:
    """Whether a value of this schema is text however it looks; one without a type may be anything."""
    if not isinstance(schema, dict):
        return False
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return any(map(is_text, options)) and not any(_other(one) for one in options)
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    return "string" in kinds and not set(kinds) - {"string", "null"}


def _other(schema: Any) -> bool:
    return isinstance(schema, dict) and not is_text(schema) and schema.get("type") != "null"


def _render(call: ToolCall) -> str:
    arguments = arguments_of(call) or {}
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"{OPEN}\n<function={call.name}>\n{parameters}</function>\n{CLOSE}"
