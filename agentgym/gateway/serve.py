"""The gateway's process: a run folder, an engine, the application on a socket, until somebody ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from agentgym.config import Config, GatewayConfig
from agentgym.errors import UsageError
from agentgym.gateway.app import make_app
from agentgym.gateway.keep import load_hook
from agentgym.gateway.keys import Keys, check_binding, keys_file
from agentgym.gateway.ledger import Ledger
from agentgym.gateway.service import Gateway
from agentgym.policy import ServingPolicy, TokenServer

GRACE_S = 10  # for answers in the making when the gateway is told to stop
BACKLOG = 2048


@asynccontextmanager
async def served(
    policy: ServingPolicy, config: Config, store: Path, *, model: str = "", listening: socket.socket | None = None
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that serves on `gateway.host` and `gateway.port` (or the socket given), and its URL, while it is entered.

    Raises:
        UsageError: the port is taken, or the gateway would be open to everybody.
    """
    settings = config.gateway
    check_binding(settings)
    if not isinstance(policy, TokenServer):
        raise UsageError(f"{type(policy).__name__} does not stream token ids: set another engine.backend")
    keys = Keys(keys_file(settings))
    listening = listening or listen(settings)
    async with Gateway(policy, config, Ledger(store), model=model, redact=load_hook(settings.redact)) as gateway:
        server = _Server(
            uvicorn.Config(
                make_app(gateway, keys), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE_S,
                backlog=BACKLOG, h11_max_incomplete_event_size=64 << 10, ws="none", http="h11",
            )
        )  # fmt: skip
        task = asyncio.create_task(server.serve([listening]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
                if task.done():
                    task.result()
                    raise UsageError("the gateway's web server did not start")
            host, port = listening.getsockname()[:2]
            yield gateway, f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        finally:
            server.should_exit = True
            await asyncio.wait([task])
            listening.close()


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def listen(settings: GatewayConfig) -> socket.socket:
    """The socket on which a gateway serves; raises UsageError if the port is taken."""
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise UsageError(
            f"gateway.host={host}, gateway.port={port}: {error.strerror}: choose another, or port 0"
        ) from error
    return made
