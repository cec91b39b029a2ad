"""The OpenAPI document: request schemas are those of the structs that requests are checked against."""

from __future__ import annotations

from typing import Any

import msgspec

from agentgym import __version__
from agentgym.gateway.requests import ChatRequest, CompletionRequest, FeedbackRequest
from agentgym.gateway.responses import ResponsesRequest

REF = "#/components/schemas/{name}"
TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
EVENT: dict[str, Any] = {"type": "object", "required": ["data"], "properties": {"data": TEXT, "event": TEXT}}
OBJECT: dict[str, Any] = {"type": "object"}


def document(title: str, keys: bool) -> dict[str, Any]:
    """The whole document."""
    asked = [ChatRequest, CompletionRequest, ResponsesRequest, FeedbackRequest]
    _, schemas = msgspec.json.schema_components(asked, ref_template=REF)
    schemas |= {
        "Error": _shape(
            error=_shape(message=TEXT, type=TEXT, param={"type": ["string", "null"]}, code={"type": ["string", "null"]})
        ),
        "Usage": _shape(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT),
        "ChatCompletion": _completion("chat.completion", _shape(index=COUNT, message=OBJECT, finish_reason=TEXT)),
        "Completion": _completion("text_completion", _shape(index=COUNT, text=TEXT, finish_reason=TEXT)),
        "Response": _shape(id=TEXT, object={"const": "response"}, status=TEXT, model=TEXT, output=_list(OBJECT)),
        "Feedback": _shape(object={"const": "feedback"}, completion_id=TEXT, user=TEXT),
        "Model": _shape(id=TEXT, object={"const": "model"}, owned_by=TEXT),
        "Deleted": _shape(object=TEXT, deleted={"const": True}, turns=COUNT),
    }
    session = [_parameter("id", "path")]
    pages = [
        _parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000}),
        _parameter("before", "query", {"type": "number"}),
    ]
    paths = {
        "/v1/chat/completions": {
            "post": _asks("Answer a conversation", "ChatRequest", "ChatCompletion", stream=True),
            "get": _gets("Your completions", _list_of("ChatCompletion"), pages[:1], refused=True),
        },
        "/v1/chat/completions/{id}": {
            "get": _gets("A completion that was kept", _ref("ChatCompletion"), session, missing=True),
            "delete": _gets("Erase a completion", _shape(id=TEXT, object=TEXT, deleted={"const": True}), session, missing=True),
        },
        "/v1/chat/completions/{id}/messages": {"get": _gets("Its messages", _list_of(), session, missing=True)},
        "/v1/completions": {"post": _asks("Continue a text", "CompletionRequest", "Completion", stream=True)},
        "/v1/responses": {"post": _asks("Answer a conversation, in the newer shape", "ResponsesRequest", "Response", stream=True)},
        "/v1/feedback": {"post": _asks("Say what an answer was worth", "FeedbackRequest", "Feedback")},
        "/v1/models": {"get": _gets("The models", _list_of("Model"))},
        "/v1/models/{id}": {"get": _gets("A model", _ref("Model"), session, missing=True)},
        "/v1/sessions": {
            "get": _gets("Your sessions", _list_of(), pages, refused=True),
            "delete": _gets("Erase all that is kept of you", _ref("Deleted")),
        },
        "/v1/sessions/{id}": {
            "get": _gets("A session's turns", _list_of(), session, missing=True),
            "delete": _gets("Erase a session", _ref("Deleted"), session, missing=True),
        },
        "/v1/sessions/{id}/close": {"post": _gets("End a session", _shape(id=TEXT, object=TEXT), session)},
        "/v1/export": {"get": _gets("All that is kept of you, a turn a line", TEXT, kind="application/x-ndjson")},
        "/healthz": {"get": _gets("Whether it serves", _shape(status=TEXT, version={"type": "integer"}), open_to_all=True)},
        "/metrics": {"get": _gets("Numbers for Prometheus", TEXT, kind="text/plain", open_to_all=True)},
    }  # fmt: skip
    made: dict[str, Any] = {
        "openapi": "3.1.0", "info": {"title": title, "version": __version__}, "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }  # fmt: skip
    return made | ({"security": [{"key": []}]} if keys else {})


def _asks(what: str, body: str, answer: str, stream: bool = False) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(answer)}}
    if stream:
        content["text/event-stream"] = {"schema": EVENT}
    return {
        "summary": what,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
        "responses": {
            "200": {"description": what, "content": content},
            **_errors(400, 401, 403, 404, 408, 413, 429, 500, 503),
        },
    }


def _gets(
    what: str, schema: dict[str, Any], parameters: list[dict[str, Any]] | None = None, *, kind: str = "application/json",
    missing: bool = False, refused: bool = False, open_to_all: bool = False,
) -> dict[str, Any]:  # fmt: skip
    codes = [*([400] if refused else []), *([] if open_to_all else [401, 403]), *([404] if missing else []), 500, 503]
    made: dict[str, Any] = {
        "summary": what, "parameters": parameters or [],
        "responses": {"200": {"description": what, "content": {kind: {"schema": schema}}}, **_errors(*codes)},
    }  # fmt: skip
    return made | ({"security": []} if open_to_all else {})


def _errors(*codes: int) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("Error")}}
    return {str(code): {"description": "an error", "content": content} for code in codes}


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return _shape(
        id=TEXT, object={"const": kind}, created=COUNT, model=TEXT, choices=_list(choice), usage=_ref("Usage")
    )  # fmt: skip


def _shape(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _list_of(name: str = "") -> dict[str, Any]:
    return _shape(object={"const": "list"}, data=_list(_ref(name) if name else OBJECT))


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": REF.format(name=name)}


def _parameter(name: str, where: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "schema": schema or {"type": "string", "minLength": 1},
    }
