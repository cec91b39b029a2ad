"""Working directories whose owner was killed: found by a lock that dies with its owner, and removed at the next start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from functools import cache
from pathlib import Path

from agentgym.environments.folder import Folder

PREFIX = "agentgym-"
LOCK = "lock"
MIN_AGE_S = 60.0  # between making a directory and locking it


def claim(base: Path) -> int:
    """Lock `base` for as long as the descriptor that this returns is open in any process."""
    lock = os.open(base / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def sweep(folder: Path) -> int:
    """Remove the sandboxes in `folder` that nobody holds, and say how many."""
    removed = 0
    for base in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(base / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(lock).st_mtime > MIN_AGE_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    Folder(base).remove()
                    removed += 1
            finally:
                os.close(lock)
    return removed


@cache
def sweep_once() -> int:
    """Sweep the machine's folder for temporary files, once in a process."""
    return sweep(Path(tempfile.gettempdir()))
