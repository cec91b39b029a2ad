"""Chat completions that were kept, as OpenAI lists them: a user's own, to read and to delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from agentgym.gateway.problems import invalid, not_found
from agentgym.gateway.records import TurnRecord
from agentgym.gateway.service import Gateway
from agentgym.gateway.text import split_thinking
from agentgym.gateway.wires import as_json
from agentgym.types import Message

PATH = "/v1/chat/completions"
FINISH = {"length": "length", "abort": "stop", "stop": "stop"}


def add_stored(app: FastAPI, gateway: Gateway, user_of: Callable[..., str]) -> None:
    """The routes."""

    async def own(request: Request, id: str) -> TurnRecord:
        turn = await gateway.stored(gateway.ledger.turn, id)
        if turn is None or turn.user != user_of(request):
            raise not_found(f"No chat completion '{id[:100]}' of yours was found.", param="completion_id")
        return turn

    @app.get(PATH, include_in_schema=False)
    async def several(request: Request) -> Response:
        query = request.query_params
        try:
            limit = min(100, max(1, int(query.get("limit", "20"))))
        except ValueError:
            raise invalid("limit is a number", "limit") from None
        descending = query.get("order", "asc") == "desc"
        turns = await gateway.stored(
            gateway.ledger.page, user_of(request), limit=limit + 1, after=query.get("after"), descending=descending
        )
        return as_json(_page([completion(turn) for turn in turns], limit))

    @app.get(PATH + "/{id}/messages", include_in_schema=False)
    async def messages(request: Request, id: str) -> Response:
        turn = await own(request, id)
        told = [{"id": f"{id}-{place}", **_message(message)} for place, message in enumerate(turn.messages)]
        return as_json(_page(told, len(told)))

    @app.get(PATH + "/{id}", include_in_schema=False)
    async def one(request: Request, id: str) -> Response:
        return as_json(completion(await own(request, id)))

    @app.delete(PATH + "/{id}", include_in_schema=False)
    async def delete(request: Request, id: str) -> Response:
        await own(request, id)
        await gateway.erase_turn(id)
        return as_json({"id": id, "object": "chat.completion.deleted", "deleted": True})


def completion(turn: TurnRecord) -> dict[str, Any]:
    """A kept turn as a chat completion."""
    made = turn.completion
    counted = {"prompt_tokens": len(made.prompt_ids), "completion_tokens": len(made.ids)}
    choice = {
        "index": 0, "message": _message(made.message), "logprobs": None,
        "finish_reason": "tool_calls" if made.message.tool_calls else FINISH[made.finish_reason],
    }  # fmt: skip
    return {
        "id": turn.id, "object": "chat.completion", "created": int(turn.created), "model": str(turn.request.get("model", "")),
        "choices": [choice], "metadata": turn.request.get("metadata") or {},
        "usage": {**counted, "total_tokens": sum(counted.values())},
    }  # fmt: skip


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        made |= {"content": split_thinking(message.content)[1], "refusal": None}
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return made | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})


def _page(data: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    more, data = len(data) > limit, data[:limit]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": more}
