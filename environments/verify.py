"""Verification of a working directory against declared expectations, as data: nothing of the agent's is executed.

An expectation is plain data with a `kind`, a `path`, and what that kind asks for:

    text     text, tolerance ("newline": at the end of the file, default; "space": around it; "none")
    lines    lines, order ("exact", default, or "any"), prefix (one that each line may have, such as "./")
    json     value
    archive  members: {name: text} of the regular files in a tar (plain, gz, bz2, xz) or zip
    dir      nothing more
    absent   nothing more; everything below it may go too
    mode     mode, octal text such as "755"; the content stays as it was unless another expectation names it
    link     target
    like     source: a path of the initial state whose content it has

What no expectation names must be as it was: kind, content, permissions and target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

from agentgym.environments.archive import BadArchive, read_archive
from agentgym.environments.sandbox import Entry, Snapshot
from agentgym.errors import TaskError
from agentgym.types import Struct

Expectation = dict[str, Any]


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Whether one expectation holds, and in words why not."""

    kind: str
    path: str
    ok: bool
    why: str = ""


def verify(expectations: Iterable[Expectation], before: Snapshot, after: Snapshot) -> list[Verdict]:
    """One verdict per expectation, and a last one on everything else.

    Raises:
        TaskError: an expectation is malformed; whatever the agent left behind is a verdict.
    """
    expected = list(expectations)
    try:
        verdicts = [_judge(expectation, before, after) for expectation in expected]
        stray = _strays(expected, before, after)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TaskError(f"a malformed expectation: {type(error).__name__}: {error}") from error
    why = f"{printable(stray[0])} {stray[1]}" if stray else ""
    return [*verdicts, Verdict(kind="untouched", path="", ok=not stray, why=why)]


def printable(text: str, limit: int = 80) -> str:
    """Text that any encoding can carry, shortened."""
    safe = text.encode("utf-8", "replace").decode("utf-8")
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def _judge(expectation: Expectation, before: Snapshot, after: Snapshot) -> Verdict:
    kind, path = expectation["kind"], expectation["path"]
    if kind not in JUDGES:
        raise TaskError(f"unknown expectation {kind!r}; known: {', '.join(JUDGES)}")
    why = JUDGES[kind](expectation, after.get(path), before)
    return Verdict(kind=kind, path=path, ok=not why, why=f"{path} {why}" if why else "")


def _text(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    wanted: str = expectation["text"]
    found, why = _file_text(entry)
    if why:
        return why
    trim = TOLERANCES[expectation.get("tolerance", "newline")]
    if trim(found) == trim(wanted):
        return ""
    return f"holds {printable(found)!r} instead of {printable(wanted)!r}"


def _lines(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    wanted = list(expectation["lines"])
    text, why = _file_text(entry)
    if why:
        return why
    found = [line.rstrip().removeprefix(expectation.get("prefix", "")) for line in text.rstrip().split("\n")]
    found = found if text.strip() else []
    if expectation.get("order", "exact") == "any":
        found, wanted = sorted(found), sorted(wanted)
    if found == wanted:
        return ""
    if len(found) != len(wanted):
        return f"has {len(found)} lines instead of {len(wanted)}"
    at = next(index for index, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1])
    return f"has line {at + 1} {printable(found[at])!r} instead of {printable(wanted[at])!r}"


def _json(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    wanted = expectation["value"]
    text, why = _file_text(entry)
    if why:
        return why
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "is not valid JSON"
    return "" if _same(found, wanted) else "holds another JSON value than wanted"


def _archive(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    wanted: dict[str, str] = dict(expectation["members"])
    if entry is None or entry.kind != "file":
        return _not_a_file(entry)
    try:
        found = read_archive(entry.content)
    except BadArchive as error:
        return f"is not a readable archive: {error}"
    if set(found) != set(wanted):
        return f"has the members {printable(', '.join(sorted(found)))!r}"
    wrong = [name for name, text in wanted.items() if found[name] != text.encode()]
    return f"has another content in {wrong[0]!r}" if wrong else ""


def _dir(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    return "" if entry is not None and entry.kind == "dir" else "is no directory"


def _absent(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    return "" if entry is None else "is still there"


def _mode(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    wanted = int(expectation["mode"], 8)
    if entry is None or entry.kind == "link":
        return "is missing or a link"
    return "" if entry.mode == wanted else f"has mode {entry.mode:o} instead of {wanted:o}"


def _link(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    wanted: str = expectation["target"]
    if entry is None or entry.kind != "link":
        return "is no symbolic link"
    if PurePosixPath(entry.target) == PurePosixPath(wanted):
        return ""
    return f"points to {printable(entry.target)!r} instead of {wanted!r}"


def _like(expectation: Expectation, entry: Entry | None, before: Snapshot) -> str:
    source = before[expectation["source"]]
    if entry is None or entry.kind != "file":
        return _not_a_file(entry)
    return "" if entry.content == source.content and entry.size == source.size else "has another content than wanted"


JUDGES: dict[str, Callable[[Expectation, Entry | None, Snapshot], str]] = {
    "text": _text, "lines": _lines, "json": _json, "archive": _archive, "dir": _dir, "absent": _absent,
    "mode": _mode, "link": _link, "like": _like,
}  # fmt: skip

TOLERANCES: dict[str, Callable[[str], str]] = {
    "newline": lambda text: text.rstrip("\n"),
    "space": str.strip,
    "none": str,
}


def _file_text(entry: Entry | None) -> tuple[str, str]:
    """The text of a file, or in words why there is none."""
    if entry is None or entry.kind != "file":
        return "", _not_a_file(entry)
    if entry.size > len(entry.content):
        return "", "is far too long"
    return entry.content.decode("utf-8", "replace"), ""


def _not_a_file(entry: Entry | None) -> str:
    return "is missing" if entry is None else f"is a {entry.kind}, not a regular file"


def _same(found: Any, wanted: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0 and not true."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same(found[key], wanted[key]) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _strays(expected: list[Expectation], before: Snapshot, after: Snapshot) -> tuple[str, str] | None:
    """The first path that no expectation names and that is not as it was, and how it differs."""
    content = {one["path"] for one in expected if one["kind"] != "mode"}
    modes = {one["path"] for one in expected if one["kind"] == "mode"}
    gone = {one["path"] for one in expected if one["kind"] == "absent"}
    parents = {str(parent) for path in content - gone for parent in PurePosixPath(path).parents}
    for path in sorted(before.keys() | after.keys()):
        if path in content or not gone.isdisjoint(map(str, PurePosixPath(path).parents)):
            continue
        was, now = before.get(path), after.get(path)
        if was is None and now is not None and path in parents and now.kind == "dir":
            continue
        if was is None or now is None:
            return path, "should not be there" if was is None else "is gone"
        if _shape(was, path in modes) != _shape(now, path in modes):
            return path, "was changed"
    return None


def _shape(entry: Entry, any_mode: bool) -> tuple[Any, ...]:
    return entry.kind, entry.size, entry.content, entry.target, None if any_mode else entry.mode
