"""Limits on memory, processes and processor time of everything in a sandbox together, where this machine lets us set them."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

from agentgym.environments.leftovers import PREFIX, cgroup_parents, kill, owner_token, remove_cgroup
from agentgym.environments.sandbox import Limits

PERIOD_US = 100_000
REAPED_S = 1.0
ENTER = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1" || exit 125; shift; n=$((n - 1)); done; exec "$@"'


class Cgroup:
    """A group of processes, under every controller that is there."""

    def __init__(self, id: str, limits: Limits) -> None:
        """Make the group. Raises OSError."""
        self.limits = limits
        self.paths = [parent / f"{PREFIX}{owner_token()}-{id}" for parent in cgroup_parents()]
        for path in self.paths:
            path.mkdir(parents=True)
        self._set("memory.limit_in_bytes", limits.memory_mb << 20) or self._set("memory.max", limits.memory_mb << 20)
        self._set("memory.memsw.limit_in_bytes", limits.memory_mb << 20) or self._set("memory.swap.max", 0)
        self._set("pids.max", limits.processes)
        if limits.cpus:
            quota = int(limits.cpus * PERIOD_US)
            self._set("cpu.cfs_quota_us", quota) or self._set("cpu.max", f"{quota} {PERIOD_US}")

    def enter(self) -> list[str]:
        """What to put before a command line for it to run in the group."""
        return ["/bin/sh", "-c", ENTER, "sh", str(len(self.paths)), *(f"{path}/cgroup.procs" for path in self.paths)]

    def kill(self) -> None:
        """Kill all that is in the group, more than once since it may fork meanwhile, and wait until there is room again."""
        until = time.monotonic() + REAPED_S
        while time.monotonic() < until:
            pids = {int(pid) for path in self.paths for pid in _read(path / "cgroup.procs").split()}
            unreaped = max(int(_read(path / "pids.current") or 0) for path in self.paths)
            if not pids and unreaped <= self.limits.processes // 2:
                return
            kill(list(pids))
            time.sleep(0 if pids else 0.005)

    def ooms(self) -> int:
        """How many processes of the group the kernel has killed for want of memory."""
        for path in self.paths:
            for name in ("memory.oom_control", "memory.events"):
                for line in _read(path / name).splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Kill what is in the group and remove it."""
        for path in self.paths:
            remove_cgroup(path)

    def _set(self, name: str, value: object) -> bool:
        for path in self.paths:
            if (path / name).exists():
                with contextlib.suppress(OSError):
                    (path / name).write_text(str(value))
                    return True
        return False


@functools.cache
def no_cgroups() -> str:
    """Why cgroups cannot be made here, in one line; empty if they can. Tried once."""
    if os.geteuid() != 0:
        return "not root"
    try:
        parents = cgroup_parents()
        if not parents:
            return "no cgroup hierarchy"
        _delegate(parents)
        group = Cgroup("probe", Limits())
    except OSError as error:
        return str(error)
    missing = [name for name in ("memory", "pids") if not any(list(path.glob(f"{name}.*")) for path in group.paths)]
    group.remove()
    return f"no controller for {', '.join(missing)}" if missing else ""


def _delegate(parents: list[Path]) -> None:
    """Version 2 hands its controllers down level by level."""
    for folder in (parents[0].parent, parents[0]):
        if (folder / "cgroup.controllers").exists() or (folder.parent / "cgroup.controllers").exists():
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.subtree_control").write_text("+memory +pids +cpu")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
