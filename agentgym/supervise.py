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


def supervised(owner: int) -> None:
    """Go on in a child process; this one stays behind to watch over it.

    The supervisor adopts whatever the child's descendants leave behind. It kills them all when the child has ended,
    then ends with the child's exit code (128 + n for signal n); and also when it is told to (TERM) or when the process
    `owner`, whose child it is, dies. The child dies with the supervisor. Call it before there are threads.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides
    signal.signal(signal.SIGTERM, lambda number, frame: _end(SIGNALLED + number))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    die_with(owner, signal.SIGTERM)
    supervisor = os.getpid()
    child = os.fork()
    if child:
        _watch(child)
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


def _watch(child: int) -> NoReturn:
    os.closerange(3, 1 << 20)  # the pipes are the child's
    pid = status = 0
    while pid != child:
        pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    _end(code if code >= 0 else SIGNALLED - code)


def _end(code: int) -> NoReturn:
    """Kill all descendants and exit."""
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
