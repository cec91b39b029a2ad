"""The office: its forms change its state as they say, and it is judged by that state alone."""

import copy

import pytest

from agentgym.environments.gui_shop import differences, plain, wanted
from agentgym.environments.gui_shop_forms import Refused, cents, import_prices
from agentgym.environments.gui_shop_pages import page
from agentgym.errors import TaskError
from agentgym.tasks.shop import ShopTasks
from agentgym.types import Task
from tests.environments.gui_pages_for_tests import GuiEnv, act, needs_browser, ref, text


def one(family: str) -> Task:
    return ShopTasks(families=[family], levels=[1], n_train=1).tasks("train")[0]


def test_differences_name_the_place():
    right = {"a": [{"b": 1, "read": True}], "c": []}
    assert differences(right, {"a": [{"b": 1, "read": False}], "c": []}) == [], "reading a mail changes nothing"
    assert differences(right, {"a": [{"b": 2}], "c": [], "d": 1}) == ["/a/0/b is 2, not 1", "/d is 1, not None"]
    assert differences(right, {"a": [], "c": []})[0].startswith("/a is []")


def test_changes_that_make_no_sense_are_the_tasks_fault():
    for change in (["set", "products", 999, "price", 1], ["remove", "products"], ["add", "nothing", 1]):
        task = one("price")
        broken = Task(id="t", env="gui", instruction="", data={**task.data, "changes": [change]})
        with pytest.raises(TaskError, match="make no sense"):
            wanted(broken)


def test_prices_and_answers():
    assert cents("12.50") == 1250 and cents("7") == 700
    for wrong in ("12.5", "-1", "1e3", "", "12,50"):
        with pytest.raises(Refused):
            cents(wrong)
    assert plain(" 0123 456. ") == plain("0123 456") != plain("0123456")
    with pytest.raises(Refused, match="Choose a file"):
        import_prices({}, [], {"file": "not a file"})


def test_what_people_write_is_escaped():
    state = copy.deepcopy(one("reply").data["state"])
    state["mails"][0]["subject"] = state["mails"][0]["body"] = "<script>alert(1)</script>\"'"
    state["products"][0]["name"] = "<img src=x>"
    for path in (["mail", "0"], ["mail", "inbox"], ["shop"], ["shop", "0"], ["admin", "products", "0"]):
        html = page(state, path, {})
        assert html is not None and "<script>alert" not in html and "<img" not in html, path
    assert page(state, ["shop", "999"], {}) is None and page(state, ["shop", "²"], {}) is None
    assert page(state, ["shop"], {"page": "999", "q": '"><b>'}) is not None


@needs_browser
async def test_the_state_is_judged_and_not_the_page():
    env = GuiEnv(protocol="block")
    task = one("price")
    _, _, index, _, price = task.data["changes"][0]
    name = task.data["state"]["products"][index]["name"]
    await env.reset(options={"task": task})
    shown = text(await act(env, f"goto /admin/products/{index}"))
    assert f"Edit {name}" in shown
    await act(env, f"fill {ref(shown, 'Price')} {price // 100}.{price % 100:02}")
    assert (await act(env, "answer Done")).info["failed"][0].startswith(f"/products/{index}/price"), "not saved"
    await env.reset(options={"task": task})
    shown = text(await act(env, f"goto /admin/products/{index}"))
    await act(env, f"fill {ref(shown, 'Price')} free")
    refused = text(await act(env, f"click {ref(shown, 'Save')}"))
    assert "Not accepted" in refused and "A price is written like 12.50." in refused
    shown = text(await act(env, "back"))
    await act(env, f"fill {ref(shown, 'Price')} {price // 100}.{price % 100:02}")
    if len(task.data["changes"]) > 1:
        await act(env, f"click {ref(shown, 'On sale')}")
    await act(env, f"click {ref(shown, 'Save')}")
    env.pages.site.state["mails"][0]["starred"] ^= True
    result = await act(env, "answer Done")
    assert result.reward == 0 and result.info["failed"] == [
        f"/mails/0/starred is {not task.data['state']['mails'][0]['starred']}, not {task.data['state']['mails'][0]['starred']}"
    ]
    await env.close()


@needs_browser
async def test_each_episode_has_a_state_of_its_own():
    task = one("star")
    first, second = GuiEnv(protocol="block"), GuiEnv(protocol="block")
    for env in (first, second):
        await env.reset(options={"task": task})
    index = task.data["changes"][0][2]
    shown = text(await act(first, f"goto /mail/{index}"))
    await act(first, f"click {ref(shown, 'Add star')}")
    assert (await act(second, "answer Done")).reward == 0
    assert (await act(first, "answer Done")).reward == 1
    assert task.data["state"]["mails"][index]["starred"] is False, "the task itself is untouched"
    await first.close()
    await second.close()


@needs_browser
async def test_a_form_with_nonsense_is_no_fault_of_the_task():
    env = GuiEnv(protocol="block")
    await env.reset(options={"task": one("star")})
    for path in ("/shop/999", "/admin/nothing", "/mail/junk", "/shop?page=-1&q=%ff%00", "/ordered/0/1"):
        assert "office.localhost" in text(await act(env, f"goto {path}"))
    shown = text(await act(env, "goto /write"))
    send = ref(shown, 'button "Send')
    result = await act(env, f"click {send}")
    assert "is no mail address" in text(result) or "is empty" in text(result)
    await env.close()
