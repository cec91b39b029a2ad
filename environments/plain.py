"""A sandbox without walls: commands run as the user, on the machine, in a temporary directory.

It isolates nothing. What a command started is found by its process group and by a mark in its environment, which
survives `setsid` and double forks (though not a process that clears its own environment).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil

from agentgym.environments.folder import Folder
from agentgym.environments.leftovers import PREFIX, claim, sweep_once
from agentgym.environments.process import refusal, run_process, shell
from agentgym.environments.sandbox import CommandResult, Limits, Sandbox, Snapshot
from agentgym.environments.trees import copy, pack, unpack
from agentgym.errors import SandboxError
from agentgym.types import new_id

MARK = "AGENTGYM_SANDBOX"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalSandbox(Sandbox):
    """What the sandboxes on this machine share: a temporary directory, and host-side access to it."""

    owner: int | None = None

    def __init__(self, limits: Limits, *, run_id: str = "", network: str = "none", workdir: str = "/work") -> None:
        self.limits = limits
        self.run_id, self.network, self.workdir = run_id, network, workdir
        self.id = new_id()
        self.base: Path | None = None  # holds the working directory and whatever else the sandbox needs

    async def start(self) -> None:
        try:
            sweep_once()
            self.base = Path(tempfile.mkdtemp(prefix=PREFIX))
            self.lock = claim(self.base)
            self.folder = Folder(self.base / "work", self.owner)
            self._own_dir(self.base / "work")
        except OSError as error:
            raise SandboxError(f"cannot make a working directory: {error}") from error

    def _own_dir(self, path: Path) -> None:
        path.mkdir(mode=0o755)
        path.chmod(0o755)
        if self.owner is not None:
            os.chown(path, self.owner, self.owner)

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

    async def fork(self) -> Sandbox:
        source = self._started()
        made = type(self)(self.limits, run_id=self.run_id, network=self.network, workdir=self.workdir)
        await made.start()
        try:
            await asyncio.to_thread(copy, source, made.folder)
        except BaseException:
            await made.close()
            raise
        return made

    async def close(self) -> None:
        if self.base is not None:
            base, self.base = self.base, None
            await asyncio.to_thread(Folder(base).remove)
            os.close(self.lock)

    def _started(self) -> Folder:
        if self.base is None:
            raise SandboxError("the sandbox is not started, or closed")
        return self.folder


class PlainSandbox(LocalSandbox):
    """Commands run as plain subprocesses: for trusted work, and where nothing better is there."""

    async def run(self, command: str, timeout_s: float = 20.0) -> CommandResult:
        root = self._started().root
        env = {"PATH": PATH, "HOME": str(root), "LANG": "C.UTF-8", "TERM": "dumb", MARK: self.id}
        return refusal(command) or await run_process(
            lambda ready: [*_tied_to_us(), *shell(command, self.limits, ready, count_processes=False)],
            self._kill,
            cwd=root,
            env=env,
            timeout_s=timeout_s,
            limit=self.limits.output_bytes,
        )

    async def close(self) -> None:
        if self.base is not None:
            await asyncio.to_thread(kill_marked, self.id)
        await super().close()

    def _kill(self, process: subprocess.Popen[bytes], thorough: bool) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if thorough:
            kill_marked(self.id)


def kill_marked(id: str) -> None:
    """Kill every process of the sandbox `id`, again until none is left: they may fork meanwhile."""
    for _ in range(10):
        alive = [process for process in psutil.process_iter() if _mark_of(process) == id]
        if not alive:
            return
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=0.2)


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None


def _tied_to_us() -> list[str]:
    """A prefix that lets the kernel kill the command when its owner dies."""
    setpriv = shutil.which("setpriv", path=PATH)
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
