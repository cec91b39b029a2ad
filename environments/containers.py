"""Containers as the sandboxes want them: no network, no rights, limits on everything, and gone when their owner is."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import Any

from agentgym.environments.leftovers import LABEL, owner_token
from agentgym.environments.network import variables
from agentgym.environments.sandbox import SHM_MB, Limits
from agentgym.errors import SandboxError
from agentgym.types import Struct

BASH = "/bin/bash"
TIMEOUT_S = 60
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The first process: a bash adopts and reaps orphans, does what its owner says, and ends with its owner's connection. It
# heeds no signal that may come from inside. To "kill" it answers "more" until there was nothing left to kill.
FIRST = (
    'trap "" 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16; '
    'while IFS= read -r word; do [[ $word == kill ]] && kill -9 -1 2>/dev/null && word=more; echo "$word"; done'
)


class Spec(Struct, frozen=True, kw_only=True):
    """What a container is made from; equal specs make interchangeable containers."""

    image: str
    limits: Limits
    network: str = "none"
    run_id: str = ""
    workdir: str = "/work"
    user: str = "1000:1000"
    allow: tuple[str, ...] = ()  # hosts that may be reached, through a proxy
    writable: bool = False  # the image's file system, in a layer of the container's own; else read-only
    own: tuple[str, ...] = ()  # what of a writable one belongs to the user, beside the working directory


_clients: dict[int, Any] = {}


def client() -> Any:
    """This process's connection to the daemon. Raises SandboxError if there is none."""
    pid = os.getpid()
    if pid not in _clients:
        if problem := no_docker():
            raise SandboxError(f"docker does not work here: {problem}")
        import docker

        _clients[pid] = docker.from_env(timeout=TIMEOUT_S, max_pool_size=128)
    return _clients[pid]


@functools.cache
def no_docker() -> str:
    """Why Docker does not work on this machine, in one line; empty if it does. Tried once."""
    try:
        import docker
    except ImportError:
        return "its Python package is missing: pip install 'agentgym[docker]'"
    try:
        with contextlib.closing(docker.from_env(timeout=10)) as tried:
            tried.ping()
    except (docker.errors.DockerException, OSError) as error:
        return str(error).splitlines()[0]
    return ""


@contextlib.contextmanager
def failing_as_sandbox(what: str) -> Any:
    """Turn what the daemon says against us into a SandboxError."""
    import docker
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise SandboxError(f"{what}: {str(error).splitlines()[0]}") from error


def create(spec: Spec) -> str:
    """Make a container and say its id; it is not started yet. Raises SandboxError."""
    api = client().api
    with failing_as_sandbox(f"cannot make a container of {spec.image!r}"):
        made = api.create_container(
            spec.image,
            entrypoint=[BASH, "--norc", "--noprofile", "-c", FIRST],
            command=[],
            user=spec.user,
            working_dir=spec.workdir,
            environment=_environment(spec),
            labels=labels(spec.run_id),
            hostname="sandbox",
            stdin_open=True,
            detach=False,
            host_config=api.create_host_config(**_host_config(spec)),
        )
    return str(made["Id"])


def _environment(spec: Spec) -> dict[str, str]:
    """What commands find; PATH is the image's own."""
    own = {"HOME": spec.workdir, "LANG": "C.UTF-8", "TERM": "dumb", "USER": "agent"}
    return own | (variables() if spec.allow else {})


def labels(run_id: str) -> dict[str, str]:
    """Who made it, for whom and when."""
    return {LABEL: owner_token(), "agentgym.run": run_id, "agentgym.started": str(int(time.time()))}


def _host_config(spec: Spec) -> dict[str, Any]:
    from docker.types import LogConfig, Ulimit

    limits = spec.limits
    memory = limits.memory_mb << 20
    file_bytes = limits.file_mb << 20
    return {
        "network_mode": spec.network,
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": limits.processes,
        "nano_cpus": int(limits.cpus * 1e9) or None,
        "read_only": not spec.writable,
        "tmpfs": _tmpfs(spec),
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "shm_size": SHM_MB << 20,
        "auto_remove": True,
        "log_config": LogConfig(type=LogConfig.types.NONE),
        "ulimits": [
            Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            Ulimit(name="fsize", soft=file_bytes, hard=file_bytes),
            Ulimit(name="core", soft=0, hard=0),
        ],
    }


def _tmpfs(spec: Spec) -> dict[str, str]:
    """Three quarters of the disk for the working directory, one for /tmp; the image's own where that can be written."""
    uid, _, gid = spec.user.partition(":")
    shares = {"/tmp": (1, 0o1777)} if spec.writable else {spec.workdir: (3, 0o755), "/tmp": (1, 0o1777)}
    return {
        place: f"rw,exec,nosuid,nodev,size={spec.limits.disk_mb * share // 4}m,"
        f"nr_inodes={spec.limits.inodes * share // 4},mode={mode:o},uid={uid},gid={gid or uid}"
        for place, (share, mode) in shares.items()
    }


def first_process(container: str) -> int:
    """The process id of a container's first process, on the daemon's machine. Raises SandboxError."""
    with failing_as_sandbox("cannot look at a container"):
        return int(client().api.inspect_container(container)["State"]["Pid"])


def memory_cgroup(container: str) -> Path | None:
    """Where this machine counts a container's memory, if the daemon is this machine's."""
    pid = first_process(container)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = Path("/sys/fs/cgroup/memory" if controllers == "memory" else "/sys/fs/cgroup")
            if controllers in ("memory", "") and container in path and (root / path.lstrip("/")).is_dir():
                return root / path.lstrip("/")
    return None


def oom_kills(group: Path | None) -> int:
    """How many processes in a cgroup the kernel has killed for want of memory."""
    for name in ("memory.oom_control", "memory.events") if group else ():
        assert group is not None
        with contextlib.suppress(OSError):
            for line in (group / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def remove(container: str, image: str = "") -> None:
    """Remove a container, and the image that it alone was made from; nothing happens if they are gone."""
    import docker

    with failing_as_sandbox("cannot remove a container"):
        for kind, name in (("container", container), ("image", image)):
            try:
                if kind == "container":
                    client().api.remove_container(name, force=True)
                elif name:
                    client().api.remove_image(name, force=True)
            except docker.errors.NotFound:
                continue
            except docker.errors.APIError as error:
                if "already in progress" not in str(error):
                    raise
                _wait_until_gone(name)


def _wait_until_gone(container: str) -> None:
    """The daemon is removing it by itself."""
    import docker

    with contextlib.suppress(docker.errors.NotFound):
        for _ in range(100):
            client().api.inspect_container(container)
            time.sleep(0.05)
