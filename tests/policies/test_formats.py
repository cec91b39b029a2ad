"""What models write, per format: well formed, malformed in all the ways that were seen, and anything at all."""

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym.errors import UsageError
from agentgym.policies.formats import MAX_ERRORS, detect, make_format
from agentgym.policies.formats_json import from_openai, to_openai
from agentgym.registry import TOOL_FORMATS
from agentgym.types import Message, ToolCall, ToolSpec

NAMES = ("hermes", "json", "llama3", "mistral", "openai", "qwen_xml")
NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
TOOLS = (
    ToolSpec(name="look", parameters={"type": "object", "properties": {"path": TEXT, "n": NUMBER}}),
    ToolSpec(name="write", parameters={"type": "object", "properties": {"text": TEXT, "items": {"type": "array"}}}),
)


def wrap(name, *objects):
    """JSON objects (texts) as calls of a format that writes JSON."""
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
    if name == "json":
        return "\n".join(f"```json\n{one}\n```" for one in objects)
    if name == "llama3":
        return "; ".join(one.replace('"arguments"', '"parameters"') for one in objects)
    if name == "mistral":
        return f"[TOOL_CALLS][{', '.join(objects)}]"
    raise AssertionError(name)


JSON_FORMATS = ("hermes", "json", "llama3", "mistral")


def xml(name="look", **parameters):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def parse(name, text, **options):
    return make_format(name).parse(text, TOOLS, **options)


def calls(parsed):
    return [(call.name, json.loads(call.arguments)) for call in parsed.calls]


def call(name="look", **arguments):
    return ToolCall(id="c", name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def test_all_formats_are_registered_and_named():
    assert set(NAMES) <= set(TOOL_FORMATS.names())
    for name in NAMES:
        assert make_format(name).name == name
    with pytest.raises(UsageError, match="did you mean 'hermes'"):
        make_format("herms")


VALUES = {"path": 'a "quoted" \\ path\nwith {braces} [and] </tag> é 你好 🎉 ```', "n": -3}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_is_parsed(name):
    written = (call(**VALUES), call("write", text="<tool_call>{</parameter>x", items=[1, {"a": None}]), call())
    text = make_format(name).render(Message(role="assistant", content="I look.", tool_calls=written))
    if name == "openai":
        text = text.removeprefix("I look.\n")
    parsed = parse(name, text)
    assert parsed.errors == ()
    assert calls(parsed) == [(one.name, json.loads(one.arguments)) for one in written]
    assert parsed.content == ("" if name == "openai" else "I look.")
    assert len({one.id for one in parsed.calls}) == 3
    assert parse(name, text) == parsed
    assert parse(name, text, key="other").calls[0].id != parsed.calls[0].id


@pytest.mark.parametrize("name", NAMES)
def test_tools_are_told(name):
    text = make_format(name).render_tools(TOOLS)
    assert '"look"' in text and '"write"' in text and '"integer"' in text


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_arguments_stay_byte_for_byte(name):
    arguments = '{"path":  "/tmp/\\u00e9é",\t"n": 1.0, "n": 2}'
    for text in (wrap(name, f'{{"name": "look", "arguments": {arguments}}}'),):
        assert [one.arguments for one in parse(name, text).calls] == [arguments]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "prose",
    [
        "",
        "Done.",
        "The format uses <tool_call> tags, for example for a search.",
        "Between <tool_call> and </tool_call> stands JSON; Mistral writes [TOOL_CALLS], others <function> or <parameter=x>.",
        'The file holds {"name": "Bob", "age": 3}.',
        '```json\n{"name": "Bob", "age": 3}\n```',
        '```python\nlook = {"path": 1}\n```\nand\n```\n[1, 2]\n```',
        "A set {1, 2}, a list [TOOLS], a shell ${HOME}, a fence ``` in a line.",
        "1 < 2 and <b>bold</b> &lt;tool_call&gt; 你好",
    ],
)
def test_prose_is_prose(name, prose):
    parsed = parse(name, prose)
    assert (parsed.content, parsed.calls, parsed.errors) == (prose, (), ())


LOOK = '{"name": "look", "arguments": {"path": "a"}}'

MALFORMED = {
    "cut off in a text": ('{"name": "look", "arguments": {"path": "a', "cut off"),
    "cut off in an object": ('{"name": "look", "arguments": {"path": "a"', "cut off"),
    "cut off after a name": ('{"name": "look", "arguments":', "cut off"),
    "single quotes": ("{'name': 'look', 'arguments': {'path': 'a'}}", "double quotes"),
    "trailing comma": ('{"name": "look", "arguments": {"path": "a",}}', "comma before the closing bracket"),
    "trailing comma in a list": ('{"name": "write", "arguments": {"items": [1, 2,]}}', "comma before the closing"),
    "unescaped quotes": ('{"name": "write", "arguments": {"text": "He said "hello" to me"}}', "delimiter"),
    "missing comma": ('{"name": "look", "arguments": {"path": "ls" "n": 1}}', "delimiter"),
    "Python's True": ('{"name": "look", "arguments": {"n": True}}', "JSON writes true"),
    "Python's None": ('{"name": "look", "arguments": {"n": None}}', "JSON writes null"),
    "NaN": ('{"name": "look", "arguments": {"n": NaN}}', "NaN is no JSON number"),
    "a comment": ('{"name": "look", "arguments": {"n": 1 /* one */}}', "delimiter"),
    "arguments as text": ('{"name": "look", "arguments": "{\\"path\\": 1}"}', "must be an object, not text"),
    "arguments as a list": ('{"name": "look", "arguments": ["a"]}', "must be an object, not list"),
    "arguments null": ('{"name": "look", "arguments": null}', "must be an object, not null"),
    "no name": ('{"arguments": {"path": "a"}}', '"name" is missing'),
    "a name that is none": ('{"name": 7, "arguments": {"path": "a"}}', '"name" must be the name of a tool'),
    "nested too deeply": ('{"name": "look", "arguments": {"n": ' + "[" * 50_000 + "]" * 50_000 + "}}", "deeply"),
    "a huge number": ('{"name": "look", "arguments": {"n": ' + "9" * 5000 + "}}", "digits"),
}  # fmt: skip


@pytest.mark.parametrize("name", JSON_FORMATS)
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_call_is_an_error_that_says_what_is_wrong(name, kind):
    body, says = MALFORMED[kind]
    says = says.replace('"arguments"', '"parameters"') if name == "llama3" else says
    text = f"<tool_call>\n{body}" if kind.startswith("cut") and name == "hermes" else wrap(name, body)
    if kind.startswith("cut"):
        text = text.removesuffix("]").removesuffix("\n```")
    parsed = parse(name, text)
    assert parsed.calls == ()
    assert len(parsed.errors) == 1 and says in parsed.errors[0], parsed.errors
    assert parsed.content == text  # it stays as it is written


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_raw_line_breaks_in_texts_are_taken(name):
    parsed = parse(name, wrap(name, '{"name": "write", "arguments": {"text": "line1\nline2\ttab"}}'))
    assert calls(parsed) == [("write", {"text": "line1\nline2\ttab"})]
    assert parsed.errors == ()


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_several_calls_and_text_around(name):
    parsed = parse(name, f"First I look.\n\n{wrap(name, LOOK, LOOK.replace('look', 'write'))}")
    assert [one.name for one in parsed.calls] == ["look", "write"]
    assert (parsed.content, parsed.errors) == ("First I look.", ())
    if name != "mistral":
        after = parse(name, f"First.\n{wrap(name, LOOK)}\nThen I wait.")
        assert len(after.calls) == 1
        assert "First." in after.content and "Then I wait." in after.content and "look" not in after.content


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_one_bad_call_among_good_ones(name):
    text = f"{wrap(name, LOOK)}\n{wrap(name, MALFORMED['single quotes'][0])}"
    parsed = parse(name, text)
    assert len(parsed.calls) == 1 and len(parsed.errors) == 1


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_wrong_names_and_types_are_for_the_environment_to_answer(name):
    parsed = parse(name, wrap(name, '{"name": "lokk", "arguments": {"path": 5, "🎉": "你好"}}'))
    assert calls(parsed) == [("lokk", {"path": 5, "🎉": "你好"})]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_braces_and_fences_inside_texts(name):
    command = {"command": "mkdir -p test/{test1,test2\n```\n}}</tool_call> [TOOL_CALLS] ```"}
    body = json.dumps({"name": "run", "arguments": command})
    parsed = parse(name, wrap(name, body))
    assert calls(parsed) == [("run", command)] and parsed.errors == ()


def good(name):
    if name == "qwen_xml":
        return xml(path="a")
    if name == "openai":
        return json.dumps({"tool_calls": [to_openai(call(path="a"))]})
    return wrap(name, LOOK)


@pytest.mark.parametrize("name", NAMES)
def test_calls_inside_thinking_do_not_count(name):
    one = good(name)
    for thought in (f"<think>\nI could {one}\nor not.</think>\n", f"<think>{one}{one[: len(one) // 2]}</think>"):
        assert parse(name, f"{thought}No.") == parse(name, f"{thought}No.", thinking=False)
        assert (parse(name, f"{thought}No.").calls, parse(name, f"{thought}No.").errors) == ((), ())
        parsed = parse(name, thought + one)
        assert calls(parsed) == [("look", {"path": "a"})] and parsed.errors == ()
        assert parsed.content == thought.strip()
        opened = thought.removeprefix("<think>")  # by the prompt
        parsed = parse(name, opened + one, thinking=True)
        assert calls(parsed) == [("look", {"path": "a"})] and parsed.errors == ()
    unfinished = parse(name, f"<think>I could {one}")
    assert (unfinished.calls, unfinished.errors) == ((), ())
    unfinished = parse(name, f"I could {one}", thinking=True)
    assert unfinished.calls == () and "thinking was cut off" in unfinished.errors[0]


@pytest.mark.parametrize("name", ["hermes", "qwen_xml", "llama3", "mistral"])
def test_thinking_that_nobody_opened_ends_all_the_same(name):
    parsed = parse(name, f"I could {good(name)}\n</think>\n{good(name)}")
    assert len(parsed.calls) == 1 and parsed.errors == ()


@pytest.mark.parametrize("name", ["hermes", "qwen_xml", "json", "llama3", "mistral"])
@pytest.mark.parametrize("mark", ["<tool_response>", "[TOOL_RESULTS]", "<|start_header_id|>ipython"])
def test_invented_results_are_text_and_end_the_reading(name, mark):
    one = good(name)
    text = f"{one}\n{mark}\nrm is safe\n</tool_response>\n{good(name)}\nSo the answer is 5."
    parsed = parse(name, text)
    assert len(parsed.calls) == 1
    assert len(parsed.errors) == 1 and "results come from the environment" in parsed.errors[0]
    inside = parse(name, f"{mark}{one}</tool_response>")
    assert inside.calls == ()
    named = parse(name, f"Results stand in {mark}.")
    assert (named.calls, named.errors) == ((), ())


@pytest.mark.parametrize("name", NAMES)
def test_surrogates_do_no_harm(name):
    one = good(name).replace('"a"', '"\\ud800\udfff"').replace("\na\n", "\n\ud800\n")
    parsed = parse(name, f"\ud800\n{one}" if name != "openai" else one)
    for text in (parsed.content, *(one.arguments for one in parsed.calls), *parsed.errors):
        text.encode()
    assert len(parsed.calls) == 1


def test_hermes_details():
    assert parse("hermes", f"<tool_call>{LOOK}").calls  # nothing after it: it is whole
    assert len(parse("hermes", f"<tool_call>{LOOK}<tool_call>{LOOK}").calls) == 2
    for text, says in (
        (f"<tool_call>{LOOK}}}</tool_call>", "something follows"),
        (f"<tool_call>[{LOOK}]</tool_call>", "must be an object"),
        ('<tool_call>look(path="a")</tool_call>', "is no JSON object"),
        (f"<tool_call>\n```json\n{LOOK}\n```\n</tool_call>", "is no JSON object"),
        ("I look.\n<tool_call>\n", "cut off"),
        ("<tool_call>{}</tool_call>", '"name" is missing'),
        ('<tool_call>{"name": "look", "parameters": {"path": "a"}}</tool_call>', '"arguments" is missing; there is "param'),
        ('<tool_call>{"name": "look", "path": "a"}</tool_call>', '"arguments" is missing; there is "path"'),
    ):  # fmt: skip
        parsed = parse("hermes", text)
        assert parsed.calls == () and len(parsed.errors) == 1 and says in parsed.errors[0], (text, parsed)
    assert calls(parse("hermes", '<tool_call>{"name": "look"}</tool_call>')) == [("look", {})]


def test_what_looks_like_a_call_inside_a_malformed_one_is_data():
    text = f"<tool_call>{{'name': 'write', 'arguments': {{'text': '<tool_call>{LOOK}</tool_call>'}}}}</tool_call>"
    parsed = parse("hermes", text)
    assert parsed.calls == () and len(parsed.errors) == 1


def test_json_details():
    assert calls(parse("json", LOOK)) == [("look", {"path": "a"})]
    assert calls(parse("json", f"<think>hm</think>\n{LOOK}\n")) == [("look", {"path": "a"})]
    assert len(parse("json", f"```json\n[{LOOK}, {LOOK}]\n```").calls) == 2
    assert len(parse("json", f"[{LOOK}, {LOOK}]").calls) == 2
    assert calls(parse("json", f"```\n{LOOK}\n```")) == [("look", {"path": "a"})]
    assert calls(parse("json", f"```tool_call\n{LOOK}")) == [("look", {"path": "a"})]
    assert parse("json", "```json\n" + LOOK + " and more\n```").errors
    assert parse("json", f"````md\n```json\n{LOOK}\n```\n````").errors == ()
    assert calls(parse("json", '```json\n{"name": "look"}\n```')) == [("look", {})]


def test_llama_details():
    assert calls(parse("llama3", f"<|python_tag|>{LOOK}")) == [("look", {"path": "a"})]
    assert calls(parse("llama3", '{"type": "function", "name": "look", "parameters": {"n": 1}}')) == [
        ("look", {"n": 1})
    ]
    wrapped = '{"type": "function", "function": {"name": "look", "parameters": {"n": 1}}}'
    assert calls(parse("llama3", wrapped)) == [("look", {"n": 1})]
    assert calls(parse("llama3", '{"function": "look", "parameters": {"n": 1}}')) == [("look", {"n": 1})]
    assert calls(parse("llama3", '{"name": "look"}')) == [("look", {})]
    assert "no JSON object" in parse("llama3", "<|python_tag|>look.call(path=1)").errors[0]
    assert "cut off" in parse("llama3", "<|python_tag|>").errors[0]


def test_mistral_details():
    for text in (
        '[TOOL_CALLS]look[ARGS]{"path": "a"}',
        '[TOOL_CALLS]look{"path": "a"}',
        '[TOOL_CALLS]look[CALL_ID]abc123def[ARGS]{"path": "a"}',
        '[TOOL_CALLS] [{"name": "look", "arguments": {"path": "a"}, "id": "abc123def"}]',
    ):
        parsed = parse("mistral", text)
        assert calls(parsed) == [("look", {"path": "a"})] and parsed.errors == (), text
        assert len(parsed.calls[0].id) == 9 and parsed.calls[0].id.isalnum()
    two = parse("mistral", 'I look.[TOOL_CALLS]look[ARGS]{"n": 1}[TOOL_CALLS]look[ARGS]{"n": 2}')
    assert calls(two) == [("look", {"n": 1}), ("look", {"n": 2})] and two.content == "I look."
    for text, says in (
        ("[TOOL_CALLS]", "cut off"),
        ("[TOOL_CALLS]look[ARGS]", "cut off"),
        ("[TOOL_CALLS]look[ARGS]path=1", "no JSON object follows [ARGS]"),
        ('[TOOL_CALLS]look[ARGS]{"path": "a', "cut off"),
    ):
        assert says in parse("mistral", text).errors[0]


def test_openai_messages_keep_arguments_byte_for_byte():
    arguments = '{"command":"grep -A 30 \\"sandbox\\" || echo \\"x\\"","timeout":10}'
    message = {"content": None, "tool_calls": [{"id": "c1", "function": {"name": "run", "arguments": arguments}}]}
    parsed = from_openai(message)
    assert parsed.calls == (ToolCall(id="c1", name="run", arguments=arguments),)
    broken = '{"cmd": "ls" "x": 1}'
    message["tool_calls"][0]["function"]["arguments"] = broken
    assert from_openai(message).calls[0].arguments == broken  # the environment answers it, under its id
    said = json.dumps({**message, "content": "I run."})
    parsed = parse("openai", said)
    assert parsed.content == "I run." and parsed.calls[0].arguments == broken


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": [{"type": "text", "text": "a"}, {"type": "image"}, 3]},
        {"tool_calls": [{}]},
        {"tool_calls": [None]},
        {"tool_calls": {"function": {"name": 3}}},
        {"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"tool_calls": [{"function": {"name": "f", "arguments": None}}]},
        {"tool_calls": "f"},
    ],
)
def test_odd_openai_messages_raise_nothing(message):
    parsed = from_openai(message)
    assert len(parsed.calls) + len(parsed.errors) == (1 if "tool_calls" in message else 0)


def test_xml_values_are_typed_by_the_schema():
    parsed = parse("qwen_xml", xml(path="5", n="5"))
    assert calls(parsed) == [("look", {"path": "5", "n": 5})]
    parsed = parse("qwen_xml", xml("write", text='{"a": 1}', items="[1, 2]"))
    assert calls(parsed) == [("write", {"text": '{"a": 1}', "items": [1, 2]})]
    assert calls(parse("qwen_xml", xml("unknown", a="True", b="null", c="x y", d="1.5"))) == [
        ("unknown", {"a": True, "b": None, "c": "x y", "d": 1.5})
    ]
    assert calls(parse("qwen_xml", xml(n="many"))) == [("look", {"n": "many"})]  # the tool refuses it
    text = "\n  indented\n\n"
    assert calls(parse("qwen_xml", xml("write", text=text))) == [("write", {"text": text})]


def test_xml_values_are_never_evaluated(tmp_path):
    spoilt = tmp_path / "spoilt"
    attack = f'__import__("os").system("touch {spoilt}")'
    assert calls(parse("qwen_xml", xml("write", items=attack))) == [("write", {"items": attack})]
    assert not spoilt.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<tool_call>\n<function=look>\n<parameter=path>\na", "cut off"),
        ("<tool_call>\n<function=look>\n<parameter=path>\na\n</parameter>\n", "cut off"),
        ("<tool_call>\n", "cut off"),
        ("<tool_call>\n<function=look>\n<parameter=path>\na\n</parameter>\n</tool_call>", "</function> is missing"),
        ("<tool_call>\n<function=look>\n<parameter=path>\na\n</function>\n</tool_call>", "cut off"),
        (
            "<tool_call>\n<function=look>\n<parameter=path>\na\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
            "'path' is not closed",
        ),
        ("<tool_call>\n<function=look>\npath=a\n</function>\n</tool_call>", "stands outside"),
        (f"<tool_call>\n{LOOK}\n</tool_call>", "no <function=NAME>"),
        (xml(path="a").replace("</function>", "<parameter=path>\nb\n</parameter>\n</function>"), "there twice"),
    ],
)
def test_malformed_xml_is_an_error_that_says_what_is_wrong(text, says):
    parsed = parse("qwen_xml", text)
    assert parsed.calls == () and len(parsed.errors) == 1 and says in parsed.errors[0], parsed
    assert parsed.content == text


def test_xml_details():
    text = xml(path="a </parameter> b <parameter=x> </function> c")
    assert calls(parse("qwen_xml", text)) == [("look", {"path": "a </parameter> b <parameter=x> </function> c"})]
    bare = xml(path="a").removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert calls(parse("qwen_xml", f"I look.\n{bare}")) == [("look", {"path": "a"})]
    parsed = parse("qwen_xml", f"First.\n{xml(path='a')}\n{xml(n=2)}\nThen.")
    assert len(parsed.calls) == 2 and "First." in parsed.content and "function" not in parsed.content
    assert calls(parse("qwen_xml", xml())) == [("look", {})]


# Anything at all: no exception, linear time.

PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|python_tag|>", "```json\n", "\n```\n", "```", '{"name": "look", "arguments": {"path": "a"}}', '{"name": "look"',
    '"arguments": {', '"parameters": {', "{", "}", "[", "]", '"', "'", "\\", ",", ":", ";", "\n", " ", "look",
    "<function=look>", "</function>", "<parameter=path>", "</parameter>", "null", "NaN", "1e999", "é", "\ud800",
    '{"tool_calls": [', '{"function": {"name": "look", "arguments": "{}"}}', "[TOOL_RESULTS]", "\x00", "<function=",
]  # fmt: skip
ANYTHING = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40).map("".join)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ANYTHING, thinking=st.booleans())
def test_parsing_anything_raises_nothing(name, text, thinking):
    parsed = parse(name, text, thinking=thinking)
    parsed.content.encode()
    for one in parsed.calls:
        assert one.name and one.id and one.arguments.encode()
        assert isinstance(json.loads(one.arguments, strict=False), dict)
    assert len(parsed.errors) <= MAX_ERRORS + 2
    if not parsed.calls and "\ud800" not in text:
        assert parsed.content == text


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(
    arguments=st.dictionaries(
        st.text(st.characters(exclude_characters="<>\n", exclude_categories=("Cs",)), min_size=1).filter(str.strip),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.integers() | st.booleans() | st.none(),
        max_size=4,
    ),
    said=st.text("ab .\n", max_size=10),
)
def test_any_arguments_survive_the_way_there_and_back(name, arguments, said):
    if name == "qwen_xml":  # keys stand between marks, and values are text
        arguments = {key.strip(): str(value) for key, value in arguments.items()}
        tool = ToolSpec(name="f", parameters={"properties": dict.fromkeys(arguments, TEXT)})
    else:
        tool = ToolSpec(name="f")
    written = Message(
        role="assistant", content="" if name == "openai" else said.strip(), tool_calls=(call("f", **arguments),)
    )
    parsed = make_format(name).parse(make_format(name).render(written), (tool,))
    if name == "qwen_xml" and any("</parameter>" in value for value in arguments.values()):
        return
    assert parsed.errors == ()
    assert calls(parsed) == [("f", arguments)]
    assert parsed.content == written.content


@pytest.mark.parametrize("name", NAMES)
def test_parsing_takes_linear_time(name):
    """Four times the text takes four times as long, or is done in no time."""
    patterns = [
        *PIECES, "<tool_call>{", '<tool_call>{"a":', '<tool_call>{"name": "look", "arguments": {"a": "', "<tool_call>[",
        '{"name": [', '{"name":"', '<function=look><parameter=path>', "<parameter=path></parameter>", "[TOOL_CALLS]x{",
        '[TOOL_CALLS][{"name":"', "```json\n{\"name\":\n", '{"name": "x", "parameters": ', "<think></think>", "{ ", "```\n",
        "<|python_tag|>{", '[TOOL_CALLS]x[ARGS]{"a":', "</parameter>\n</parameter ", "[TOOL_CALLS]" + "x" * 200, '["',
        '}}</think>{"\\"', "<tool_call>a</tool_call>", '{"name": "look", "arguments": {}}', "<tool_call><function=look></function>", '\\"',
    ]  # fmt: skip
    for pattern in patterns:
        for before in (
            "",
            "<tool_call><function=look><parameter=path>",
            '<tool_call>{"name": "',
            "[TOOL_CALLS][",
            "</think>{",
        ):
            text = before + pattern * (80_000 // len(pattern))
            if seconds(name, text, 1) > 0.05:
                assert seconds(name, text, 3) < 10 * seconds(name, text[:20_000], 3), (before, pattern)


def seconds(name, text, tries):
    """The least processor time of some tries."""
    took = []
    for _ in range(tries):
        began = time.process_time()
        parse(name, text)
        took.append(time.process_time() - began)
    return min(took)


def test_templates_say_which_format():
    assert detect("... <tool_call>\n<function=example>\n<parameter=a> ...", True) == "qwen_xml"
    assert detect('... <tool_call>\n{"name": ...', True) == "hermes"
    assert detect("{{ '[TOOL_CALLS]' }}", True) == "mistral"
    assert detect("{{ '<|python_tag|>' }} Environment: ipython", True) == "llama3"
    assert detect("{{ tools | tojson }}", True) == "json"
    assert detect("{{ messages }}", False) == "hermes"
