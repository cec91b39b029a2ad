"""Runs a command whose end is the end of everything that it started, and that ends with its owner, whatever killed it.

    python -I -S mcp_guard.py MARK OWNER_PID COMMAND ...

Run as a file, for the sake of a quick start: it imports nothing of the package. The command has the pipes for itself.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE_S = 3.0


def main(owner: int, command: list[str]) -> NoReturn:
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: end(128 + number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    guard = os.getpid()
    if os.getppid() != owner:
        os._exit(1)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    for descriptor in (0, 1):
        os.close(descriptor)
    pid = status = 0
    while pid != child:
        pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    end(code if code >= 0 else 128 - code)


def end(code: int) -> NoReturn:
    """Kill all descendants and exit."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        children = descendants(os.getpid())
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(0.01)
    os._exit(code)


def descendants(root: int) -> list[int]:
    """The processes below `root`, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found, pending = [], [root]
    while pending:
        parent = pending.pop()
        below = [pid for pid, of in parents.items() if of == parent]
        found += below
        pending += below
    return found


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3:])
