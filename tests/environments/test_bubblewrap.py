"""The walls of the bubblewrap sandbox."""

import time
from collections.abc import AsyncIterator

import pytest

from agentgym.environments.bubblewrap import as_nobody, why_not
from agentgym.environments.plain import no_mounts
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox


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


async def test_the_root_is_read_only_unless_it_is_asked_for(walled: Sandbox) -> None:
    result = await walled.run("touch /x /dev/x /etc/x 2>&1; echo shm > /dev/shm/f && cat /dev/shm/f; echo > /dev/null")
    assert result.stdout.count("Read-only file system") == 3 and result.stdout.endswith("shm\n")
    full = await walled.run("head -c 100M /dev/zero > /dev/shm/big")
    assert full.exit_code != 0


@pytest.fixture
async def writable() -> AsyncIterator[Sandbox]:
    if why_not():
        pytest.skip(f"bubblewrap does not work here: {why_not()}")
    made = open_sandbox("bubblewrap", Limits(disk_mb=8, inodes=600), workdir="/srv/app", writable=True)
    await made.start()
    yield made
    await made.close()


async def test_a_writable_root_lasts_and_goes_into_a_fork(writable: Sandbox) -> None:
    await writable.run(
        "mkdir -p /data/d /srv/other; echo one > /data/d/f; echo two > /srv/other/g; echo app > f; exit 3"
    )
    await writable.stop()
    fork = await writable.fork()
    try:
        for one in (writable, fork):
            assert (await one.run("cat /data/d/f /srv/other/g f; pwd")).stdout == "one\ntwo\napp\n/srv/app\n"
        await fork.run("echo changed > /data/d/f")
        assert (await writable.run("cat /data/d/f")).stdout == "one\n"
    finally:
        await fork.close()


@pytest.mark.skipif(bool(no_mounts()), reason="no file systems of limited size here")
@pytest.mark.parametrize("place", ["/", "/data/", "/tmp/", ""])
async def test_a_writable_root_is_bounded_with_the_rest(writable: Sandbox, place: str) -> None:
    result = await writable.run(f"mkdir -p /data; head -c 20M /dev/zero > {place}big; stat -c %s {place}big")
    assert int(result.stdout) <= 8 << 20
    await writable.run(f"rm {place}big; mkdir -p {place or '.'}/many; cd {place or '.'}/many; seq 2000 | xargs touch")
    assert int((await writable.run("ls | wc -l")).stdout) <= 600


async def test_what_decides_how_programs_run_is_not_the_agents(writable: Sandbox) -> None:
    tricks = (
        "echo /srv/app/evil.so > /etc/ld.so.preload; echo 'exit 9' > /etc/profile; touch /usr/bin/x; "
        "for d in /bin /sbin /lib /lib64; do rm -f $d; mkdir $d; ln -s /srv/app/evil $d/bash; done; "
        "mkdir /run /sys; touch /run/x /sys/x; rm -rf /srv; ln -s /usr/share /srv; ln -s / /tmp/root"
    )
    await writable.run(tricks)
    await writable.stop()
    again = await writable.run(
        "pwd; readlink /bin; ls /etc/ld.so.preload /etc/profile /run/x; bash -c 'echo ok'; touch f"
    )
    assert again.stdout == "/srv/app\nusr/bin\nok\n", again
    fork = await writable.fork()
    assert (await fork.run("readlink /bin; ls -A /etc/ld.so.preload; ls f")).stdout == "usr/bin\nf\n"
    await fork.close()


async def test_a_working_directory_whose_parent_became_a_link_is_mounted_where_it_belongs(writable: Sandbox) -> None:
    await writable.run("echo mine > f")
    root = writable.base / "disk/root"  # type: ignore[attr-defined]
    await writable.stop()
    (root / "srv/app").rmdir()
    (root / "srv").rmdir()
    (root / "srv").symlink_to("/oldroot/tmp")
    assert (await writable.run("cat f; pwd -P; ls -ld /srv | cut -c1")).stdout == "mine\n/srv/app\nd\n"
