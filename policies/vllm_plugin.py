"""What vLLM's own processes load of agentgym: a weight-transfer engine by name, and a guard at the server's door.

vLLM loads `register` (entry-point group `vllm.general_plugins`) in every one of its processes, also when it runs for
somebody else: it only names a class.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

BACKEND = "agentgym"


def register() -> None:
    """Register the weight-transfer engine `agentgym`; does nothing in a vLLM that knows no such engines."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError:
        return
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "agentgym.policies.vllm_worker", "FolderTransferEngine")


class RequireKey:
    """ASGI middleware that asks for the bearer key `$VLLM_API_KEY` everywhere but at /health.

    vLLM's own `--api-key` guards /v1, /v2, /inference and /cohere only: whoever reaches the port may otherwise pause
    the engine, load weights and call methods of its workers.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.digest = hashlib.sha256(f"Bearer {os.environ['VLLM_API_KEY']}".encode()).digest()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope.get("path") == "/health" or self._has_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_key(self, scope: dict[str, Any]) -> bool:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        return secrets.compare_digest(hashlib.sha256(given).digest(), self.digest)
