"""Sandboxes: a private working directory and a way to run commands in it.

Host-side access (`read`, `write`, `snapshot`, `upload`, `download`) never follows a symbolic link, so that nothing an
agent puts into its working directory leads out of it. Commands run in one persistent bash: its working directory,
variables, functions and background jobs last from one command to the next.
"""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from agentgym.environments.pty import Terminal
from agentgym.errors import SandboxError, UsageError
from agentgym.registry import nearest
from agentgym.types import Struct

DEFAULT_IMAGE = "base"  # made from this machine's packages
SHM_MB = 64  # of /dev/shm
SLACK_MB, SLACK_INODES = 256, 20_000  # a fork has so much more room: a full disk must not keep a grader from its work
KINDS = ("auto", "bubblewrap", "docker", "plain")

log = logging.getLogger(__name__)


class CommandResult(Struct, frozen=True, kw_only=True):
    """What a command left behind. Output is valid text, bounded: head and tail are kept."""

    exit_code: int  # 128 + n if signal n ended it; 124 if it ran out of time
    stdout: str  # without terminal escape codes
    stderr: str
    seconds: float
    timed_out: bool = False
    stdout_dropped: int = 0  # bytes left out of the middle
    stderr_dropped: int = 0
    stdout_raw: bytes = b""  # what was kept of it, byte for byte: head, then tail
    stderr_raw: bytes = b""
    cwd: str = ""  # the shell's working directory afterwards, as it is called inside
    shell_replaced: bool = False  # a new shell takes the next command: variables, functions and jobs are gone
    oom: bool = False  # the kernel killed something in the sandbox because memory ran out


class Entry(Struct, frozen=True, kw_only=True):
    """One thing in a working directory, itself and never what it links to."""

    kind: Literal["file", "dir", "link", "other"]
    mode: int = 0  # permission bits
    size: int = 0  # bytes of the file
    content: bytes = b""  # its first bytes, up to the sandbox's bound
    target: str = ""  # of a link


class Limits(Struct, frozen=True, kw_only=True):
    """What a sandbox may take. Which kind of sandbox keeps which limit: docs/sandboxes.md."""

    memory_mb: int = 2048  # of everything together; of each process's address space where there are no cgroups
    processes: int = 256
    cpus: float = 0.0  # processors' worth of time; 0: no limit
    disk_mb: int = 512  # of the working directory and /tmp together
    inodes: int = 100_000  # of the same: how many files
    file_mb: int = 64  # size of one file
    open_files: int = 256  # of each process
    output_bytes: int = 65536  # kept of each of stdout and stderr

    def roomier(self) -> Limits:
        """The same with room on the disk for what comes after the agent."""
        return structs.replace(self, disk_mb=self.disk_mb + SLACK_MB, inodes=self.inodes + SLACK_INODES)


Snapshot = dict[str, Entry]


class Sandbox(ABC):
    """A working directory of its own and the commands that run in it."""

    isolates = False  # whether commands are kept away from the rest of the machine

    @abstractmethod
    async def start(self) -> None:
        """Make the working directory. Raises SandboxError."""

    @abstractmethod
    async def run(self, command: str, timeout_s: float = 20.0) -> CommandResult:
        """Run `command` in the persistent shell. After a time-out everything that it started is gone.

        Raises:
            SandboxError: the sandbox itself failed; a failing command is a result.
        """

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """The bytes of a regular file, bounded. Raises SandboxError if there is none or a link is in the way."""

    @abstractmethod
    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, making its parent directories. Raises SandboxError if a link is in the way."""

    @abstractmethod
    async def make_dir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents."""

    @abstractmethod
    async def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Everything in the working directory by relative path, bounded in entries and bytes."""

    @abstractmethod
    async def upload(self, tar: bytes, path: str = ".") -> None:
        """Unpack a tar below `path`, keeping permissions, times and links; owners become the sandbox's user.

        `path` is relative to the working directory (with docker it may be absolute). Raises SandboxError.
        """

    @abstractmethod
    async def download(self, path: str = ".") -> bytes:
        """A tar of what is below the directory `path`, names relative to it, or of the one file `path`.

        Raises SandboxError: there is none, or it is too large.
        """

    @abstractmethod
    async def open_terminal(self) -> Terminal:
        """A terminal among the processes of the shell, in its directory; one at a time.

        It ends with the shell, at a time-out for instance. Raises SandboxError if none can be had.
        """

    @abstractmethod
    async def fork(self) -> Sandbox:
        """A started sandbox with a copy of the files and a little more room on its disk; the shell is a new one.

        Neither sees what the other does.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End everything that runs in it; the files stay, and the next command has a new shell.

        When it returns, nothing that was started inside is alive. Raises SandboxError if something cannot be killed.
        """

    @abstractmethod
    async def close(self) -> None:
        """End whatever still runs and remove the working directory; safe to call twice."""


def open_sandbox(
    kind: str = "auto",
    limits: Limits | None = None,
    *,
    image: str = "",
    network: str = "none",
    allow: Sequence[str] = (),
    run_id: str = "",
    trusted: bool = True,
    workdir: str = "/work",
    writable: bool = False,
    own: Sequence[str] = (),
    user: str = "1000:1000",
    warm: int = 0,
    terminal: bool = False,
) -> Sandbox:
    """A sandbox, not yet started.

    Args:
        kind: `docker`, `bubblewrap`, `plain`, or `auto`: docker for an image, else bubblewrap where it works, else
            plain.
        image: docker's image, by name; never pulled here. The other kinds have the machine's own system.
        network: `none`, or `host` for the machine's own (bubblewrap), or a Docker network's name.
        allow: hosts that may be reached all the same, through a proxy: `host`, `*.host`, `host:port` (see `network`);
            bubblewrap, and docker for root on the daemon's machine.
        run_id: written on everything that it makes, so that what a killed run left can be told.
        trusted: whether the task is; plain refuses one that is not.
        workdir: what the working directory is called inside; plain has it under a temporary name.
        writable: whether more than the working directory and /tmp can be changed. With docker these are the image's
            files, and `workdir` is the image's own directory; else the system is read-only and the working directory
            starts empty. With bubblewrap it is `/`, empty but for the system's directories, which stay read-only.
        own: with docker and `writable`, directories that are there and belong to the user, as the working directory does.
        user: with docker, the user (uid:gid) that commands run as.
        terminal: whether a terminal will be opened; without, a first one costs the shell that is there.
        warm: with docker, how many containers like this one are kept ready; needs a running event loop.

    Raises:
        UsageError: no such kind, or an untrusted task without walls.
        SandboxError: what was asked for does not work here.
    """
    from agentgym.environments.bubblewrap import BubblewrapSandbox, why_not
    from agentgym.environments.plain import LocalSandbox, PlainSandbox

    if kind not in KINDS:
        raise UsageError(f"unknown sandbox {kind!r}{nearest(kind, KINDS)}; known: {', '.join(KINDS)}")
    if allow and network != "none":
        raise UsageError("a list of allowed hosts goes with network='none'")
    limits = limits or Limits()
    if kind == "docker" or (kind == "auto" and image):
        from agentgym.environments.containers import Spec, no_docker
        from agentgym.environments.docker import DockerSandbox

        if problem := no_docker():
            raise SandboxError(f"docker does not work here: {problem}")
        return DockerSandbox(
            Spec(
                image=image or DEFAULT_IMAGE, limits=limits, network=network, allow=tuple(allow), run_id=run_id,
                workdir=workdir, user=user, writable=writable, own=tuple(own),
            ),
            warm=warm,
        )  # fmt: skip
    problem = "" if kind == "plain" else why_not()
    if kind == "bubblewrap" and problem:
        raise SandboxError(f"bubblewrap does not work here: {problem}")
    if kind == "plain" or problem:
        if not trusted:
            raise UsageError("the plain sandbox has no walls and takes no untrusted task: install bubblewrap or docker")
        if allow:
            raise UsageError("the plain sandbox holds nobody to a list of hosts: install bubblewrap or docker")
        warn_not_isolated(problem)
        made: LocalSandbox = PlainSandbox(limits, run_id=run_id)
    else:
        made = BubblewrapSandbox(
            limits, run_id=run_id, network=network, workdir=workdir, writable=writable, allow=allow
        )
    made.wired = terminal
    return made


@functools.cache
def warn_not_isolated(problem: str) -> None:
    """Say once that the plain sandbox isolates nothing."""
    because = f" (bubblewrap does not work here: {problem})" if problem else ""
    log.warning("the plain sandbox isolates nothing: commands run as you, on this machine%s", because)
