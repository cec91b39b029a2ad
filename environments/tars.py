"""Tar streams to and from a container, none of whose names is to be trusted."""

from __future__ import annotations

import io
import posixpath
import tarfile
from typing import Any

from agentgym.environments.folder import MAX_ENTRIES, MAX_FILE_BYTES, MAX_TOTAL_BYTES
from agentgym.environments.sandbox import Entry, Snapshot
from agentgym.errors import SandboxError


def checked(tar: bytes) -> bytes:
    """A tar, unpacked; refused if a name leads out or passes through a link of its own."""
    made = io.BytesIO()
    links: set[str] = set()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(tar), mode="r:*") as archive,
            tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as clean,
        ):
            for member in archive:
                parts = member.name.split("/")
                if member.name.startswith("/") or ".." in parts or links & set(prefixes(member.name)):
                    raise SandboxError(f"{member.name!r} leads out of the archive")
                if member.issym():
                    links.add(posixpath.normpath(member.name))
                if member.isreg() or member.isdir() or member.issym() or member.islnk():
                    clean.addfile(member, archive.extractfile(member) if member.isreg() else None)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SandboxError(f"not a readable archive: {error}") from error
    return made.getvalue()


def tidy(tar: bytes) -> bytes:
    """The same tree with plain names, and only what `upload` takes."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(tar)) as archive,
        tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as clean,
    ):
        for member in archive:
            member.name = posixpath.normpath(member.name)
            member.linkname = member.linkname if member.issym() else member.linkname.removeprefix("./")
            member.pax_headers = {}
            if member.name != "." and (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                clean.addfile(member, archive.extractfile(member) if member.isreg() else None)
    return made.getvalue()


def prefixes(path: str) -> list[str]:
    """Every step of a path: prefixes("a/b/c") == ["a", "a/b", "a/b/c"]."""
    parts = posixpath.normpath(path).split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts)) if parts[: end + 1] != [""]]


def inside(path: str) -> None:
    """Raise SandboxError unless `path` is relative and leads nowhere else."""
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise SandboxError(f"{path!r} is not a path inside the working directory")


def entries(tar: bytes) -> Snapshot:
    """The snapshot that a tar of a working directory is, bounded like any other."""
    found: Snapshot = {}
    left = MAX_TOTAL_BYTES
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            name = posixpath.normpath(member.name)
            if name == "." or len(found) >= MAX_ENTRIES:
                continue
            content = b""
            file = archive.extractfile(member) if member.isreg() or member.islnk() else None
            if file is not None:
                content = file.read(min(MAX_FILE_BYTES, left))
                left -= len(content)
            kind: Any = "dir" if member.isdir() else "link" if member.issym() else "file" if file else "other"
            size = member.size or len(content)
            found[name] = Entry(
                kind=kind, mode=member.mode, size=size if kind == "file" else 0, content=content,
                target=member.linkname if kind == "link" else "",
            )  # fmt: skip
    return dict(sorted(found.items()))
