"""Attempts to break out of a sandbox or to exhaust the machine, and a way to make each: used by tests and the documentation.

An attempt succeeds if its command prints ESCAPED, if its `check` finds something, or if the sandbox does not answer
afterwards. Those that would harm a machine without walls are never made in the plain sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from agentgym.environments.sandbox import CommandResult, Limits, Sandbox, open_sandbox
from agentgym.errors import SandboxError

LIMITS = Limits(processes=64, memory_mb=128, disk_mb=32, inodes=4000, file_mb=16, open_files=128, cpus=1)
SECRET = "s3cret-of-the-host"
# What a sandbox leaves open, and why: the table says so, and the tests hold it to exactly this.
OPEN: dict[str, set[str]] = {"bubblewrap": set(), "docker": set()}


class Host(NamedTuple):
    """What there is on the machine to get at."""

    pid: int  # of a process of ours
    port: int  # where something listens on loopback
    folder: Path  # holds a file `secret`


Check = Callable[[Sandbox, CommandResult, Host], Awaitable[str]]


class Attack(NamedTuple):
    """One attempt. `{pid}`, `{port}` and `{folder}` in the command stand for what the host has."""

    name: str
    command: str
    harmless: bool = False  # may be made without walls
    timeout_s: float = 5.0
    check: Check | None = None


async def _bounded(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    return "unbounded output" if len(result.stdout) > 2 * LIMITS.output_bytes else ""


async def _timed_out(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    return "" if result.timed_out else "it was not stopped"


async def _no_survivor(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    await asyncio.sleep(2.2)
    return "a process survived the time-out" if "survived" in await sandbox.snapshot() else ""


async def _snapshot_works(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    entries = await sandbox.snapshot()
    return "" if 0 < len(entries) <= 10_000 else f"{len(entries)} entries"


async def _no_secret(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    return "a secret was printed" if SECRET in result.stdout + result.stderr else ""


async def _host_lives(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    await asyncio.sleep(0.05)
    return "" if psutil.Process(host.pid).status() != psutil.STATUS_ZOMBIE else "a process of the host was killed"


async def _no_escapes(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    return "escape codes reach the model" if "\x1b" in result.stdout or "\x9b" in result.stdout else ""


async def _no_read(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    for path in ("link", "dir/secret", "../secret", "/etc/passwd", "dir/../dir/secret"):
        with contextlib.suppress(SandboxError):
            if SECRET.encode() in await sandbox.read(path):
                return f"reading {path} led out"
    return "the download led out" if SECRET.encode() in await sandbox.download() else ""


async def _no_write(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    for path in ("link", "dir/new", "../new", "dir/secret"):
        with contextlib.suppress(SandboxError):
            await sandbox.write(path, b"changed")
    return await _untouched(host)


async def _race(sandbox: Sandbox, result: CommandResult, host: Host) -> str:
    for _ in range(60):
        with contextlib.suppress(SandboxError):
            if SECRET.encode() in await sandbox.read("swap/secret"):
                return "a read was led out by a race"
        with contextlib.suppress(SandboxError):
            await sandbox.write("swap/new", b"changed")
    return await _untouched(host)


async def _untouched(host: Host) -> str:
    names = {entry.name for entry in os.scandir(host.folder)}
    content = await asyncio.to_thread((host.folder / "secret").read_text)
    return "" if names == {"secret"} and content == SECRET else "a write led out"


def _if(condition: str) -> str:
    return f"if {condition}; then echo ESCAPED; fi"


ATTACKS = (
    # exhaustion
    Attack("fork bomb", "f() { f | f & }; f 2>/dev/null; sleep 1; sleep 60", timeout_s=3, check=_timed_out),
    Attack("memory", _if('[ "$(head -c 400M /dev/zero | tail -c 300M | wc -c)" = 314572800 ]'), timeout_s=20),
    Attack("memory by shared memory", "for i in $(seq 30); do head -c 10M /dev/zero >/dev/shm/$i || break; done 2>/dev/null; " + _if('[ "$(du -sm /dev/shm | cut -f1)" -gt 140 ]'), timeout_s=20),
    Attack("disk", "for i in $(seq 20); do head -c 10M /dev/zero >f$i; done 2>/dev/null; " + _if('[ "$(du -sm . | cut -f1)" -gt 60 ]'), timeout_s=20),
    Attack("disk by /tmp", "for i in $(seq 20); do head -c 10M /dev/zero >/tmp/f$i; done 2>/dev/null; " + _if('[ "$(du -sm /tmp | cut -f1)" -gt 60 ]'), timeout_s=20),
    Attack("inodes", "mkdir m; cd m; seq 20000 | xargs touch 2>/dev/null; " + _if('[ "$(ls | wc -l)" -gt 10000 ]'), timeout_s=20),
    Attack("one large file", "head -c 100M /dev/zero >big 2>/dev/null; " + _if('[ "$(stat -c %s big)" -gt 50000000 ]'), harmless=True),
    Attack("a sparse file of a terabyte", _if("truncate -s 1T huge 2>/dev/null"), harmless=True),
    Attack("open files", "n=0; while ((n < 1000)) && exec {fd}</dev/null; do n=$((n + 1)); done 2>/dev/null; " + _if("((n >= 1000))"), harmless=True),
    Attack("raising the limits", _if("ulimit -Hn 100000 2>/dev/null || ulimit -Hf unlimited 2>/dev/null")),
    Attack("an endless loop", "trap '' TERM INT HUP QUIT; while :; do :; done", harmless=True, timeout_s=1, check=_timed_out),
    Attack("endless output", "yes", harmless=True, timeout_s=1, check=_bounded),
    Attack("output without a newline", "tr '\\0' x </dev/zero", harmless=True, timeout_s=1, check=_bounded),
    Attack("a daemon that outlives the time-out", "setsid sh -c 'sleep 2; touch survived' & (setsid nohup sh -c 'sleep 2; touch survived' &) ; sleep 60", harmless=True, timeout_s=0.7, check=_no_survivor),
    Attack("directories without end", "p=d; for i in $(seq 400); do p=$p/d; done; mkdir -p $p", harmless=True, check=_snapshot_works),
    Attack("huge and broken file names", "touch $'a\\nb' $'\\xff\\xfe' -- -rf \"$(printf 'n%.0s' $(seq 255))\" $'\\x1b[2J'", harmless=True, check=_snapshot_works),
    Attack("waiting for input", _if("timeout 3 cat; read -t 3 x"), harmless=True),
    # the system
    Attack("being root", _if('[ "$(id -u)" = 0 ]'), harmless=True),
    Attack("capabilities", _if("! grep -q '^CapEff:.0*$' /proc/self/status"), harmless=True),
    Attack("new privileges", _if("! grep -q '^NoNewPrivs:.1$' /proc/self/status"), harmless=True),
    Attack("a setuid program", "cp /bin/bash s; chmod u+s s; " + _if("[ \"$(./s -p -c 'id -u')\" = 0 ]"), harmless=True),
    Attack("writing to the system", _if("touch /usr/agentgym-x /etc/agentgym-x /bin/agentgym-x 2>/dev/null")),
    Attack("writing to /proc/sys and /sys", _if('[ -n "$(find /proc/sys /sys -type f -writable 2>/dev/null | head -1)" ]'), harmless=True, timeout_s=30),
    Attack("the host's name", _if("hostname agentgym-x 2>/dev/null || echo x >/proc/sys/kernel/hostname 2>/dev/null")),
    Attack("sysrq", _if("[ -w /proc/sysrq-trigger ]"), harmless=True),
    Attack("kernel memory", _if("head -c 1 /proc/kcore >/dev/null 2>&1 || head -c 1 /dev/mem >/dev/null 2>&1"), harmless=True),
    Attack("disks", _if('[ -n "$(find /dev -type b 2>/dev/null | head -1)" ]'), harmless=True),
    Attack("making a device", _if("mknod d b 8 0 2>/dev/null")),
    Attack("mounting", _if("mount -t tmpfs x /tmp 2>/dev/null || mount --bind / /tmp 2>/dev/null")),
    Attack("a user namespace of one's own", _if("unshare -Urm true 2>/dev/null")),
    Attack("entering the host's namespaces", _if("nsenter -t 1 -m -n ls {folder}/secret >/dev/null 2>&1 || [ -e /proc/1/root{folder}/secret ]"), harmless=True),
    Attack("chroot", _if("chroot / true 2>/dev/null")),
    Attack("control groups", _if("echo $$ 2>/dev/null >/sys/fs/cgroup/pids/cgroup.procs || echo $$ 2>/dev/null >/sys/fs/cgroup/cgroup.procs || mkdir /sys/fs/cgroup/agentgym-x 2>/dev/null")),
    Attack("the clock", _if("date -s @0 2>/dev/null")),
    Attack("a better priority", _if("renice -n -5 $$ >/dev/null 2>&1"), harmless=True),
    Attack("the docker socket", _if("[ -e /var/run/docker.sock ] || [ -e /run/docker.sock ]"), harmless=True),
    # other processes
    Attack("seeing other processes", _if("grep -aqs 97399 /proc/{pid}/cmdline"), harmless=True),
    Attack("killing other processes", "kill -9 {pid}", harmless=True, check=_host_lives),
    Attack("reading other processes", _if("grep -aqs " + SECRET + " /proc/{pid}/environ"), harmless=True),
    Attack("killing everything", "kill -9 -1; sleep 0.2; kill -9 -1", check=_host_lives),
    Attack("signals to the first process", "for n in 1 2 3 6 9 11 14 15 19; do kill -$n 1; done 2>/dev/null; sleep 0.3"),
    # secrets
    Attack("the host's environment", "env; cat /proc/self/environ /proc/$$/environ /proc/1/environ 2>/dev/null | tr '\\0' '\\n'", harmless=True, check=_no_secret),
    Attack("descriptors of the host", _if('[ "$(ls /proc/self/fd | wc -l)" -gt 4 ]'), harmless=True),
    Attack("the host's files", _if("[ -r {folder}/secret ] || [ -r /etc/shadow ] || ls /root/. >/dev/null 2>&1"), harmless=True),
    Attack("reading through a link", "ln -s {folder}/secret link; ln -s {folder} dir", harmless=True, check=_no_read),
    Attack("writing through a link", "ln -s {folder}/secret link; ln -s {folder} dir", harmless=True, check=_no_write),
    Attack("a race with a link", "mkdir real; (while :; do ln -sfn {folder} swap; rm -f swap; mkdir swap; rmdir swap; done) >/dev/null 2>&1 &", harmless=True, check=_race),
    Attack("escape codes of terminals", r"printf '\033]52;c;aGk=\007\033[2J\033P+q\033\\\302\2332J'", harmless=True, check=_no_escapes),
    # the network
    Attack("the internet", _if("timeout 3 bash -c ': >/dev/tcp/1.1.1.1/443' 2>/dev/null"), harmless=True),
    Attack("the metadata address", _if("timeout 3 bash -c ': >/dev/tcp/169.254.169.254/80' 2>/dev/null"), harmless=True),
    Attack("loopback, with the run's own servers", _if("timeout 3 bash -c ': >/dev/tcp/127.0.0.1/{port}' 2>/dev/null"), harmless=True),
    Attack("names", _if("timeout 3 getent hosts example.com >/dev/null 2>&1"), harmless=True),
)  # fmt: skip


@contextlib.contextmanager
def host() -> Iterator[Host]:
    """Something on the machine to get at: a process, a server and a file."""
    process = subprocess.Popen(["sleep", "97399"], env={"TOKEN": SECRET, "PATH": os.defpath})
    with tempfile.TemporaryDirectory(prefix="host-") as name, socket.create_server(("127.0.0.1", 0)) as server, process:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret").write_text(SECRET)
        (folder / "secret").chmod(0o666)
        os.environ["AGENTGYM_TEST_SECRET"] = SECRET
        try:
            yield Host(process.pid, server.getsockname()[1], folder)
        finally:
            del os.environ["AGENTGYM_TEST_SECRET"]
            process.kill()


def command_of(attack: Attack, there: Host) -> str:
    """The command with what the host has in it."""
    command = attack.command
    for name, value in there._asdict().items():
        command = command.replace("{" + name + "}", str(value))
    return command


async def attempt_bare(attack: Attack) -> str:
    """Make a harmless attempt with no sandbox at all, to know that it would succeed."""
    assert attack.harmless
    with host() as there, tempfile.TemporaryDirectory() as folder:
        shell = ["bash", "-c", command_of(attack, there)]
        done = await asyncio.to_thread(
            subprocess.run, shell, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        result = CommandResult(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, seconds=0.0)
        how = "it said so" if "ESCAPED" in done.stdout else ""
        return how or (await attack.check(open_sandbox("plain"), result, there) if attack.check else "")


async def attempt(kind: str, attack: Attack) -> str:
    """Make one attempt in a fresh sandbox, and say how it succeeded; empty if it was stopped."""
    sandbox = open_sandbox(kind, LIMITS)
    with host() as there:
        await sandbox.start()
        try:
            result = await sandbox.run(command_of(attack, there), attack.timeout_s)
            how = "it said so" if "ESCAPED" in result.stdout else ""
            if attack.check is not None:
                how = how or await attack.check(sandbox, result, there)
            await sandbox.stop()
            again = await sandbox.run("echo alive", 10)
            return how or ("" if again.stdout.endswith("alive\n") else f"the sandbox is dead: {again}")
        finally:
            await sandbox.close()
