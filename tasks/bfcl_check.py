"""Calls against the answers that BFCL allows: for each argument a list of values, "" among them where it may be missing."""

from __future__ import annotations

import json
import re
from typing import Any

Allowed = dict[str, dict[str, list[Any]]]  # one function: its arguments, and what each may be
EMPTY: list[Any] = [[]]  # what no allowed values at all stand for: an empty list


def judge_calls(evidence: Any, expectation: dict[str, Any]) -> str:
    """What is wrong with the calls that were made: each wanted one is made once, in any order, and no other."""
    wanted: list[Allowed] = expectation["calls"]
    made = []
    for one in evidence.calls:
        if one.result.error:
            return f"{one.call.name} could not be called: {one.result.content[:200]}"
        made.append((one.call.name, json.loads(one.call.arguments or "{}", strict=False)))
    if len(made) != len(wanted):
        return f"{len(made)} calls were made instead of {len(wanted)}"
    fits = [[mismatch(call, one) for call in made] for one in wanted]
    if matched(fits):
        return ""
    unmet = next((row for row in fits if all(row)), None)
    return min(unmet, key=len) if unmet else "two calls are the same where two different ones were asked for"


def matched(fits: list[list[str]]) -> bool:
    """Whether each row can have a column of its own whose entry is empty."""
    owner: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, why in enumerate(fits[row]):
            if why or column in tried:
                continue
            tried.add(column)
            if column not in owner or place(owner[column], tried):
                owner[column] = row
                return True
        return False

    return all(place(row, set()) for row in range(len(fits)))


def mismatch(call: tuple[str, dict[str, Any]], wanted: Allowed) -> str:
    """What is wrong with a call; empty if it is one that is allowed."""
    name, given = call
    (right, allowed), *_ = wanted.items()
    if name != right:
        return f"{name} was called, not {right}"
    for key, value in given.items():
        if key not in allowed:
            return f"{name}: {key} is not wanted"
        if not any(agrees(value, one) for one in allowed[key] or EMPTY if one != "" or value == ""):
            return f"{name}: {key} is {json.dumps(value, ensure_ascii=False)[:80]}, which is none of the allowed values"
    missing = [key for key, values in allowed.items() if key not in given and "" not in values]
    return f"{name}: {missing[0]} is missing" if missing else ""


def agrees(value: Any, allowed: Any) -> bool:
    """Whether a value is an allowed one; texts but for case, spaces and some signs, a dict's values each by a list."""
    if isinstance(allowed, dict):
        if not isinstance(value, dict) or not value.keys() <= allowed.keys():
            return False
        if any(key not in value and "" not in _options(options) for key, options in allowed.items()):
            return False
        return all(any(agrees(item, one) for one in _options(allowed[key])) for key, item in value.items())
    if isinstance(allowed, list):
        if not isinstance(value, list) or len(value) != len(allowed):
            return False
        return all(agrees(here, there) for here, there in zip(value, allowed, strict=True))
    if isinstance(allowed, str):
        return isinstance(value, str) and folded(value) == folded(allowed)
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)


def folded(text: str) -> str:
    """A text without what does not matter: April 1, 2024 is april 1 2024."""
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


def right_call(wanted: Allowed) -> dict[str, Any]:
    """A call that is allowed."""
    (name, allowed), *_ = wanted.items()
    arguments = {
        key: chosen(values or EMPTY) for key, values in allowed.items() if any(one != "" for one in values or EMPTY)
    }
    return {"name": name, "arguments": arguments}


def chosen(values: Any) -> Any:
    """The first value that is there."""
    one = next((one for one in _options(values) if one != ""), "")
    return _plain(one)


def _plain(one: Any) -> Any:
    if isinstance(one, dict):
        return {key: chosen(values) for key, values in one.items() if any(item != "" for item in _options(values))}
    return [_plain(item) for item in one] if isinstance(one, list) else one


def _options(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]
