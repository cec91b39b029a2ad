"""The walls of the bubblewrap sandbox."""

import time

import pytest

from agentgym.environments.bubblewrap import as_nobody
from agentgym.environments.sandbox import Sandbox


async def test_the_machine_is_out_of_reach(walled: Sandbox) -> None:
    result = await walled.run(
        "id -u; ls /home /root /var /proc/1/root/etc/shadow; touch /usr/x; cat /etc/shadow; ls / /proc"
    )
    assert result.stdout.startswith("1000\n") and "touch: cannot touch '/usr/x'" in result.stderr
    assert {"root", "home", "var"}.isdisjoint(result.stdout.split())
    assert len([name for name in result.stdout.split() if name.isdigit()]) < 8


async def test_there_is_no_network(walled: Sandbox) -> None:
    result = await walled.run("cat /proc/net/dev | tail -n +3 | cut -d: -f1; echo > /dev/tcp/1.1.1.1/80")
    assert result.stdout.split() == ["lo"] and result.exit_code == 1


async def test_killing_every_process_reaches_only_the_commands_own(walled: Sandbox) -> None:
    assert (await walled.run("sleep 50 & kill -9 -1; wait; echo over")).stdout == "over\n"
    assert (await walled.run("echo hi")).stdout == "hi\n"


async def test_a_private_tmp_lasts_from_one_command_to_the_next(walled: Sandbox) -> None:
    await walled.run("echo hi > /tmp/agentgym-test-note")
    assert (await walled.run("ls /tmp")).stdout == "agentgym-test-note\n"
    assert "agentgym-test-note" not in await walled.snapshot()


async def test_a_fork_bomb_is_contained(walled: Sandbox) -> None:
    if not as_nobody() and (await walled.run("ulimit -u")).stdout != "40\n":
        pytest.skip("no limit on processes here")
    begun = time.monotonic()
    result = await walled.run("for i in $(seq 200); do sleep 5 & done 2>&1; echo", timeout_s=3)
    assert "Resource temporarily unavailable" in result.stdout + result.stderr
    assert time.monotonic() - begun < 15
    assert (await walled.run("echo hi")).stdout == "hi\n"


async def test_memory_and_file_size_are_limited(walled: Sandbox) -> None:
    assert (await walled.run("head -c 900M /dev/zero | tail -c 800M > /dev/null")).exit_code != 0
    assert (await walled.run("head -c 5M /dev/zero > big")).exit_code != 0
    assert (await walled.snapshot())["big"].size == 1 << 20
