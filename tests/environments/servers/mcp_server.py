"""An MCP server for tests: over its standard input and output, or with a port as argument over HTTP."""

import os
import signal
import subprocess
import sys

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fails."""
    raise ToolError("no luck today")


@server.tool()
def die() -> str:
    """Dies."""
    os._exit(3)


@server.tool()
async def slow(seconds: float) -> str:
    """Waits."""
    await anyio.sleep(seconds)
    return "done"


@server.tool()
def breed() -> list[int]:
    """Leaves a child in a session of its own behind."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return [os.getpid(), child.pid]


signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1 and sys.argv[1] == "silent":
    while True:
        signal.pause()
elif len(sys.argv) > 1 and sys.argv[1] == "broken":
    sys.exit("cannot read my settings")
elif len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
