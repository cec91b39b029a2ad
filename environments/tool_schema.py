"""A typed Python function as a tool: its signature becomes a JSON schema, its docstring the descriptions.

What annotations may be: str, int, float, bool, None, Literal, Enum, Optional and unions, list, tuple, set, dict,
dataclasses and TypedDicts (nested), dates, Any. Strings in `Annotated[int, "what it is"]` describe as well.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from agentgym.environments.tool_values import Schema, fit, plain
from agentgym.errors import UsageError
from agentgym.types import ToolSpec

DEFINITIONS = "#/$defs/"
SECTION = re.compile(r"^(args|arguments|parameters|params|attributes|returns?|raises|yields|examples?|notes?):?$", re.I)
DESCRIBING = ("args", "arguments", "parameters", "params", "attributes")
ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")  # Google: `name (type): what it is`
FIELD = re.compile(r"^:param\s+(?:[^:\s]+\s+)?(\w+):\s*(.*)$")  # Sphinx


class Signature:
    """What a function takes: `spec` for the model, `arguments` to call it with.

    Raises:
        UsageError: an argument has a type that JSON cannot carry, or there are *args or **kwargs.

    Example:
        def add(a: int, b: int = 1) -> int:
            \"\"\"Add two numbers.

            Args:
                a: the first one.
            \"\"\"

        Signature(add).arguments({"a": 2.0}) == {"a": 2}
    """

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        self.name = name or getattr(function, "__name__", type(function).__name__)
        hints = _hints(function, self.name)
        taken = [one for one in inspect.signature(function).parameters.values() if one.name not in ("self", "cls")]
        for one in taken:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
                raise UsageError(f"tool {self.name}: {one} cannot be told to a model; name each argument")
        self.types = {one.name: _bare(hints.get(one.name, Any)) for one in taken}
        doc = inspect.getdoc(function) or ""
        summary, described = parse_docstring(doc)
        described = {**described, **{key: said for key, hint in hints.items() if (said := _said(hint))}}
        self.schema = self._schema(taken, described)
        self.spec = ToolSpec(name=self.name, description=summary, parameters=self.schema)

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments for the function. Raises Misfit, or ValueError for what no schema can say."""
        fitted: dict[str, Any] = fit(given, self.schema)
        return {name: msgspec.convert(value, self.types[name]) for name, value in fitted.items()}

    def _schema(self, taken: list[inspect.Parameter], described: dict[str, str]) -> Schema:
        try:
            schemas, found = msgspec.json.schema_components(self.types.values(), ref_template=DEFINITIONS + "{name}")
        except TypeError as error:
            raise UsageError(f"tool {self.name}: {error}") from error
        definitions = {key: _closed(schema) for key, schema in found.items()}
        _describe(self.types.values(), definitions)
        inlined = _Inliner(definitions)
        properties: Schema = {}
        for one, schema in zip(taken, schemas, strict=True):
            made = inlined.inline(schema)
            if one.name in described:
                made = {**made, "description": described[one.name]}
            if one.default is not one.empty:
                made = {**made, "default": plain(one.default)}
            properties[one.name] = made
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required := [one.name for one in taken if one.default is one.empty]:
            schema["required"] = required
        if inlined.kept:
            schema["$defs"] = {name: inlined.definition(name) for name in inlined.recursive & inlined.kept}
        return schema


class _Inliner:
    """Writes definitions out where they are used, but those that hold themselves."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self.definitions = definitions
        self.recursive = {name for name in definitions if self._reaches(name, name)}
        self.kept: set[str] = set()

    def inline(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.inline(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        name = str(schema.get("$ref", "")).removeprefix(DEFINITIONS)
        if name in self.recursive:
            self.kept.add(name)
            return dict(schema)
        if name in self.definitions:
            return self.inline(self.definitions[name] | {key: it for key, it in schema.items() if key != "$ref"})
        return _typed({key: self.inline(item) for key, item in schema.items()})

    def definition(self, name: str) -> Any:
        """A definition that is kept; what it uses is kept as well if it is recursive."""
        return {key: self.inline(item) for key, item in self.definitions[name].items()}

    def _reaches(self, start: str, target: str) -> bool:
        pending, seen = [start], set()
        while pending:
            for name in _references(self.definitions[pending.pop()]):
                if name == target:
                    return True
                if name not in seen and name in self.definitions:
                    seen.add(name)
                    pending.append(name)
        return False


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for one in schema for name in _references(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].removeprefix(DEFINITIONS)] if isinstance(schema.get("$ref"), str) else []
    return own + [name for item in schema.values() for name in _references(item)]


def _closed(schema: Schema) -> Schema:
    """A definition without its Python name; objects take nothing that they do not name, and enums say their type."""
    made = {key: item for key, item in schema.items() if key not in ("title", "description")}
    if made.get("type") == "object" and "properties" in made:
        made["additionalProperties"] = False
    return _typed(made)


def _typed(schema: Schema) -> Schema:
    """An enum of texts says that it is text."""
    listed = schema.get("enum")
    texts = isinstance(listed, list) and all(isinstance(one, str) for one in listed)
    return {"type": "string", **schema} if texts else schema


def _describe(types: Any, definitions: dict[str, Schema]) -> None:
    """Descriptions of the fields of dataclasses from their docstrings, and enums in the order they were written in."""
    pending, seen = list(types), set()
    while pending:
        kind = pending.pop()
        pending += typing.get_args(kind)
        if not isinstance(kind, type) or kind in seen:
            continue
        seen.add(kind)
        schema = definitions.get(kind.__name__)
        if schema is None:
            continue
        if issubclass(kind, enum.Enum):
            schema["enum"] = [one.value for one in kind]
            continue
        hints = _hints(kind, kind.__name__)
        pending += [_bare(hint) for hint in hints.values()]
        said = parse_docstring(kind.__doc__ or "")[1] | {
            key: text for key, hint in hints.items() if (text := _said(hint))
        }
        for name, text in said.items():
            if name in schema.get("properties", {}):
                schema["properties"][name] = {**schema["properties"][name], "description": text}


def _hints(function: Any, name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # annotations are code
        raise UsageError(f"tool {name}: its annotations cannot be read: {type(error).__name__}: {error}") from error


def _bare(hint: Any) -> Any:
    """The type without the strings that describe it."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint
    kind, *extras = typing.get_args(hint)
    metas = tuple(one for one in extras if isinstance(one, msgspec.Meta))
    return typing.Annotated[(kind, *metas)] if metas else kind


def _said(hint: Any) -> str:
    extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    return next((one for one in extras if isinstance(one, str)), "")


def parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text of a docstring before its sections, and what it says about each argument (Google, NumPy or Sphinx)."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section, name, indent = "", "", 0
    for line in inspect.cleandoc(doc).split("\n"):
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if set(text) == {"-"}:  # NumPy's underline
            indent = -1
        elif SECTION.match(text) and depth == 0:
            section, name, indent = text.rstrip(":").lower(), "", 0
        elif found := FIELD.match(text):
            section, name = "args", found[1]
            described[name] = found[2]
        elif text.startswith(":"):
            section, name = "returns", ""
        elif not section:
            summary.append(text)
        elif section in DESCRIBING and text:
            name, indent = _entry(text, depth, name, indent, described)
    return " ".join(part for part in summary if part), described


def _entry(text: str, depth: int, name: str, indent: int, described: dict[str, str]) -> tuple[str, int]:
    """A line of a section about arguments: a new one, or more about the one before."""
    if indent == -1 and depth == 0:  # NumPy: `name : type`, what it is below
        name = text.split(":")[0].strip()
        described[name] = ""
    elif indent != -1 and (found := ENTRY.match(text)) and (not name or depth <= indent):
        name, indent = found[1], depth
        described[name] = found[2]
    elif name:
        described[name] = f"{described[name]} {text}".strip()
    return name, indent
