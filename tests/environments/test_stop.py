"""After `stop` nothing of the agent is alive: what it left is what is judged, and nobody races with a grader."""

import asyncio
import time

import psutil
import pytest

from agentgym.environments.cgroups import no_cgroups
from agentgym.environments.fence import fence
from agentgym.environments.plain import PlainSandbox, no_mounts
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox
from agentgym.errors import SandboxError

# Programs that never stay: each generation starts the next one in a session of its own and ends.
RELAY = """#!/bin/bash
trap '' TERM INT HUP QUIT
echo $$ >> trail
setsid "$0" agentgym-relay </dev/null >/dev/null 2>&1 &
disown
"""
WRITER = """#!/bin/bash
trap '' TERM INT HUP QUIT
while :; do echo right > out; echo wrong > out; done # agentgym-relay
"""
STARTS = (
    "chmod +x relay writer; for i in 1 2 3; do ./relay agentgym-relay; setsid ./writer agentgym-relay & "
    "(setsid nohup ./writer agentgym-relay >/dev/null 2>&1 &) ; env -i ./writer agentgym-relay & done; sleep 0.05"
)


def alive() -> list[int]:
    """Processes of the relay that could still do something."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        arguments = process.info["cmdline"] or []
        if "agentgym-relay" in arguments and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


async def busy(sandbox: Sandbox) -> None:
    await sandbox.write("relay", RELAY.encode())
    await sandbox.write("writer", WRITER.encode())
    await sandbox.run(STARTS)


async def test_nothing_is_alive_when_stop_returns(kind: str) -> None:
    if kind == "plain" and fence().kind != "namespace" and no_cgroups():
        pytest.skip("neither a process namespace nor cgroups here: what escapes its mark is not found")
    sandbox = open_sandbox(kind, Limits(processes=120))
    await sandbox.start()
    try:
        for _ in range(6):
            await busy(sandbox)
            assert alive(), "nothing was running: the test proves nothing"
            await sandbox.stop()
            left, first = alive(), await sandbox.snapshot()
            await asyncio.sleep(0.05)
            assert (left, first["trail"].size > 0, first == await sandbox.snapshot()) == ([], True, True)
    finally:
        await sandbox.close()
    assert alive() == []


async def test_a_copy_of_a_stopped_sandbox_is_one_moments(kind: str) -> None:
    if kind == "plain" and fence().kind != "namespace" and no_cgroups():
        pytest.skip("neither a process namespace nor cgroups here: what escapes its mark is not found")
    sandbox = open_sandbox(kind, Limits(processes=120))
    await sandbox.start()
    fork = None
    try:
        await busy(sandbox)
        await sandbox.stop()
        before = await sandbox.snapshot()
        fork = await sandbox.fork()
        assert await fork.snapshot() == before == await sandbox.snapshot()
    finally:
        await sandbox.close()
        if fork is not None:
            await fork.close()


async def test_a_namespace_without_a_cgroup_ends_as_a_whole_too(walled: Sandbox) -> None:
    walled.cgroup = None  # type: ignore[attr-defined]  # as it is without root
    for _ in range(6):
        await busy(walled)
        assert alive()
        begun = time.monotonic()
        await walled.stop()
        assert alive() == [] and time.monotonic() - begun < 2


async def test_the_same_of_the_plain_sandbox() -> None:
    if fence().kind != "namespace":
        pytest.skip("no process namespaces here")
    sandbox = PlainSandbox(Limits(processes=120))
    await sandbox.start()
    sandbox.cgroup = None
    try:
        for _ in range(6):
            await busy(sandbox)
            assert alive()
            await sandbox.stop()
            assert alive() == []
    finally:
        await sandbox.close()


async def test_a_full_disk_leaves_a_copy_with_room(kind: str) -> None:
    if kind != "docker" and no_mounts():
        pytest.skip(f"no file systems of limited size here: {no_mounts()}")
    if kind == "plain":
        pytest.skip("its disk has no limit")
    sandbox = open_sandbox(kind, Limits(disk_mb=16, inodes=4000, file_mb=64))
    await sandbox.start()
    fork = None
    try:
        await sandbox.run(
            "echo mine > f; head -c 40M /dev/zero > big; head -c 40M /dev/zero > /tmp/big; seq 5000 | xargs touch", 60
        )
        with pytest.raises(SandboxError):
            await sandbox.write("g", b"x" * 100_000)
        await sandbox.stop()
        fork = await sandbox.fork()
        await fork.write("tests/t", b"x" * 100_000)
        assert (
            await fork.run("cat f; wc -c < tests/t; head -c 1M /dev/zero > /tmp/more && echo room")
        ).stdout == "mine\n100000\nroom\n"
    finally:
        await sandbox.close()
        if fork is not None:
            await fork.close()
