"""What a scripted oracle sees and says: elements by role and name in the tree that was last looked at."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from agentgym.environments.gui_actions import Action
from agentgym.environments.gui_pages import Pages
from agentgym.errors import TaskError

LINE = re.compile(r'- ([\w-]+)(?: ("(?:\\.|[^"\\])*"))?((?: \[[^\]]*\])*)(?::(?: (.*))?)?', re.DOTALL)
FOUND = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")

Actions = AsyncIterator[Action]


class Element(NamedTuple):
    """One element of the tree."""

    role: str
    name: str
    text: str
    ref: str  # empty if it has none
    depth: int
    at: int  # its place in the tree


def elements(pages: Pages) -> list[Element]:
    """All that was seen, in the order of the page."""
    found = []
    for at, node in enumerate(pages.nodes):
        if match := LINE.fullmatch(node.text):
            role, name, attributes, text = match.groups()
            ref = FOUND.search(attributes or "")
            found.append(Element(role, _unquoted(name), _unquoted(text), ref[1] if ref else "", node.depth, at))
    return found


def every(pages: Pages, role: str, name: str | None = None, *, after: Element | None = None) -> list[Element]:
    """The elements of a role that have a ref, and a name or text; behind `after` if it is given."""
    return [
        one for one in elements(pages)
        if one.ref and role in (one.role, "any") and (name is None or name in (one.name, one.text))
        and (after is None or one.at > after.at)
    ]  # fmt: skip


def find(pages: Pages, role: str, name: str | None = None, nth: int = 0, *, after: Element | None = None) -> Element:
    """One of them. Raises TaskError if it is not there."""
    found = every(pages, role, name, after=after)
    if not -len(found) <= nth < len(found):
        raise TaskError(f"task {pages.site.task.id}: the oracle sees no {role} {name or ''!r} ({len(found)} of them)")
    return found[nth]


def click(element: Element) -> Action:
    """Click it."""
    return Action(name="click", arguments={"ref": element.ref})


def fill(element: Element, text: str) -> Action:
    """Write into it."""
    return Action(name="fill", arguments={"ref": element.ref, "text": text})


def select(element: Element, option: str) -> Action:
    """Choose an option of it."""
    return Action(name="select", arguments={"ref": element.ref, "option": option})


def act(name: str, **arguments: Any) -> Action:
    """Any other action."""
    return Action(name=name, arguments=arguments)


async def follow(pages: Pages, steps: Sequence[Sequence[Any]]) -> Actions:
    """The actions of a script: [action, role, name, argument...], or [action, argument...] for one without an element.

    Example:
        [["click", "link", "Orders"], ["fill", "textbox", "Quantity", "3"], ["answer", "done"]]
    """
    for name, *rest in steps:
        if name == "click":
            yield click(find(pages, *rest))
        elif name == "fill":
            yield fill(find(pages, *rest[:2]), rest[2])
        elif name == "select":
            yield select(find(pages, *rest[:2]), rest[2])
        elif name == "dialog":
            yield act("dialog", answer=rest[0])
        elif name == "upload":
            yield act("upload", file=rest[0])
        elif name == "press":
            yield act("press", keys=rest[0])
        elif name == "answer":
            yield act("answer", text=rest[0])
        else:
            raise TaskError(f"task {pages.site.task.id}: a solution says {name!r}")


def _unquoted(text: str | None) -> str:
    if text and text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text or ""
