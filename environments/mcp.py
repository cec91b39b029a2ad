"""Tools from a server that speaks MCP, by the official SDK (`pip install agentgym[mcp]`).

The server is started with the episode and gone after it, whatever ends the episode: `close`, a cancellation, or the
death of this process. A tool that reports an error answers the model; a server that dies or is silent is an
infrastructure failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import IO, Any

import psutil

from agentgym.environments import mcp_guard
from agentgym.environments.tool_values import Misfit, fit, serialise
from agentgym.environments.tools import Tool, ToolFailed, ToolSource
from agentgym.errors import InfrastructureError, TaskError, UsageError
from agentgym.types import ToolSpec, new_id

MAX_PAGES = 100  # of a list of tools
RETRY_S = 0.1  # between attempts to reach a server that is starting
WORDS = 400  # characters of a server's log that a message shows
PATIENCE_S = 0.2  # for a server's end to show
INVALID_PARAMS, CONNECTION_CLOSED = -32602, -32000  # JSON-RPC's and MCP's codes


class MCPServer(ToolSource):
    """The tools of one MCP server.

    Args:
        command: started with the episode; without `url` it is spoken to over its standard input and output.
        url: an endpoint of streamable HTTP; `{port}` in it and in the command becomes a free port.
        headers: sent with each request to `url`.
        env: variables for the command, beside a few harmless ones of this process.
        cwd: where it runs.
        only: names of the tools on offer; all by default.
        start_timeout_s: how long it may take until its tools are known.
        close_timeout_s: how long it may take to end before it is killed.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str = "",
        headers: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        only: Sequence[str] = (),
        start_timeout_s: float = 30.0,
        close_timeout_s: float = 10.0,
    ) -> None:
        if not command and not url:
            raise UsageError("an MCP server needs a command or a url")
        if isinstance(command, str):
            raise UsageError("the command of an MCP server is a list of its words")
        self.command, self.url = list(command), url
        self.headers, self.env, self.cwd, self.only = headers or {}, env or {}, cwd, tuple(only)
        self.start_timeout_s, self.close_timeout_s = start_timeout_s, close_timeout_s
        self.mark = f"agentgym-mcp-{new_id()}"  # in the command line of its guard
        self.client: Any = None
        self.ended = False  # the connection is gone
        self._log: IO[bytes] | None = None
        self._host: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def start(self) -> Sequence[Tool]:
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise UsageError("tools from MCP servers need the SDK: pip install 'agentgym[mcp]'") from error
        if "{port}" in self.url:
            port = str(_free_port())
            self.url = self.url.replace("{port}", port)
            self.command = [word.replace("{port}", port) for word in self.command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._host = asyncio.create_task(self._serve(ready), name=self.mark)
        try:
            async with asyncio.timeout(self.start_timeout_s):
                return await asyncio.shield(ready)
        except TimeoutError:
            await self.close()
            raise InfrastructureError(self._says(f"showed no tools within {self.start_timeout_s:g} s")) from None
        except BaseException:
            await self.close()
            raise

    async def _serve(self, ready: asyncio.Future[list[Tool]]) -> None:
        """Holds the connection: it has to be opened and closed by one and the same task."""
        try:
            async with AsyncExitStack() as stack:
                self.client = await self._connect(stack)
                ready.set_result(await self._tools())
                await self._stop.wait()
        except BaseException as error:
            if ready.done():
                if not isinstance(error, Exception):
                    raise
            elif isinstance(cause := _innermost(error), InfrastructureError | TaskError):
                ready.set_exception(cause)
            elif isinstance(error, asyncio.CancelledError):
                ready.cancel()
                raise
            else:
                failed = InfrastructureError(self._says(f"could not be started: {_named(error)}"))
                failed.__cause__ = error
                ready.set_exception(failed)
        finally:
            self.ended = True
            self._kill()

    async def _connect(self, stack: AsyncExitStack) -> Any:
        from mcp.client import Client
        from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

        guarded = [sys.executable, "-I", "-S", mcp_guard.__file__, self.mark, str(os.getpid()), *self.command]
        if not self.url:
            server = StdioServerParameters(command=guarded[0], args=guarded[1:], env=self.env, cwd=self.cwd)
            transport: Any = stdio_client(server, errlog=self._log)  # type: ignore[arg-type]
            return await stack.enter_async_context(Client(transport))
        if self.command:
            environment = {**get_default_environment(), **self.env}
            await stack.enter_async_context(_running(guarded, environment, self.cwd, self._log))
        while True:
            attempt = AsyncExitStack()
            try:
                client = await attempt.enter_async_context(Client(await self._http(attempt)))
            except Exception as error:
                await attempt.aclose()
                if not self.command or not self._alive():
                    raise InfrastructureError(self._says(f"cannot be reached: {_named(error)}")) from error
                await asyncio.sleep(RETRY_S)
            else:
                stack.push_async_exit(attempt)
                return client

    async def _http(self, stack: AsyncExitStack) -> Any:
        from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

        http = await stack.enter_async_context(create_mcp_http_client(headers=self.headers))
        return streamable_http_client(self.url, http_client=http)

    async def _tools(self) -> list[Tool]:
        listed: list[Any] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            listed += page.tools
            if (cursor := page.next_cursor) is None:
                break
        names = [tool.name for tool in listed]
        if missing := set(self.only) - set(names):
            raise TaskError(f"{self} has no tool {sorted(missing)[0]!r}; it has {', '.join(names)}")
        return [MCPTool(self, tool) for tool in listed if not self.only or tool.name in self.only]

    async def ask(self, work: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> Any:
        """Await `work()` while the connection lasts. Raises InfrastructureError where it does not."""
        if self._host is None or self.ended:
            raise InfrastructureError(self._says("is gone"))
        asking = asyncio.ensure_future(work())
        try:
            done, _ = await asyncio.wait([asking, self._host], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if asking in done:
                return asking.result()
            if done:
                raise InfrastructureError(self._says("is gone"))
            raise TimeoutError
        finally:
            if not asking.done():
                asking.add_done_callback(_heard)
                asking.cancel()  # tells the server so

    def gone(self) -> bool:
        """Whether the server's process, where it is ours, has ended."""
        return self.ended or bool(self.command and not self._alive())

    async def close(self) -> None:
        self._stop.set()
        if self.client is None:  # still starting: its end lets the connection fail
            self._kill()
        host, self._host = self._host, None
        if host is not None:
            try:
                done, _ = await asyncio.wait([host], timeout=self.close_timeout_s)
                if not done:
                    host.cancel()
                    await asyncio.wait([host], timeout=1.0)
            finally:  # also if we are cancelled here
                self._kill()
                if not host.done():
                    host.cancel()
                elif not host.cancelled():
                    host.exception()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _guards(self) -> list[psutil.Process]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if self.mark in process.cmdline():
                    found.append(process)
        return found

    def _alive(self) -> bool:
        return any(process.status() != psutil.STATUS_ZOMBIE for process in self._guards())

    def _kill(self) -> None:
        """Whatever is still there ends now: the guard ends what it started."""
        for process in self._guards():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGTERM)

    def _says(self, what: str) -> str:
        """A sentence about the server, with the last words of its log."""
        text = ""
        if self._log is not None and not self._log.closed:
            self._log.seek(max(0, self._log.seek(0, 2) - WORDS))
            text = " ".join(self._log.read().decode(errors="replace").split())
        return f"{self} {what}{f'; it wrote: {text}' if text else ''}"

    def __str__(self) -> str:
        return f"the MCP server {self.url or ' '.join(map(str, self.command))[:80]!r}"


class MCPTool(Tool):
    """One tool of a server; its arguments are checked here first, against the schema that the server gave."""

    def __init__(self, server: MCPServer, tool: Any) -> None:
        self.server = server
        self.spec = ToolSpec(name=tool.name, description=tool.description or "", parameters=tool.input_schema or {})

    async def call(self, arguments: dict[str, Any], timeout_s: float) -> Any:
        from mcp import MCPError

        given = fit(arguments, self.spec.parameters)
        try:
            answer = await self.server.ask(lambda: self.server.client.call_tool(self.spec.name, given), timeout_s)
        except (TimeoutError, InfrastructureError):
            raise
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or await self._server_died():
                raise InfrastructureError(self.server._says("is gone")) from error
            if error.code == INVALID_PARAMS:
                raise Misfit([error.message]) from error
            raise ToolFailed(error.message) from error
        except Exception as error:  # the connection, not the tool: what a tool raises comes back as an answer
            raise InfrastructureError(self.server._says(f"failed: {_named(error)}")) from error
        text = _text(answer)
        if answer.is_error:
            raise ToolFailed(text)
        return text

    async def _server_died(self) -> bool:
        """Whether the error came of the server's end, which shows a moment later."""
        until = time.monotonic() + PATIENCE_S
        while not self.server.gone():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(PATIENCE_S / 10)
        return True


@asynccontextmanager
async def _running(
    command: Sequence[str], env: dict[str, str], cwd: str | None, log: IO[bytes] | None
) -> AsyncGenerator[None, None]:
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=cwd, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()  # the guard ends all
        await process.wait()


def _heard(asking: asyncio.Future[Any]) -> None:
    """Nobody waits any more for what a call came to."""
    if not asking.cancelled():
        asking.exception()


def _text(answer: Any) -> str:
    """What a model reads of an answer: its text parts; other kinds are named."""
    parts = [getattr(part, "text", None) or f"[{part.type}]" for part in answer.content]
    if not parts and answer.structured_content is not None:
        return serialise(answer.structured_content, sys.maxsize)
    return "\n".join(parts)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _named(error: BaseException) -> str:
    cause = _innermost(error)
    return " ".join(f"{type(cause).__name__}: {cause}".split())[:WORDS]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
