"""What keeps commands without walls from ending every process of the machine: a process namespace, or another user.

Neither is a wall: the files, the network and the memory of the machine are theirs all the same.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

from agentgym.errors import UsageError
from agentgym.types import Struct

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY = 65534
# The first process of a namespace waits for the shell, adopts what that leaves behind, and ends with the shell. Job
# control is on, because the shell would ignore interrupts otherwise.
FIRST = ("--norc", "-c", 'set -m; exec 3<&0; "$@" <&3 3<&- & exec <&- 3<&- >&- 2>&-; wait $!', "bash")
NAMESPACE = ("--pid", "--fork", "--kill-child", "--mount-proc")
WITHOUT_PROC = ("--pid", "--fork", "--kill-child")  # where /proc cannot be mounted: `ps` shows the machine's processes
AS_USER = ("--user", "--map-current-user")


class Fence(Struct, frozen=True, kw_only=True):
    """How commands are started."""

    kind: str  # "namespace", "nobody" or "none"
    argv: tuple[str, ...] = ()  # what to put before a command line

    @property
    def user(self) -> int | None:
        """Who owns the working directory, if not us."""
        return NOBODY if self.kind == "nobody" else None


@functools.cache
def fence(kind: str = "") -> Fence:
    """The best one that works here, or the one that is asked for. Tried once.

    Raises UsageError: commands would run as root among all processes of the machine.
    """
    if kind in ("", "namespace") and (argv := _namespace()):
        return Fence(kind="namespace", argv=argv)
    setpriv = shutil.which("setpriv", path=PATH)
    if os.geteuid() != 0 and kind in ("", "none"):
        return Fence(kind="none", argv=(setpriv, "--pdeathsig", "KILL", "--") if setpriv else ())
    drop = (setpriv or "", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--pdeathsig", "KILL", "--")
    if setpriv and kind in ("", "nobody") and _works([*drop, "true"]):
        return Fence(kind="nobody", argv=drop)
    raise UsageError(
        f"the plain sandbox cannot be fenced here ({kind or 'no process namespace, and no other user'}), and as root one "
        "`kill -9 -1` would end the machine: install util-linux, use docker, or run as another user"
    )


def _namespace() -> tuple[str, ...]:
    unshare, setpriv, bash = (shutil.which(name, path=PATH) for name in ("unshare", "setpriv", "bash"))
    if not unshare or not bash:
        return ()
    tied = (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
    ways = [NAMESPACE, WITHOUT_PROC] if os.geteuid() == 0 else []
    for way in (*ways, (*AS_USER, *NAMESPACE), (*AS_USER, *WITHOUT_PROC)):
        if _works([*tied, unshare, *way, "/bin/sh", "-c", "[ $$ = 1 ]"]):
            return (*tied, unshare, *way, bash, *FIRST)
    return ()


def _works(argv: list[str]) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, timeout=20, stdin=subprocess.DEVNULL).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
