"""No network but what is allowed: a server on loopback stands for the host that a task may reach."""

import asyncio
import contextlib
import http.server
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from agentgym.environments.bubblewrap import why_not
from agentgym.environments.containers import no_docker
from agentgym.environments.network import Proxy, Rule, addresses, rule
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import SandboxError, TaskError, UsageError
from agentgym.types import Task

# A client for sandboxes that have no curl: what it prints is what the proxy, or the host behind it, says.
ASK = """
ask() {  # PROXY-OR-HOST PORT REQUEST
    exec 5<>/dev/tcp/$1/$2 || return 9
    printf '%b' "$3" >&5
    timeout 5 cat <&5
    exec 5>&-
}
get() { ask 127.0.0.1 3128 "GET http://$1/path?q=1 HTTP/1.1\\r\\nHost: $1\\r\\nProxy-Connection: keep-alive\\r\\nX-Kept: yes\\r\\n\\r\\n"; }
tunnel() { ask 127.0.0.1 3128 "CONNECT $1 HTTP/1.1\\r\\n\\r\\nGET /in HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"; }
"""


class Answer(http.server.BaseHTTPRequestHandler):
    """Says what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"here is {self.path} {dict(self.headers)}".encode() * (4000 if self.path == "/large" else 1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made.server_address[1]
        made.shutdown()


@pytest.fixture
def allowed() -> Iterator[int]:
    with server() as port:
        yield port


@pytest.fixture
def other() -> Iterator[int]:
    with server() as port:
        yield port


@pytest.fixture(params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
async def sandbox(request: pytest.FixtureRequest, allowed: int) -> AsyncIterator[Sandbox]:
    problem = why_not() if request.param == "bubblewrap" else no_docker()
    if problem:
        pytest.skip(f"{request.param} does not work here: {problem}")
    made = open_sandbox(request.param, Limits(), allow=[f"127.0.0.1:{allowed}", "*.agentgym.invalid"])
    await made.start()
    yield made
    await made.close()


async def test_the_allowed_host_is_reached_and_no_other(sandbox: Sandbox, allowed: int, other: int) -> None:
    await sandbox.run(ASK)
    assert (await sandbox.run("echo $http_proxy $HTTPS_PROXY")).stdout.split() == ["http://127.0.0.1:3128"] * 2
    plain = (await sandbox.run(f"get 127.0.0.1:{allowed}")).stdout
    assert "200 OK" in plain and "here is /path?q=1" in plain and "'X-Kept': 'yes'" in plain and "Proxy" not in plain
    assert "here is /in" in (await sandbox.run(f"tunnel 127.0.0.1:{allowed}")).stdout
    for place in (
        f"127.0.0.1:{other}",
        "127.0.0.1:22",
        "localhost",
        "10.0.0.1",
        "169.254.169.254",
        "example.com",
        "[::1]:80",
    ):
        for way in ("get", "tunnel"):
            said = (await sandbox.run(f"{way} {place}")).stdout
            assert said.startswith("HTTP/1.1 403 ") and "here is" not in said, place
    direct = await sandbox.run(
        f"timeout 3 bash -c ': >/dev/tcp/127.0.0.1/{allowed}' || timeout 3 bash -c ': >/dev/tcp/1.1.1.1/443'"
    )
    assert direct.exit_code != 0


async def test_a_name_that_leads_to_this_machine_is_refused() -> None:
    """Whoever answers for an allowed name must not be able to point it at the run's own servers."""
    assert await addresses("localhost", 80, [rule("*.example.com"), rule("example.com")]) == []
    for entry in ("localhost", "127.0.0.1"):
        assert ("127.0.0.1", 80) in await addresses(entry, 80, [rule(entry)])
    for private in ("10.0.0.1", "169.254.169.254", "::1", "192.168.1.1", "100.64.0.1", "0.0.0.0"):
        assert await addresses(private, 80, [rule("example.com")]) == []
    assert await addresses("1.1.1.1", 443, [rule("example.com")]) == [("1.1.1.1", 443)]
    assert await addresses("no-such-name.invalid", 80, [rule("no-such-name.invalid")]) == []


async def test_what_is_no_request_is_answered_or_dropped(sandbox: Sandbox, allowed: int) -> None:
    await sandbox.run(ASK)
    for request in (
        "GET / HTTP/1.1\\r\\n\\r\\n",
        "\\r\\n\\r\\n",
        "x\\r\\n\\r\\n",
        "GET ftp://h/ HTTP/1.1\\r\\n\\r\\n",
        "CONNECT :x HTTP/1.1\\r\\n\\r\\n",
        "GET http://[/ HTTP/1.1\\r\\n\\r\\n",
        "\\xff\\xfe\\r\\n\\r\\n",
    ):
        said = (await sandbox.run(f"ask 127.0.0.1 3128 '{request}'")).stdout
        assert said == "" or said.startswith("HTTP/1.1 400 "), request
    flood = await sandbox.run(
        "head -c 300000 /dev/zero | tr '\\0' x >f; exec 5<>/dev/tcp/127.0.0.1/3128; cat f >&5; timeout 5 cat <&5", 20
    )
    assert flood.stdout == ""
    assert "here is /path" in (await sandbox.run(f"get 127.0.0.1:{allowed}")).stdout


async def test_it_lasts_through_new_shells_and_forks(sandbox: Sandbox, allowed: int) -> None:
    await sandbox.run("exit 3")
    await sandbox.stop()
    fork = await sandbox.fork()
    try:
        for one in (sandbox, fork):
            said = await one.run(
                f"{ASK}\nask 127.0.0.1 3128 'GET http://127.0.0.1:{allowed}/large HTTP/1.0\\r\\n\\r\\n' | wc -c"
            )
            assert int(said.stdout) > 40_000
    finally:
        await fork.close()


async def test_many_connections_at_once_are_bounded(sandbox: Sandbox, allowed: int) -> None:
    await sandbox.run(ASK)
    held = await sandbox.run(
        "for i in $(seq 80); do exec {fd}<>/dev/tcp/127.0.0.1/3128 && fds+=($fd); done; sleep 0.3; "
        f"get 127.0.0.1:{allowed}; for fd in ${{fds[@]}}; do exec {{fd}}>&-; done; sleep 0.3; get 127.0.0.1:{allowed}",
        30,
    )
    assert "503" in held.stdout and held.stdout.count("here is") == 1


async def test_without_a_list_there_is_no_proxy(kind: str) -> None:
    if kind == "plain":
        pytest.skip("it has the machine's network")
    made = open_sandbox(kind)
    await made.start()
    try:
        said = await made.run("echo [$http_proxy]; timeout 3 bash -c ': >/dev/tcp/127.0.0.1/3128' && echo open")
        assert said.stdout == "[]\n"
    finally:
        await made.close()


@pytest.mark.parametrize(
    ("entry", "host", "port", "right"),
    [
        ("pypi.org", "pypi.org", 443, True), ("pypi.org", "pypi.org", 80, True), ("pypi.org", "pypi.org", 22, False),
        ("pypi.org", "evil-pypi.org", 443, False), ("pypi.org", "pypi.org.evil.com", 443, False), ("pypi.org", "x.pypi.org", 443, False),
        ("*.pypi.org", "x.y.pypi.org", 443, True), ("*.pypi.org", "pypi.org", 443, False), ("*.pypi.org", "xpypi.org", 443, False),
        ("PyPI.org:8080", "pypi.org", 8080, True), ("pypi.org:8080", "pypi.org", 443, False),
    ],
)  # fmt: skip
def test_what_an_entry_admits(entry: str, host: str, port: int, right: bool) -> None:
    assert rule(entry).admits(host, port) is right
    assert isinstance(rule(entry), Rule)


@pytest.mark.parametrize(
    "entry", ["", "*", "*.", "http://pypi.org", "pypi.org/simple", "a b", "pypi.org:x", "pypi.org:0", "u@h", ":80"]
)
def test_entries_that_are_none(entry: str) -> None:
    with pytest.raises(UsageError, match="host"):
        rule(entry)


async def test_who_can_hold_nobody_to_a_list_says_so() -> None:
    with pytest.raises(UsageError, match="holds nobody"):
        open_sandbox("plain", allow=["pypi.org"])
    with pytest.raises(UsageError, match="network='none'"):
        open_sandbox("bubblewrap", network="host", allow=["pypi.org"])
    with pytest.raises(SandboxError, match="cannot be reached from the sandbox"):
        await Proxy(["pypi.org"]).listen(2**22 + 1)  # no such process


async def test_a_task_asks_and_the_caller_may_refuse(allowed: int) -> None:
    if why_not():
        pytest.skip(f"bubblewrap does not work here: {why_not()}")
    data = {"files": {}, "expect": [], "allowed_hosts": [f"127.0.0.1:{allowed}"]}
    task = Task(id="t", env="terminal", instruction="", data=data)
    for network, proxied in (("task", True), ("none", False)):
        env = TerminalEnv(sandbox="bubblewrap", network=network)
        await env.reset(options={"task": task})
        assert env.sandbox is not None
        said = (await env.sandbox.run(f"{ASK}\nget 127.0.0.1:{allowed}")).stdout
        await env.close()
        assert ("here is /path" in said) is proxied
    with pytest.raises(TaskError, match="allowed_hosts"):
        await TerminalEnv().reset(
            options={"task": Task(id="t", env="terminal", instruction="", data=data | {"allowed_hosts": 3})}
        )


async def test_nothing_is_left_open_when_a_sandbox_is_closed(sandbox: Sandbox, allowed: int) -> None:
    await sandbox.run(f"{ASK}\n(exec 5<>/dev/tcp/127.0.0.1/3128; sleep 60) & get 127.0.0.1:{allowed}")
    before = asyncio.all_tasks()
    await sandbox.close()
    await asyncio.sleep(0)
    proxy = sandbox.proxy  # type: ignore[attr-defined]
    assert proxy.server is None and not proxy.serving and len(asyncio.all_tasks()) <= len(before)
