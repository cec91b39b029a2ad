"""POST /v1/responses, the subset that agents use: text, images as they come, function tools, earlier responses, streams.

A request becomes a chat request; its answer is told as items: reasoning, one message, function calls.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from agentgym.errors import AgentgymError
from agentgym.gateway.answers import usage
from agentgym.gateway.asking import Asking, Event
from agentgym.gateway.chatting import accounted, begun, engine_failed, facts, gathered, turn_headers
from agentgym.gateway.problems import invalid, not_found, unsupported
from agentgym.gateway.requests import (
    JSON,
    Call,
    ChatMessage,
    ChatRequest,
    Count,
    Function,
    FunctionCall,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    SchemaFormat,
    Tool,
    read,
)
from agentgym.gateway.service import Gateway
from agentgym.gateway.wires import EventStream, as_json, event, unless_gone
from agentgym.types import Message, ToolCall

ROLES = ("user", "assistant", "system", "developer")


class TextFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: JSON | None = None
    name: str = ""


class TextOptions(msgspec.Struct):
    format: TextFormat | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """What clients of the Responses API send."""

    model: Annotated[str, Meta(min_length=1)]
    input: Annotated[str, Meta(min_length=1)] | Annotated[list[JSON], Meta(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[JSON] | None = None
    tool_choice: Literal["none", "auto", "required"] | JSON | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stream: bool | None = False
    text: TextOptions | None = None
    background: bool | None = None
    metadata: JSON | None = None
    user: str | None = None


async def respond(gateway: Gateway, request: Request, body: bytes, user: str) -> Response:
    """Answer a request, whole or streamed."""
    asked: ResponsesRequest = read(body, ResponsesRequest)
    if asked.background:
        raise unsupported("background", "is not supported by this server")
    earlier = await _earlier(gateway, asked.previous_response_id, user)
    chat = ChatRequest(
        model=asked.model, messages=[*_instructions(asked), *earlier, *_messages(asked.input)], tools=_tools(asked.tools),
        tool_choice=_choice(asked.tool_choice), max_completion_tokens=asked.max_output_tokens, stream=asked.stream,
        temperature=asked.temperature, top_p=asked.top_p, response_format=_format(asked.text), metadata=asked.metadata,
    )  # fmt: skip
    asking = await gateway.chat(chat, user, facts(request, chat), prefix="resp_")
    headers = turn_headers(asking)
    if not asked.stream:
        async with accounted([asking]):
            _, finish = await unless_gone(request.receive, gathered([asking]))
        gateway.delivered(asking.ask)
        told = Told(asking, asked)
        answer = asking.answers[0]
        for part in (
            Event(0, reasoning=answer.reasoning),
            Event(0, answer.content),
            Event(0, calls=tuple(answer.calls)),
        ):
            told.take(part)
        told.close()
        return as_json(told.response(finish[0]), headers=headers)
    async with accounted([asking]):
        events = await unless_gone(request.receive, begun(asking))
    stream = _events(gateway, asking, events, asked)
    return EventStream(stream, headers=headers, send_timeout_s=gateway.settings.send_timeout_s)


class Told:
    """The response so far; each step returns the events that tell it, as (name, body)."""

    def __init__(self, asking: Asking, asked: ResponsesRequest) -> None:
        self.asking, self.asked = asking, asked
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._numbers = itertools.count()

    def take(self, found: Event) -> list[dict[str, Any]]:
        """What became known."""
        made = []
        if found.reasoning:
            made += self._text("reasoning", "reasoning_text", found.reasoning)
        if found.content:
            made += self._text("message", "output_text", found.content)
        for call in found.calls:
            made += self._call(call)
        return made

    def close(self) -> list[dict[str, Any]]:
        """End the item that is being told."""
        item, self._open = self._open, None
        if item is None:
            return []
        item["status"] = "completed"
        place, part = len(self.items) - 1, item["content"][0]
        at = {"item_id": item["id"], "output_index": place, "content_index": 0}
        return [
            self._made(f"response.{part['type']}.done", **at, text=part["text"]),
            self._made("response.content_part.done", **at, part=part),
            self._made("response.output_item.done", output_index=place, item=item),
        ]

    def state(self, name: str, finish: str | None = None) -> dict[str, Any]:
        """The event that tells the whole response."""
        return self._made(name, response=self.response(finish))

    def response(self, finish: str | None) -> dict[str, Any]:
        """The response as it stands; `finish`: why it ended, if it has."""
        ask, asked = self.asking.ask, self.asked
        counted = usage([self.asking])
        cut = finish == "length"
        return {
            "id": ask.id, "object": "response", "created_at": int(ask.created), "model": asked.model,
            "status": "in_progress" if finish is None else "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None, "error": None,
            "instructions": asked.instructions, "max_output_tokens": asked.max_output_tokens, "output": self.items,
            "parallel_tool_calls": True, "previous_response_id": asked.previous_response_id,
            "temperature": ask.sampling.temperature, "top_p": ask.sampling.top_p, "tools": asked.tools or [],
            "tool_choice": asked.tool_choice or "auto", "metadata": asked.metadata or {},
            "usage": None if finish is None else {
                "input_tokens": counted["prompt_tokens"], "output_tokens": counted["completion_tokens"],
                "total_tokens": counted["total_tokens"], "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }  # fmt: skip

    def _text(self, kind: str, part_kind: str, text: str) -> list[dict[str, Any]]:
        made = []
        if self._open is None or self._open["type"] != kind:
            made += self.close()
            part: dict[str, Any] = {"type": part_kind, "text": ""} | ({"annotations": []} if kind == "message" else {})
            item: dict[str, Any] = {"id": f"{kind[:3]}_{self.asking.ask.id[5:]}_{len(self.items)}", "type": kind}
            item |= {"status": "in_progress", "content": [part]}
            item["role" if kind == "message" else "summary"] = "assistant" if kind == "message" else []
            self._open = item
            self.items.append(item)
            place = len(self.items) - 1
            made.append(self._made("response.output_item.added", output_index=place, item={**item, "content": []}))
            at = {"item_id": item["id"], "output_index": place, "content_index": 0}
            made.append(self._made("response.content_part.added", **at, part=dict(part)))
        item = self._open
        item["content"][0]["text"] += text
        at = {"item_id": item["id"], "output_index": len(self.items) - 1, "content_index": 0}
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        made.append(self._made(f"response.{part_kind}.delta", **at, delta=text, **logprobs))
        return made

    def _call(self, call: ToolCall) -> list[dict[str, Any]]:
        made = self.close()
        item = {
            "id": f"fc_{call.id.removeprefix('call_')}", "type": "function_call", "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }  # fmt: skip
        self.items.append(item)
        place = len(self.items) - 1
        begun = {**item, "arguments": "", "status": "in_progress"}
        at: dict[str, Any] = {"item_id": item["id"], "output_index": place}
        return [
            *made,
            self._made("response.output_item.added", output_index=place, item=begun),
            self._made("response.function_call_arguments.delta", **at, delta=call.arguments),
            self._made("response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments),
            self._made("response.output_item.done", output_index=place, item=item),
        ]

    def _made(self, type: str, /, **fields: Any) -> dict[str, Any]:
        return {"type": type, "sequence_number": next(self._numbers), **fields}


async def _events(
    gateway: Gateway, asking: Asking, events: AsyncGenerator[Event, None], asked: ResponsesRequest
) -> AsyncGenerator[bytes, None]:
    told, finish = Told(asking, asked), "stop"
    for name in ("response.created", "response.in_progress"):
        yield event(told.state(name), name)
    try:
        async with aclosing(events):
            async for found in events:
                finish = found.finish or finish
                for body in told.take(found):
                    yield event(body, body["type"])
    except AgentgymError as error:
        problem = engine_failed(error).body["error"]
        failed = told.state("response.failed")
        failed["response"] |= {"status": "failed", "error": {"code": "server_error", "message": problem["message"]}}
        yield event(failed, "response.failed")
        return
    for body in told.close():
        yield event(body, body["type"])
    gateway.delivered(asking.ask)
    name = "response.incomplete" if finish == "length" else "response.completed"
    yield event(told.state(name, finish), name)


def _instructions(asked: ResponsesRequest) -> list[ChatMessage]:
    return [ChatMessage(role="system", content=asked.instructions)] if asked.instructions else []


async def _earlier(gateway: Gateway, id: str | None, user: str) -> list[ChatMessage]:
    """The conversation up to and with an earlier response."""
    if id is None:
        return []
    turn = await gateway.stored(gateway.ledger.turn, id)
    if turn is None or turn.user != user:
        raise not_found(
            f"Previous response with id '{id[:100]}' not found.", "previous_response_not_found", "previous_response_id"
        )
    messages = [message for message in turn.messages if message.role != "system"]
    return [_chat_message(message) for message in [*messages, turn.completion.message]]


def _chat_message(message: Message) -> ChatMessage:
    calls = [Call(id=call.id, function=FunctionCall(call.name, call.arguments)) for call in message.tool_calls]
    return ChatMessage(
        role=message.role, content=message.content, tool_calls=calls or None, tool_call_id=message.tool_call_id
    )


def _messages(given: str | list[JSON]) -> list[ChatMessage]:
    """The input's items as messages; calls that stand together are one message's."""
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    made: list[ChatMessage] = []
    for place, item in enumerate(given):
        kind, where = item.get("type", "message"), f"input[{place}]"
        try:
            if kind == "message":
                if item.get("role") not in ROLES:
                    raise invalid(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
                made.append(msgspec.convert({"role": item["role"], "content": item.get("content")}, ChatMessage))
            elif kind == "function_call":
                call = Call(
                    id=_text(item, "call_id", where),
                    function=FunctionCall(_text(item, "name", where), _text(item, "arguments", where)),
                )
                if made and made[-1].role == "assistant":
                    made[-1].tool_calls = [*(made[-1].tool_calls or ()), call]
                else:
                    made.append(ChatMessage(role="assistant", tool_calls=[call]))
            elif kind == "function_call_output":
                output = item.get("output")
                content = msgspec.convert(
                    {"role": "tool", "content": output, "tool_call_id": item.get("call_id")}, ChatMessage
                )
                made.append(content)
            elif kind != "reasoning":  # ours is in the record of the turn
                raise invalid(f"{where}: items of type {str(kind)[:40]!r} are not served", where, "unsupported_value")
        except msgspec.ValidationError as error:
            raise invalid(f"{where}: {error}", where, "invalid_type") from None
    if not made:
        raise invalid("input holds no message", "input")
    return made


def _text(item: JSON, name: str, where: str) -> str:
    if not isinstance(item.get(name), str):
        raise invalid(f"{where}.{name} must be text", f"{where}.{name}", "invalid_type")
    return item[name]


def _tools(given: list[JSON] | None) -> list[Tool] | None:
    made = []
    for place, tool in enumerate(given or ()):
        if tool.get("type") != "function":
            raise unsupported(f"tools[{place}]", f"of type {str(tool.get('type'))[:40]!r} is not served: 'function' is")
        try:
            made.append(Tool(function=msgspec.convert(tool, Function)))
        except msgspec.ValidationError as error:
            raise invalid(f"tools[{place}]: {error}", f"tools[{place}]", "invalid_type") from None
    return made or None


def _choice(given: Any) -> Any:
    if isinstance(given, dict):
        if given.get("type") != "function" or not isinstance(given.get("name"), str):
            raise invalid("tool_choice must name a function", "tool_choice")
        return NamedTool(function=NamedFunction(given["name"]))
    return given


def _format(options: TextOptions | None) -> ResponseFormat | None:
    if options is None or options.format is None:
        return None
    wanted = options.format
    schema = SchemaFormat(schema=wanted.schema, name=wanted.name) if wanted.type == "json_schema" else None
    return ResponseFormat(type=wanted.type, json_schema=schema)
