"""MiniWoB's pages: all listed, each instance the same every time, the scripted oracles right."""

import importlib.util

import pytest

import agentgym
from agentgym.environments.gui import GuiEnv
from agentgym.environments.gui_miniwob import html_folder
from agentgym.environments.gui_miniwob_oracles import ORACLES
from agentgym.errors import UsageError
from agentgym.tasks.miniwob import LEFT_OUT, PAGES, SOLVED, MiniWoB
from agentgym.types import Message
from tests.environments.gui_pages_for_tests import act, needs_browser, text

needs_pages = pytest.mark.skipif(importlib.util.find_spec("miniwob") is None, reason="miniwob is not installed")
QUICK = [
    "click-test",
    "click-link",
    "click-tab-2",
    "enter-text",
    "enter-time",
    "copy-paste",
    "click-scroll-list",
    "button-delay",
]


@needs_pages
def test_every_page_of_the_wheel_is_listed_or_left_out_with_a_reason():
    shipped = {path.stem for path in (html_folder() / "miniwob").glob("*.html")}
    shipped |= {f"flight.{path.parent.name}" for path in (html_folder() / "flight").glob("*/wrapper.html")}
    assert set(PAGES) | LEFT_OUT.keys() == shipped and not set(PAGES) & LEFT_OUT.keys()
    assert len(PAGES) == 130 and all(LEFT_OUT.values())


def test_solved_pages_are_those_with_an_oracle():
    assert set(SOLVED) == ORACLES.keys() and len(SOLVED) >= 50


def test_tasks():
    made = MiniWoB(n_train=2, n_test=1)
    train, test = made.tasks("train"), made.tasks("test")
    assert len(train) == 260 and len(test) == 130
    assert not {task.seed for task in train} & {task.seed for task in test}
    assert MiniWoB(pages=["click-test"], n_train=3, seed=1).tasks("train") != MiniWoB(
        pages=["click-test"], n_train=3
    ).tasks("train")
    with pytest.raises(UsageError, match="left out: the buttons flash"):
        MiniWoB(pages=["simon-says"])
    with pytest.raises(UsageError, match="did you mean 'click-test'"):
        MiniWoB(pages=["click-tests"])
    with pytest.raises(UsageError, match="all, solved or a list"):
        MiniWoB(pages="some")


@needs_browser
@needs_pages
def test_oracles_score_full_marks_and_doing_nothing_none():
    agentgym.check_tasks(MiniWoB(pages=QUICK, n_train=1, n_test=0), concurrency=3).raise_for_failures()


async def _seen(page: str) -> tuple[str, str]:
    env = GuiEnv(protocol="block")
    task = MiniWoB(pages=[page], n_train=1).tasks("train")[0]
    first, _ = await env.reset(options={"task": task})
    later = text(await act(env, "wait"))
    nothing = await env.step(Message(role="assistant"))  # says that it is done
    assert nothing.terminated and nothing.reward == 0
    await env.close()
    return first.messages[-1].content, later


@needs_browser
@needs_pages
@pytest.mark.parametrize("page", ["flight.AA", "terminal", "stock-market", "tic-tac-toe", "email-inbox-nl-turk"])
async def test_an_instance_is_the_same_every_time(page):
    assert await _seen(page) == await _seen(page)


@needs_browser
@needs_pages
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_page_is_the_same_every_time_and_rewards_nothing_for_nothing():
    for page in PAGES:
        first, again = await _seen(page), await _seen(page)
        assert first == again, page
        assert "Do what the page asks.\n" in first[0] and "{" not in first[0].splitlines()[1].replace('{"', ""), page


@needs_browser
@needs_pages
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_oracles():
    agentgym.check_tasks(MiniWoB(pages="solved", n_train=3, n_test=1), concurrency=4).raise_for_failures()
