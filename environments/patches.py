"""Source trees and the patches between them, in git's format, made and applied in memory and a bare repository.

No file of a tree is ever laid out on the host, no configuration but our own is read, and no hook or filter runs:
what is in a tree cannot act on the machine that compares it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from agentgym.errors import InfrastructureError, UsageError
from agentgym.types import Struct

FILE, EXECUTABLE, LINK = "100644", "100755", "120000"
NOISE = {".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".agentgym"}
WHO = "agentgym <agentgym@localhost> 946684800 +0000"  # the same commit on every machine
GIT_TIMEOUT_S = 120.0


class Blob(Struct, frozen=True, kw_only=True):
    """A file of a tree: git's mode and the content (of a link: its target)."""

    mode: str = FILE
    content: bytes = b""


Tree = Mapping[str, Blob]


class PatchError(ValueError):
    """A patch that is malformed or does not apply."""


def tree_of(files: Mapping[str, str | bytes]) -> dict[str, Blob]:
    """A tree of plain files."""
    return {path: Blob(content=text.encode() if isinstance(text, str) else text) for path, text in files.items()}


def read_tar(tar: bytes, *, strip: int = 0) -> dict[str, Blob]:
    """The tree in a tar, without caches and repositories; `strip` leading parts of each name are dropped."""
    found: dict[str, Blob] = {}
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:*") as archive:
        for member in archive:
            path = "/".join(PurePosixPath(member.name).parts[strip:])
            if not path or not NOISE.isdisjoint(path.split("/")) or path.endswith((".pyc", ".pyo")):
                continue
            if member.issym():
                found[path] = Blob(mode=LINK, content=os.fsencode(member.linkname))
            elif member.isreg():
                file = archive.extractfile(member)
                mode = EXECUTABLE if member.mode & 0o111 else FILE
                found[path] = Blob(mode=mode, content=file.read() if file else b"")
    return dict(sorted(found.items()))


def write_tar(tree: Tree) -> bytes:
    """A tar that lays out a tree."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, blob in tree.items():
            info = tarfile.TarInfo(path)
            info.mode, info.mtime = (0o755 if blob.mode == EXECUTABLE else 0o644), 946684800
            if blob.mode == LINK:
                info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(blob.content)
                archive.addfile(info)
            else:
                info.size = len(blob.content)
                archive.addfile(info, io.BytesIO(blob.content))
    return made.getvalue()


def diff(before: Tree, after: Tree) -> str:
    """The patch that makes `before` into `after`: new, deleted, renamed and binary files, modes and links."""
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    if not changed:
        return ""
    with _repository() as git:
        trees = [{path: tree[path] for path in sorted(changed & tree.keys())} for tree in (before, after)]
        old, new = (git.commit(tree) for tree in trees)
        binary = [path for tree in trees for path, blob in tree.items() if not _is_utf8(blob.content)]
        git.attributes(binary)
        options = ("--binary", "--full-index", "--find-renames", "--no-color", "--no-ext-diff", "--no-textconv")
        return git.run("diff-tree", "-r", "-p", *options, old, new).decode()


def apply(tree: Tree, patch: str) -> dict[str, Blob]:
    """What `patch` makes of `tree`.

    A last empty line of context that was stripped, and lines that a model counted wrong, are mended.

    Raises:
        PatchError: it is malformed, does not apply, or leads out of the tree.
    """
    given = normalise(patch)
    if not given:
        return dict(tree)
    with _repository() as git:
        base = git.commit(tree)
        for text, option in ((given, ""), (given + " \n", ""), (given, "--recount")):
            git.run("read-tree", base)
            options = ["--cached", "--whitespace=nowarn", *([option] if option else [])]
            problem = git.attempt("apply", *options, "-", stdin=text.encode())
            if not problem:
                return git.changed(base, tree)
    raise PatchError(problem.splitlines()[0])


def normalise(patch: str) -> str:
    """A patch as git takes it: without the fence around it, and with a newline at the end."""
    text = re.sub(r"\A\s*```(?:diff|patch)?\n(.*?)\n?```\s*\Z", r"\1", patch, flags=re.DOTALL)
    ending = "\n\n" if "\nGIT binary patch\n" in text else "\n"
    return text.rstrip("\n") + ending if text.strip() else ""


def fresh_repository(tree: Tree) -> bytes:
    """A tar of the `.git` of a repository whose one commit holds `tree`: no other commit, tag, remote or reflog."""
    with _repository(bare=False) as git:
        git.commit(tree, "refs/heads/main")
        git.run("read-tree", "refs/heads/main")
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            for name in ("HEAD", "config", "index", "objects", "refs"):
                archive.add(git.folder / name, f".git/{name}")
        return made.getvalue()


def read_commit(repository: Path, commit: str) -> dict[str, Blob]:
    """The tree of a commit of a local repository. Raises UsageError if there is none."""
    if not (repository / ".git").exists() and not (repository / "HEAD").exists():
        raise UsageError(f"{repository} is not a git repository")
    listed = _look(repository, "ls-tree", "-r", "-z", "--full-tree", f"{commit}^{{commit}}").split(b"\0")
    entries = [(entry.split(b"\t", 1), entry.split(b" ")[0].decode()) for entry in listed if entry]
    files = [(os.fsdecode(path), mode, about.split(b" ")[2]) for (about, path), mode in entries if mode != "160000"]
    stream = io.BytesIO(_look(repository, "cat-file", "--batch", stdin=b"".join(sha + b"\n" for _, _, sha in files)))
    found = {}
    for path, mode, _ in files:
        size = int(stream.readline().split()[2])
        found[path] = Blob(mode=mode, content=stream.read(size))
        stream.read(1)
    return found


def _look(repository: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """What git says about somebody's repository. `git archive` would leave out what its attributes say."""
    command = ["git", "-c", "safe.directory=*", "-C", str(repository), *arguments]
    environment = _environment(repository)
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=GIT_TIMEOUT_S)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UsageError(f"{repository} has no such commit: git {' '.join(arguments)}: {said}")
    return done.stdout


class _Git:
    """Git in one temporary repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits = 0

    def attempt(self, *arguments: str, stdin: bytes = b"") -> str:
        """What git says against it; empty if it worked."""
        done = self._call(arguments, stdin)
        return (done.stderr.decode("utf-8", "replace").strip() or "failed") if done.returncode else ""

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = self._call(arguments, stdin)
        if done.returncode:
            raise InfrastructureError(f"git {arguments[0]}: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")
        return done.stdout

    def _call(self, arguments: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        environment = _environment(self.folder) | {"GIT_DIR": str(self.folder)}
        command = ["git", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=GIT_TIMEOUT_S)

    def commit(self, tree: Tree, ref: str = "") -> str:
        """Store a tree as a commit and return the name of its ref."""
        self.commits += 1
        ref = ref or f"refs/heads/t{self.commits}"
        parts = [f"commit {ref}\ncommitter {WHO}\ndata 4\nbase\n".encode()]
        for path, blob in tree.items():
            parts.append(b"M %s inline %s\ndata %d\n" % (blob.mode.encode(), _quote(path), len(blob.content)))
            parts += [blob.content, b"\n"]
        self.run("fast-import", "--quiet", stdin=b"".join(parts))
        return ref

    def attributes(self, binary: list[str]) -> None:
        """Let these files be compared as bytes: they are no UTF-8 text."""
        (self.folder / "info").mkdir(exist_ok=True)
        patterns = [re.sub(r"[^\w./-]", "?", path, flags=re.ASCII) for path in binary]
        lines = [f"{pattern} binary\n" for pattern in patterns]
        (self.folder / "info" / "attributes").write_text("".join(lines))

    def changed(self, base: str, tree: Tree) -> dict[str, Blob]:
        """`tree` with what the index has otherwise than the commit `base`."""
        made = dict(tree)
        raw = self.run("diff-index", "--cached", "--raw", "-z", "--no-renames", "--full-index", base).split(b"\0")
        for header, name in zip(raw[0::2], raw[1::2], strict=False):
            _, mode, _, sha, status = header.decode().split(" ")
            path = os.fsdecode(name)
            if status == "D":
                del made[path]
            else:
                made[path] = Blob(mode=mode, content=self.run("cat-file", "blob", sha))
        return dict(sorted(made.items()))


@contextlib.contextmanager
def _repository(bare: bool = True) -> Iterator[_Git]:
    if shutil.which("git") is None:
        raise UsageError("git is not installed: apt-get install git")
    with tempfile.TemporaryDirectory(prefix="agentgym-git-") as folder:
        git = _Git(Path(folder) / "repository" if bare else Path(folder) / "tree" / ".git")
        where = str(git.folder if bare else git.folder.parent)
        command = ["git", "init", "--quiet", "--template=", "--initial-branch=main", *["--bare"] * bare, where]
        subprocess.run(command, check=True, capture_output=True, env=_environment(Path(folder)), timeout=GIT_TIMEOUT_S)
        yield git


def _environment(home: Path) -> dict[str, str]:
    quiet = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LC_ALL": "C.UTF-8", **quiet}


def _quote(path: str) -> bytes:
    """A path as fast-import reads it."""
    raw = os.fsencode(path)
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
