"""What clients get, as OpenAI has it: whole answers and chunks of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym.gateway.asking import Asking, Event, TokenLogprob
from agentgym.types import ToolCall


def usage(asked: Sequence[Asking]) -> dict[str, Any]:
    """Tokens of one request (of each prompt of a text completion)."""
    prompt = sum(len(asking.ask.prompt_ids) for asking in asked)
    completion = sum(asking.completion_tokens for asking in asked)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def fingerprint(asking: Asking) -> str:
    """Names the weights: the version that answers requests begun now."""
    return f"v{asking.policy.version}"


# --- chat ------------------------------------------------------------------------------------------------------------


def chat(asking: Asking, model: str, logprobs: dict[int, list[TokenLogprob]], finish: dict[int, str]) -> dict[str, Any]:
    """A whole chat completion."""
    choices = []
    for answer in asking.answers:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content or None, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        elif not answer.content:
            message["content"] = ""
        choices.append(
            {
                "index": answer.choice, "message": message, "finish_reason": finish[answer.choice],
                "logprobs": _chat_logprobs(logprobs[answer.choice]) if asking.ask.logprobs else None,
            }
        )  # fmt: skip
    return {**_head(asking, model, "chat.completion"), "choices": choices, "usage": usage([asking])}


def chat_first(asking: Asking, model: str, choice: int) -> dict[str, Any]:
    """The chunk that begins an answer."""
    return _chunk(asking, model, choice, {"role": "assistant", "content": ""}, None, None)


def chat_chunks(asking: Asking, model: str, event: Event, calls_before: int) -> list[dict[str, Any]]:
    """The chunks that tell an event."""
    made = []
    logprobs = _chat_logprobs(event.logprobs) if event.logprobs else None
    if event.reasoning:
        made.append(_chunk(asking, model, event.choice, {"reasoning_content": event.reasoning}, None, None))
    if event.content or logprobs:
        made.append(_chunk(asking, model, event.choice, {"content": event.content}, logprobs, None))
    for number, call in enumerate(event.calls, calls_before):
        made += [
            _chunk(asking, model, event.choice, {"tool_calls": [{"index": number, **delta}]}, None, None)
            for delta in _call_deltas(call)
        ]
    if event.finish:
        made.append(_chunk(asking, model, event.choice, {}, None, event.finish))
    return made


def chat_usage(asking: Asking, model: str) -> dict[str, Any]:
    """The last chunk of a stream that was asked for its usage: no choices."""
    return {**_head(asking, model, "chat.completion.chunk"), "choices": [], "usage": usage([asking])}


def _chunk(
    asking: Asking, model: str, choice: int, delta: dict[str, Any], logprobs: Any, finish: str | None
) -> dict[str, Any]:
    choices = [{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]
    return {**_head(asking, model, "chat.completion.chunk"), "choices": choices}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_deltas(call: ToolCall) -> list[dict[str, Any]]:
    """A call as clients gather it: name first, then its arguments, byte for byte."""
    first = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
    return [first, {"function": {"arguments": call.arguments}}]


def _chat_logprobs(given: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        {
            **_token(item.token, item.logprob),
            "top_logprobs": [_token(token, logprob) for token, logprob in item.top],
        }
        for item in given
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    whole = "\ufffd" not in token  # else it is a part of a character, whose bytes the text does not tell
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()) if whole else None}


# --- text ------------------------------------------------------------------------------------------------------------


def text(
    asked: Sequence[Asking],
    model: str,
    logprobs: dict[int, list[TokenLogprob]],
    finish: dict[int, str],
    echoes: list[str],
) -> dict[str, Any]:
    """A whole text completion: the answers to each prompt in turn."""
    choices: list[dict[str, Any]] = []
    for asking, echo in zip(asked, echoes, strict=True):
        for answer in asking.answers:
            index = len(choices)
            told = _text_logprobs(logprobs[index], len(echo)) if asking.ask.logprobs else None
            choices.append(
                {"index": index, "text": echo + answer.content, "logprobs": told, "finish_reason": finish[index]}
            )
    return {**_head(asked[0], model, "text_completion"), "choices": choices, "usage": usage(asked)}


def text_chunk(asking: Asking, model: str, index: int, event: Event, offset: int) -> dict[str, Any]:
    """The chunk that tells an event."""
    logprobs = _text_logprobs(event.logprobs, offset) if event.logprobs else None
    choice = {"index": index, "text": event.content, "logprobs": logprobs, "finish_reason": event.finish}
    return {**_head(asking, model, "text_completion"), "choices": [choice]}


def text_usage(asked: Sequence[Asking], model: str) -> dict[str, Any]:
    """The last chunk of a stream that was asked for its usage."""
    return {**_head(asked[0], model, "text_completion"), "choices": [], "usage": usage(asked)}


def _text_logprobs(given: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    offsets = []
    for item in given:
        offsets.append(offset)
        offset += len(item.token)
    return {
        "tokens": [item.token for item in given], "token_logprobs": [item.logprob for item in given],
        "top_logprobs": [dict(item.top) for item in given], "text_offset": offsets,
    }  # fmt: skip


def _head(asking: Asking, model: str, kind: str) -> dict[str, Any]:
    ask = asking.ask
    return {
        "id": ask.id, "object": kind, "created": int(ask.created), "model": model,
        "system_fingerprint": fingerprint(asking),
    }  # fmt: skip
