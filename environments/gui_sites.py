"""What a browser shows in an episode: a site, which serves its pages itself, and judges the state that is left.

A task names its site in `data["site"]`: one of SITES, or "module:Class". Everything else in `data` is the site's.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agentgym.errors import TaskError
from agentgym.registry import nearest
from agentgym.types import Task

if TYPE_CHECKING:
    from agentgym.environments.gui_actions import Action
    from agentgym.environments.gui_pages import Pages

SITES = {
    "miniwob": "agentgym.environments.gui_miniwob:MiniWoB",
    "pages": "agentgym.environments.gui_sites:StaticPages",
    "shop": "agentgym.environments.gui_shop:Shop",
}


class Site(ABC):
    """One episode's site: made from the task, and gone with the episode.

    `handle` is all of the network that the browser has: every request comes to it, whatever address was asked for.
    """

    hosts: tuple[str, ...] = ("site.localhost",)  # served; anything else is refused
    start = "http://site.localhost/"
    viewport = (1024, 768)  # pixels
    frozen_clock = False  # the pages' clock stands still but for `tick`
    init_script = ""  # runs in every page before its own
    keeps_state = True  # a page that was lost can be opened anew: what counts is on the server
    without: frozenset[str] = frozenset()  # actions that make no sense here

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.uploads: dict[str, bytes] = {}  # files that the policy may upload, by name

    @abstractmethod
    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; raise `web.HTTPException` for what is not found."""

    @property
    def instruction(self) -> str:
        """What the policy is asked to do; may be known only once the page is `ready`."""
        return self.task.instruction

    async def ready(self, pages: Pages) -> None:
        """Called once, when the first page has loaded."""

    async def tick(self, pages: Pages, action: str) -> None:
        """Called after each action, by name, before the policy looks."""

    async def over(self, pages: Pages) -> bool:
        """Whether the site itself has ended the episode."""
        return False

    @abstractmethod
    async def judge(self, pages: Pages, said: str) -> tuple[float, dict[str, Any]]:
        """The outcome, and plain data about it: at least `solved` and `failed`.

        Args:
            said: the policy's answer to the user, empty if there was none.
        """

    def solve(self, pages: Pages) -> AsyncIterator[Action]:
        """The oracle: the actions that solve the task, one at a time, seeing what each has done."""
        raise TaskError(f"task {self.task.id}: no solution is known")

    @property
    def solvable(self) -> bool:
        """Whether `solve` knows how."""
        return False


class StaticPages(Site):
    """Pages from the task: `data["pages"]` is HTML by path, of `data["hosts"]`.

    The episode is solved if the policy answers `data["answer"]`.
    """

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self.pages: dict[str, str] = dict(task.data["pages"])
        self.hosts = tuple(task.data.get("hosts", self.hosts))
        self.start = f"http://{self.hosts[0]}/"
        self.uploads = {name: text.encode() for name, text in task.data.get("uploads", {}).items()}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        key = request.host + request.path
        html = self.pages.get(key, self.pages.get(request.path))
        if html is None:
            raise web.HTTPNotFound()
        if request.path.endswith(".csv"):
            return web.Response(text=html, headers={"Content-Disposition": "attachment"})
        return web.Response(text=html, content_type="text/html")

    async def judge(self, pages: Pages, said: str) -> tuple[float, dict[str, Any]]:
        wanted = str(self.task.data.get("answer", ""))
        solved = bool(wanted) and said.strip() == wanted
        return float(solved), {"solved": solved, "failed": [] if solved else [f"the answer was {said[:80]!r}"]}


def site_of(task: Task, seed: int) -> Site:
    """The site of a task. Raises TaskError."""
    name = task.data.get("site", "")
    target = SITES.get(name, name)
    if ":" not in target:
        raise TaskError(f"task {task.id}: unknown site {name!r}{nearest(name, SITES)}; known: {', '.join(SITES)}")
    module, _, attribute = target.partition(":")
    try:
        made: Site = getattr(importlib.import_module(module), attribute)(task, seed)
    except Exception as error:
        raise TaskError(f"task {task.id}: its site cannot be made: {type(error).__name__}: {error}") from error
    return made
