"""Runs a command in a process group of its own, and ends the whole group when its owner is gone.

    python -m agentgym.policies.vllm_supervisor OWNER_PID COMMAND...

vLLM's engine processes outlive a killed API server, and nobody tells them when their owner is killed: this process
looks. It ends the group when the owner is gone, when it is asked to (TERM, INT), and when the command itself has ended;
it exits with the command's code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

LOOK_EVERY_S = 0.2
GRACE_S = 3.0


def main(argv: list[str]) -> int:
    """Supervise `argv[1:]` for the owner `argv[0]`; returns the exit code."""
    owner, command = int(argv[0]), argv[1:]
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: asked.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None and not asked and os.getppid() == owner:
            time.sleep(LOOK_EVERY_S)
    finally:
        end_group(child)
    return child.returncode if not asked else 0


def end_group(leader: subprocess.Popen[bytes]) -> None:
    """End every process of the group that `leader` began: asked first, killed after `GRACE_S`."""
    deadline = time.monotonic() + GRACE_S
    signalled = signal_group(leader.pid, signal.SIGTERM)
    while signalled and time.monotonic() < deadline:
        leader.poll()
        time.sleep(0.05)
        signalled = signal_group(leader.pid, 0)
    signal_group(leader.pid, signal.SIGKILL)
    leader.wait()


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False if no process of it is left."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
