"""Reading actions: every form that is offered, and whatever a model writes instead."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.environments.gui_actions import (
    COMMON,
    COORDINATES,
    NO_ACTION,
    REFS,
    SPECS,
    Action,
    Malformed,
    from_call,
    from_text,
    offered,
    read,
)
from agentgym.environments.gui_perform import DOES
from agentgym.types import Message, ToolCall


def block(line: str) -> str:
    return f"```action\n{line}\n```"


def call(name: str, arguments: str) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=arguments)


def test_every_action_on_offer_is_done_by_something():
    assert DOES.keys() == SPECS.keys()
    assert set(offered("refs")) == {spec.name for spec in (*REFS, *COMMON)}
    assert set(offered("coordinates")) == {spec.name for spec in (*COORDINATES, *COMMON)}
    assert offered("all") == SPECS and "goto" not in offered("all", frozenset({"goto"}))


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("click e5", "click", {"ref": "e5"}),
        ("click [ref=f2e5]", "click", {"ref": "f2e5"}),
        ("click e5 right", "click", {"ref": "e5", "button": "right"}),
        ("fill e3 Jane  Doe", "fill", {"ref": "e3", "text": "Jane  Doe"}),
        ('fill e3 "two\\nlines"', "fill", {"ref": "e3", "text": "two\nlines"}),
        ("fill e3 two\nlines", "fill", {"ref": "e3", "text": "two\nlines"}),
        ('fill e3 say "hi"', "fill", {"ref": "e3", "text": 'say "hi"'}),
        ('fill e3 "); alert(1); //', "fill", {"ref": "e3", "text": '"); alert(1); //'}),
        ("select e5 Dark blue", "select", {"ref": "e5", "option": "Dark blue"}),
        ("drag e1 e2", "drag", {"ref": "e1", "to": "e2"}),
        ("scroll down", "scroll", {"direction": "down"}),
        ("scroll left e4", "scroll", {"direction": "left", "ref": "e4"}),
        ("click_at 0 1000", "click_at", {"x": 0, "y": 1000}),
        ("drag_to 1 2 3 4", "drag_to", {"x": 1, "y": 2, "to_x": 3, "to_y": 4}),
        ("press Control+a", "press", {"keys": "Control+a"}),
        ("dialog accept my name", "dialog", {"answer": "accept", "text": "my name"}),
        ("wait", "wait", {}),
        ("answer 42", "answer", {"text": "42"}),
    ],
)
def test_lines(line, name, arguments):
    assert from_text(block(line), SPECS) == Action(name=name, arguments=arguments)
    assert from_text(f"I think so.\n{block(line)}\nNow wait.", SPECS).name == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", NO_ACTION),
        ("I am done.", NO_ACTION),
        ("click the button that says so", NO_ACTION),
        ("```action\nclick e5", "not closed"),
        ("```action\n```", "empty"),
        ("```python\nclick e5\n```", "python, not action"),
        (block("click e5") + "\n" + block("click e6"), "2 blocks"),
        (block("clik e5"), "did you mean 'click'"),
        (block("click"), "needs ref"),
        (block("click button"), "a ref such as e5"),
        (block("click e5 e6"), "one of left, right, middle"),
        (block("click e5 left now"), "too much"),
        (block("click e5 left\nclick e6"), "write one action"),
        (block("click_at 5 1001"), "from 0 to 1000"),
        (block("click_at 5 x"), "an integer"),
        (block("scroll"), "needs direction"),
        (block("tab 0"), "from 1"),
        (block("fill e3 " + "x" * 30_000), "too long"),
    ],
)
def test_what_is_wrong_is_said(text, why):
    with pytest.raises(Malformed, match=why.replace("(", r"\(")):
        from_text(text, SPECS)


def test_a_bare_line_is_an_action():
    assert from_text(" click e5 ", SPECS).arguments == {"ref": "e5"}


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("click", '{"ref": "e5"', "not JSON"),
        ("click", '["e5"]', "not a JSON object"),
        ("click", '{"ref": 5}', "is text"),
        ("click", '{"ref": "e5", "button": "red"}', "one of left"),
        ("click", '{"ref": "e5", "force": true}', "takes no 'force'"),
        ("click", "", "needs ref"),
        ("click_at", '{"x": 1.5, "y": 2}', "an integer"),
        ("click_at", '{"x": true, "y": 2}', "an integer"),
        ("click_at", '{"x": NaN, "y": 2}', "an integer"),
        ("click_at", '{"x": Infinity, "y": 2}', "an integer"),
        ("click_at", '{"x": -1, "y": 2}', "from 0 to 1000"),
        ("browse", "{}", "no action 'browse'"),
        ("click", "[" * 100_000, "not JSON"),
    ],
)
def test_malformed_calls(name, arguments, why):
    with pytest.raises(Malformed, match=why):
        from_call(call(name, arguments), SPECS)


def test_calls():
    assert from_call(call("click_at", '{"x": 5.0, "y": "7"}'), SPECS).arguments == {"x": 5, "y": 7}
    assert from_call(call("scroll", '{"direction": "up", "ref": null}'), SPECS).arguments == {"direction": "up"}
    message = Message(role="assistant", content=block("wait"), tool_calls=(call("back", "{}"), call("wait", "{}")))
    assert read(message, SPECS).name == "back", "calls go before what is written beside them, the first one first"


@given(st.text(max_size=60))
def test_written_text_is_read_as_it_was(text):
    action = Action(name="fill", arguments={"ref": "e1", "text": text})
    assert from_text(action.block(), SPECS) == action
    assert from_call(action.call("1"), SPECS) == action


@given(st.text(alphabet='abe1 "`{}[]:\\\n,clickfilword=', max_size=80))
def test_anything_is_an_action_or_malformed(text):
    for attempt in (lambda: from_text(text, SPECS), lambda: from_call(call("fill", text), SPECS)):
        try:
            assert attempt().name in SPECS
        except Malformed as problem:
            assert str(problem)


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_tools_have_schemas(spec):
    tool = spec.tool()
    assert tool.description and json.loads(json.dumps(tool.to_openai()))["function"]["name"] == spec.name
    assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])
