"""MiniWoB++ pages (Farama, MIT), served from the installed `miniwob` wheel, with a seed and a clock that stands still.

A task's data: {"site": "miniwob", "page": "click-test"}; its seed makes the instance. The page's clock moves with each
action only, so that an instance is the same on every machine, however long the policy thinks.
"""

from __future__ import annotations

import importlib.util
import mimetypes
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agentgym.environments.gui_actions import Action
from agentgym.environments.gui_sites import Site
from agentgym.errors import InfrastructureError, TaskError

if TYPE_CHECKING:
    from agentgym.environments.gui_pages import Pages
    from agentgym.types import Task

TICK_MS = 500  # of the page's clock, for each action
TICKS = {"button-delay": 100}
WAIT_MS = 1000
TEXTS = ("html", "css", "javascript", "json", "plain")
FLIGHTS = ("flight.AA", "flight.Alaska", "flight.Alaska-auto", "flight.Alaska-auto-medium")  # whole sites in a frame
FOR_EVER_MS = 2**31 - 1001  # what the page's own timer is set to
# Whatever a page draws while it loads is drawn from the seed too.
SEEDED = """(() => { let state = %d >>> 0; Math.random = () => { state = (state + 0x6D2B79F5) >>> 0; let t = state;
  t = Math.imul(t ^ (t >>> 15), t | 1); t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296 } })();"""
# What listens for clicks is marked, and so has a ref whatever its tag; an icon is named after its class.
MARKED = """(() => { const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, ...rest) {
  if (/^(click|mousedown|mouseup)$/.test(type) && this instanceof Element && !this.matches('html, body')) {
    this.setAttribute('data-acts', '');
    if (this.tagName === 'SPAN' && !this.hasAttribute('role')) this.setAttribute('role', 'link');
    if (/^(SPAN|DIV|I)$/.test(this.tagName) && !this.textContent.trim() && this.className && !this.ariaLabel)
      this.setAttribute('aria-label', this.className);
  }
  return add.call(this, type, ...rest) } })();"""
CSS = """#reward-display, #click-canvas, #sync-task-cover, #query-wrap { display: none !important }
[data-acts] { cursor: pointer }"""
BEGIN = """([seed, css, time, mode]) => { if (typeof WOB_DATA_MODE !== 'undefined' && mode) WOB_DATA_MODE = mode;
 const style = document.createElement('style'); style.textContent = css;
  document.head.appendChild(style); core.EPISODE_MAX_TIME = time; Math.seedrandom(String(seed));
  core.startEpisodeReal() }"""
ASKED = "() => { const said = core.getUtterance(); return said.utterance || String(said) }"
STATE = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, String(WOB_REWARD_REASON || '')]"


@cache
def html_folder() -> Path:
    """Where the pages are. Raises InfrastructureError if they are not installed."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise InfrastructureError("MiniWoB's pages are not installed: pip install --no-deps miniwob==1.1.0")
    return Path(spec.submodule_search_locations[0]) / "html"


@cache
def _file(path: Path) -> tuple[bytes, str]:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return path.read_bytes(), f"{kind}; charset=utf-8" if kind.partition("/")[2] in TEXTS else kind


class MiniWoB(Site):
    """One page; the episode ends when the page says so, and the reward is the page's own, without its time penalty."""

    hosts = ("miniwob.localhost",)
    frozen_clock = True
    keeps_state = False
    without = frozenset({"goto", "back", "tab", "close_tab", "upload", "dialog", "answer"})

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self.name: str = task.data["page"]
        folder, _, page = self.name.rpartition(".")
        self.path = f"{folder}/{page}/wrapper.html" if folder else f"miniwob/{page}.html"
        self.start = f"http://{self.hosts[0]}/{self.path}"
        self.viewport = (375, 667) if self.name in FLIGHTS else (160, 210)
        self.init_script = SEEDED % (seed & 0xFFFFFFFF) + MARKED
        self.mode: str = task.data.get("mode", "")
        self.asked = ""
        self.tick_ms = TICKS.get(self.name, TICK_MS)

    @property
    def instruction(self) -> str:
        return f"{self.task.instruction}\n{self.asked}"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        root = html_folder().resolve()
        path = (root / request.path.lstrip("/")).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise web.HTTPNotFound()
        body, kind = _file(path)
        return web.Response(body=body, headers={"Content-Type": kind})

    async def ready(self, pages: Pages) -> None:
        if not (html_folder() / self.path).is_file():
            raise TaskError(f"task {self.task.id}: there is no page {self.name!r}")
        await pages.call(pages.page.evaluate(BEGIN, [self.seed, CSS, FOR_EVER_MS, self.mode]))
        await self.pass_time(pages, self.tick_ms)
        self.asked = await pages.call(pages.page.evaluate(ASKED))

    async def tick(self, pages: Pages, action: str) -> None:
        await self.pass_time(pages, WAIT_MS if action == "wait" else self.tick_ms)

    async def pass_time(self, pages: Pages, ms: int) -> None:
        """Let the page's clock go on."""
        await pages.call(pages.page.clock.run_for(ms))

    async def over(self, pages: Pages) -> bool:
        return bool((await pages.call(pages.page.evaluate(STATE)))[0])

    async def judge(self, pages: Pages, said: str) -> tuple[float, dict[str, Any]]:
        done, raw, reason = await pages.call(pages.page.evaluate(STATE))
        reward = min(max(float(raw), 0.0), 1.0) if done else 0.0
        solved = reward == 1.0
        why = reason or (f"the page's reward is {raw}" if done else "the page's task was not done")
        return reward, {"solved": solved, "raw_reward": float(raw), "failed": [] if solved else [why]}

    @property
    def solvable(self) -> bool:
        from agentgym.environments.gui_miniwob_oracles import ORACLES

        return self.name in ORACLES

    async def solve(self, pages: Pages) -> AsyncIterator[Action]:
        from agentgym.environments.gui_miniwob_oracles import ORACLES

        async for action in ORACLES[self.name](pages):
            yield action
