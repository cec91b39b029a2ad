"""A sandbox of Linux namespaces, through bubblewrap: it starts in about 5 ms and needs neither a daemon nor root.

A command sees read-only system directories, its working directory at /work, a private /tmp, no network and none of
the machine's processes. A shell is the first process of a namespace, so that ending it ends all that it started;
bubblewrap dies with its parent, so that nothing outlives a killed owner. As root, commands run as an unprivileged
user, in a cgroup, and on a file system of limited size.

The rest of the file system is read-only, or with `writable` a directory of the sandbox's own, on the same file system
of limited size. What decides how programs run is not part of that: the system's directories, and /etc, which every shell
finds as new.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from agentgym.environments.folder import Folder
from agentgym.environments.leftovers import DISK, PREFIX, owner_token, remove_tree
from agentgym.environments.network import Proxy, variables
from agentgym.environments.plain import LocalSandbox
from agentgym.environments.process import LocalShell
from agentgym.environments.sandbox import SHM_MB, Limits
from agentgym.environments.shell import shell_argv
from agentgym.environments.trees import copy
from agentgym.errors import SandboxError

UNPRIVILEGED = 65534  # nobody
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ssl/certs")
OURS = {Path(place).name for place in SYSTEM} | {"etc", "proc", "dev", "sys", "run", "tmp"}  # never the agent's
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
ISOLATE = [
    "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--die-with-parent",
    "--new-session", "--disable-userns", "--clearenv", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys",
    "--dev", "/dev", "--perms", "1777", "--size", str(SHM_MB << 20), "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
]  # fmt: skip
SETENV = {"PATH": PATH, "HOME": "/work", "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}


class BubblewrapSandbox(LocalSandbox):
    """Commands run in namespaces of their own; the working directory and /tmp last, and `/` where it is `writable`."""

    isolates = True
    walls = True

    def __init__(
        self,
        limits: Limits,
        *,
        run_id: str = "",
        network: str = "none",
        workdir: str = "/work",
        writable: bool = False,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(limits, run_id=run_id, network=network, workdir=workdir)
        self.writable, self.allow = writable, tuple(allow)
        self.proxy = Proxy(self.allow) if self.allow else None

    @property
    def owner(self) -> int | None:
        return UNPRIVILEGED if as_nobody() else None

    async def start(self) -> None:
        problem = why_not()
        if problem:
            raise SandboxError(f"bubblewrap does not work here: {problem}")
        await super().start()
        assert self.base is not None
        self.base.chmod(0o711)
        for name in ("tmp", "root") if self.writable else ("tmp",):
            self._own_dir(self.base / DISK / name)
        (self.base / "passwd").write_text("agent:x:1000:1000::/work:/bin/bash\n")
        (self.base / "group").write_text("agent:x:1000:\n")

    async def fork(self) -> Self:
        made = await super().fork()
        assert self.base is not None and made.base is not None
        for name in ("tmp", "root") if self.writable else ("tmp",):
            source, target = (Folder(base / DISK / name, self.owner) for base in (self.base, made.base))
            try:
                await asyncio.to_thread(copy, source, target)
            except BaseException:
                await made.close()
                raise
        return made

    def _another(self) -> Self:
        settings: dict[str, Any] = {"run_id": self.run_id, "network": self.network, "workdir": self.workdir}
        return type(self)(self.limits.roomier(), writable=self.writable, allow=self.allow, **settings)

    async def _open_shell(self) -> None:
        await super()._open_shell()
        if self.proxy is not None:
            assert self.shell is not None
            if not self.shell.inside:
                raise SandboxError(
                    "the allowed hosts cannot be reached: this kernel does not list the children of a process"
                )
            await self.proxy.listen(self.shell.inside[0])

    async def _end_shell(self) -> None:
        if self.proxy is not None:
            await self.proxy.close()
        await super()._end_shell()

    def _new_shell(self) -> LocalShell:
        disk, base = self._started().root.parent, self.base
        root = disk / "root" if self.writable else None
        if root is not None:
            clear(root, self.workdir)
        mounts = ["--bind", f"{disk}/work", self.workdir, "--bind", f"{disk}/tmp", "/tmp", "--chdir", self.workdir]
        mounts += ["--ro-bind", f"{base}/passwd", "/etc/passwd", "--ro-bind", f"{base}/group", "/etc/group"]
        mounts += ["--share-net"] if self.network == "host" else []
        for name, value in variables().items() if self.allow else ():
            mounts += ["--setenv", name, value]
        mounts += ["--setenv", "HOME", self.workdir, *([] if root else ["--remount-ro", "/"])]
        argv = shell_argv(self.limits, address_space=self.cgroup is None, count_processes=self.cgroup is None)
        return LocalShell(
            [*self._enter(), *launcher(as_nobody(), root), *mounts, *argv],
            self.cgroup.kill if self.cgroup else lambda: None,  # a namespace ends with its first process
            cwd=disk / "work",
            env={"PATH": PATH},
            limit=self.limits.output_bytes,
            terminal=self.wired,
        )


def clear(root: Path, workdir: str) -> None:
    """Make way for what is mounted below `root`, whatever an agent has put there; nothing runs in the sandbox now."""
    for name in OURS:
        place = root / name
        if place.is_symlink() or place.is_file():
            place.unlink()
        elif place.exists():
            remove_tree(place)
    for place in [*reversed((root / workdir.lstrip("/")).parents), root / workdir.lstrip("/")]:
        if place.is_relative_to(root) and place != root and (place.is_symlink() or not place.is_dir()):
            place.unlink(missing_ok=True)


def launcher(nobody: bool, root: Path | None = None) -> list[str]:
    """The command line of bubblewrap up to the mounts of one sandbox, whose `/` may be a directory."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bubblewrap is not installed: apt-get install bubblewrap")
    setpriv = ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", "--"]
    setenv = [part for name, value in SETENV.items() for part in ("--setenv", name, value)]
    bind = ["--bind", str(root), "/"] if root else []
    return [*(setpriv if nobody else []), bwrap, *bind, *ISOLATE, *setenv, *_system()]


@functools.cache
def _system() -> tuple[str, ...]:
    options: list[str] = []
    for place in map(Path, SYSTEM):
        if place.is_symlink():
            options += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    for setting in SETTINGS:
        options += ["--ro-bind-try", setting, setting]
    return tuple(options)


@functools.cache
def as_nobody() -> bool:
    """Whether to give up root before bubblewrap starts, where we are root and that works."""
    return os.geteuid() == 0 and not _probe(nobody=True)


@functools.cache
def why_not() -> str:
    """Why bubblewrap does not work on this machine, in one line; empty if it does. Tried once."""
    return "" if as_nobody() else _probe(nobody=False)


def _probe(*, nobody: bool) -> str:
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{owner_token()}-") as folder:
        Path(folder).chmod(0o711)
        inside = Path(folder) / "work"
        inside.mkdir()
        try:
            argv = [*launcher(nobody), "--bind", str(inside), "/work", "/bin/bash", "-c", "cd /work"]
            tried = subprocess.run(argv, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError, SandboxError) as error:
            return str(error).splitlines()[0]
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or [f"exit {tried.returncode}"])[-1]
