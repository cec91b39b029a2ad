"""Whatever is killed with -9 of a supervised command, nothing of it is left."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

SUPERVISOR = "agentgym.policies.vllm_supervisor"
# As vLLM does: a process of its own that outlives it, and one that leaves its session as well.
COMMAND = (
    "import subprocess, time\n"
    "subprocess.Popen(['sleep', '1001'])\n"
    "subprocess.Popen(['setsid', 'sleep', '1002'])\n"
    "print('up', flush=True)\n"
    "time.sleep(1000)\n"
)
OWNER = (
    "import os, subprocess, sys\n"
    f"subprocess.run([sys.executable, '-m', {SUPERVISOR!r}, str(os.getpid()), sys.executable, '-c', sys.argv[1]])\n"
)
VICTIMS = ("first supervisor", "second supervisor", "command")


def start(code):
    """The processes of a supervised `code` once it is up: both supervisors, the command, what it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", SUPERVISOR, str(os.getpid()), sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "up\n"
    return process, tree(process.pid)


def tree(pid, least=5):
    for _ in range(100):
        found = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        if len(found) >= least and sum(process.name() == "sleep" for process in found) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{len(found)} processes")


def left(processes, seconds=10):
    """Those that have not ended within `seconds`; zombies have."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        if not alive:
            break
        time.sleep(0.05)
    return alive


@pytest.mark.parametrize("victim", range(3), ids=VICTIMS)
def test_whoever_is_killed_takes_everything_with_it(victim):
    process, everything = start(COMMAND)
    with process:
        everything[victim].kill()
        assert left(everything) == []


def test_a_killed_owner_takes_everything_with_it():
    with subprocess.Popen([sys.executable, "-c", OWNER, COMMAND], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "up\n"
        everything = tree(owner.pid, least=6)
        owner.kill()
        assert left(everything) == []


def test_asked_to_end_it_lets_the_command_end_in_order():
    polite = f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)))\n{COMMAND}"
    process, everything = start(polite)
    with process:
        process.terminate()
        assert process.stdout.read() == "bye\n"
        assert process.wait() == 128 + signal.SIGTERM
        assert left(everything, 1) == []


def test_what_does_not_want_to_end_is_killed():
    deaf = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{COMMAND}"
    process, everything = start(deaf)
    with process:
        process.terminate()
        assert left(everything) == []


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_it_ends_as_the_command_does(code, expected):
    command = [sys.executable, "-m", SUPERVISOR, str(os.getpid()), sys.executable, "-c", code]
    assert subprocess.run(command, timeout=60).returncode == expected
