"""What clients send, as OpenAI has it: checked once, into structs. Unknown fields are ignored, as OpenAI's clients expect."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentgym.gateway.problems import Problem, invalid, unsupported
from agentgym.gateway.records import Attachment
from agentgym.types import Message, Role, Sampling, ToolCall, ToolSpec

ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
    "function": "tool",
}  # fmt: skip
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
IMAGE = "[image]"  # what a model of text is shown in an image's place
MAX_STOPS, MAX_CHOICES = 16, 16
PATH = re.compile(r"`\$\.?(.*)`$")

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Stop = str | Annotated[list[str], Meta(max_length=MAX_STOPS)]
JSON = dict[str, Any]


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str = "{}"


class Call(msgspec.Struct):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct):
    """A message; a content of parts is joined as the chat templates do."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[JSON] | None = None
    tool_calls: list[Call] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None


class Function(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: JSON | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct):
    function: NamedFunction
    type: Literal["function"] = "function"


class SchemaFormat(msgspec.Struct):
    schema: JSON | None = None
    name: str = ""
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Common(msgspec.Struct, kw_only=True):
    """What chat and text completions share."""

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = 1
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = 0
    stop: Stop | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = 0.0
    presence_penalty: Penalty | None = 0.0
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    metadata: JSON | None = None
    session_id: str | None = None
    turn_type: str | None = None
    session_done: bool | None = None

    def sampling(self, max_tokens: int) -> Sampling:
        """How to sample, `max_tokens` at most."""
        if any(self.logit_bias.values()) if self.logit_bias else False:
            raise unsupported("logit_bias", "is not supported by this server")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else max(self.top_p, 1e-6),
            top_k=max(0, self.top_k or 0),
            max_tokens=max_tokens,
            stop=tuple(text for text in map(clean, stops) if text),
            seed=self.seed,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
        )

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = 0
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    functions: list[Function] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    store: bool | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer, if the client says."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools on offer."""
        functions = [tool.function for tool in self.tools or ()] or self.functions or []
        if self.tool_choice == "none":
            return ()
        made = tuple(
            ToolSpec(
                name=clean(function.name), description=clean(function.description or ""),
                parameters=_clean(function.parameters or {"type": "object", "properties": {}}),
            )
            for function in functions
        )  # fmt: skip
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in [t.name for t in made]:
            raise invalid(f"tool_choice names {self.tool_choice.function.name!r}, which is not in tools", "tool_choice")
        if self.tool_choice == "required" and not made:
            raise invalid("tool_choice is 'required', and there are no tools", "tool_choice")
        return made

    def schema(self) -> JSON | None:
        """What the answer is held to: None for nothing, {} for any JSON object."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return {}
        if wanted.json_schema is None or wanted.json_schema.schema is None:
            raise invalid("response_format.json_schema.schema is missing", "response_format")
        return wanted.json_schema.schema


class CompletionRequest(Common, kw_only=True):
    """POST /v1/completions: a text or ids that are continued as they are."""

    prompt: str | Annotated[list[str | Id | list[Id]], Meta(max_length=10**6)] = ""
    suffix: str | None = None
    echo: bool | None = False
    best_of: int | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class FeedbackRequest(msgspec.Struct, kw_only=True):
    """POST /v1/feedback: about an answer, by its id; the later wins."""

    completion_id: Annotated[str, Meta(min_length=1, max_length=200)]
    thumb: Literal["up", "down"] | None = None
    score: Annotated[float, Meta(ge=-1, le=1)] | None = None
    text: Annotated[str, Meta(max_length=20_000)] = ""
    correction: Annotated[str, Meta(max_length=100_000)] = ""


def read(body: bytes, kind: Any) -> Any:
    """The body as a struct of `kind`.

    Raises:
        Problem: it is no JSON in UTF-8, or something in it is wrong: which, the message and `param` say.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        found = PATH.search(text)
        param = found[1] if found else None
        if "missing required field" in text:
            name = text.split("`")[1]
            param = f"{param}.{name}" if param else name
            raise Problem(
                f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
            ) from None
        code = "invalid_type" if text.startswith("Expected `") and "got `" in text else "invalid_value"
        raise Problem(f"Invalid request: {text}", param=param or None, code=code) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(
            f"We could not parse the JSON body of your request: {str(error)[:200]}", code="invalid_json"
        ) from None


def conversation(given: list[ChatMessage]) -> tuple[tuple[Message, ...], tuple[Attachment, ...]]:
    """The messages and their images.

    Raises:
        Problem: a part of a kind that is not served, a tool result without its call.
    """
    messages: list[Message] = []
    images: list[Attachment] = []
    called: set[str] = set()
    for place, item in enumerate(given):
        where = f"messages[{place}]"
        calls = _calls(item, where, place)
        if item.role == "assistant":
            called |= {call.id for call in calls}
        elif item.role == "tool":
            if item.tool_call_id is None:
                raise invalid(f"{where}: a message with role 'tool' needs a tool_call_id", f"{where}.tool_call_id")
            if item.tool_call_id not in called:
                text = f"{where}: messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
                raise invalid(text, f"{where}.tool_call_id")
        elif item.content is None and item.role != "function":
            raise invalid(f"{where}: a message with role '{item.role}' needs content", f"{where}.content")
        messages.append(
            Message(
                role=ROLES[item.role], content=_content(item, place, images), tool_calls=calls,
                tool_call_id=item.tool_call_id, name=clean(item.name) if item.name else None,
            )
        )  # fmt: skip
    return tuple(messages), tuple(images)


def clean(text: str) -> str:
    """Text that can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def plain(text: str) -> str:
    """A name in one line that a header can carry."""
    return "".join(character if character.isprintable() else " " for character in clean(text)).strip()


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _calls(item: ChatMessage, where: str, place: int) -> tuple[ToolCall, ...]:
    if item.role != "assistant":
        return ()
    given = list(item.tool_calls or ())
    if item.function_call is not None:
        given.append(Call(function=item.function_call))
    return tuple(
        ToolCall(
            id=call.id or f"call_{place}_{n}", name=clean(call.function.name), arguments=clean(call.function.arguments)
        )
        for n, call in enumerate(given)
    )


def _content(item: ChatMessage, place: int, images: list[Attachment]) -> str:
    if item.content is None or isinstance(item.content, str):
        return clean(item.content or "")
    texts = []
    for number, part in enumerate(item.content):
        kind, where = part.get("type"), f"messages[{place}].content[{number}]"
        if kind in TEXT_PARTS:
            text = part.get("refusal" if kind == "refusal" else "text")
            if not isinstance(text, str):
                raise invalid(f"{where}: a part of type '{kind}' needs its text", where)
            texts.append(clean(text))
        elif kind in ("image_url", "input_image"):
            images.append(_image(part, place, where))
            texts.append(IMAGE)
        else:
            raise invalid(f"{where}: parts of type {str(kind)[:40]!r} are not served", where, "unsupported_content")
    return "\n".join(texts)


def _image(part: JSON, place: int, where: str) -> Attachment:
    found = part.get("image_url")
    url, detail = (found.get("url"), found.get("detail")) if isinstance(found, dict) else (found, part.get("detail"))
    if not isinstance(url, str) or not url.startswith(("data:image/", "http://", "https://")):
        raise invalid(f"{where}: an image needs a URL that begins with https:// or data:image/", where)
    return Attachment(message=place, url=clean(url), detail=detail if isinstance(detail, str) else "")
