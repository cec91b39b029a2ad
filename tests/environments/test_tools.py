import asyncio
import dataclasses
import enum
import json
import threading
import time
from datetime import date
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.environments.tool_schema import Signature, parse_docstring
from agentgym.environments.tool_values import Misfit, differences, fit, plain, same, serialise
from agentgym.environments.tools import Functions, Stateful, Toolbox, ToolFailed, sources_from, state_of
from agentgym.errors import EngineError, InfrastructureError, TaskError, UsageError
from agentgym.types import ToolCall


class Colour(enum.Enum):
    RED = "red"
    AMBER = "amber"


@dataclasses.dataclass
class Point:
    """A place.

    Attributes:
        x: how far across.
    """

    x: int
    y: float = 0.0
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Tree:
    name: str
    below: list["Tree"] = dataclasses.field(default_factory=list)


class Options(TypedDict, total=False):
    deep: bool


def paint(
    what: str,
    colour: Colour,
    at: Point,
    more: list[Point] | None = None,
    how: Literal["thick", "thin"] = "thin",
    counts: dict[str, int] | None = None,
    either: int | str = 1,
    when: date | None = None,
    tree: Tree | None = None,
    options: Options | None = None,
    layers: Annotated[int, "how many coats"] = 1,
    share: float = 0.5,
) -> str:
    """Paint something.

    It dries by itself.

    Args:
        what: the thing,
            in a few words.
        colour (Colour): which one.

    Returns:
        nothing: of interest
    """
    return repr((what, colour, at, more, how, counts, either, when, tree, options, layers, share))


GOOD = {"what": "a door", "colour": "red", "at": {"x": 1}}


def problems(function, **given):
    with pytest.raises(Misfit) as caught:
        Signature(function).arguments(given)
    return caught.value.problems


def test_a_signature_becomes_a_schema():
    spec = Signature(paint).spec
    assert (spec.name, spec.description) == ("paint", "Paint something. It dries by itself.")
    schema = spec.parameters
    assert schema["required"] == ["what", "colour", "at"]
    assert schema["additionalProperties"] is False
    had = schema["properties"]
    assert had["what"] == {"type": "string", "description": "the thing, in a few words."}
    assert had["colour"] == {"type": "string", "enum": ["red", "amber"], "description": "which one."}
    assert had["at"]["properties"]["x"] == {"type": "integer", "description": "how far across."}
    assert had["at"]["required"] == ["x"] and had["at"]["additionalProperties"] is False
    assert had["more"]["anyOf"][0]["items"] == had["at"]
    assert had["how"] == {"type": "string", "enum": ["thick", "thin"], "default": "thin"}
    assert had["counts"]["anyOf"][0] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert had["either"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert had["when"]["anyOf"][0] == {"type": "string", "format": "date"}
    assert had["options"]["anyOf"][0]["properties"] == {"deep": {"type": "boolean"}}
    assert had["layers"] == {"type": "integer", "description": "how many coats", "default": 1}
    assert had["share"] == {"type": "number", "default": 0.5}
    assert schema["$defs"]["Tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}
    assert json.loads(json.dumps(schema)) == schema


def test_arguments_become_what_the_annotations_say():
    given = GOOD | {"more": [{"x": 2.0, "y": 3}], "when": "2026-02-03", "tree": {"name": "a", "below": [{"name": "b"}]}}
    made = Signature(paint).arguments(given)
    assert made["colour"] is Colour.RED
    assert made["at"] == Point(1) and made["more"] == [Point(2, 3.0)]
    assert type(made["more"][0].x) is int and type(made["more"][0].y) is float
    assert made["when"] == date(2026, 2, 3)
    assert made["tree"] == Tree("a", [Tree("b")])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layers": "2"}, 'layers must be an integer, not "2"'),
        ({"layers": True}, "layers must be an integer, not true"),
        ({"layers": 1.5}, "layers must be an integer, not 1.5"),
        ({"share": "half"}, 'share must be a number, not "half"'),
        ({"what": 3}, "what must be a string, not 3"),
        ({"what": None}, "what must be a string, not null"),
        ({"colour": "ambre"}, 'colour must be one of "red", "amber", not "ambre" (did you mean \'amber\'?)'),
        ({"at": {"y": 1}}, "at.x is missing"),
        ({"at": {"x": 1, "z": 2}}, "at.z is unknown; known: x, y, tags"),
        ({"at": [1, 2]}, "at must be an object, not [1, 2]"),
        ({"more": [{"x": 1}, {"x": "1"}]}, 'more[1].x must be an integer, not "1"'),
        ({"either": []}, "either must be an integer or a string, not []"),
        ({"tree": {"name": "a", "below": [{"name": 1}]}}, "tree.below[0].name must be a string, not 1"),
        ({"counts": {"a": "b"}}, 'counts.a must be an integer, not "b"'),
        ({"whta": 1}, "whta is unknown (did you mean 'what'?)"),
    ],
)
def test_what_does_not_fit_is_said_with_its_path(changes, says):
    assert problems(paint, **(GOOD | changes)) == [says]


def test_all_problems_are_said_at_once():
    assert len(problems(paint, colour=1, whta=2)) == 4


def test_types_that_json_cannot_carry_are_refused():
    def several(*words: str) -> None: ...
    def odd(a: threading.Thread) -> None: ...
    def unreadable(a: "Nowhere") -> None: ...  # noqa: F821

    for function, says in ((several, "name each argument"), (odd, "Thread"), (unreadable, "Nowhere")):
        with pytest.raises(UsageError, match=says):
            Signature(function)


@pytest.mark.parametrize(
    "doc",
    [
        "Do it.\n\nArgs:\n    a: first\n      part.\n    b (int, optional): second.\n\nReturns:\n    c: not one",
        "Do it.\n\n:param a: first part.\n:param int b: second.\n:returns: c",
        "Do it.\n\nParameters\n----------\na : int\n    first\n    part.\nb : int\n    second.\n\nReturns\n-------\nc : int\n    x",
    ],
    ids=["google", "sphinx", "numpy"],
)
def test_docstrings_describe(doc):
    assert parse_docstring(doc) == ("Do it.", {"a": "first part.", "b": "second."})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_any_value_fits_no_schema_and_misfits_are_no_crash(value):
    assert same(fit(value, {}), value)
    assert same(value, value) and not list(differences(value, value))
    try:
        Signature(paint).arguments(value if isinstance(value, dict) else {"what": value, "at": value, "tree": value})
    except Misfit as misfit:
        assert misfit.problems


def test_equality_of_plain_values_is_strict_about_truth():
    assert same({"a": [1, (2,)]}, {"a": [1.0, [2]]})
    assert not same(1, True) and not same({"a": 1}, {"a": 1, "b": None})
    found = {"mails": [{"to": "ann"}], "n": 1, "extra": 0}
    wanted = {"mails": [{"to": "bob"}], "n": True, "more": {}}
    assert list(differences(found, wanted)) == [
        'mails[0].to is "ann" instead of "bob"', "n is 1 instead of true", "more is missing", "extra should not be there",
    ]  # fmt: skip


def test_results_are_text():
    assert serialise("as it is") == "as it is"
    assert serialise({"a": Point(1), "c": Colour.RED, "é": {1}}) == (
        '{"a": {"x": 1, "y": 0.0, "tags": []}, "c": "red", "é": [1]}'
    )
    assert serialise("\ud800") == "?"
    assert serialise(object()).startswith('"<object')
    assert len(serialise("x" * 10_000, 100)) < 160 and "9900 characters left out" in serialise("x" * 10_000, 100)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert serialise(deep)
    assert plain({1: date(2026, 1, 2)}) == {"1": "2026-01-02"}


class Counter:
    """Counts."""

    def __init__(self, start: int = 0) -> None:
        self.count, self._hidden = start, object()

    def increase(self, by: int = 1) -> int:
        """Count on."""
        self.count += by
        return self.count

    async def later(self) -> int:
        """Count later."""
        await asyncio.sleep(0)
        return self.increase()

    def _private(self) -> None: ...


def refuse(how: str) -> None:
    """Goes wrong."""
    if how == "infrastructure":
        raise EngineError("no disk")
    if how == "exit":
        raise SystemExit(3)
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "stop":
        raise StopIteration("no more")
    if how == "late":
        raise TimeoutError("the database")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "failed":
        raise ToolFailed("not today")
    raise {"value": ValueError, "memory": MemoryError, "recursion": RecursionError}[how](how)


async def refuse_async(how: str) -> None:
    """Goes wrong."""
    refuse(how)


async def opened(*sources, **options):
    tools = Toolbox(sources, **options)
    await tools.start()
    return tools


def call(name, arguments="{}"):
    return ToolCall(id="7", name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))


async def test_a_class_keeps_its_state_for_the_episode():
    tools = await opened(Stateful(Counter, {"start": 5}))
    assert [spec.name for spec in tools.specs] == ["increase", "later"]
    assert (await tools.call(call("increase", {"by": 2}))).content == "7"
    assert (await tools.call(call("later"))).content == "8"
    assert tools.state() == [{"count": 8}]
    other = await opened(Stateful(Counter))
    assert other.state() == [{"count": 0}]
    for one in (tools, other):
        await one.close()
        await one.close()


@pytest.mark.parametrize(
    ("name", "arguments", "error", "says"),
    [
        ("incraese", "{}", "unknown_tool", "there is no tool 'incraese' (did you mean 'increase'?); known: increase, later"),
        ("increase", '{"by": 1', "bad_json", "the arguments of increase are not valid JSON"),
        ("increase", '{"by": "1" "x": 2}', "bad_json", "the arguments of increase are not valid JSON"),
        ("increase", "[1]", "bad_json", "must be a JSON object"),
        ("increase", '{"by": NaN}', "bad_json", "NaN is no JSON number"),
        ("increase", '{"by": ' + "9" * 5000 + "}", "bad_json", "not valid JSON"),
        ("increase", '{"by": ' + "[" * 100_000, "bad_json", "nested too deeply"),
        ("increase", '{"by": "many"}', "bad_arguments", 'increase: by must be an integer, not "many"'),
    ],
)  # fmt: skip
async def test_a_wrong_call_is_answered(name, arguments, error, says):
    tools = await opened(Stateful(Counter))
    result = await tools.call(call(name, arguments))
    assert (result.id, result.error, result.misspelt) == ("7", error, True)
    assert result.content.startswith("error: ") and says in result.content
    assert tools.state() == [{"count": 0}]
    await tools.close()


@pytest.mark.parametrize("function", [refuse, refuse_async])
@pytest.mark.parametrize(
    "how", ["value", "memory", "recursion", "exit", "cancelled", "stop", "failed", "late", "interrupt"]
)
async def test_an_exception_in_a_tool_is_an_answer(function, how):
    if how == "interrupt" and function is refuse_async:
        return  # ends the loop, as Ctrl-C does
    tools = await opened(Functions(function))
    result = await tools.call(call(function.__name__, {"how": how}))
    assert result.error == "exception" and not result.misspelt
    if how == "failed":
        assert result.content == "error: not today"
    await tools.close()


@pytest.mark.parametrize("function", [refuse, refuse_async])
async def test_an_infrastructure_failure_passes(function):
    tools = await opened(Functions(function))
    with pytest.raises(InfrastructureError, match="no disk"):
        await tools.call(call(function.__name__, {"how": "infrastructure"}))
    await tools.close()


def spin() -> None:
    """Never ends."""
    while True:
        pass


def snooze(seconds: float) -> str:
    """Waits in C code."""
    time.sleep(seconds)
    return "awake"


async def wait() -> None:
    """Waits."""
    await asyncio.sleep(600)


def test_a_tool_that_takes_too_long_is_ended():
    async def body():
        tools = await opened(Functions(spin, snooze, wait), timeout_s=0.3)
        for name, arguments in (("wait", {}), ("spin", {}), ("snooze", {"seconds": 1.5})):
            began = time.monotonic()
            late = await tools.call(call(name, arguments))
            assert (late.error, late.content) == ("timeout", f"error: {name} took longer than 0.3 s")
            assert time.monotonic() - began < 1.4
            assert (await tools.call(call("snooze", {"seconds": 0}))).content == "awake"
        await tools.close()

    asyncio.run(body())
    until = time.monotonic() + 10
    while any(thread.name == "agentgym-tool" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.05)


async def test_a_blocking_tool_does_not_block_the_loop():
    tools = await opened(Functions(snooze))
    ticks = 0
    working = asyncio.create_task(tools.call(call("snooze", {"seconds": 0.5})))
    while not working.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 5 and working.result().content == "awake"
    await tools.close()


async def test_cancelling_an_episode_passes_through_a_tool():
    tools = await opened(Functions(wait, spin))
    for name in ("wait", "spin"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await tools.call(call(name))
    await tools.close()


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ([{}], "names no tools"),
        ([{"function": "no.such.module:f"}], "no.such"),
        ([{"function": "json:no_such_function"}], "no_such_function"),
        ([{"class": "tests.environments.test_tools:Counter", "options": {"begin": 1}}], "begin"),
        ([{"class": "tests.environments.test_tools:Counter", "only": ["decrease"]}], "no method 'decrease'"),
        ([{"function": "tests.environments.test_tools:spin"}] * 2, "two tools are called 'spin'"),
        ([{"function": "builtins:print"}], "print"),
    ],
)
async def test_a_task_whose_tools_cannot_be_made_is_a_broken_task(listed, says):
    with pytest.raises(TaskError, match=says):
        await opened(*sources_from(listed))


async def test_some_methods_can_be_chosen():
    tools = await opened(*sources_from([{"class": "tests.environments.test_tools:Counter", "only": ["later"]}]))
    assert [spec.name for spec in tools.specs] == ["later"]
    await tools.close()


def test_a_state_of_ones_own():
    class Custom:
        def state(self):
            return {"a": {3}}

    assert state_of(Custom()) == {"a": [3]}
    assert state_of(None) is None
