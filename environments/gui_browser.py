"""One browser in a process, with many contexts: started when first needed, again when it dies, gone with its owner.

It lives in an event loop of its own, in a thread, so that it outlasts the loops of those who use it; `in_browser` runs
a coroutine there. What it starts carries its owner's mark and keeps its files in its owner's directory, so that the
guard removes both if the owner is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym.environments import guard, leftovers
from agentgym.errors import InfrastructureError
from agentgym.types import new_id

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, CDPSession, Playwright

T = TypeVar("T")

CHROMIUM = "/usr/lib/chromium/chromium-headless-shell"
OTHERS = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
LAUNCH_S = 60.0
CONTEXT_S = 20.0
CLOSE_S = 5.0
ALIVE_S = 3.0  # for a browser that is well to say so
IDLE_S = 120.0  # a browser that nobody uses is closed after this
WATCH_S = 0.5  # between looks at the memory of pages
PAGE_MEMORY_MB = 1024  # of one page's process; what takes more is killed
HEAP_MB = 512  # of one page's scripts
FLAGS = (
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # no name is resolved
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-smooth-scrolling",
    "--font-render-hinting=none",
    f"--js-flags=--max-old-space-size={HEAP_MB}",
)


def find_chromium() -> str:
    """The path of a Chromium; empty if there is none."""
    return CHROMIUM if Path(CHROMIUM).exists() else next(filter(None, map(shutil.which, OTHERS)), "")


def no_browser() -> str:
    """Why no browser can be started here; empty if one can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install 'agentgym[gui]'"
    return "" if find_chromium() else "there is no Chromium: apt-get install chromium-headless-shell"


class BrowserProcess:
    """The browser, Playwright's driver and their contexts; everything but `__init__` runs in the browser's loop."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.playwright: Playwright | None = None
        self.browser: Browser | None = None
        self.mark = ""  # carried by all its processes
        self.base: Path | None = None
        self.pids: tuple[int, ...] = ()  # driver and browser
        self.contexts: set[BrowserContext] = set()
        self.launches = 0
        self.used = time.monotonic()
        self._watcher: asyncio.Task[None] | None = None

    async def context(self, **options: Any) -> BrowserContext:
        """A fresh context in a living browser. Raises InfrastructureError."""
        async with self.lock:
            if not self.alive():
                await self._relaunch()
        assert self.browser is not None
        try:
            async with asyncio.timeout(CONTEXT_S):
                context = await self.browser.new_context(**options)
        except Exception as error:
            raise InfrastructureError(f"the browser opened no context: {_line(error)}") from error
        self.contexts.add(context)
        return context

    async def release(self, context: BrowserContext) -> None:
        """Close a context; never raises."""
        self.used = time.monotonic()
        self.contexts.discard(context)
        try:
            async with asyncio.timeout(CLOSE_S):
                await context.close()
        except Exception:
            if self.alive() and not self.contexts:
                await self.close()

    def alive(self) -> bool:
        """Whether driver and browser run, as far as the system says."""
        return self.browser is not None and self.browser.is_connected() and all(map(_runs, self.pids))

    async def answers(self) -> bool:
        """Whether the browser itself still answers."""
        if not self.alive():
            return False
        assert self.browser is not None
        try:
            async with asyncio.timeout(ALIVE_S):
                session: CDPSession = await self.browser.new_browser_cdp_session()
                await session.send("Browser.getVersion")
                await session.detach()
        except Exception:
            return False
        return True

    async def give_up(self) -> None:
        """The browser does not answer: the next context has a new one."""
        async with self.lock:
            self.contexts.clear()
            await self._stop(gently=False)

    async def close(self) -> None:
        """End it; a later `context` starts another one."""
        async with self.lock:
            await self._stop(gently=True)

    async def _relaunch(self) -> None:
        await self._stop(gently=False)
        if why := no_browser():
            raise InfrastructureError(f"no browser: {why}")
        leftovers.sweep_once()
        self.mark = f"{leftovers.owner_token()}/{new_id()}"
        guard.opened(self.mark)
        self.base = leftovers.new_base()
        try:
            async with asyncio.timeout(LAUNCH_S):
                with _driver_environment({leftovers.MARK: self.mark, "TMPDIR": str(self.base)}):
                    from playwright.async_api import async_playwright

                    self.playwright = await async_playwright().start()
                self.browser = await self.playwright.chromium.launch(
                    executable_path=find_chromium(), args=list(FLAGS), handle_sigint=False, handle_sigterm=False,
                    handle_sighup=False, timeout=LAUNCH_S * 1e3,
                )  # fmt: skip
        except Exception as error:
            await self._stop(gently=False)
            raise InfrastructureError(f"the browser did not start: {_line(error)}") from error
        self.pids = tuple(pid for pid in _marked(self.mark) if "--type=" not in _command(pid))
        self.launches += 1
        self.used = time.monotonic()
        self._watcher = asyncio.create_task(self._watch())

    async def _stop(self, *, gently: bool) -> None:
        playwright, browser, mark, base, pids = self.playwright, self.browser, self.mark, self.base, self.pids
        self.playwright = self.browser = self.base = None
        self.mark, self.pids = "", ()
        if self._watcher is not None and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
        self._watcher = None
        if gently and browser is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await browser.close()
        if mark:  # the browser's own children hide their environment
            children = [child for pid in pids for child in _descendants(pid)]
            leftovers.kill_marked(mark)
            leftovers.kill(children)
        if playwright is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await playwright.stop()
        if base is not None:
            shutil.rmtree(base, ignore_errors=True)
        if mark:
            guard.closed(mark)

    async def _watch(self) -> None:
        """Kill pages that take too much memory, and the browser once nobody has used it for long.

        consumes: /proc; produces: nothing; waits for: a clock; is unblocked by: the browser's end.
        """
        browser = self.pids[-1]
        while self.alive():
            await asyncio.sleep(WATCH_S)
            if not self.contexts and time.monotonic() - self.used > IDLE_S:
                await self.close()
                return
            too_big = [pid for pid in _descendants(browser) if _resident_mb(pid) > PAGE_MEMORY_MB]
            leftovers.kill([pid for pid in too_big if "--type=renderer" in _command(pid)])


class _Thread:
    """An event loop in a thread, with the process's browser in it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.browser = BrowserProcess()
        self.thread = threading.Thread(target=self.loop.run_forever, name="agentgym-browser", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Close the browser and end the thread."""
        closing = asyncio.run_coroutine_threadsafe(self.browser.close(), self.loop)
        with contextlib.suppress(Exception):
            closing.result(3 * CLOSE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_S)
        if not self.thread.is_alive():
            self.loop.close()


_threads: list[_Thread] = []  # this process's, once there is one
_starting = threading.Lock()


def _thread() -> _Thread:
    with _starting:
        if not _threads:
            _threads.append(_Thread())
            atexit.register(close_browser)
        return _threads[0]


def the_browser() -> BrowserProcess:
    """This process's browser, started or not."""
    return _thread().browser


async def in_browser(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in the browser's loop; cancelling the caller cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _thread().loop))


def close_browser() -> None:
    """End this process's browser; it starts again when it is needed."""
    with _starting:
        threads, _threads[:] = list(_threads), []
    for thread in threads:
        thread.end()


os.register_at_fork(after_in_child=_threads.clear)  # a fork has no such thread


@contextlib.contextmanager
def _driver_environment(extra: dict[str, str]) -> Iterator[None]:
    """Start Playwright's driver, and so the browser, with more in its environment: it offers no other way."""
    from playwright._impl import transport

    original = transport.get_driver_env
    transport.get_driver_env = lambda: {**original(), **extra}
    try:
        yield
    finally:
        transport.get_driver_env = original


def _marked(mark: str) -> list[int]:
    return sorted(pid for pid, other in leftovers.marked() if other == mark)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from _descendants(child)


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, IndexError):
        return 0.0


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"
