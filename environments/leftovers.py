"""What a killed owner left behind, and its removal: working directories, mounts, processes, cgroups and containers.

Everything that a sandbox makes carries its owner's token: process id, start time and process namespace. A guard, which
waits for its owner to die, runs this file as a script, and every start of a sandbox sweeps once: so it uses nothing
but the standard library.

    python -I leftovers.py OWNER       # removes what OWNER left, if it is dead
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "agentgym-"
LOCK = "lock"  # held by the owner, who is written in it
DISK = "disk"  # where the sized file system of a sandbox is mounted
MARK = "AGENTGYM_SANDBOX"  # in the environment of what runs in a sandbox without walls: OWNER/ID
LABEL = "agentgym.owner"  # of containers and images
AGAIN_S = (0.0, 0.7, 1.5)  # what its owner had asked the daemon for may appear a little later
MIN_AGE_S = 60.0  # between making a directory and locking it
SOCKET = "/var/run/docker.sock"
HIERARCHIES = ("memory", "pids", "cpu")


class Leftover(NamedTuple):
    """One thing that nobody owns any more."""

    kind: str  # "directory", "processes", "cgroup", "container" or "image"
    name: str


def owner_token(pid: int | None = None) -> str:
    """Who a process is, such that no other one ever is: "pid-start-namespace". Raises OSError if it is gone."""
    pid = os.getpid() if pid is None else pid
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{pid}-{start}-{_namespace()}"


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def is_dead(token: str) -> bool:
    """Whether the owner is gone; False if it lived in another process namespace, where nothing can be told."""
    pid, _, rest = token.partition("-")
    if rest.partition("-")[2] != str(_namespace()):
        return False
    try:
        return owner_token(int(pid)) != token
    except (OSError, ValueError, IndexError):
        return True


def new_base() -> Path:
    """A fresh directory for temporary files, named after its owner."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{owner_token()}-"))


def claim(base: Path) -> int:
    """Lock `base` for as long as the descriptor that this returns is open in any process."""
    lock = os.open(base / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(lock, owner_token().encode())
    return lock


def sweep(folder: Path) -> int:
    """Remove the sandboxes in `folder` that nobody holds, and say how many."""
    found = list(_abandoned(folder))
    for base in found:
        remove_tree(base)
    return len(found)


@cache
def sweep_once() -> None:
    """Remove what dead owners left, once in a process."""
    reap()


def find(folder: Path | None = None) -> list[Leftover]:
    """What dead owners left, processes first."""
    marks = [Leftover("processes", mark) for mark in sorted({mark for _, mark in marked()}) if _dead_mark(mark)]
    groups = [Leftover("cgroup", str(path)) for path in _cgroups() if is_dead(_token_of(path.name))]
    bases = [Leftover("directory", str(base)) for base in _abandoned(folder or Path(tempfile.gettempdir()))]
    return [*marks, *groups, *bases, *_docker_leftovers()]


def reap(folder: Path | None = None) -> list[Leftover]:
    """Remove what dead owners left, and say what it was."""
    found = find(folder)
    for one in found:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if one.kind == "processes":
                kill_marked(one.name)
            elif one.kind == "cgroup":
                remove_cgroup(Path(one.name))
            elif one.kind == "directory":
                remove_tree(Path(one.name))
            else:
                _docker("DELETE", f"/{one.kind}s/{one.name}?force=1")
    return found


def marked() -> Iterator[tuple[int, str]]:
    """The processes that carry a sandbox's mark: (process id, mark)."""
    needle = f"{MARK}=".encode()
    for pid in filter(str.isdigit, (entry.name for entry in os.scandir("/proc"))):
        with contextlib.suppress(OSError):
            for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if part.startswith(needle):
                    yield int(pid), part[len(needle) :].decode("utf-8", "replace")


def kill_marked(mark: str) -> None:
    """Kill every process with `mark`, again until none is left: they may fork meanwhile."""
    for _ in range(50):
        alive = [pid for pid, other in marked() if other == mark and pid != os.getpid()]
        if not alive:
            return
        kill(alive)
        time.sleep(0.005)


def kill(pids: list[int]) -> None:
    """Kill processes; those that are gone already are no matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def remove_cgroup(path: Path) -> None:
    """Kill what is in a cgroup and remove it."""
    for _ in range(200):
        try:
            pids = [int(pid) for pid in (path / "cgroup.procs").read_text().split()]
            kill(pids)
            if not pids:
                path.rmdir()
                return
        except FileNotFoundError:
            return
        except OSError:  # not empty yet
            pass
        time.sleep(0.005)


def remove_tree(base: Path) -> None:
    """Unmount a sandbox's file system, if it has one, and remove everything; no link is followed."""
    disk = base / DISK
    if os.path.ismount(disk):
        ctypes.CDLL(None).umount2(os.fsencode(disk), 2)  # MNT_DETACH
    shutil.rmtree(base, onerror=_force)


def cgroup_parents() -> list[Path]:
    """Where this process makes its cgroups: a folder for each hierarchy (version 1) or one (version 2)."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root / "agentgym"]
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    homes = [(root / kind, own.get(kind, "/").lstrip("/")) for kind in HIERARCHIES if (root / kind).is_dir()]
    return [home / path if (home / path).is_dir() else home for home, path in homes]


def _cgroups() -> Iterator[Path]:
    for parent in cgroup_parents():
        with contextlib.suppress(OSError):
            yield from parent.glob(f"{PREFIX}*")


def _token_of(name: str) -> str:
    return "-".join(name.removeprefix(PREFIX).split("-")[:3])


def _dead_mark(mark: str) -> bool:
    return is_dead(mark.partition("/")[0])


def _abandoned(folder: Path) -> Iterator[Path]:
    for base in folder.glob(f"{PREFIX}*"):
        if is_dead(_token_of(base.name)) and not (base / LOCK).exists():
            yield base
            continue
        with contextlib.suppress(OSError):
            lock = os.open(base / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                token = os.read(lock, 200).decode("utf-8", "replace") or _token_of(base.name)
                if is_dead(token) or time.time() - os.fstat(lock).st_mtime > MIN_AGE_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield base
            finally:
                os.close(lock)


def _docker_leftovers() -> list[Leftover]:
    try:
        if not Path(SOCKET).is_socket():
            return []
        filters = urllib.parse.quote(json.dumps({"label": [LABEL]}))
        containers = _docker("GET", f"/containers/json?all=1&filters={filters}")
        images = _docker("GET", f"/images/json?filters={filters}")
    except (OSError, http.client.HTTPException, ValueError):
        return []
    found = [Leftover("container", one["Id"]) for one in containers if is_dead(one["Labels"][LABEL])]
    return found + [Leftover("image", one["Id"]) for one in images if is_dead((one["Labels"] or {}).get(LABEL, ""))]


def _docker(method: str, path: str) -> Any:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection):
        connection.sock.settimeout(10)
        connection.sock.connect(SOCKET)
        connection.request(method, path)
        said = connection.getresponse().read()
    return json.loads(said) if said else None


def _force(function: Any, path: str, error: Any) -> None:
    """A directory may be closed to its own owner: open it and try once more."""
    if isinstance(error[1], FileNotFoundError):
        return
    parent = Path(path).parent
    with contextlib.suppress(OSError):
        for closed in (parent, Path(path)):
            if closed.is_dir() and not closed.is_symlink():
                closed.chmod(0o700)
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink()


if __name__ == "__main__":
    deadline = time.monotonic() + 5
    while not is_dead(sys.argv[1]) and time.monotonic() < deadline:  # it is about to be
        time.sleep(0.02)
    for pause_s in AGAIN_S:
        time.sleep(pause_s)
        reap()
