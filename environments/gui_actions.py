"""The actions on a page: what is offered, and how a policy writes one.

An action comes as a tool call or as one line in an ```action block, both checked against the same table. What is typed
is data: the last text of a line runs to the end of the block, as it stands or as a JSON string.

    ```action
    fill e7 Jane Doe
    ```
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

from agentgym.registry import nearest
from agentgym.types import Message, Struct, ToolCall, ToolSpec

Kind = Literal["ref", "text", "word", "integer"]
SPACES = ("refs", "coordinates", "all")
TAGS = ("action", "actions", "text", "plaintext", "")
NO_ACTION = "no action"
MAX_TEXT = 20_000  # characters of one argument
REF = re.compile(r"(?:f\d+)?e\d+")
FENCED = re.compile(r"^ {0,3}```[ \t]*([\w-]*)[ \t]*\n(.*?)^ {0,3}```[ \t]*$", re.DOTALL | re.MULTILINE)


class Param(NamedTuple):
    """One argument of an action."""

    name: str
    kind: Kind
    description: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    low: int = 0
    high: int = 1000


class Spec(NamedTuple):
    """One action on offer."""

    name: str
    description: str
    params: tuple[Param, ...] = ()
    space: str = "all"  # "refs" and "coordinates": offered in that one only

    @property
    def usage(self) -> str:
        """How it is written in a block."""
        return " ".join([self.name, *(f"[{p.name}]" if p.optional else p.name.upper() for p in self.params)])

    def tool(self) -> ToolSpec:
        """The action as a tool."""
        properties = {param.name: _schema(param) for param in self.params}
        schema = {
            "type": "object",
            "properties": properties,
            "required": [param.name for param in self.params if not param.optional],
            "additionalProperties": False,
        }
        return ToolSpec(name=self.name, description=self.description, parameters=schema)


class Action(Struct, frozen=True, kw_only=True):
    """One checked action."""

    name: str
    arguments: dict[str, Any] = {}

    def block(self) -> str:
        """The action as a message writes it."""
        params = SPECS[self.name].params
        words = [_word(p, self.arguments[p.name], p is params[-1]) for p in params if p.name in self.arguments]
        return "```action\n" + " ".join([self.name, *words]) + "\n```"

    def call(self, id: str) -> ToolCall:
        """The action as a tool call."""
        return ToolCall(id=id, name=self.name, arguments=json.dumps(self.arguments, ensure_ascii=False))


class Malformed(Exception):
    """A message that holds no usable action: the policy is told why."""


_REF = Param("ref", "ref", "of the element, such as e5")
_BUTTON = Param("button", "word", "left by default", ("left", "right", "middle"), optional=True)
_XY = (Param("x", "integer", "0 (left) to 1000 (right)"), Param("y", "integer", "0 (top) to 1000 (bottom)"))
_WAY = Param("direction", "word", "which way", ("down", "up", "right", "left"))
_TEXT = Param("text", "text", "as it is to be written")

REFS = (
    Spec("click", "Click an element.", (_REF, _BUTTON), "refs"),
    Spec("double_click", "Double-click an element.", (_REF,), "refs"),
    Spec("fill", "Write text into a field, in place of what is in it.", (_REF, _TEXT), "refs"),
    Spec("select", "Choose an option of a list; where several can be chosen, one more or less.", (_REF, Param("option", "text", "its label")), "refs"),
    Spec("hover", "Move the pointer over an element.", (_REF,), "refs"),
    Spec("drag", "Drag an element onto another one.", (_REF, Param("to", "ref", "where to")), "refs"),
    Spec(
        "scroll", "Scroll the page, or an element, by most of what is visible.",
        (_WAY, Param("ref", "ref", "the whole page by default", optional=True)), "refs",
    ),
)  # fmt: skip
COORDINATES = (
    Spec("click_at", "Click at a point.", (*_XY, _BUTTON), "coordinates"),
    Spec("double_click_at", "Double-click at a point.", _XY, "coordinates"),
    Spec("triple_click_at", "Click three times at a point, which selects a paragraph.", _XY, "coordinates"),
    Spec("move_to", "Move the pointer to a point.", _XY, "coordinates"),
    Spec(
        "drag_to", "Drag from one point to another.",
        (*_XY, Param("to_x", "integer", "0 to 1000"), Param("to_y", "integer", "0 to 1000")), "coordinates",
    ),
    Spec(
        "scroll_at", "Turn the wheel at a point.",
        (*_XY, _WAY, Param("amount", "integer", "in thousandths of the view; 500 by default", optional=True, low=1)),
        "coordinates",
    ),
)  # fmt: skip
COMMON = (
    Spec("type", "Type text where the cursor is.", (_TEXT,)),
    Spec("press", "Press a key or a chord, such as Enter, Control+a or Shift+Tab.", (Param("keys", "text"),)),
    Spec("back", "Go back to the page before."),
    Spec("goto", "Open an address.", (Param("url", "text"),)),
    Spec("tab", "Show another tab.", (Param("number", "integer", "from 1", low=1),)),
    Spec("close_tab", "Close the tab that is shown."),
    Spec("wait", "Do nothing for a second."),
    Spec("upload", "Choose a file for the field that asked for one.", (Param("file", "text", "its name"),)),
    Spec(
        "dialog", "Answer the dialog that is open.",
        (Param("answer", "word", "", ("accept", "dismiss")), Param("text", "text", "for a prompt", optional=True)),
    ),
    Spec("answer", "End the work, with an answer to the user.", (_TEXT,)),
)  # fmt: skip
SPECS = {spec.name: spec for spec in (*REFS, *COORDINATES, *COMMON)}


def offered(space: str, without: frozenset[str] = frozenset()) -> dict[str, Spec]:
    """The actions of a space, by name."""
    return {n: s for n, s in SPECS.items() if s.space in ("all", space) or space == "all" if n not in without}


def read(message: Message, specs: dict[str, Spec]) -> Action:
    """The one action of a message: its first tool call, else its block. Raises Malformed."""
    if message.tool_calls:
        return from_call(message.tool_calls[0], specs)
    return from_text(message.content, specs)


def from_call(call: ToolCall, specs: dict[str, Spec]) -> Action:
    """A tool call as an action. Raises Malformed."""
    spec = _spec(call.name, specs)
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the arguments of {call.name} are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments of {call.name} are not a JSON object")
    return _checked(spec, arguments)


def from_text(text: str, specs: dict[str, Spec]) -> Action:
    """The action in the one block of `text`, or in its only line. Raises Malformed."""
    blocks = [(tag.lower(), body) for tag, body in FENCED.findall(text)]
    if len(blocks) > 1:
        raise Malformed(f"there are {len(blocks)} blocks")
    if blocks:
        tag, body = blocks[0]
        if tag not in TAGS:
            raise Malformed(f"the block is {tag}, not action")
        return _from_line(body, specs)
    if "```" in text:
        raise Malformed("the block is not closed, or does not stand on lines of its own")
    line = text.strip()
    if "\n" not in line and line.split(" ")[0] in specs and _is_line(line, specs):
        return _from_line(line, specs)
    raise Malformed(NO_ACTION)


def _is_line(line: str, specs: dict[str, Spec]) -> bool:
    """Whether a bare line is an action and no sentence that begins like one."""
    try:
        return bool(_from_line(line, specs))
    except Malformed:
        return False


def _from_line(body: str, specs: dict[str, Spec]) -> Action:
    if not body.strip():
        raise Malformed("the block is empty")
    name, rest = _split(body.strip())
    spec = _spec(name, specs)
    if "\n" in body.strip() and not (spec.params and spec.params[-1].kind == "text"):
        raise Malformed("there is more than one line: write one action")
    arguments: dict[str, Any] = {}
    for param in spec.params:
        if not rest:
            break
        if param.kind == "text" and param is spec.params[-1]:
            value, rest = _unquote(rest), ""
        else:
            value, rest = _split(rest)
        arguments[param.name] = value
    if rest:
        raise Malformed(f"too much: {rest[:60]!r}; it is written {spec.usage!r}")
    return _checked(spec, arguments)


def _split(text: str) -> tuple[str, str]:
    """The first word, which may be a JSON string, and the rest."""
    if text.startswith('"'):
        try:
            value, end = json.JSONDecoder().raw_decode(text)
            return str(value), text[end:].lstrip()
        except ValueError:
            pass
    first, _, rest = text.partition(" ") if "\n" not in text.split(" ")[0] else text.partition("\n")
    return first, rest.lstrip(" ")


def _unquote(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text


def _spec(name: str, specs: dict[str, Spec]) -> Spec:
    if name in specs:
        return specs[name]
    raise Malformed(f"there is no action {name[:40]!r}{nearest(name, specs)}; there are {', '.join(specs)}")


def _checked(spec: Spec, arguments: dict[str, Any]) -> Action:
    known = {param.name: param for param in spec.params}
    if unknown := [name for name in arguments if name not in known]:
        raise Malformed(f"{spec.name} takes no {unknown[0][:40]!r}; it is written {spec.usage!r}")
    given = {name: value for name, value in arguments.items() if value is not None or not known[name].optional}
    if missing := [p.name for p in spec.params if not p.optional and p.name not in given]:
        raise Malformed(f"{spec.name} needs {missing[0]}; it is written {spec.usage!r}")
    return Action(name=spec.name, arguments={name: _value(spec, known[name], value) for name, value in given.items()})


def _value(spec: Spec, param: Param, value: Any) -> Any:
    wrong = f"{param.name} of {spec.name}"
    if param.kind == "integer":
        number = float(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,6}", value.strip()) else value
        if isinstance(number, bool) or not isinstance(number, int | float) or number != number // 1:
            raise Malformed(f"{wrong} is an integer, not {str(value)[:40]!r}")
        if not param.low <= number <= param.high:
            raise Malformed(f"{wrong} is from {param.low} to {param.high}, not {int(number)}")
        return int(number)
    if not isinstance(value, str):
        raise Malformed(f"{wrong} is text, not {str(value)[:40]!r}")
    if len(value) > MAX_TEXT:
        raise Malformed(f"{wrong} is too long: {len(value)} characters, at most {MAX_TEXT}")
    if param.kind == "ref":
        bare = value.strip().strip("[]@").removeprefix("ref=")
        if not REF.fullmatch(bare):
            raise Malformed(f"{wrong} is a ref such as e5, not {value[:40]!r}")
        return bare
    if param.choices and value not in param.choices:
        raise Malformed(f"{wrong} is one of {', '.join(param.choices)}, not {value[:40]!r}")
    return value


def _schema(param: Param) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer" if param.kind == "integer" else "string"}
    if param.kind == "integer":
        schema |= {"minimum": param.low, "maximum": param.high}
    if param.choices:
        schema["enum"] = list(param.choices)
    return schema | ({"description": param.description} if param.description else {})


def _word(param: Param, value: Any, last: bool) -> str:
    text = str(value)
    plain = (" " not in text or (last and param.kind == "text")) and "\n" not in text and text == text.strip()
    return text if text and plain and not text.startswith('"') and "```" not in text else json.dumps(text)
