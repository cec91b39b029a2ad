"""Pages that misbehave: each has a stated outcome, and the episode goes on wherever it can."""

import asyncio
import time

import pytest

from agentgym.environments.gui_browser import in_browser
from agentgym.environments.gui_pages import MAX_TABS
from agentgym.errors import InfrastructureError
from tests.environments.gui_pages_for_tests import act, needs_browser, opened, ref, text

pytestmark = needs_browser

ASKS = """<button onclick="o.textContent = 'said ' + confirm('Sure?')">Ask</button>
<button onclick="o.textContent = 'called ' + prompt('Name?', 'nobody')">Name</button>
<button onclick="alert('one'); alert('two'); o.textContent = 'told'">Tell</button><p id=o role=status></p>"""


async def test_dialogs_are_the_policys_to_answer():
    env, shown = await opened(ASKS)
    result = await act(env, f"click {ref(shown, 'Ask')}")
    assert text(result) == "A dialog is open (confirm): 'Sure?'. Answer it with `dialog`."
    result = await act(env, f"click {ref(shown, 'Name')}")
    assert result.info["action_error"] == "a dialog is open: answer it first"
    assert "said true" in text(await act(env, "dialog accept"))
    await act(env, f"click {ref(shown, 'Ask')}")
    assert "said false" in text(await act(env, "dialog dismiss"))
    await act(env, f"click {ref(shown, 'Name')}")
    assert "called Jane Roe" in text(await act(env, "dialog accept Jane Roe"))
    assert "'one'" in text(await act(env, f"click {ref(shown, 'Tell')}"))
    assert "'two'" in text(await act(env, "dialog accept"))
    assert "told" in text(await act(env, "dialog accept"))
    await env.close()


async def test_a_dialog_while_loading_and_one_on_leaving():
    env, shown = await opened("<script>alert('welcome')</script><h1>Here</h1><a href=/1>go</a>", "<h1>There</h1>")
    assert "A dialog is open (alert): 'welcome'" in shown
    shown = text(await act(env, "dialog accept"))
    assert "Here" in shown
    await in_browser(env.pages.page.evaluate("() => { onbeforeunload = e => { e.preventDefault(); return 'stay' } }"))
    assert "There" in text(await act(env, f"click {ref(shown, 'go')}"))
    await env.close()


async def test_closing_with_an_open_dialog_is_quick():
    env, shown = await opened(ASKS)
    await act(env, f"click {ref(shown, 'Ask')}")
    begun = time.perf_counter()
    await env.close()
    assert time.perf_counter() - begun < 4


async def test_new_tabs_are_shown_and_can_be_left():
    env, shown = await opened(
        "<a href=/1 target=_blank>new</a><h1>First</h1>", "<button onclick=window.close()>Shut</button>"
    )
    shown = text(await act(env, f"click {ref(shown, 'new')}"))
    assert "A new tab was opened and is shown now." in shown and "(tab 2 of 2)" in shown
    assert "First" in text(await act(env, "tab 1"))
    await act(env, "tab 2")
    await act(env, f"click {ref(shown, 'Shut')}")
    shown = text(await act(env, "wait"))
    assert "First" in shown and "tab" not in shown, "a page that closes itself"
    await env.close()


async def test_a_site_without_a_tab_is_opened_anew():
    env, shown = await opened(
        "<h1>Here</h1><a href=/1 target=_blank>new</a>", "<button onclick=window.close()>Shut</button>"
    )
    await act(env, f"click {ref(shown, 'new')}")
    await act(env, "tab 1")
    await act(env, "close_tab")
    await act(env, "click e2")
    result = await act(env, "wait")
    assert "Here" in text(result) and len(env.pages.tabs) == 1
    await env.close()


async def test_no_more_than_so_many_tabs():
    env, shown = await opened(
        "<button onclick=\"for (let i = 0; i < 30; i++) window.open('/1')\">Many</button>", "<h1>Ad</h1>"
    )
    result = await act(env, f"click {ref(shown, 'Many')}")
    assert f"there are {MAX_TABS} already" in text(result)
    assert len(env.pages.tabs) == MAX_TABS
    await env.close()


async def test_downloads_are_refused():
    env, shown = await opened("<a href=/x.csv>list</a>", more={"/x.csv": "a,b"})
    result = await act(env, f"click {ref(shown, 'list')}")
    assert "The download of 'x.csv' was refused" in text(result) and "- link" in text(result)
    await env.close()


async def test_files_are_uploaded_by_name():
    page = "<input type=file aria-label=File onchange=\"this.files[0].text().then(t => o.textContent = 'got ' + t)\"><p id=o></p>"
    env, shown = await opened(page, uploads={"a.txt": "hello"})
    result = await act(env, f"click {ref(shown, 'File')}")
    assert "A field asks for a file: answer with `upload`. There are: a.txt." in text(result)
    result = await act(env, "upload /etc/passwd")
    assert result.info["action_error"] == "there is no file '/etc/passwd'; there are: a.txt"
    assert "got hello" in text(await act(env, "upload a.txt"))
    await env.close()


INSIDE = "<button onclick=\"this.textContent = 'pressed'\">Inner</button><input aria-label=Inside>"
FRAMES = """<p style="height:300px">frames</p><iframe src=/1 style="border:7px solid"></iframe>
<iframe src="http://other.localhost/1"></iframe><div id=host></div><div id=shut></div>
<div contenteditable>old</div>
<script>host.attachShadow({mode: 'open'}).innerHTML = '<button onclick="this.textContent = 2">Shadow</button>';</script>"""


async def test_frames_shadows_and_editable_text():
    env, shown = await opened(FRAMES, INSIDE, hosts=["site.localhost", "other.localhost"])
    assert shown.count("Inner") == 2, "of this site and of another one"
    for _ in range(2):
        shown = text(await act(env, f"click {ref(shown, 'Inner')}"))
    assert shown.count('"pressed"') == 2
    shown = text(await act(env, f"fill {ref(shown, 'Inside')} deep"))
    assert '"Inside" [active]' in shown and ": deep" in shown
    assert 'button "2"' in text(await act(env, f"click {ref(shown, 'Shadow')}"))
    assert ": new *text*" in text(await act(env, f"fill {ref(shown, ': old')} new *text*"))
    await env.close()


async def test_a_frame_under_something_is_covered():
    page = FRAMES.replace("<iframe src=/1", "<div style='position:fixed;inset:0;z-index:9'>All</div><iframe src=/1")
    env, shown = await opened(page, INSIDE, hosts=["site.localhost", "other.localhost"])
    result = await act(env, f"click {ref(shown, 'Inner')}")
    assert "is covered by <div>" in result.info["action_error"]
    await env.close()


async def test_a_document_that_is_never_closed():
    env, shown = await opened(
        "<h1>Here</h1><button onclick=\"document.open(); document.write('<h1>New')\">Write</button>"
    )
    result = await act(env, f"click {ref(shown, 'Write')}")
    assert "New" in text(result) or "Here" in text(result)
    assert not (await act(env, "press Tab")).terminated
    await env.close()


async def test_frames_that_come_and_go():
    page = """<h1>Steady</h1><button onclick="this.textContent = 'yes'">Press</button><script>setInterval(() => {
      document.querySelector('iframe')?.remove();
      const f = document.createElement('iframe'); f.srcdoc = '<p>here</p>'; document.body.append(f) }, 50)</script>"""
    env, shown = await opened(page)
    for _ in range(5):
        shown = text(await act(env, "wait"))
        assert "Steady" in shown
    assert '"yes"' in text(await act(env, f"click {ref(shown, 'Press')}"))
    await env.close()


async def test_a_script_that_does_not_end_is_stopped():
    env, shown = await opened(
        "<h1>Here</h1><button onclick='while (1);'>Loop</button>", options={"action_timeout_s": 0.5}
    )
    begun = time.perf_counter()
    result = await act(env, f"click {ref(shown, 'Loop')}")
    assert result.info["action_error"] == "The page did not answer."
    assert "A script of the page did not end and was stopped." in text(result) and "Here" in text(result)
    assert time.perf_counter() - begun < 10
    await env.close()


async def test_a_page_that_hangs_again_and_again_is_opened_anew():
    page = "<h1>Here</h1><button onclick='setInterval(() => { while (1); })'>Loop</button>"
    env, shown = await opened(page, options={"action_timeout_s": 0.5})
    result = await act(env, f"click {ref(shown, 'Loop')}")
    for _ in range(3):
        if "The site was opened anew." in text(result):
            break
        result = await act(env, "press Tab")
    assert "Here" in text(result) and not result.terminated
    assert '"Loop"' in text(await act(env, "press Tab"))
    await env.close()


@pytest.mark.parametrize(
    "hog",
    [
        "const kept = []; while (1) kept.push(new Array(1e6).fill(1.5))",
        "const kept = []; setInterval(() => kept.push(new Uint8Array(8e7).fill(1)), 20)",
    ],
    ids=["heap", "buffers"],
)
async def test_a_page_that_eats_memory_is_closed(hog):
    env, shown = await opened(f"<h1>Here</h1><button onclick='{hog}'>Eat</button>")
    result = await act(env, f"click {ref(shown, 'Eat')}")
    for _ in range(20):
        if "The page crashed." in text(result):
            break
        result = await act(env, "wait")
    assert "The page crashed. The site was opened anew." in text(result) and "Here" in text(result)
    assert not result.terminated and (await act(env, "answer x")).reward == 1.0
    await env.close()


async def _crash(env):
    async def crash():
        session = await env.pages.session()
        crashing = asyncio.ensure_future(session.send("Page.crash"))
        await asyncio.wait({crashing}, timeout=0.5)
        crashing.cancel()

    await in_browser(crash())


async def test_a_page_whose_process_dies_is_opened_anew():
    env, _ = await opened("<h1>Here</h1><a href=/1>go</a>", "<h1>There</h1>")
    await _crash(env)
    result = await act(env, "press Tab")
    assert result.info["action_error"] == "The page crashed." and "Here" in text(result)
    await _crash(env)
    await act(env, "press Tab")
    await _crash(env)
    with pytest.raises(InfrastructureError, match="crashed 3 times"):
        await act(env, "press Tab")
    await env.close()


async def test_a_page_that_held_the_state_cannot_be_opened_anew():
    env, _ = await opened("<h1>Here</h1>")
    env.pages.site.keeps_state = False
    await _crash(env)
    with pytest.raises(InfrastructureError, match="state went with it"):
        await act(env, "press Tab")
    await env.close()


async def test_text_that_is_no_text():
    env, shown = await opened("<script>document.title = '\\ud800'; document.write('half \\ud83d of it \\0')</script>")
    assert "half" in shown and shown.encode()
    await env.close()


async def test_a_huge_page_stays_within_the_budget():
    rows = "".join(f"<tr><td>{n}<td><button>Do {n}</button>" for n in range(1000))
    env, shown = await opened(f"<table>{rows}</table>", options={"max_chars": 1500})
    assert 1000 < len(shown) < 1700 and "scroll to see them" in shown and "Do 0" in shown
    for _ in range(3):
        shown = text(await act(env, "scroll down"))
    assert '"Do 0"' not in shown and "Do 7" in shown, "what is seen now"
    await env.close()


async def test_slow_and_endless_requests_do_not_hold_up_the_policy():
    page = "<h1>Here</h1><script>setInterval(() => fetch('/1?' + Math.random()), 10)</script>"
    env, _ = await opened(page, "slow")
    begun = time.perf_counter()
    for _ in range(3):
        result = await act(env, "press Tab")
    assert "Here" in text(result) and time.perf_counter() - begun < 6
    await env.close()
