import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agentgym.environments.tools import Toolbox, sources_from
from agentgym.errors import InfrastructureError, TaskError
from agentgym.types import ToolCall

pytest.importorskip("mcp")

SERVER = str(Path(__file__).parent / "servers" / "mcp_server.py")
STDIO = {"command": [sys.executable, SERVER]}
HTTP = {"command": [sys.executable, SERVER, "{port}"], "url": "http://127.0.0.1:{port}/mcp"}


def toolset(spec, **options):
    return Toolbox(sources_from([{"mcp": spec}]), **options)


def call(name, **arguments):
    return ToolCall(id="1", name=name, arguments=json.dumps(arguments))


def servers(of=None):
    """The processes of the test's servers below a process, zombies not among them."""
    below = psutil.Process(of).children(recursive=True)
    return [one.pid for one in below if one.status() != psutil.STATUS_ZOMBIE and SERVER in one.cmdline()]


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def gone(pids, seconds=10.0):
    until = time.monotonic() + seconds
    while any(map(alive, pids)):
        assert time.monotonic() < until, [psutil.Process(pid).cmdline() for pid in pids if alive(pid)]
        await asyncio.sleep(0.05)


@pytest.fixture(params=[STDIO, HTTP], ids=["stdio", "http"])
async def tools(request):
    made = toolset(request.param, timeout_s=2)
    await made.start()
    yield made
    await made.close()
    await gone(servers())


async def test_the_life_of_a_server(tools):
    """Its tools are listed and called; what goes wrong is an answer; its death is an infrastructure failure."""
    assert [spec.name for spec in tools.specs] == ["add", "fail", "die", "slow", "breed"]
    assert tools.specs[0].description == "Add two numbers."
    assert tools.specs[0].parameters["properties"]["a"]["type"] == "integer"
    assert (await tools.call(call("add", a=1))).content == "2"
    assert (await tools.call(call("add", a=1.0, b=4))).content == "5"
    wrong = await tools.call(call("add", a="x"))
    assert (wrong.error, wrong.content) == ("bad_arguments", 'error: add: a must be an integer, not "x"')
    failed = await tools.call(call("fail"))
    assert failed.error == "exception" and "no luck today" in failed.content
    late = await tools.call(call("slow", seconds=60))
    assert late.error == "timeout" and 2 <= late.seconds < 5
    assert (await tools.call(call("add", a=2))).content == "3"
    with pytest.raises(InfrastructureError, match="is gone"):
        await tools.call(call("die"))
    with pytest.raises(InfrastructureError, match="is gone"):
        await tools.call(call("add", a=1))


async def test_one_that_is_not_ours_and_goes_away_is_an_infrastructure_failure():
    ours = toolset(HTTP)
    await ours.start()
    theirs = toolset({"url": ours.sources[0].url}, timeout_s=5)
    await theirs.start()
    assert (await theirs.call(call("add", a=1))).content == "2"
    await ours.close()
    with pytest.raises(InfrastructureError):
        await theirs.call(call("add", a=1))
    await theirs.close()
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        await toolset({"url": "http://127.0.0.1:9/mcp"}).start()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"command": [sys.executable, SERVER, "broken"]}, "cannot read my settings"),
        ({"command": ["no-such-program"]}, "no-such-program: No such file"),
        ({"command": [sys.executable, SERVER, "silent"], "start_timeout_s": 1.0}, "no tools within 1 s"),
        ({**HTTP, "command": [sys.executable, SERVER, "broken"]}, "cannot read my settings"),
    ],
)
async def test_a_server_that_does_not_start_says_why(spec, says):
    tools = toolset(spec)
    with pytest.raises(InfrastructureError, match=says):
        await tools.start()
    await tools.close()
    await gone(servers())


@pytest.mark.parametrize("spec", [{}, {"command": "python server.py"}, {"comand": []}])
def test_a_task_that_names_no_server_is_a_broken_task(spec):
    with pytest.raises(TaskError, match="MCP server"):
        sources_from([{"mcp": spec}])


async def test_some_tools_can_be_chosen():
    tools = toolset({**STDIO, "only": ["slow", "add"]})
    await tools.start()
    assert [spec.name for spec in tools.specs] == ["add", "slow"]
    await tools.close()
    other = toolset({**STDIO, "only": ["subtract"]})
    with pytest.raises(TaskError, match="no tool 'subtract'"):
        await other.start()
    await other.close()
    await gone(servers())


@pytest.mark.parametrize("spec", [STDIO, HTTP], ids=["stdio", "http"])
async def test_nothing_is_left_after_close_of_one_that_resists(spec):
    tools = toolset({**spec, "close_timeout_s": 3.0})
    await tools.start()
    bred = json.loads("[" + ",".join((await tools.call(call("breed"))).content.strip("[]").split()) + "]")
    assert len(bred) == 2 and all(map(alive, bred))
    await tools.close()
    await tools.close()
    await gone(bred)


async def test_nothing_is_left_after_a_cancellation():
    """In the start, in a call, and in the closing."""
    for seconds in (0.05, 0.6):
        tools = toolset(STDIO)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await tools.start()
                await tools.call(call("slow", seconds=60))
        closing = asyncio.create_task(tools.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await gone(servers())


async def test_nothing_is_left_when_the_loop_ends():
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.environments.test_mcp import STDIO, call, toolset
async def main():
    tools = toolset(STDIO)
    await tools.start()
    print((await tools.call(call("breed"))).content.replace(chr(10), " "), flush=True)
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    bred = [int(word) for word in done.stdout.replace(",", " ").strip("[]\n ").split()]
    assert len(bred) == 2, done.stderr
    await gone(bred)


@pytest.mark.parametrize("spec", ["STDIO", "HTTP"])
async def test_nothing_is_left_when_the_owner_is_killed(spec):
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.environments.test_mcp import HTTP, STDIO, call, toolset
async def main():
    tools = toolset({spec})
    await tools.start()
    print((await tools.call(call("breed"))).content.replace(chr(10), " "), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    line = (await owner.stdout.readline()).decode()
    bred = [int(word) for word in line.replace(",", " ").strip("[]\n ").split()]
    assert len(bred) == 2 and all(map(alive, bred))
    left = servers(owner.pid)
    os.kill(owner.pid, signal.SIGKILL)
    await owner.wait()
    await gone({*bred, *left})
