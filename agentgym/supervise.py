"""A process whose end is the end of everything that it started, and that ends with its owner, whatever killed either."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import NoReturn

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALLED = 128  # exit codes above: the signal that ended the process
PATIENCE_S = 5.0  # for killed processes to be gone
SPARED = "agentgym-guard"  # cleans up after a process that was killed, and then ends by itself


def supervised(owner: int, grace_s: float = 0.0) -> None:
    """Go on in a child process; this one stays behind to watch over it.

    The supervisor adopts whatever the child's descendants leave behind. It ends them all when the child has ended, then
    ends with the child's exit code (128 + n for signal n); and also when it is told to (TERM) or when the process
    `owner`, whose child it is, dies. They are asked to end (TERM), and killed after `grace_s`. The child dies with the
    supervisor. Call it before there are threads, and in no process that leads a group.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides
    signal.signal(signal.SIGTERM, lambda number, frame: _end(SIGNALLED + number, grace_s))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    die_with(owner, signal.SIGTERM)
    supervisor = os.getpid()
    child = os.fork()
    if child:
        _watch(child, grace_s)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(supervisor, signal.SIGKILL)


def die_with(parent: int, number: int) -> None:
    """Be sent the signal `number` when `parent` dies, or at once if it is dead."""
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def explain(code: int) -> str:
    """An exit code of a supervised process, in words."""
    if code < 0 or code > SIGNALLED:
        number = -code if code < 0 else code - SIGNALLED
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit code {code}"


def _watch(child: int, grace_s: float) -> NoReturn:
    os.closerange(3, 1 << 20)  # the pipes are the child's
    pid = status = 0
    while pid != child:
        pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    _end(code if code >= 0 else SIGNALLED - code, grace_s)


def _end(code: int, grace_s: float) -> NoReturn:
    """End all descendants and exit: each is asked once, and killed after `grace_s`."""
    asked: set[int] = set()
    kill_at = time.monotonic() + grace_s
    with contextlib.suppress(ChildProcessError):
        while (left_s := kill_at - time.monotonic()) > -PATIENCE_S:
            doomed = [process for process in psutil.Process().children(recursive=True) if not _spared(process)]
            if not doomed:
                break
            for process in doomed:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if left_s <= 0:
                        process.kill()
                    elif process.pid not in asked:
                        asked.add(process.pid)
                        process.terminate()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005 if left_s <= 0 else 0.05)
    os._exit(code)


def _spared(process: psutil.Process) -> bool:
    try:
        return SPARED in process.cmdline()
    except psutil.Error:
        return False


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
