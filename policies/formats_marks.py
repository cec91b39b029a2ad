"""Calls of Llama 3 and of Mistral's models: JSON after a special token, or as the message itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentgym.policies.formats import CUT_OFF, Format, Malformed, Reading, call_from, items
from agentgym.policies.formats_json import listed
from agentgym.types import ToolCall, ToolSpec

PYTHON_TAG, TOOL_CALLS, ARGS, CALL_ID = "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
LLAMA_PREAMBLE = """Environment: ipython

You have access to the following functions. To call a function, please respond with JSON for a function call.
Respond in the format {{"name": function name, "parameters": dictionary of argument name and its value}}. Do not use variables.

{tools}"""
KEYS = ("parameters", "arguments")
NAMED = re.compile(r"""["'](?:parameters|arguments)["']\s*:""")
NAME = re.compile(r"[\w.\-/]{1,256}")
ID = re.compile(re.escape(CALL_ID) + r"[\w\-]{1,64}")


class Llama3(Format):
    """{"name": ..., "parameters": {...}}, with <|python_tag|> before it or not; several are separated by `;`."""

    name = "llama3"
    marks = (PYTHON_TAG,)
    opening = r"""<\|python_tag\|>|\{\s{0,64}["'](?:name|type|function|parameters|arguments)["']"""

    def read(self, reading: Reading, found: re.Match[str]) -> int:
        text, start = reading.text, found.start()
        tagged = found[0] == PYTHON_TAG
        body = reading.skip(found.end()) if tagged else start
        if tagged and text[body : body + 1] != "{":
            return self._no_json(reading, found, body)
        try:
            value, end = reading.value(body)
        except Malformed as malformed:
            following = text.find("\n\n", body)
            end = len(text) if following < 0 else following
            if tagged or NAMED.search(text, body, end):
                reading.error(f"a tool call is malformed: {malformed}")
            return end
        try:
            return self._take(reading, value, body, end, start, tagged)
        except Malformed as malformed:
            reading.error(f"a tool call is malformed: {malformed}")
            return end

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(
            f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "parameters": {call.arguments or "{}"}}}'
            for call in calls
        )

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        return LLAMA_PREAMBLE.format(tools=listed(tools))

    def _take(self, reading: Reading, value: Any, body: int, end: int, start: int, tagged: bool) -> int:
        inner = value.get("function")
        wrapped = isinstance(inner, dict)
        call = inner if wrapped else value
        if not wrapped and isinstance(inner, str) and "name" not in value:
            call = {**value, "name": inner}
        if not (tagged or any(key in call for key in KEYS) or call.get("name") in reading.tools):
            return end  # data of some other kind
        call = {key: item for key, item in call.items() if key in ("name", *KEYS)}
        name, arguments = call_from(call, "" if wrapped else reading.text[body:end], KEYS)
        after = reading.skip(end)
        if reading.text[after : after + 1] in (";", ","):
            following = reading.skip(after + 1)
            if reading.text[following : following + 1] in ("{", "<", ""):
                end = after + 1
        reading.call(name, arguments, start, end)
        return end

    def _no_json(self, reading: Reading, found: re.Match[str], body: int) -> int:
        what = CUT_OFF if body == len(reading.text) else "no JSON object follows <|python_tag|>"
        reading.error(f'a tool call is malformed: {what}; it should be {{"name": ..., "parameters": {{...}}}}')
        return found.end()


class Mistral(Format):
    """[TOOL_CALLS] and a list of {"name": ..., "arguments": {...}}, or a name, [ARGS] and an object for each call."""

    name = "mistral"
    marks = (TOOL_CALLS, ARGS, CALL_ID)
    opening = re.escape(TOOL_CALLS)

    def read(self, reading: Reading, found: re.Match[str]) -> int:
        text, body = reading.text, reading.skip(found.end())
        try:
            if text[body : body + 1] in ("[", "{"):
                return self._list(reading, found.start(), body)
            return self._named(reading, found, body)
        except Malformed as malformed:
            reading.error(f"a tool call is malformed: {malformed}")
            following = ENDING.search(text, body)
            return following.start() if following else len(text)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        each = (
            f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments or "{}"}}}'
            for call in calls
        )
        return f"{TOOL_CALLS}[{', '.join(each)}]"

    def render_tools(self, tools: Sequence[ToolSpec]) -> str:
        shape = f'{TOOL_CALLS}[{{"name": "TOOL", "arguments": {{"ARGUMENT": "VALUE"}}}}]'
        return f"You have these tools:\n{listed(tools)}\n\nTo call some, write:\n{shape}"

    def call_id(self, seed: int, index: int) -> str:
        """Nine letters and digits, as Mistral's templates insist."""
        return f"{seed % 16**6:06x}{index % 1000:03d}"

    def _list(self, reading: Reading, start: int, body: int) -> int:
        value, end = reading.value(body)
        values = value if isinstance(value, list) else [value]
        written = reading.text[body:end]
        each = items(written, len(values)) if isinstance(value, list) else [written]
        made = [call_from(_without_id(one), exact) for one, exact in zip(values, each, strict=True)]
        for name, arguments in made:
            reading.call(name, arguments, start, end)
        return end

    def _named(self, reading: Reading, found: re.Match[str], body: int) -> int:
        text = reading.text
        if body == len(text):
            raise Malformed(f"{CUT_OFF}; it should be {TOOL_CALLS}[{{...}}]")
        name = NAME.match(text, body)
        if name is None:
            return found.end()  # prose that names the mark
        at = reading.skip(name.end())
        if id := ID.match(text, at):
            at = reading.skip(id.end())
        marked = text.startswith(ARGS, at)
        at = reading.skip(at + len(ARGS)) if marked else at
        if text[at : at + 1] != "{":
            if marked:
                raise Malformed(CUT_OFF if at == len(text) else f"no JSON object follows {ARGS}")
            return found.end()
        value, end = reading.value(at)
        reading.call(
            name[0], call_from({"name": "x", "arguments": value}, _wrapped(text[at:end]))[1], found.start(), end
        )
        return end


ENDING = re.compile("|".join(map(re.escape, (TOOL_CALLS, "</think>", "[TOOL_RESULTS]", "<tool_response>"))))


def _wrapped(arguments: str) -> str:
    return f'{{"arguments":{arguments}}}'


def _without_id(value: Any) -> Any:
    return {key: item for key, item in value.items() if key != "id"} if isinstance(value, dict) else value
