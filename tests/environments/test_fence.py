"""The plain sandbox must not be able to end the machine. Nothing is killed here before the fence is proved to be there."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from agentgym.environments.fence import NOBODY, fence
from agentgym.environments.plain import PlainSandbox
from agentgym.environments.sandbox import Limits
from agentgym.errors import UsageError

HERE = str(Path("/proc/self/ns/pid").readlink())


@pytest.fixture
async def namespace() -> AsyncIterator[PlainSandbox]:
    try:
        fence("namespace")
    except UsageError as error:
        pytest.skip(str(error))
    made = PlainSandbox(Limits(), fence="namespace")
    await made.start()
    yield made
    await made.close()


async def test_killing_everything_ends_only_what_runs_in_the_namespace(namespace: PlainSandbox) -> None:
    there = (await namespace.run("readlink /proc/self/ns/pid; echo $$; readlink /proc/$$/exe")).stdout.split()
    assert there[0].startswith("pid:[") and there[0] != HERE and int(there[1]) < 100 and "bash" in there[2]
    witness = psutil.Process()
    killed = await namespace.run(
        f'sleep 50 & [ "$(readlink /proc/self/ns/pid)" != "{HERE}" ] && [ $$ -lt 100 ] && kill -9 -1; wait; echo over'
    )
    assert killed.stdout == "over\n" and witness.is_running()
    assert (await namespace.run("echo hi")).stdout == "hi\n"


async def test_signals_and_exit_codes_are_as_without_it(namespace: PlainSandbox) -> None:
    assert (await namespace.run("kill -9 $$")).exit_code == 137
    assert (await namespace.run("kill -TERM $$; exit 7")).exit_code in (7, 143)
    assert (await namespace.run("(exit 5); exit $?")).exit_code == 5
    assert (await namespace.run("kill -9 1; sleep 0.1; echo alive")).stdout == "alive\n"
    assert (await namespace.run("grep SigIgn /proc/self/status")).stdout.split()[1].endswith("0000")


async def test_what_this_process_ignores_the_sandbox_does_not() -> None:
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGHUP, signal.SIGINT)}
    sandbox = PlainSandbox(Limits())
    try:
        await sandbox.start()
        assert (await sandbox.run("grep SigIgn /proc/self/status")).stdout.split()[1].endswith("0000")
        assert (await sandbox.run("bash -c 'kill -HUP $$; sleep 9'")).exit_code == 129
    finally:
        await sandbox.close()
        for one, handler in before.items():
            signal.signal(one, handler)


async def test_orphans_are_reaped(namespace: PlainSandbox) -> None:
    await namespace.run("for i in $(seq 40); do (sleep 0.01 & ) ; done; sleep 0.3")
    assert (await namespace.run("ps -eo stat= | grep -c Z")).stdout == "0\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_root_without_namespaces_is_nobody() -> None:
    sandbox = PlainSandbox(Limits(), fence="nobody")
    await sandbox.start()
    try:
        await sandbox.write("d/f", b"hi\n", 0o640)
        said = await sandbox.run("id -u; id -G; cat d/f; echo more >> d/f; touch g; grep CapEff /proc/self/status")
        assert said.stdout.split() == [str(NOBODY), str(NOBODY), "hi", "CapEff:", "0" * 16] and not said.stderr
        assert await sandbox.read("d/f") == b"hi\nmore\n"
        fork = await sandbox.fork()
        assert (await fork.run("id -u; cat d/f")).stdout == f"{NOBODY}\nhi\nmore\n"
        await fork.close()
    finally:
        await sandbox.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
async def test_root_with_no_fence_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="end the machine"):
        await PlainSandbox(Limits(), fence="none").start()
