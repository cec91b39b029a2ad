"""The network of one episode: a proxy on the loopback that serves the episode's site and refuses everything else.

The browser context has no other way out: names are not resolved, and requests to the machine itself go through the
proxy as well. Each episode has a server of its own, so that no page can reach another one's.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from agentgym.environments.gui_sites import Site
from agentgym.errors import TaskError

MAX_BODY = 4 << 20  # bytes of a request
REFUSED = 20  # addresses that are remembered
CLOSE_S = 2.0


class Network:
    """What a context's browser can reach; open before the context, closed after it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.refused: list[str] = []  # addresses that pages asked for in vain
        self.error = ""  # what the site itself did wrong
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Serve from now on."""
        self._web = web.Server(self._handle, access_log=None)
        self._server = await asyncio.get_running_loop().create_server(self._web, "127.0.0.1", 0)

    @property
    def proxy(self) -> dict[str, str]:
        """The `proxy` of a context."""
        assert self._server is not None
        return {"server": f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"}

    def check(self) -> None:
        """Raise TaskError if the site failed to answer a request."""
        if self.error:
            raise TaskError(f"task {self.site.task.id}: {self.error}")

    async def close(self) -> None:
        """Stop serving; safe to call twice."""
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            await self._web.shutdown(CLOSE_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "CONNECT" or request.host not in self.site.hosts:
            if len(self.refused) < REFUSED:
                self.refused.append(request.host or request.path)
            return web.Response(status=403, text=f"{request.host or 'this address'} cannot be reached")
        if (request.content_length or 0) > MAX_BODY:
            return web.Response(status=413, text="too large")
        try:
            return await self.site.handle(request)
        except web.HTTPException as answer:
            return _response(answer)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            self.error = f"the site raised {type(error).__name__} at {request.path}: {error}"
            return web.Response(status=500, text="the site failed")


def _response(answer: web.HTTPException) -> web.Response:
    headers: dict[str, Any] = {key: value for key, value in answer.headers.items() if key != "Content-Length"}
    return web.Response(status=answer.status, text=answer.text, headers=headers)


def problem_of(url: str, hosts: tuple[str, ...]) -> str:
    """Why an address may not be opened; empty if it may."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"{url[:80]!r} is no address"
    if parts.scheme.lower() != "http":
        return f"only http addresses can be opened, not {url[:80]!r}"
    if parts.hostname not in hosts or port not in (None, 80):
        return f"{parts.netloc[:80] or url[:80]!r} cannot be reached"
    return ""
