"""The mock policy server's streams: vLLM's server-sent events, a token each, at the server's pace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from agentgym.policies.mock_answers import Drawn, text_of

if TYPE_CHECKING:
    from agentgym.policies.mock import MockPolicyServer


async def stream(
    server: MockPolicyServer, request: web.Request, drawn: Drawn, params: dict[str, Any], *, cut: bool
) -> web.StreamResponse:
    """Answer with one event per token; the last one says why it ends and which versions sampled. `cut`: half of it."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await asyncio.sleep(server.latency_s * drawn.timing)
    versions: list[str] = []
    for index, (id, logprob) in enumerate(zip(drawn.ids, drawn.logprobs, strict=True)):
        await asyncio.sleep(server.token_s * drawn.timing)
        await server.going.wait()
        if cut and index >= len(drawn.ids) // 2:
            if request.transport is not None:
                request.transport.close()
            return answer
        versions.append(server.version)
        stop = next((stop for stop in params.get("stop") or () if stop in text_of(drawn.ids[: index + 1])), None)
        last = index == len(drawn.ids) - 1 or stop is not None
        finish = ("stop" if stop else drawn.finish) if last else None
        await answer.write(_event(id, logprob, params.get("logprobs") or 0, finish, _spans(versions) if last else None))
        if last:
            break
    await answer.write(b"data: [DONE]\n\n")
    await answer.write_eof()
    return answer


def _event(id: int, logprob: float, top: int, finish: str | None, spans: Any) -> bytes:
    alternatives = [{"token_id": id + n, "logprob": logprob - n} for n in range(max(top, 1))]
    content = [{"token_id": id, "logprob": logprob, "rank": 1, "top_logprobs": alternatives}]
    choice = {
        "index": 0, "token_ids": [id], "logprobs": {"content": content}, "finish_reason": finish, "stop_reason": None,
        "weight_versions": spans,
    }  # fmt: skip
    return b"data: " + msgspec.json.encode({"request_id": "mock", "choices": [choice]}) + b"\n\n"


def _spans(versions: list[str]) -> list[dict[str, Any]]:
    starts = [index for index, version in enumerate(versions) if not index or versions[index - 1] != version]
    ends = [*starts[1:], len(versions)]
    return [{"version": versions[start], "start": start, "end": end} for start, end in zip(starts, ends, strict=True)]
