"""The files of BFCL as the `bfcl-eval` wheel holds them, read without installing what it depends on."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from agentgym.errors import UsageError

HOW = "pip install --no-deps bfcl-eval==2026.3.23, or pip download it and set path to the wheel"
VERSION = "v4"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
KEPT = ("description", "enum", "default")


def place(path: str) -> Path:
    """Where the package `bfcl_eval` lies: below `path` (a wheel, or a folder that holds it), else where it is installed."""
    if path:
        found = Path(path).expanduser()
        if (found.suffix == ".whl" and found.is_file()) or (found / "bfcl_eval").is_dir():
            return found
        raise UsageError(f"{path} is no wheel of bfcl-eval and holds no bfcl_eval: {HOW}")
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"bfcl-eval is not installed: {HOW}")
    return Path(next(iter(spec.submodule_search_locations))).parent


def importable(path: str) -> None:
    """Have `import bfcl_eval` find the package at `path`."""
    found = str(place(path))
    if found not in sys.path:
        sys.path.append(found)


@cache
def rows(at: Path, name: str) -> tuple[dict[str, Any], ...]:
    """The JSON lines of a file of the package's data. Raises UsageError where it is missing or malformed."""
    inside = f"bfcl_eval/data/{name}"
    try:
        if at.suffix == ".whl":
            with zipfile.ZipFile(at) as wheel:
                text = wheel.read(inside).decode()
        else:
            text = (at / inside).read_text(encoding="utf-8")
        return tuple(json.loads(line) for line in text.splitlines() if line.strip())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{at} holds no {inside} that can be read ({error}): {HOW}") from error


def schema(given: Any) -> dict[str, Any]:
    """A schema of theirs as JSON schema: their names of types are Python's."""
    if not isinstance(given, dict):
        return {}
    made: dict[str, Any] = {key: given[key] for key in KEPT if key in given}
    kind = given.get("type")
    kind = TYPES.get(kind, kind) if isinstance(kind, str) else None
    if kind:
        made["type"] = kind
    if isinstance(given.get("properties"), dict):
        made["properties"] = {key: schema(one) for key, one in given["properties"].items()}
    if isinstance(given.get("required"), list):
        made["required"] = given["required"]
    if "items" in given:
        made["items"] = schema(given["items"])
    return made


def call_of(text: str, names: dict[str, list[str]]) -> dict[str, Any]:
    """A call that is written as Python, as data; `names` are the parameters of each function, for those without names."""
    node = ast.parse(text.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{text!r} is no call")
    name = node.func.id
    known = names.get(name, [])
    if len(node.args) > len(known):
        raise ValueError(f"{text!r} has arguments without names")
    arguments = {key: ast.literal_eval(one) for key, one in zip(known, node.args, strict=False)}
    arguments |= {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    return {"name": name, "arguments": arguments}
