"""The browser's process: shared, closed to the outside, started again when it dies, gone with its owner."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agentgym.environments import leftovers
from agentgym.environments.gui_browser import close_browser, in_browser, the_browser
from agentgym.environments.gui_network import problem_of
from agentgym.errors import InfrastructureError, TaskError
from agentgym.types import Task
from tests.environments.gui_pages_for_tests import act, needs_browser, opened, page_task, ref, text

pytestmark = needs_browser

HOSTS = ("site.localhost",)


async def test_one_browser_serves_many_episodes_and_event_loops():
    close_browser()
    envs = await asyncio.gather(*(opened(f"<h1>Number {index}</h1>") for index in range(6)))
    assert all(f"Number {index}" in shown for index, (_, shown) in enumerate(envs))
    assert the_browser().launches == 1 and len(the_browser().contexts) == 6
    await asyncio.gather(*(env.close() for env, _ in envs))
    assert not the_browser().contexts

    def elsewhere() -> int:
        asyncio.run(_episode())
        return the_browser().launches

    assert await asyncio.to_thread(elsewhere) == 1


async def _episode() -> None:
    env, _ = await opened("<h1>Here</h1>")
    await act(env, "wait")
    await env.close()


@pytest.mark.parametrize("which", ["browser", "driver", "both"])
async def test_a_killed_browser_is_infrastructure_and_the_next_episode_has_a_new_one(which):
    env, _ = await opened("<h1>Here</h1>", options={"action_timeout_s": 1})
    launches, mark = the_browser().launches, the_browser().mark
    driver, browser = the_browser().pids
    for pid in {"browser": [browser], "driver": [driver], "both": [driver, browser]}[which]:
        os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(InfrastructureError):
        await act(env, "press Tab")
        await act(env, "press Tab")
    await env.close()
    assert time.monotonic() - begun < 20
    await _episode()
    assert the_browser().launches == launches + 1
    assert not [pid for pid, other in leftovers.marked() if other == mark and psutil.Process(pid).status() != "zombie"]


async def test_a_stopped_browser_is_infrastructure():
    env, _ = await opened("<h1>Here</h1>", options={"action_timeout_s": 0.5})
    os.kill(the_browser().pids[1], signal.SIGSTOP)
    with pytest.raises(InfrastructureError, match="does not answer"):
        await act(env, "press Tab")
    await env.close()
    await _episode()


OWNER = """
import asyncio, sys
from tests.environments.gui_pages_for_tests import opened
from agentgym.environments.gui_browser import the_browser

async def main():
    env, _ = await opened("<h1>Here</h1><script>setTimeout(() => { while (1); }, 1000)</script>")
    print(the_browser().mark, the_browser().base, flush=True)
    if sys.argv[1] == "stay":
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["stay", "leave"])
def test_nothing_outlives_its_owner(end):
    root = Path(__file__).parents[2]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, end], cwd=root, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    mark, base = owner.stdout.readline().split()
    children = psutil.Process(owner.pid).children(recursive=True) if end == "stay" else []
    assert end != "stay" or len(children) > 4, "driver, browser and their own"
    time.sleep(1.5)  # the page hangs
    if end == "stay":
        owner.kill()
    assert owner.wait(30) == (-signal.SIGKILL if end == "stay" else 0)
    owner.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (
        [pid for pid, other in leftovers.marked() if other == mark] or Path(base).exists()
    ):
        time.sleep(0.1)
    assert not [pid for pid, other in leftovers.marked() if other == mark]
    assert not Path(base).exists()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


REACHES = """<p id=o role=status></p><script>
const out = []; const say = (n, r) => { out.push(n + ' ' + r); o.textContent = out.sort().join('; ') };
for (const [n, url] of Object.entries(URLS))
  fetch(url, {mode: 'no-cors'}).then(r => say(n, r.type === 'opaque' ? 'opaque' : r.status), () => say(n, 'refused'));
new WebSocket('ws://127.0.0.1:PORT/').onerror = () => say('socket', 'refused');
const pc = new RTCPeerConnection({iceServers: [{urls: 'stun:127.0.0.1:PORT'}]}); pc.createDataChannel('x');
pc.onicecandidate = e => { if (e.candidate && e.candidate.candidate.includes('srflx')) say('rtc', 'leaks') };
pc.createOffer().then(d => pc.setLocalDescription(d));
</script>"""


async def test_nothing_but_the_site_can_be_reached():
    reached: list[str] = []

    async def listen(reader, writer):
        reached.append((await reader.readline()).decode())
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    urls = f"{{own: '/1', machine: 'http://127.0.0.1:{port}/', name: 'http://localhost:{port}/', tls: 'https://127.0.0.1:{port}/', far: 'http://example.com/'}}"
    env, shown = await opened(REACHES.replace("URLS", urls).replace("PORT", str(port)), "ok")
    for _ in range(10):
        shown = text(await act(env, "wait"))
        if "socket" in shown and "tls" in shown and "far" in shown:
            break
    assert "own 200" in shown and "socket refused" in shown and "tls refused" in shown and "leaks" not in shown
    assert not reached, "all of it went to the episode's own proxy, which refuses it"
    assert env.pages is not None and "example.com" in env.pages.network.refused
    for address in (f"http://127.0.0.1:{port}/", "https://site.localhost/", "file:///etc/passwd", "view-source:http://site.localhost/",
                    "chrome://crash", "javascript:alert(1)", "data:text/html,x", "about:blank", "http://site.localhost:1/", "http://[x", ""):  # fmt: skip
        result = await act(env, f'goto "{address}"')
        assert result.info["action_error"] and "http://site.localhost/" in text(result), address
    assert not reached
    await env.close()
    server.close()


def test_addresses():
    for fine in ("http://site.localhost/", "http://site.localhost:80/x?y#z", "HTTP://SITE.localhost/"):
        assert not problem_of(fine, HOSTS), fine
    for wrong in (
        "http://site.localhost@evil.example/",
        "http://evil.example/site.localhost",
        "http://sub.site.localhost/",
    ):
        assert "cannot be reached" in problem_of(wrong, HOSTS), wrong


async def test_a_link_to_elsewhere_is_refused_and_can_be_left():
    env, shown = await opened("<a href=http://evil.example/>away</a><a href=file:///etc/passwd>local</a>")
    result = await act(env, f"click {ref(shown, 'local')}")
    assert "away" in text(result), "a page cannot open files either"
    result = await act(env, f"click {ref(shown, 'away')}")
    assert "evil.example cannot be reached" in text(result)
    assert "away" in text(await act(env, "back"))
    await env.close()


class Broken:
    """A site that fails once it is asked for /1."""

    def __new__(cls, task, seed):
        from agentgym.environments.gui_sites import StaticPages

        class Site(StaticPages):
            async def handle(self, request):
                if request.path == "/1":
                    raise ZeroDivisionError("a fault of the site")
                return await super().handle(request)

        return Site(task, seed)


async def test_a_fault_of_the_site_is_the_tasks():
    env, _ = await opened("<h1>Here</h1>", site=f"{__name__}:Broken")
    with pytest.raises(TaskError, match="the site raised ZeroDivisionError at /1"):
        await act(env, "goto /1")
    await env.close()


async def test_a_cancelled_step_leaves_nothing_behind():
    env, shown = await opened("<button onclick='while (1);'>Loop</button>")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await act(env, f"click {ref(shown, 'Loop')}")
    begun = time.monotonic()
    await env.close()
    assert time.monotonic() - begun < 8 and not the_browser().contexts
    await _episode()


async def test_contexts_are_given_back():
    env, _ = await opened("<h1>Here</h1>")

    async def contexts() -> int:
        browser = the_browser().browser
        return len(browser.contexts) if browser else 0

    before = await in_browser(contexts())
    for _ in range(5):
        await env.reset(options={"task": page_task("<h1>Here</h1>")})
    assert await in_browser(contexts()) == before
    with pytest.raises(TaskError):
        await env.reset(
            options={"task": Task(id="t", env="gui", instruction="", data={"site": "miniwob", "page": "x"})}
        )
    assert await in_browser(contexts()) == before - 1
    await env.close()
