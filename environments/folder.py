"""A directory that somebody hostile may have filled, accessed from the host without following a symbolic link.

Every step of a path is opened relative to its parent with O_NOFOLLOW: there is no moment at which a link could be
put in the way. Opening never blocks on a FIFO.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from agentgym.environments.leftovers import remove_tree
from agentgym.environments.sandbox import Entry, Snapshot
from agentgym.errors import SandboxError

MAX_ENTRIES = 10_000
MAX_DEPTH = 64
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 32 << 20

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Folder:
    """Host-side access to the directory `root`; what it makes belongs to the user `owner`."""

    def __init__(self, root: Path, owner: int | None = None) -> None:
        self.root = root
        self.owner = owner

    def read(self, path: str) -> bytes:
        """Up to MAX_FILE_BYTES of a regular file."""
        with self.parent(path, make=False) as (parent, name), opened(name, os.O_RDONLY | FILE, parent, path) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise SandboxError(f"{path!r} is not a regular file")
            return _read(file, MAX_FILE_BYTES)

    def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a regular file with exactly these permissions; parent directories are made."""
        with self.create(path, mode) as file, os.fdopen(os.dup(file), "wb") as stream:
            stream.write(content)

    @contextlib.contextmanager
    def create(self, path: str, mode: int = 0o644) -> Iterator[int]:
        """A descriptor to write a regular file through; it has exactly these permissions in the end."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | FILE
        with self.parent(path, make=True) as (parent, name), opened(name, flags, parent, path) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise SandboxError(f"{path!r} is not a regular file")
            yield file
            os.fchmod(file, mode)
            self._own(file)

    def remove_entry(self, path: str) -> None:
        """Remove a file or a link, if there is one."""
        with self.parent(path, make=True) as (parent, name), contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)

    def make_dir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents."""
        with self.parent(f"{path}/x", make=True) as (made, _):
            os.fchmod(made, mode)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        with self.parent(path, make=True) as (parent, name):
            os.symlink(target, name, dir_fd=parent)
            if self.owner is not None:
                os.chown(name, self.owner, self.owner, dir_fd=parent, follow_symlinks=False)

    def snapshot(self) -> Snapshot:
        """Every entry by relative path; at most MAX_ENTRIES of them and MAX_TOTAL_BYTES of content."""
        found: Snapshot = {}
        budget = [MAX_TOTAL_BYTES]
        with opened(str(self.root), DIRECTORY, None, ".") as root:
            _scan(root, "", 0, found, budget)
        return dict(sorted(found.items()))

    def remove(self) -> None:
        """Remove the directory and everything in it; nothing happens if it is gone."""
        remove_tree(self.root)

    @contextlib.contextmanager
    def parent(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """The opened directory that holds `path`, and the last part of its name."""
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise SandboxError(f"{path!r} is not a path inside the working directory")
        with contextlib.ExitStack() as stack:
            here = stack.enter_context(opened(str(self.root), DIRECTORY, None, "."))
            for part in parts[:-1]:
                fresh = make and _mkdir(part, here)
                here = stack.enter_context(opened(part, DIRECTORY, here, path))
                if fresh:
                    os.fchmod(here, 0o755)
                    self._own(here)
            yield here, parts[-1]

    def _own(self, file: int) -> None:
        if self.owner is not None:
            os.fchown(file, self.owner, self.owner)


@contextlib.contextmanager
def opened(name: str, flags: int, parent: int | None, path: str) -> Iterator[int]:
    """An opened descriptor; whatever the system says against it, then and later, is a SandboxError about `path`."""
    try:
        file = os.open(name, flags, 0o600, dir_fd=parent)
    except OSError as error:
        raise SandboxError(f"cannot open {path!r} in the working directory: {error.strerror}") from error
    try:
        yield file
    except OSError as error:
        raise SandboxError(f"{path!r} in the working directory: {error.strerror}") from error
    finally:
        os.close(file)


def _mkdir(name: str, parent: int) -> bool:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def _read(file: int, limit: int) -> bytes:
    chunks, left = [], limit
    while left > 0 and (chunk := os.read(file, min(left, 1 << 16))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _scan(here: int, prefix: str, depth: int, found: Snapshot, budget: list[int]) -> None:
    try:
        names = sorted(os.listdir(here))
    except OSError:  # no permission: the directory itself is in the snapshot
        return
    for name in names:
        if len(found) >= MAX_ENTRIES:
            return
        with contextlib.suppress(OSError, SandboxError):  # gone or closed to us since it was listed
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            found[prefix + name] = Entry(kind="other", mode=stat.S_IMODE(status.st_mode))
            found[prefix + name] = _entry(name, here, status, budget)
            if stat.S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
                with opened(name, DIRECTORY, here, name) as child:
                    _scan(child, f"{prefix}{name}/", depth + 1, found, budget)


def _entry(name: str, parent: int, status: os.stat_result, budget: list[int]) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return Entry(kind="dir", mode=mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry(kind="link", mode=mode, target=os.readlink(name, dir_fd=parent))
    if not stat.S_ISREG(status.st_mode):
        return Entry(kind="other", mode=mode)
    content = b""
    with contextlib.suppress(SandboxError), opened(name, os.O_RDONLY | FILE, parent, name) as file:
        content = _read(file, min(MAX_FILE_BYTES, budget[0]))
    budget[0] -= len(content)
    return Entry(kind="file", mode=mode, size=status.st_size, content=content)
