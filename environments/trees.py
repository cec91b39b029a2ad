"""Whole directory trees in and out of a working directory, as tar streams or copies; a link is carried, never followed."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath

from agentgym.environments.folder import DIRECTORY, FILE, Folder, opened
from agentgym.errors import SandboxError

MAX_BYTES = 1 << 30  # of one tree
MAX_ENTRIES = 200_000
MAX_DEPTH = 256
CHUNK = 1 << 20


def pack(folder: Folder, path: str = ".") -> bytes:
    """A tar of what is below the directory `path` (names relative to it), or of the one file `path`.

    Sockets, devices and FIFOs are left out. Raises SandboxError if there is no such path or it is too large.
    """
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive, _start(folder, path) as start:
        left = [MAX_BYTES]
        for name, parent, leaf, status in start:
            info = _header(name, parent, leaf, status)
            if info is not None and info.isreg():
                with opened(leaf, os.O_RDONLY | FILE, parent, name) as file, os.fdopen(os.dup(file), "rb") as stream:
                    info.size = os.fstat(file).st_size
                    _take(left, info.size)
                    archive.addfile(info, _Padded(stream, info.size))  # type: ignore[arg-type]
            elif info is not None:
                archive.addfile(info)
    return made.getvalue()


def unpack(folder: Folder, tar: bytes, path: str = ".") -> None:
    """Lay a tar's directories, files and links out below `path`; its owners are ignored.

    Raises SandboxError if it is damaged, too large, or has a name that leads out.
    """
    base = PurePosixPath(path)
    closed: list[tuple[str, int]] = []  # directories get their permissions last: they may forbid writing
    left = MAX_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:*") as archive:
            for count, member in enumerate(archive):
                left -= member.size
                if left < 0 or count > MAX_ENTRIES:
                    raise SandboxError("the archive is too large")
                name = str(base / member.name)
                if name != ".":
                    _lay(folder, archive, member, name, str(base), closed)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SandboxError(f"not a readable archive: {error}") from error
    for name, mode in reversed(closed):
        folder.make_dir(name, mode)


def copy(source: Folder, target: Folder) -> None:
    """Copy everything in `source` into the empty directory of `target`. Raises SandboxError if it is too large."""
    closed: list[tuple[str, int]] = []
    left = [MAX_BYTES]
    with _start(source, ".") as start:
        for name, parent, leaf, status in start:
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISDIR(status.st_mode):
                target.make_dir(name, 0o700)
                closed.append((name, mode))
            elif stat.S_ISLNK(status.st_mode):
                target.link(name, os.readlink(leaf, dir_fd=parent))
            elif stat.S_ISREG(status.st_mode):
                _take(left, status.st_blocks * 512)
                with opened(leaf, os.O_RDONLY | FILE, parent, name) as file, target.create(name, mode) as made:
                    _copy_file(file, made, os.fstat(file))
    for name, mode in reversed(closed):
        target.make_dir(name, mode)


def _lay(
    folder: Folder, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, base: str, closed: list[tuple[str, int]]
) -> None:  # fmt: skip
    mode = member.mode & 0o777
    if member.isdir():
        folder.make_dir(name, 0o700)
        closed.append((name, mode))
    elif member.issym():
        folder.remove_entry(name)
        folder.link(name, member.linkname)
    elif member.islnk():
        folder.write(name, folder.read(str(PurePosixPath(base) / member.linkname)), mode)
    elif member.isreg():
        content = archive.extractfile(member)
        assert content is not None
        folder.remove_entry(name)
        with folder.create(name, mode) as file:
            while chunk := content.read(CHUNK):
                _write_all(file, chunk)
            os.utime(file, (member.mtime, member.mtime))


Entries = Iterator[tuple[str, int, str, os.stat_result]]


@contextlib.contextmanager
def _start(folder: Folder, path: str) -> Iterator[Entries]:
    """The entries below `path`: (name, descriptor of the parent, last part of the name, status)."""
    if str(PurePosixPath(path)) == ".":
        with opened(str(folder.root), DIRECTORY, None, path) as here:
            yield _walk(here, "", 0, [0])
        return
    with folder.parent(path, make=False) as (parent, leaf):
        try:
            status = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            raise SandboxError(f"cannot open {path!r} in the working directory: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            yield iter([(leaf, parent, leaf, status)])
            return
        with opened(leaf, DIRECTORY, parent, path) as here:
            yield _walk(here, "", 0, [0])


def _walk(here: int, prefix: str, depth: int, seen: list[int]) -> Entries:
    for leaf in sorted(os.listdir(here)):
        seen[0] += 1
        if seen[0] > MAX_ENTRIES or depth > MAX_DEPTH:
            raise SandboxError("the working directory has too many entries")
        try:
            status = os.stat(leaf, dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:  # gone since it was listed
            continue
        yield prefix + leaf, here, leaf, status
        if stat.S_ISDIR(status.st_mode):
            with opened(leaf, DIRECTORY, here, prefix + leaf) as child:
                yield from _walk(child, f"{prefix}{leaf}/", depth + 1, seen)


def _header(name: str, parent: int, leaf: str, status: os.stat_result) -> tarfile.TarInfo | None:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(leaf, dir_fd=parent)
    elif not stat.S_ISREG(status.st_mode):
        return None
    return info


def _take(left: list[int], size: int) -> None:
    left[0] -= size
    if left[0] < 0:
        raise SandboxError(f"the working directory holds more than {MAX_BYTES >> 20} MiB")


class _Padded:
    """A file of which exactly `size` bytes are read, whatever becomes of it meanwhile."""

    def __init__(self, stream: io.BufferedReader, size: int) -> None:
        self.stream, self.left = stream, size

    def read(self, size: int) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return self.stream.read(size).ljust(size, b"\0")


def _copy_file(source: int, target: int, status: os.stat_result) -> None:
    left = status.st_size
    if status.st_blocks * 512 < left:  # sparse: only what it holds
        os.truncate(target, left)
        _copy_holes(source, target, left)
    else:
        while left > 0 and (done := os.sendfile(target, source, None, min(left, CHUNK))):
            left -= done
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_holes(source: int, target: int, size: int) -> None:
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError:  # nothing but a hole is left
            return
        end = os.lseek(source, start, os.SEEK_HOLE)
        for at in range(start, end, CHUNK):
            os.pwrite(target, os.pread(source, min(CHUNK, end - at), at), at)


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
