"""An episode in the browser: how it is acted in, what is shown, how it ends."""

import asyncio
import json
import time

import pytest

import agentgym
from agentgym.environments.gui import GuiEnv
from agentgym.environments.gui_browser import in_browser
from agentgym.errors import TaskError, UsageError
from agentgym.types import Message, Task, ToolCall
from tests.environments.gui_pages_for_tests import act, needs_browser, opened, page_task, ref, text

pytestmark = needs_browser

FORM = """<title>Form</title><h1>Form</h1><label>Name <input id=name></label><label>Colour <select id=colour>
<option>Red<option>Blue<option disabled>Gold</select></label><label>Toys <select multiple id=toys><option>Kite<option>Ball</select></label>
<button onclick="out.textContent = [document.getElementById('name').value, colour.value,
  [...toys.selectedOptions].map(o => o.value)].join('/')">Send</button>
<output id=out></output><a href="/1">Next</a><input aria-label=Fixed readonly value=1><button disabled>Off</button>"""
NEXT = "<title>Next</title><h1>Second page</h1>"


async def test_a_form_is_filled_in_and_sent():
    env, shown = await opened(FORM, NEXT)
    assert "Page http://site.localhost/" in shown and '- textbox "Name"' in shown
    await act(env, f"fill {ref(shown, 'Name')} O'Brien <b>${{x}}\\n")
    await act(env, f"select {ref(shown, 'Colour')} Blue")
    await act(env, f"select {ref(shown, 'Toys')} Kite")
    await act(env, f"select {ref(shown, 'Toys')} Ball")
    result = await act(env, f"click {ref(shown, 'Send')}")
    assert "O'Brien <b>${x}\\\\n/Blue/Kite,Ball" in text(result), "typed text is data"
    result = await act(env, f"click {ref(shown, 'Next')}")
    assert "Second page" in text(result) and "http://site.localhost/1" in text(result)
    result = await act(env, "back")
    assert "Form" in text(result)
    assert (await act(env, "back")).info["action_error"] == "there is no page before this one"
    await env.close()


async def test_wrong_uses_are_told():
    env, shown = await opened(FORM, NEXT)
    for line, why in (
        (f"fill {ref(shown, 'Fixed')} 2", "read-only"),
        (f"fill {ref(shown, 'Send')} 2", "no field for text"),
        (f"click {ref(shown, 'Off')}", "is disabled"),
        (f"click {ref(shown, 'Colour')}", "use select"),
        (f"select {ref(shown, 'Colour')} Green", "it has 'Red', 'Blue', 'Gold'"),
        (f"select {ref(shown, 'Colour')} Gold", "is disabled"),
        (f"select {ref(shown, 'Name')} Gold", "no list"),
        ("click e999", "not on the page"),
        ("scroll down", "nothing more to scroll"),
        ("tab 2", "there is no tab 2"),
        ("close_tab", "the only tab"),
        ("dialog accept", "no dialog"),
        ("upload a.txt", "no field has asked"),
        ("press Foo", "no key 'Foo'"),
    ):
        result = await act(env, line)
        assert why in result.info["action_error"] and why in text(result), line
        assert not result.terminated and result.reward == 0
    await env.close()


COVERED = """<button id=gone>Gone</button><div style="position:relative;width:200px"><button>Under</button>
<div style="position:absolute;inset:0;background:red">Cookies?</div></div>"""


async def test_a_stale_or_covered_ref_is_told_at_once():
    env, shown = await opened(COVERED)
    assert env.pages is not None
    under, gone = ref(shown, "Under"), ref(shown, "Gone")
    result = await act(env, f"click {under}")
    assert result.info["action_error"] == f"{under} is covered by <div> 'Cookies?'"
    await in_browser(env.pages.page.evaluate("gone.remove()"))
    assert "not on the page" in (await act(env, f"click {gone}")).info["action_error"]
    times = []
    for wrong in (under, gone, "e999") * 3:
        begun = time.perf_counter()
        await act(env, f"click {wrong}")
        times.append(time.perf_counter() - begun)
    assert sorted(times)[len(times) // 2] < 0.1, "with the new observation"
    await env.close()


TWINS = """<style>button, div {position: absolute; width: 90px; height: 30px; left: 0; top: 0; margin: 0}
.second {top: 40px}</style><button>Under</button><div>Over</div>
<button id=first class=second onclick="o.textContent = 'first'">Row</button><p id=o role=status style="margin-top:90px"></p>"""


async def test_something_else_in_the_same_place_is_not_clicked():
    env, shown = await opened(TWINS)
    assert "is covered by <div> 'Over'" in (await act(env, f"click {ref(shown, 'Under')}")).info["action_error"]
    row = ref(shown, "Row")
    assert "first" in text(await act(env, f"click {row}"))
    script = "() => { const next = first.cloneNode(); next.textContent = 'Row'; next.onclick = () => { o.textContent = 'WRONG' }; first.replaceWith(next) }"
    await in_browser(env.pages.page.evaluate(script))
    result = await act(env, f"click {row}")
    assert "not on the page" in result.info["action_error"] and "WRONG" not in text(result)
    await env.close()


MOVES = """<style>body{margin:0} div{position:absolute}</style>
<div id=box style="left:100px;top:100px;width:50px;height:50px;background:blue" role=img aria-label=box></div>
<div style="left:400px;top:300px;width:80px;height:80px;background:green" role=img aria-label=place></div>
<p id=log style="position:absolute;top:500px" role=status></p><div style="top:3000px;width:3000px;height:1px"></div>
<input aria-label=field style="position:absolute;top:600px" value="one two">
<script>let down = null; const say = t => log.textContent += t + ' ';
for (const kind of ['click', 'dblclick', 'contextmenu']) addEventListener(kind, e => say(kind + (e.detail > 2 ? e.detail : '')));
box.onmouseenter = () => say('over'); box.onmousedown = () => say('down');
addEventListener('mouseup', e => { if (e.clientX > 400) say('dropped') });
addEventListener('scroll', () => say('scrolled' + Math.sign(scrollX) + Math.sign(scrollY)))</script>"""


async def test_acting_by_coordinates():
    env, shown = await opened(MOVES, options={"actions": "coordinates"})
    assert "@122,163" in next(line for line in shown.splitlines() if '"box"' in line)
    for line, seen in (
        ("click_at 122 163", "over down click"),
        ("click_at 122 163 right", "contextmenu"),
        ("drag_to 122 163 430 440", "dropped"),
        ("double_click_at 122 163", "dblclick"),
        ("scroll_at 500 500 down 100", "scrolled01"),
        ("scroll_at 500 500 right", "scrolled11"),
    ):
        assert seen in text(await act(env, line)), line
    await act(env, "scroll_at 500 500 up 1000")
    await act(env, "scroll_at 500 500 left 1000")
    await act(env, "triple_click_at 30 793")
    await act(env, "type new")
    await act(env, "press Shift+ArrowLeft")
    assert '"field" [active] [ref=e5]: never!' in text(await act(env, "type ver!"))
    assert "there is no action 'click'" in (await act(env, "click e1")).info["parse_error"]
    await env.close()


async def test_dragging_and_hovering_by_refs():
    env, shown = await opened(MOVES)
    assert "over" in text(await act(env, f"hover {ref(shown, 'box')}"))
    assert "down dropped" in text(await act(env, f"drag {ref(shown, 'box')} {ref(shown, 'place')}"))
    assert "scrolled01" in text(await act(env, "scroll down"))
    assert "dblclick" in text(await act(env, f"double_click {ref(shown, 'place')}"))
    await env.close()


async def test_tool_calls_are_answered_by_tool_messages():
    env = GuiEnv(observation="both", image="png")
    first, _ = await env.reset(options={"task": page_task(FORM, NEXT)})
    assert {"click", "fill", "answer"} <= {tool.name for tool in first.tools}
    assert first.messages[-1].images[0].mime == "image/png" and first.messages[-1].images[0].data[:4] == b"\x89PNG"
    calls = (
        ToolCall(id="a", name="click", arguments=json.dumps({"ref": ref(first.messages[-1].content, "Next")})),
        ToolCall(id="b", name="back", arguments="{}"),
    )
    result = await env.step(Message(role="assistant", tool_calls=calls))
    told, other, picture = result.observation.messages
    assert (told.role, told.tool_call_id, told.name) == ("tool", "a", "click") and "Second page" in told.content
    assert (other.tool_call_id, other.content) == ("b", "Not done: one action a message.")
    assert picture.role == "user" and picture.images
    broken = Message(role="assistant", tool_calls=(ToolCall(id="c", name="click", arguments='{"ref"'),))
    result = await env.step(broken)
    assert "not JSON" in result.info["parse_error"] and result.observation.messages[0].tool_call_id == "c"
    await env.close()


async def test_a_screenshot_alone():
    env, shown = await opened(FORM, options={"observation": "screenshot", "actions": "coordinates"})
    assert "textbox" not in shown and "Page http" in shown
    result = await act(env, "wait")
    image = result.observation.messages[0].images[0]
    assert image.mime == "image/jpeg" and image.data[:2] == b"\xff\xd8"
    await env.close()


async def test_how_an_episode_ends():
    env, _ = await opened(FORM)
    result = await act(env, "answer x")
    assert (result.reward, result.terminated, result.info["end"]) == (1.0, True, "answer")
    await env.reset(options={"task": page_task(FORM)})
    assert (await env.step(Message(role="assistant", content="Done."))).info["parse_error"] == "no action"
    await act(env, "wait")
    result = await env.step(Message(role="assistant", content="x"))
    assert (result.reward, result.info["end"]) == (1.0, "done")
    await env.reset(options={"task": page_task(FORM)})
    for _ in range(3):
        result = await env.step(Message(role="assistant"))
    assert (result.reward, result.terminated, result.info["end"]) == (0.0, True, "parse_errors")
    await env.close()


async def test_an_ended_episode_stays_as_it_was():
    env, _ = await opened(FORM, options={"max_steps": 1})
    result = await act(env, "answer wrong")
    assert result.terminated and result.reward == 0 and not result.info["solved"]
    for line in ("answer x", "wait"):
        result = await act(env, line)
        assert text(result) == "The episode has ended." and result.reward == 0 and result.terminated
    await env.close()


async def test_max_steps_judges_too():
    env, _ = await opened(FORM, options={"max_steps": 2})
    assert not (await act(env, "wait")).terminated
    assert (await act(env, "wait")).info["end"] == "max_steps"
    await env.close()


async def test_episodes_share_nothing():
    page = """<p id=seen role=status></p><button onclick="localStorage.x = 1; document.cookie = 'a=1'; name = 'n';
      navigator.clipboard.writeText('leak').catch(() => 0)">Keep</button><input aria-label=Field value=secret>
      <script>seen.textContent = 'kept ' + (localStorage.x || '-') + (document.cookie || '-') + (window.name || '-')</script>"""
    env, shown = await opened(page)
    other, _ = await opened(page)
    await act(env, f"click {ref(shown, 'Keep')}")
    await act(env, f"click {ref(shown, 'Field')}")
    await act(env, "press Control+a")
    await act(env, "press Control+c")
    assert "kept 1a=1" in text(await act(env, "goto /"))
    await act(other, f"click {ref(shown, 'Field')}")
    result = await act(other, "press Control+v")
    assert ": secret" in text(result) and "leak" not in text(result), "nothing to paste in another episode"
    assert "kept ---" in text(await act(other, "goto /"))
    await env.reset(options={"task": page_task(page)})
    assert "kept ---" in text(await act(env, "goto /"))
    await asyncio.gather(env.close(), other.close())


async def test_copy_and_paste():
    env, shown = await opened("<input aria-label=From value='some words'><input aria-label=To><p>plain text</p>")
    await act(env, f"click {ref(shown, 'From')}")
    await act(env, "press Control+a")
    await act(env, "press Control+x")
    await act(env, f"click {ref(shown, 'To')}")
    shown = text(await act(env, "press Ctrl+v"))
    assert '"To" [active]' in shown and ": some words" in shown and shown.count("some words") == 1
    await env.close()


async def test_a_reset_with_the_same_seed_repeats_itself():
    env = GuiEnv(observation="both")
    seen = [(await env.reset(seed=1, options={"task": page_task(FORM)}))[0] for _ in range(2)]
    assert seen[0] == seen[1]
    await env.close()
    await env.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"observation": "video"}, "unknown observation"),
        ({"actions": "keys"}, "unknown actions"),
        ({"observation": "screenshot"}, "shows no refs"),
        ({"max_steps": 0}, "must be > 0"),
    ],
)
def test_impossible_options(options, why):
    with pytest.raises(UsageError, match=why):
        GuiEnv(**options)


async def test_broken_tasks():
    env = GuiEnv()
    for data in ({}, {"site": "shopp"}, {"site": "pages"}, {"site": "no.such:Thing"}, {"site": "miniwob", "page": "x"}):
        with pytest.raises(TaskError):
            await env.reset(options={"task": Task(id="t", env="gui", instruction="", data=data)})
    with pytest.raises(UsageError, match="step before reset"):
        await act(env, "wait")
    await env.close()


def test_it_is_known_by_name():
    assert isinstance(agentgym.make("gui"), GuiEnv)
