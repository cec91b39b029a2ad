"""The tabs of one episode: what happens in them is kept and told, and nothing that is asked of them waits for ever.

What a page does to hold up an answer has a stated end: an open dialog interrupts what was asked (`DialogOpen`), a script
that does not end is stopped, a page that crashed is opened anew; whatever the browser itself does is infrastructure.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym.environments.gui_browser import BrowserProcess
from agentgym.environments.gui_network import Network
from agentgym.environments.gui_outcomes import ActionError, DialogOpen, Node, PageCrashed, Unresponsive
from agentgym.environments.gui_sites import Site
from agentgym.errors import InfrastructureError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Dialog, Download, FileChooser, Page, Request

T = TypeVar("T")

LOAD_S = 10.0  # for a page to load
LOOK_S = 6.0  # for a large page to be read
CALL_S = 3.0  # for anything else that is asked of a page
REVIVE_S = 1.0  # for a page whose script was stopped to answer
NAVIGATING_S = 5.0  # that an observation waits for a page on its way
OPENING_S = 2.0  # that it waits for a tab that is about to open
CHOOSING_S = 1.0  # for a field that was clicked to ask for a file
FETCHING_S = 0.5  # that it waits for a request that a script has made
MAX_TABS = 8
MAX_NOTES = 10
# A task of the page's own loop: what an event has set off has begun by then.
TURN = """() => new Promise(done => { const c = new MessageChannel(); c.port1.onmessage = () => done(1);
c.port2.postMessage(0) })"""
# A document that a script has opened and never closed cannot be read.
ANSWER = "() => { if (document.readyState === 'loading') document.close() }"
GONE = ("context was destroyed", "navigat", "detached", "Target page", "Target closed", "closed")


class Pages:
    """The tabs of a fresh browser context, in the browser's loop."""

    def __init__(self, browser: BrowserProcess, site: Site, *, timeout_s: float = CALL_S) -> None:
        self.browser, self.site, self.timeout_s = browser, site, timeout_s
        self.network = Network(site)
        self.tabs: list[Page] = []
        self.nodes: list[Node] = []  # the shown page as it was last looked at
        self.refs: dict[str, Node] = {}  # those that were there
        self.notes: list[str] = []  # what happened, for the policy
        self.dialog: Dialog | None = None
        self.chooser: FileChooser | None = None
        self.clipboard = ""
        self.crashes = 0
        self._context: BrowserContext | None = None
        self._sessions: dict[Page, CDPSession] = {}
        self._crashed: set[Page] = set()
        self._loading: dict[Page, float] = {}  # since when they are on their way
        self._requests: dict[Request, float] = {}
        self._awaited: list[float] = []  # since when tabs are about to open
        self._changed = asyncio.Event()  # something that is waited for has happened
        self._left: set[asyncio.Task[Any]] = set()  # what dialogs hold up

    async def open(self) -> None:
        """Open the context and the site's first page in it. Raises InfrastructureError."""
        await self.network.open()
        width, height = self.site.viewport
        self._context = await self.browser.context(
            viewport={"width": width, "height": height}, proxy=self.network.proxy, accept_downloads=False,
            service_workers="block", locale="en-US", timezone_id="UTC", reduced_motion="reduce",
        )  # fmt: skip
        self._context.set_default_timeout(self.timeout_s * 1e3)
        self._context.on("page", self._opened)
        self._context.on("dialog", self._asked)
        self._context.on("request", self._requested)
        self._context.on("requestfinished", self._answered)
        self._context.on("requestfailed", self._failed)
        try:
            async with asyncio.timeout(LOAD_S):
                if self.site.init_script:
                    await self._context.add_init_script(self.site.init_script)
                if self.site.frozen_clock:
                    await self._context.clock.install(time=0)
                    await self._context.clock.pause_at(1000)
            await self.new_tab()
        except (ActionError, PageCrashed, Unresponsive, TimeoutError) as error:
            raise InfrastructureError(f"the site did not open: {error}") from error

    @property
    def page(self) -> Page:
        """The tab that is shown. Raises PageCrashed if there is none any more."""
        if not self.tabs:
            raise PageCrashed("The last tab was closed.")
        return self.tabs[-1] if self._shown is None else self._shown

    _shown: Page | None = None

    def show(self, page: Page) -> None:
        """Show a tab."""
        self._shown = page

    async def session(self, page: Page | None = None) -> CDPSession:
        """The DevTools session of a tab, the shown one by default."""
        page = page or self.page
        if page not in self._sessions:
            assert self._context is not None
            made = await self.call(self._context.new_cdp_session(page), guarded=False)
            self._sessions[page] = made
            made.on("Page.windowOpen", self._opening)
            await self.call(made.send("Page.enable"), guarded=False)
        return self._sessions[page]

    async def new_tab(self) -> None:
        """A tab with the site's first page."""
        assert self._context is not None
        page = await self.call(self._context.new_page(), LOAD_S, guarded=False)
        self.show(page)
        await self.session()
        with contextlib.suppress(DialogOpen):
            await self.goto(self.site.start)

    async def goto(self, url: str) -> None:
        """Load `url` in the shown tab. Raises ActionError if it cannot be."""
        for attempt in range(2):
            try:
                await self.call(self.page.goto(url, timeout=LOAD_S * 1e3), LOAD_S + 1)
                return
            except ActionError as error:
                if "interrupted by another navigation" not in str(error) or attempt:
                    raise
                await self.settle()  # the error page of the last try may still be on its way

    async def call(self, work: Coroutine[Any, Any, T], seconds: float | None = None, *, guarded: bool = True) -> T:
        """What `work` comes to.

        Raises:
            ActionError: it failed, for a reason that is the page's or the policy's.
            DialogOpen: a dialog opened first; `work` goes on when it has been answered.
            PageCrashed, Unresponsive: the page's process ended, or there was no answer in time.
            InfrastructureError: the browser is gone.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(_retrieve)
        deadline = time.monotonic() + (self.timeout_s if seconds is None else seconds)
        try:
            while not task.done():
                if guarded and self.dialog is not None:
                    self._left.add(task)
                    task.add_done_callback(self._left.discard)
                    raise DialogOpen
                if guarded and self._lost:
                    raise PageCrashed("The page crashed.")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Unresponsive("the page does not answer")
                await self._wait(task, left)
        finally:
            if not task.done() and task not in self._left:
                task.cancel()
        return self._result(task)

    async def settle(self) -> None:
        """Wait until what the last action set off has happened: events, a navigation, a script's requests."""
        try:
            await self.call(self.page.evaluate(TURN))
        except ActionError as error:
            if not any(word in str(error) for word in GONE):
                raise
        begun = time.monotonic()
        while (left := self._busy_s(begun)) > 0 and self.dialog is None and not self._lost:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    @property
    def _lost(self) -> bool:
        return bool(self.tabs) and self.page in self._crashed

    @property
    def busy(self) -> bool:
        """Whether the shown tab is on its way to another page."""
        return self._busy_s(-math.inf) > 0

    async def answer(self, accept: bool, text: str | None) -> None:
        """Answer the open dialog, and let what it held up go on."""
        dialog, self.dialog = self.dialog, None
        if dialog is None:
            raise ActionError("no dialog is open")
        held = set(self._left)
        self._left.clear()
        doing = dialog.accept(text) if accept and text is not None else dialog.accept() if accept else dialog.dismiss()
        await self.call(doing)
        if held and self.dialog is None:
            await asyncio.wait(held, timeout=self.timeout_s)

    async def asked_for_file(self) -> FileChooser | None:
        """What a field has asked for, or is about to ask for."""
        deadline = time.monotonic() + CHOOSING_S
        while self.chooser is None and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return self.chooser

    async def revive(self) -> None:
        """The shown page does not answer: stop its script, or open the site anew.

        Raises:
            InfrastructureError: it is the browser that does not answer, or the page held the episode's state.
        """
        if not await self.browser.answers():
            await self.browser.give_up()
            raise InfrastructureError("the browser does not answer")
        for _ in range(3):
            with contextlib.suppress(ActionError, Unresponsive, DialogOpen):
                await self.call((await self.session()).send("Runtime.terminateExecution"), REVIVE_S)
                await self.call(self.page.evaluate(ANSWER), REVIVE_S)
                self.note("A script of the page did not end and was stopped.")
                return
        await self.replace("The page did not answer and was closed.")

    async def replace(self, why: str) -> None:
        """Open the site anew in place of a page that is lost. Raises InfrastructureError if that loses the state."""
        if not self.site.keeps_state:
            raise InfrastructureError(f"{why} The task's state went with it.")
        if self.tabs:
            lost = self.page
            self.crashes += lost in self._crashed
            self._forget(lost)
            leaving = asyncio.ensure_future(lost.close())  # a page that hangs may take its time
            leaving.add_done_callback(_retrieve)
        await self.new_tab()
        self.note(f"{why} The site was opened anew.")

    def note(self, text: str) -> None:
        """Something to tell the policy with the next observation."""
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)

    async def close(self) -> None:
        """Close the context and its network; never raises, safe to call twice."""
        for task in self._left:
            task.cancel()
        if self._context is not None:
            context, self._context = self._context, None
            if self.dialog is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self.dialog.dismiss(), REVIVE_S)
            await self.browser.release(context)
        await self.network.close()

    async def _wait(self, task: asyncio.Future[Any], seconds: float) -> None:
        self._changed.clear()
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({task, changed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def _result(self, task: asyncio.Future[T]) -> T:
        error = task.exception()
        if error is None:
            return task.result()
        if not self.browser.alive():
            raise InfrastructureError(f"the browser ended: {_line(error)}") from error
        if not self.tabs or self.page in self._crashed or "crashed" in str(error):
            raise PageCrashed("The page crashed.") from error
        if "Timeout" in type(error).__name__:
            raise ActionError(f"not possible within the time: {_line(error)}") from error
        if type(error).__module__.startswith("playwright") and type(error).__name__ in ("Error", "TargetClosedError"):
            raise ActionError(_line(error)) from error
        raise InfrastructureError(f"the browser failed: {_line(error)}") from error

    def _busy_s(self, begun: float) -> float:
        """How long to wait, at most, for what is on its way, having begun to wait at `begun`."""
        now = time.monotonic()
        navigating = self._loading.get(self.page, -math.inf) + NAVIGATING_S if self.tabs else now
        fetching = begun + FETCHING_S if self._requests else now
        opening = max(self._awaited, default=-math.inf) + OPENING_S
        return max(navigating, fetching, opening, now) - now

    def _opening(self, _: Any) -> None:
        self._awaited.append(time.monotonic())

    def _opened(self, page: Page) -> None:
        del self._awaited[:1]
        if len(self.tabs) >= MAX_TABS:
            self.note(f"A page wanted to open another tab; there are {MAX_TABS} already, and it was closed.")
            asyncio.ensure_future(page.close()).add_done_callback(_retrieve)
            return
        self.tabs.append(page)
        if len(self.tabs) > 1:
            self.show(page)
            self.note("A new tab was opened and is shown now.")
            asyncio.ensure_future(self.session(page)).add_done_callback(_retrieve)
        page.on("close", self._forget)
        page.on("crash", self._crash)
        page.on("download", self._download)
        page.on("filechooser", self._choose)
        page.on("domcontentloaded", partial(self._loaded, page))

    def _forget(self, page: Page) -> None:
        if page in self.tabs:
            self.tabs.remove(page)
        if self._shown is page:
            self._shown = None
        self._sessions.pop(page, None)
        self._loading.pop(page, None)
        self._changed.set()

    def _crash(self, page: Page) -> None:
        self._crashed.add(page)
        self._changed.set()

    def _asked(self, dialog: Dialog) -> None:
        if dialog.type == "beforeunload":
            asyncio.ensure_future(dialog.accept()).add_done_callback(_retrieve)
            return
        self.dialog = dialog
        self._changed.set()

    def _download(self, download: Download) -> None:
        self._loading.pop(download.page, None)
        self._changed.set()
        self.note(f"The download of {download.suggested_filename[:80]!r} was refused: files cannot be downloaded here.")

    def _choose(self, chooser: FileChooser) -> None:
        self.chooser = chooser
        self._changed.set()

    def _requested(self, request: Request) -> None:
        self._requests[request] = time.monotonic()
        page = _page_of(request)
        if page is not None:
            self._loading[page] = time.monotonic()

    def _answered(self, request: Request) -> None:
        self._requests.pop(request, None)
        self._changed.set()

    def _failed(self, request: Request) -> None:
        self._answered(request)
        page = _page_of(request)
        if page is not None:
            self._loading.pop(page, None)

    def _loaded(self, page: Page, _: Page) -> None:
        self._loading.pop(page, None)
        self._changed.set()


def _page_of(request: Request) -> Page | None:
    """The page whose main frame this request is to fill, if any."""
    with contextlib.suppress(Exception):
        if request.is_navigation_request() and request.frame.parent_frame is None:
            return request.frame.page
    return None


def _retrieve(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _line(error: BaseException) -> str:
    """The first line of what Playwright says, without its name for the call."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    head, separator, rest = first.partition(": ")
    return rest if separator and " " not in head else first
