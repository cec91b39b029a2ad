"""What an action on a page can come to, and what a page is seen as."""

from __future__ import annotations

from typing import NamedTuple

Box = tuple[int, int, int, int]  # x, y, width, height in the viewport


class Node(NamedTuple):
    """One line of a page's accessibility tree."""

    depth: int
    text: str  # without its box
    box: Box | None  # None: that of its parent
    ref: str = ""


class ActionError(Exception):
    """What the policy asked for cannot be done: it is told why."""


class DialogOpen(Exception):
    """A dialog came up before what was asked was done; the policy answers it next."""


class Unresponsive(Exception):
    """The page did not answer in time."""


class PageCrashed(Exception):
    """The page's process ended."""
