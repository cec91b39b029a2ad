"""A sandbox without walls: commands run on the machine, in a temporary directory.

It isolates nothing. Only what would end the machine itself is kept off: commands have a process namespace of their own
where that can be made, else as root another user (see `fence`). Where there is no namespace, what a command started is
found by its process group, its cgroup, and a mark in its environment, which survives `setsid` and double forks (though
not a process that clears its environment).
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
from abc import abstractmethod
from pathlib import Path
from typing import Self

from msgspec import structs

from agentgym.environments import guard
from agentgym.environments.cgroups import Cgroup, no_cgroups
from agentgym.environments.fence import PATH, Fence, fence
from agentgym.environments.folder import Folder
from agentgym.environments.leftovers import (
    DISK,
    MARK,
    claim,
    kill_marked,
    new_base,
    owner_token,
    remove_tree,
    sweep_once,
)
from agentgym.environments.process import LocalShell
from agentgym.environments.pty import ENDED, SHELL, Terminal
from agentgym.environments.sandbox import CommandResult, Limits, Sandbox, Snapshot
from agentgym.environments.shell import TERMINAL, quote, refusal, shell_argv
from agentgym.environments.trees import copy, pack, unpack
from agentgym.errors import SandboxError
from agentgym.types import new_id

# `script` makes the pseudo-terminal inside, so that programs find it by its name.
START_TERMINAL = (
    "command -v script setsid >/dev/null || { echo 'install util-linux (script)' >&2; false; } && "
    f"{{ (setsid script -qef -E always -c {quote(SHELL)} /dev/null; printf %s {quote(ENDED.decode())}) "
    f"<&{TERMINAL} >&{TERMINAL} 2>&1 {TERMINAL}<&- & }} && builtin disown"
)
MS_NOSUID, MS_NODEV = 2, 4


class LocalSandbox(Sandbox):
    """What the sandboxes on this machine share: a directory, host-side access to it, and a shell."""

    walls = False

    def __init__(self, limits: Limits, *, run_id: str = "", network: str = "none", workdir: str = "/work") -> None:
        self.limits = limits
        self.run_id, self.network, self.workdir = run_id, network, workdir
        self.id = new_id()
        self.base: Path | None = None  # holds the working directory and whatever else the sandbox needs
        self.shell: LocalShell | None = None
        self.cgroup: Cgroup | None = None
        self.cwd = ""
        self.wired = False  # whether shells have a wire for a terminal
        self.terminal: Terminal | None = None
        self.busy = asyncio.Lock()

    @property
    def owner(self) -> int | None:
        """The user who owns the working directory, if not us."""
        return None

    async def start(self) -> None:
        try:
            guard.opened(self.id)
            await asyncio.to_thread(sweep_once)
            self.base = new_base()
            self.base.chmod(0o711 if self.owner is not None else 0o700)
            self.lock = claim(self.base)
            (self.base / "run").write_text(self.run_id)
            self.cgroup = None if no_cgroups() else Cgroup(self.id, self.limits)
            disk = self.base / DISK
            disk.mkdir(mode=0o711)
            if self.walls and not no_mounts():
                mount_tmpfs(disk, self.limits.disk_mb, self.limits.inodes)
            self.folder = Folder(disk / "work", self.owner)
            self._own_dir(disk / "work")
        except OSError as error:
            raise SandboxError(f"cannot make a working directory: {error}") from error

    def _own_dir(self, path: Path) -> None:
        path.mkdir(mode=0o755)
        path.chmod(0o755)
        if self.owner is not None:
            os.chown(path, self.owner, self.owner)

    async def run(self, command: str, timeout_s: float = 20.0) -> CommandResult:
        root = self._started().root
        if refused := refusal(command):
            return refused
        async with self.busy:
            if not root.is_dir():
                raise SandboxError("the working directory is gone")
            fresh = self.shell is None or self.shell.ended.done()
            replaced = fresh and self.shell is not None
            if fresh:
                await self._open_shell()
            return await self._run(command, timeout_s, replaced)

    async def _run(self, command: str, timeout_s: float, replaced: bool) -> CommandResult:
        assert self.shell is not None
        ooms = self.cgroup.ooms() if self.cgroup else 0
        try:
            result = await self.shell.run(command, timeout_s)
        except BaseException:
            await self._end_shell()
            raise
        self.cwd = result.cwd
        if result.shell_replaced:
            await self._end_shell()
        oom = self.cgroup is not None and self.cgroup.ooms() > ooms
        return structs.replace(result, shell_replaced=result.shell_replaced or replaced, oom=oom)

    async def _open_shell(self) -> None:
        await self._end_shell()
        self.shell = self._new_shell()
        await self.shell.open(self.cwd)

    async def open_terminal(self) -> Terminal:
        self._started()
        async with self.busy:
            if self.terminal is not None:
                self.terminal.close()
            if self.shell is None or self.shell.ended.done() or self.shell.wire is None:
                self.wired = True
                await self._open_shell()
            assert self.shell is not None and self.shell.wire is not None
            result = await self.shell.run(START_TERMINAL, 10.0, wired=True)
            if result.shell_replaced:
                await self._end_shell()
            if result.exit_code or self.shell is None:
                raise SandboxError(f"no terminal can be had: {result.stderr.strip() or 'the shell has ended'}")
            self.terminal = Terminal(self.shell.wire.dup())
            return self.terminal

    async def _end_shell(self) -> None:
        if self.terminal is not None:
            self.terminal.close()
        if self.shell is not None:
            shell, self.shell = self.shell, None
            await shell.close()

    @abstractmethod
    def _new_shell(self) -> LocalShell:
        """A shell in the working directory."""

    def _enter(self) -> list[str]:
        return self.cgroup.enter() if self.cgroup else []

    async def read(self, path: str) -> bytes:
        return self._started().read(path)

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._started().write(path, content, mode)

    async def make_dir(self, path: str, mode: int = 0o755) -> None:
        self._started().make_dir(path, mode)

    async def link(self, path: str, target: str) -> None:
        self._started().link(path, target)

    async def snapshot(self) -> Snapshot:
        return await asyncio.to_thread(self._started().snapshot)

    async def upload(self, tar: bytes, path: str = ".") -> None:
        await asyncio.to_thread(unpack, self._started(), tar, path)

    async def download(self, path: str = ".") -> bytes:
        return await asyncio.to_thread(pack, self._started(), path)

    async def fork(self) -> Self:
        source = self._started()
        made = self._another()
        await made.start()
        try:
            await asyncio.to_thread(copy, source, made.folder)
        except BaseException:
            await made.close()
            raise
        return made

    def _another(self) -> Self:
        return type(self)(self.limits.roomier(), run_id=self.run_id, network=self.network, workdir=self.workdir)

    async def stop(self) -> None:
        self._started()
        await self._end_shell()

    async def close(self) -> None:
        if self.base is None:
            return
        base, self.base = self.base, None
        try:
            await self._end_shell()
        finally:
            if self.cgroup is not None:
                await asyncio.to_thread(self.cgroup.remove)
            await asyncio.to_thread(remove_tree, base)
            os.close(self.lock)
            guard.closed(self.id)

    def _started(self) -> Folder:
        if self.base is None:
            raise SandboxError("the sandbox is not started, or closed")
        return self.folder


class PlainSandbox(LocalSandbox):
    """Commands run as plain subprocesses: for trusted work, and where nothing better is there.

    Args:
        fence: `namespace`, `nobody`, `none`, or the best one that works here.
    """

    def __init__(self, limits: Limits, *, run_id: str = "", fence: str = "") -> None:
        super().__init__(limits, run_id=run_id)
        self.wanted = fence
        self.fence = Fence(kind="none")

    @property
    def owner(self) -> int | None:
        return self.fence.user

    async def start(self) -> None:
        self.fence = await asyncio.to_thread(fence, self.wanted)
        await super().start()

    def _another(self) -> Self:
        return type(self)(self.limits.roomier(), run_id=self.run_id, fence=self.wanted)

    def _new_shell(self) -> LocalShell:
        self.mark = f"{owner_token()}/{self.id}"
        root = self._started().root
        argv = shell_argv(self.limits, address_space=self.cgroup is None, count_processes=False)
        return LocalShell(
            [*self._enter(), *self.fence.argv, *argv],
            self._sweep,
            cwd=root,
            env={"PATH": PATH, "HOME": str(root), "LANG": "C.UTF-8", "TERM": "dumb", MARK: self.mark},
            limit=self.limits.output_bytes,
            terminal=self.wired,
        )

    def _sweep(self) -> None:
        if self.cgroup is not None:
            self.cgroup.kill()
        if self.fence.kind != "namespace":  # which ends as a whole
            kill_marked(self.mark)


def mount_tmpfs(place: Path, size_mb: int, inodes: int) -> None:
    """Mount an empty file system in memory, of limited size. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size_mb}m,nr_inodes={inodes},mode=0711".encode()
    if libc.mount(b"agentgym", os.fsencode(place), b"tmpfs", MS_NOSUID | MS_NODEV, options) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")


@functools.cache
def no_mounts() -> str:
    """Why this process cannot mount file systems, in one line; empty if it can. Tried once."""
    base = new_base()
    try:
        (base / DISK).mkdir()
        mount_tmpfs(base / DISK, 1, 16)
    except OSError as error:
        return str(error)
    finally:
        remove_tree(base)
    return ""
