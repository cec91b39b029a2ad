"""What every sandbox must do; each test runs in all that work here."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agentgym.environments.leftovers import (
    LOCK,
    MARK,
    PREFIX,
    Leftover,
    cgroup_parents,
    claim,
    find,
    is_dead,
    owner_token,
    reap,
    sweep,
)
from agentgym.environments.sandbox import Sandbox, open_sandbox, warn_not_isolated
from agentgym.errors import SandboxError, UsageError


def alive(mark: str) -> list[int]:
    """Processes with `mark` among their arguments, zombies not counted."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if mark in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def appears(mark: str, within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while not alive(mark):
        assert time.monotonic() < until, f"{mark} never started"
        time.sleep(0.02)


def gone(mark: str, within_s: float = 5.0) -> bool:
    until = time.monotonic() + within_s
    while alive(mark) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(mark)


async def test_a_command_runs_in_the_working_directory(sandbox: Sandbox) -> None:
    await sandbox.write("a/b.txt", b"hello\n", 0o640)
    result = await sandbox.run("cat a/b.txt; echo oops >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, "hello\n", "oops\n", False)
    assert (await sandbox.run("stat -c %a a/b.txt a")).stdout == "640\n755\n"


async def test_what_a_command_writes_can_be_read(sandbox: Sandbox) -> None:
    await sandbox.run("mkdir d; echo hi > d/f; ln -s d/f l; mkfifo p; chmod 600 d/f")
    assert await sandbox.read("d/f") == b"hi\n"
    entries = await sandbox.snapshot()
    assert {path: entry.kind for path, entry in entries.items()} == {
        "d": "dir",
        "d/f": "file",
        "l": "link",
        "p": "other",
    }
    assert (entries["d/f"].content, entries["d/f"].mode, entries["l"].target) == (b"hi\n", 0o600, "d/f")


async def test_files_last_from_one_command_to_the_next(sandbox: Sandbox) -> None:
    await sandbox.run('echo one > "$HOME/f"')
    assert (await sandbox.run("cat f")).stdout == "one\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("A=(); false", 1),
        ("set -euo pipefail; false", 1),
        ("if", 2),
        ("nosuch", 127),
        ("kill -9 $$", 137),
        ("exit 300", 44),
    ],
)
async def test_exit_codes_are_the_shells(sandbox: Sandbox, command: str, code: int) -> None:
    assert (await sandbox.run(command)).exit_code == code


async def test_a_long_heredoc_arrives_whole(sandbox: Sandbox) -> None:
    body = "\n".join(f"line {number}" for number in range(124))
    assert (await sandbox.run(f"cat > f.py <<'EOF'\n{body}\nEOF")).exit_code == 0
    assert (await sandbox.read("f.py")).count(b"\n") == 124


@pytest.mark.parametrize(
    "command",
    [
        "sleep 9731 & echo done",
        "(while :; do echo x; sleep .2; done) & echo done",
        "setsid sleep 9731 & echo done",
        "(setsid nohup sleep 9731 >/dev/null 2>&1 &) ; echo done",
    ],
)
async def test_a_background_process_neither_holds_the_call_nor_outlives_the_sandbox(
    sandbox: Sandbox, command: str
) -> None:
    result = await sandbox.run(command)
    assert result.exit_code == 0 and "done\n" in result.stdout and result.seconds < 10
    await sandbox.close()
    assert gone("9731")


async def test_a_time_out_kills_everything_keeps_output_and_leaves_the_sandbox_usable(sandbox: Sandbox) -> None:
    result = await sandbox.run("echo early; setsid sleep 9732 & sleep 9732", timeout_s=0.5)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, "early\n")
    assert gone("9732")
    again = await sandbox.run("echo hi")
    assert (again.stdout, again.exit_code) == ("hi\n", 0)


async def test_cancelling_a_call_kills_its_command(sandbox: Sandbox) -> None:
    call = asyncio.create_task(sandbox.run("sleep 9733"))
    await asyncio.to_thread(appears, "9733")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert gone("9733")


async def test_endless_output_is_bounded_and_leaves_the_host_alone(sandbox: Sandbox) -> None:
    before = time.process_time()
    result = await sandbox.run("echo first; yes", timeout_s=2)
    assert result.timed_out and result.stdout.startswith("first\ny\n") and result.stdout.endswith("y\n")
    assert len(result.stdout) < 4096 + 100 and result.stdout_dropped > 1_000_000
    assert time.process_time() - before < 1


async def test_head_and_tail_of_long_output_are_kept(sandbox: Sandbox) -> None:
    result = await sandbox.run("seq 100000 >&2")
    assert result.stderr.startswith("1\n2\n") and result.stderr.endswith("\n99999\n100000\n")
    assert result.stderr_dropped == 588895 - 4096


async def test_invalid_utf8_becomes_valid_text(sandbox: Sandbox) -> None:
    result = await sandbox.run(r"printf 'a\xff\xfeb\0c'")
    assert result.stdout == "a\ufffd\ufffdb\0c"
    result.stdout.encode()


async def test_stdin_is_empty(sandbox: Sandbox) -> None:
    result = await sandbox.run("cat; read x; echo $?")
    assert result.stdout == "1\n"


async def test_commands_no_shell_can_take_are_results_not_failures(sandbox: Sandbox) -> None:
    nul = await sandbox.run("echo a\0b")
    long = await sandbox.run("echo " + "a" * (5 << 20))
    odd = await sandbox.run("echo \udcff")
    assert (nul.exit_code, long.exit_code, odd.exit_code) == (126, 126, 0)
    assert "NUL" in nul.stderr and "too long" in long.stderr


async def test_nothing_of_our_environment_is_inherited(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "s3cret")
    assert "s3cret" not in (await sandbox.run("env; cat /proc/self/environ")).stdout


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "link", "dir/x", "fifo", "a\0b"])
async def test_the_host_never_follows_a_path_out(sandbox: Sandbox, path: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("outside")
    await sandbox.run(f"ln -s {tmp_path}/x link; ln -s {tmp_path} dir; mkfifo fifo")
    with pytest.raises(SandboxError):
        await sandbox.read(path)
    with pytest.raises(SandboxError):
        await sandbox.write(path, b"changed")
    assert (tmp_path / "x").read_text() == "outside" and [one.name for one in _listed(tmp_path)] == ["x"]


async def test_a_snapshot_stays_inside_and_within_bounds(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    await sandbox.run(
        f"ln -s {tmp_path} dir; ln -s . loop; truncate -s 20M big; mkdir many closed; touch closed/f; chmod 0 closed;"
        " cd many; seq 12000 | xargs touch; p=.; for i in $(seq 80); do p=$p/d; done; mkdir -p $p"
    )
    entries = await sandbox.snapshot()
    assert entries["dir"].kind == entries["loop"].kind == "link"
    assert not any("secret" in path for path in entries)
    assert entries["big"].size == 20 << 20 and len(entries["big"].content) == 1 << 20
    assert len(entries) == 10_000


async def test_closing_removes_everything_also_twice(kind: str) -> None:
    sandbox = open_sandbox(kind)
    await sandbox.close()
    await sandbox.start()
    base = getattr(sandbox, "base", None)
    await sandbox.run("mkdir -p a/b; touch a/b/c; chmod 0 a/b a")
    assert base is None or base.exists()
    await sandbox.close()
    await sandbox.close()
    assert base is None or not base.exists()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("true")


async def test_a_sandbox_whose_directory_is_gone_fails_as_a_sandbox(sandbox: Sandbox) -> None:
    if not hasattr(sandbox, "folder"):
        pytest.skip("a container's directory is a mount that cannot be removed")
    sandbox.folder.remove()
    for call in (sandbox.run("true"), sandbox.snapshot(), sandbox.read("x")):
        with pytest.raises(SandboxError):
            await call


async def test_many_at_once_do_not_mix(kind: str) -> None:
    sandboxes = [open_sandbox(kind) for _ in range(12)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    results = await asyncio.gather(*(one.run(f"echo {n} > f; cat f") for n, one in enumerate(sandboxes)))
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(12)]


OWNER = """
import asyncio, sys
from agentgym.environments.sandbox import open_sandbox
async def main():
    sandbox = open_sandbox(sys.argv[1])
    await sandbox.start()
    print("started", flush=True)
    await sandbox.run("exec sleep 9734", timeout_s=100)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_if_the_owner_is_killed(kind: str, tmp_path: Path, number: int) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )
    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"started\n"
        appears("9734")
        bases = list(tmp_path.glob(f"{PREFIX}*"))
        for base in bases:
            os.utime(base / LOCK, (0, 0))
        assert sweep(tmp_path) == 0 and all(base.exists() for base in bases)  # its owner is alive
        token = owner_token(owner.pid)
        owner.send_signal(number)
        owner.wait()
        killed = time.monotonic()
    assert gone("9734")
    while any(base.exists() for base in bases) or any(
        token in one.name for parent in cgroup_parents() for one in parent.glob("*")
    ):
        assert time.monotonic() - killed < 5, "its guard did not remove what it left"
        time.sleep(0.02)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


WORKER = """
import asyncio, os
from agentgym.supervise import supervised
supervised(os.getppid())
from agentgym.environments.sandbox import open_sandbox
async def main():
    sandbox = open_sandbox("plain")
    await sandbox.start()
    print(os.getpid(), flush=True)
    await sandbox.run("setsid sleep 9735 & sleep 9735", timeout_s=100)
asyncio.run(main())
"""


def test_a_guard_outlives_the_supervisor_of_its_owner(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    supervisor = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )
    with supervisor:
        assert supervisor.stdout is not None
        worker = int(supervisor.stdout.readline())
        appears("9735")
        os.kill(worker, signal.SIGKILL)
    assert gone("9735")
    until = time.monotonic() + 5
    while _listed(tmp_path):
        assert time.monotonic() < until, "its guard did not remove what it left"
        time.sleep(0.02)


def test_what_a_dead_owner_left_is_found_and_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["sleep", "60"])
    token = owner_token(dead.pid)
    dead.kill()
    dead.wait()
    (tmp_path / f"{PREFIX}dead/disk/work/a").mkdir(parents=True)
    (tmp_path / f"{PREFIX}dead" / LOCK).write_text(token)
    (tmp_path / f"{PREFIX}{token}-halfway").mkdir()  # its owner died before it could write itself in
    (tmp_path / f"{PREFIX}{token}-further").mkdir()
    (tmp_path / f"{PREFIX}{token}-further" / LOCK).touch()
    (tmp_path / f"{PREFIX}mine").mkdir()
    lock = claim(tmp_path / f"{PREFIX}mine")
    left = subprocess.Popen(["sleep", "60"], env={MARK: f"{token}/x"}, start_new_session=True)
    assert is_dead(token) and not is_dead(owner_token()) and not is_dead("1-1-1")
    wanted = {Leftover("directory", str(tmp_path / f"{PREFIX}dead")), Leftover("processes", f"{token}/x")}
    assert wanted <= set(find(tmp_path)) and wanted <= set(reap(tmp_path))
    assert left.wait(timeout=5) == -signal.SIGKILL and [one.name for one in _listed(tmp_path)] == [f"{PREFIX}mine"]
    os.close(lock)


def test_unknown_kinds_answer_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'bubblewrap'"):
        open_sandbox("bublewrap")


def test_the_plain_sandbox_refuses_untrusted_tasks() -> None:
    with pytest.raises(UsageError, match="no walls"):
        open_sandbox("plain", trusted=False)
    assert open_sandbox("plain", trusted=True)


def test_the_plain_sandbox_says_once_that_it_isolates_nothing(caplog: pytest.LogCaptureFixture) -> None:
    warn_not_isolated.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not open_sandbox("plain").isolates
        open_sandbox("plain")
    assert [record.message.split(":")[0] for record in caplog.records] == ["the plain sandbox isolates nothing"]
