"""A small office in the browser: a shop, a mailbox and the shop's administration, served by the environment itself.

A task's data holds the `state` that it begins with, the `changes` that solve it, where a question is asked the
`answer`, `uploads` (text by file name) and the `solution` (see `gui_oracle.follow`):

    {"site": "shop", "state": {...}, "changes": [["set", "products", 3, "price", 1250], ["add", "sent", {...}]]}

What is judged is the state on the server: exactly the changes asked for, and nothing else.
"""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agentgym.environments import gui_shop_pages as html
from agentgym.environments.gui_actions import Action
from agentgym.environments.gui_oracle import follow
from agentgym.environments.gui_shop_forms import FORMS, Refused
from agentgym.environments.gui_sites import Site
from agentgym.errors import TaskError

if TYPE_CHECKING:
    from agentgym.environments.gui_pages import Pages
    from agentgym.types import Task

State = dict[str, Any]
UNJUDGED = ("read",)  # fields that change by looking


class Shop(Site):
    """One copy of the office, with its own state."""

    hosts = ("office.localhost",)
    start = "http://office.localhost/"
    viewport = (1024, 768)

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self.state: State = copy.deepcopy(task.data["state"])
        self.uploads = {name: text.encode() for name, text in task.data.get("uploads", {}).items()}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = [part for part in request.path.split("/") if part]
        if request.method == "POST":
            return await self._post(path, request)
        page = html.page(self.state, path, dict(request.query))
        if page is None:
            raise web.HTTPNotFound(text="There is no such page.")
        if path[:1] == ["mail"] and path[-1].isdigit():
            self.state["mails"][int(path[-1])]["read"] = True
        return web.Response(text=page, content_type="text/html")

    async def _post(self, path: list[str], request: web.BaseRequest) -> web.Response:
        form = dict((await request.post()).items())
        for pattern, change in FORMS:
            if match := re.fullmatch(pattern, "/".join(path)):
                try:
                    after = change(self.state, [int(part) for part in match.groups()], form)
                except (Refused, UnicodeDecodeError) as error:
                    return web.Response(text=html.refused(str(error), request.path), content_type="text/html")
                except (KeyError, IndexError):
                    raise web.HTTPNotFound(text="There is no such thing.") from None
                return web.Response(status=303, headers={"Location": after})
        raise web.HTTPNotFound(text="There is no such form.")

    async def judge(self, pages: Pages, said: str) -> tuple[float, dict[str, Any]]:
        failed = differences(in_order(wanted(self.task)), in_order(self.state))
        if (answer := self.task.data.get("answer")) is not None and plain(said) != plain(answer):
            failed.append(f"the answer is {said[:80]!r}, not {answer!r}")
        return float(not failed), {"solved": not failed, "failed": failed[:8]}

    @property
    def solvable(self) -> bool:
        return "solution" in self.task.data

    async def solve(self, pages: Pages) -> AsyncIterator[Action]:
        async for action in follow(pages, self.task.data["solution"]):
            yield action


def wanted(task: Task) -> State:
    """The state that solves a task. Raises TaskError if its changes make no sense."""
    state = copy.deepcopy(task.data["state"])
    try:
        for kind, *rest in task.data["changes"]:
            if kind == "set":
                *path, last, value = rest
                place: Any = state
                for key in path:
                    place = place[key]
                place[last] = value
            elif kind == "add":
                state[rest[0]].append(rest[1])
            else:
                raise ValueError(f"unknown change {kind!r}")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise TaskError(f"task {task.id}: its changes make no sense: {error!r}") from error
    return state


def in_order(state: State) -> State:
    """A state in which it does not matter which mail was written first."""
    return {**state, "sent": sorted(state["sent"], key=lambda mail: (mail["to"], mail["subject"], mail["body"]))}


def differences(right: Any, found: Any, where: str = "") -> list[str]:
    """How two states differ, one line each."""
    if isinstance(right, dict) and isinstance(found, dict):
        keys = [key for key in {**right, **found} if key not in UNJUDGED]
        return [line for key in keys for line in differences(right.get(key), found.get(key), f"{where}/{key}")]
    if isinstance(right, list) and isinstance(found, list) and len(right) == len(found):
        pairs = enumerate(zip(right, found, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{where}/{index}")]
    return [] if right == found else [f"{where} is {str(found)[:120]}, not {str(right)[:120]}"]


def plain(answer: str) -> str:
    """An answer without what does not matter: case, spaces around, a full stop."""
    return " ".join(answer.split()).strip(" .\"'").casefold()
