"""What a policy server answers with: vLLM's token-in-token-out shape and OpenAI's two, the same sampled tokens in each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

MODEL = "mock"
_numbers = itertools.count()


class Drawn(NamedTuple):
    """The T tokens of an answer before any time was spent on them; `timing` is the request's factor."""

    ids: list[int]
    logprobs: list[float]
    timing: float
    finish: str


class Sampled(NamedTuple):
    """The T tokens of an answer; a span is one weight version's share of them: [start, end)."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    spans: list[dict[str, Any]]
    finish: str


def generated(made: Sampled, body: dict[str, Any]) -> dict[str, Any]:
    """As `/inference/v1/generate` has it."""
    content = [
        {"token_id": id, "logprob": logprob, "rank": 1, "top_logprobs": []}
        for id, logprob in zip(made.ids, made.logprobs, strict=True)
    ]
    choice = {
        "index": 0, "token_ids": made.ids, "logprobs": {"content": content}, "finish_reason": made.finish,
        "stop_reason": None, "weight_versions": made.spans,
    }  # fmt: skip
    return {"request_id": _id(body), "choices": [choice]}


def completion(made: Sampled, body: dict[str, Any]) -> dict[str, Any]:
    """As `/v1/completions` has it."""
    choice: dict[str, Any] = {"text": text_of(made.ids)}
    if body.get("logprobs") is not None:
        choice["logprobs"] = {
            "tokens": list(map(chr, made.ids)), "token_logprobs": made.logprobs, "top_logprobs": None,
            "text_offset": list(range(len(made.ids))),
        }  # fmt: skip
    if body.get("return_token_ids"):
        choice |= {"token_ids": made.ids, "prompt_token_ids": made.prompt}
    return _openai("text_completion", made, body, choice)


def chat_completion(made: Sampled, body: dict[str, Any]) -> dict[str, Any]:
    """As `/v1/chat/completions` has it."""
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text_of(made.ids)}}
    if body.get("logprobs"):
        pairs = zip(map(chr, made.ids), made.logprobs, strict=True)
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
                for token, logprob in pairs
            ]
        }
    if not body.get("return_token_ids"):
        return _openai("chat.completion", made, body, choice)
    choice["token_ids"] = made.ids
    return {**_openai("chat.completion", made, body, choice), "prompt_token_ids": made.prompt}


def text_of(ids: Sequence[int]) -> str:
    """The text of ids that are characters."""
    return "".join(map(chr, ids))


def ids_of(text: str) -> list[int]:
    """The characters of a text as ids."""
    return list(map(ord, text))


def _openai(kind: str, made: Sampled, body: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    usage = {
        "prompt_tokens": len(made.prompt), "completion_tokens": len(made.ids),
        "total_tokens": len(made.prompt) + len(made.ids),
    }  # fmt: skip
    choice = {"index": 0, "logprobs": None, "finish_reason": made.finish, **choice}
    return {
        "id": _id(body), "object": kind, "created": int(time.time()), "model": body.get("model", MODEL),
        "choices": [choice], "usage": usage,
    }  # fmt: skip


def _id(body: dict[str, Any]) -> str:
    return body.get("request_id") or f"mock-{next(_numbers)}"
