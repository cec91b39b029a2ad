"""A dead man's switch: a small process that waits for its owner to die and then removes what it left.

One for each process that opens sandboxes. It holds the read end of a pipe whose write end only the owner has, and costs
nothing while it waits; an owner that ends in order, with nothing open, tells it so.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile

from agentgym.environments import leftovers
from agentgym.supervise import SPARED

SCRIPT = 'trap "" TERM INT HUP; cd /; read -r word && exit; exec "$1" -I -S "$2" "$3" "$0"'

_writers: list[int] = []  # the write end of this process's guard, once there is one
_opened: set[str] = set()


def opened(id: str) -> None:
    """Have a guard from here on; `id` is something that it may have to remove."""
    if not _writers:
        _start()
    _opened.add(id)


def closed(id: str) -> None:
    """`id` is gone, in order."""
    _opened.discard(id)


def _start() -> None:
    reader, writer = os.pipe()  # neither end is inherited by programs
    nothing = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    try:
        os.posix_spawn(
            shutil.which("sh") or "/bin/sh",
            [SPARED, "-c", SCRIPT, SPARED, sys.executable, leftovers.__file__, leftovers.owner_token()],
            {"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": tempfile.gettempdir()},
            file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0), nothing, (os.POSIX_SPAWN_DUP2, 1, 2)],
            setsid=True,
        )
    finally:
        os.close(reader)
    _writers.append(writer)
    atexit.register(_dismiss)


def _dismiss() -> None:
    while _writers:
        writer = _writers.pop()
        if not _opened:
            with contextlib.suppress(OSError):
                os.write(writer, b"done\n")
        os.close(writer)


def _forget() -> None:
    """A fork is an owner of its own."""
    _opened.clear()
    while _writers:
        os.close(_writers.pop())


os.register_at_fork(after_in_child=_forget)
