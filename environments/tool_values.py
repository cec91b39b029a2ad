"""Values that go into tools and come out of them: checked against a JSON schema, and written as text.

Checking is strict: no text becomes a number. A whole number is an integer however it is written (`3.0`), and an integer
is a number. What is wrong is said with its path, for the model to read.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

Schema = dict[str, Any]

MAX_PROBLEMS = 8  # that one answer names
TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "number": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)))
    ),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


class Misfit(Exception):
    """A value is not what its schema asks for; `problems` says where and why."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def fit(value: Any, schema: Schema) -> Any:
    """`value` as `schema` has it (whole numbers become integers). Raises Misfit."""
    fitting = _Fitting(schema)
    try:
        fitted = fitting.fit(value, schema, "")
    except RecursionError:
        raise Misfit(["the value is nested too deeply"]) from None
    if fitting.problems:
        raise Misfit(fitting.problems[:MAX_PROBLEMS])
    return fitted


class _Fitting:
    """One check of a value; collects the problems."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.problems: list[str] = []

    def fit(self, value: Any, schema: Any, path: str) -> Any:
        if not isinstance(schema, dict):
            if schema is False:
                self._say(path, "is not wanted")
            return value
        if "$ref" in schema:
            return self.fit(value, self._resolve(schema["$ref"]), path)
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self._any_of(value, options, path)
        if not self._right_type(value, schema, path):
            return value
        if isinstance(value, float) and _types(schema) == ("integer",):
            value = int(value)
        self._limits(value, schema, path)
        if isinstance(value, dict):
            return self._object(value, schema, path)
        if isinstance(value, list):
            return self._array(value, schema, path)
        return value

    def _right_type(self, value: Any, schema: Schema, path: str) -> bool:
        wanted = _types(schema)
        if wanted and not any(TYPES[name](value) for name in wanted if name in TYPES):
            self._say(path, f"must be {' or '.join(map(_article, wanted))}, not {named(value)}")
            return False
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if allowed is not None and not any(same(value, one) for one in allowed):
            close = difflib.get_close_matches(value, [a for a in allowed if isinstance(a, str)], 1) if isinstance(value, str) and len(value) < 200 else []  # fmt: skip
            listed = ", ".join(json.dumps(one, ensure_ascii=False) for one in allowed[:20])
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            self._say(path, f"must be one of {listed}, not {named(value)}{hint}")
            return False
        return True

    def _limits(self, value: Any, schema: Schema, path: str) -> None:
        size = len(value) if isinstance(value, str | list) else value
        if not isinstance(size, int | float) or isinstance(size, bool):
            return
        what = "length " if isinstance(value, str | list) else ""
        low, high = ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
        low, high = (low, high) if isinstance(value, str | list) else ("minimum", "maximum")
        if low in schema and size < schema[low]:
            self._say(path, f"must have {what}at least {schema[low]}" if what else f"must be at least {schema[low]}")
        if high in schema and size > schema[high]:
            self._say(path, f"must have {what}at most {schema[high]}" if what else f"must be at most {schema[high]}")

    def _object(self, value: dict[str, Any], schema: Schema, path: str) -> dict[str, Any]:
        properties: Schema = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                self._say(_join(path, name), "is missing")
        extra = schema.get("additionalProperties", True)
        made = {}
        for name, item in value.items():
            if name in properties:
                made[name] = self.fit(item, properties[name], _join(path, name))
            elif extra is False:
                self._say(_join(path, name), f"is unknown{_known(name, properties)}")
            else:
                made[name] = self.fit(item, extra, _join(path, name))
        return made

    def _array(self, value: list[Any], schema: Schema, path: str) -> list[Any]:
        first: list[Any] = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        return [
            self.fit(item, first[index] if index < len(first) else rest, f"{path}[{index}]")
            for index, item in enumerate(value)
        ]

    def _any_of(self, value: Any, options: list[Any], path: str) -> Any:
        tried: list[_Fitting] = []
        for option in options:
            fitting = _Fitting(self.root)
            fitted = fitting.fit(value, option, path)
            if not fitting.problems:
                return fitted
            tried.append(fitting)
        inside = [one for one in tried if not any(problem.startswith(f"{path or 'the value'} must be") for problem in one.problems)]  # fmt: skip
        if inside:  # the type is right, and what is in it is not
            self.problems += inside[0].problems
        else:
            wanted = [part.removeprefix(f"{path or 'the value'} must be ").split(", not ")[0] for one in tried for part in one.problems]  # fmt: skip
            self._say(path, f"must be {' or '.join(dict.fromkeys(wanted))}, not {named(value)}")
        return value

    def _resolve(self, reference: str) -> Any:
        found: Any = self.root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        return found

    def _say(self, path: str, what: str) -> None:
        self.problems.append(f"{path or 'the value'} {what}")


def _types(schema: Schema) -> tuple[str, ...]:
    kind = schema.get("type", ())
    return (kind,) if isinstance(kind, str) else tuple(kind)


def _article(kind: str) -> str:
    return kind if kind == "null" else f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _known(name: str, properties: Schema) -> str:
    close = difflib.get_close_matches(name[:200], properties, 1)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f"; known: {', '.join(properties)}" if properties else "; there are none"


def named(value: Any) -> str:
    """A value in a sentence, short."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        text = repr(type(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def same(one: Any, other: Any) -> bool:
    """Equality of plain values: 1 equals 1.0 and not true; a tuple equals a list."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two plain values differ, in words: what `one` has and what `other` (the wanted one) has."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*other, *one]):
            where = _join(path, str(key))
            if key not in one:
                yield f"{where} is missing"
            elif key not in other:
                yield f"{where} should not be there"
            else:
                yield from differences(one[key], other[key], where)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (here, there) in enumerate(zip(one, other, strict=True)):
            yield from differences(here, there, f"{path}[{index}]")
    elif not same(one, other):
        yield f"{path or 'it'} is {named(one)} instead of {named(other)}"


def plain(value: Any) -> Any:
    """`value` as plain data: dataclasses, enums, sets and dates as JSON has them, anything else as its repr."""
    try:
        return msgspec.to_builtins(value, enc_hook=_hook, str_keys=True)
    except (RecursionError, TypeError, ValueError):
        return _repr(value)


def _repr(value: Any) -> str:
    try:
        return printable(repr(value))
    except Exception:  # a repr is anybody's code
        return f"<{type(value).__name__}>"


def _hook(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else _repr(value)


def serialise(value: Any, limit: int = 8000) -> str:
    """What a model reads of a tool's result: text as it is, anything else as JSON; head and tail if it is longer."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(plain(value), ensure_ascii=False)
        except (ValueError, RecursionError):
            text = _repr(value)
    return shorten(printable(text), limit)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, head and tail, and a note of what was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def printable(text: str) -> str:
    """Text that any encoding can carry: lone surrogates become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
