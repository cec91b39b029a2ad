"""Which Python runs in a sandbox, and where it finds its packages: those of the sandbox's system, else copies of ours."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import io
import logging
import re
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from agentgym.environments.sandbox import Sandbox
from agentgym.environments.shell import quote
from agentgym.errors import SandboxError
from agentgym.types import Struct

log = logging.getLogger(__name__)

NEEDS = {"sympy": ("sympy", "mpmath"), "numpy": ("numpy",)}
FOLDER = ".interpreter"  # in the working directory, for copies
PROBE = (
    "import sys; from importlib.util import find_spec; "
    "print(sys.executable, *sys.version_info[:2], *(name for name in sys.argv[1:] if find_spec(name)))"
)
PYTHONS = ("python3", "/usr/bin/python3", "/usr/local/bin/python3")

_known: dict[tuple[str, tuple[str, ...]], Place] = {}


class Place(Struct, frozen=True, kw_only=True):
    """A Python of a sandbox."""

    python: str  # its path inside, with the option that keeps it to itself
    path: str = ""  # to find copied packages in
    copied: tuple[str, ...] = ()


async def prepare(sandbox: Sandbox, packages: Sequence[str], key: str) -> Place:
    """The Python to run, once `packages` can be imported by it.

    Args:
        key: of the kind of sandbox; what was found in one is taken for granted in others of the same key.

    Raises:
        SandboxError: there is no Python in the sandbox, or the packages cannot be had.
    """
    known = (key, tuple(packages))
    if known not in _known:
        _known[known] = await _look(sandbox, packages)
    place = _known[known]
    if place.copied:
        await sandbox.upload(await asyncio.to_thread(bundle, place.copied))
        where = await sandbox.run(f'builtin printf %s "$HOME/{FOLDER}"')
        return Place(python=place.python, path=where.stdout, copied=place.copied)
    return place


async def _look(sandbox: Sandbox, packages: Sequence[str]) -> Place:
    ours = f"{sys.version_info[0]} {sys.version_info[1]}"
    found: list[tuple[str, str, set[str]]] = []
    for python in PYTHONS:
        result = await sandbox.run(f"{python} -I -c {quote(PROBE)} {' '.join(map(quote, packages))}", 20.0)
        if result.exit_code == 0:
            path, major, minor, *has = result.stdout.split()
            if set(packages) <= set(has):
                return Place(python=f"{quote(path)} -I")
            found.append((path, f"{major} {minor}", set(has)))
    same = [path for path, version, _ in found if version == ours]
    if not found:
        raise SandboxError("there is no Python in the sandbox: install python3, or choose an image that has it")
    if not same:
        raise SandboxError(
            f"the sandbox's Python has no {', '.join(packages)}: install python3-numpy and python3-sympy in it"
        )
    log.warning(
        "the sandbox's Python lacks some of %s: copied into each sandbox, which takes a second and 100 MB; "
        "installing python3-numpy and python3-sympy spares that",
        ", ".join(packages),
    )
    return Place(python=f"{quote(same[0])} -s -P", copied=tuple(packages))


@functools.lru_cache(maxsize=4)
def bundle(packages: tuple[str, ...]) -> bytes:
    """A tar of the installed `packages` and what they need, without their tests. Raises SandboxError."""
    made = io.BytesIO()
    names = dict.fromkeys(need for package in packages for need in NEEDS.get(package, (package,)))
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in names:
            try:
                files = importlib.metadata.files(name) or []
            except importlib.metadata.PackageNotFoundError:
                raise SandboxError(
                    f"the interpreter offers {name}, which is not installed: pip install {name}"
                ) from None
            for file in files:
                if _wanted(file):
                    archive.add(Path(str(file.locate())), f"{FOLDER}/{file}", recursive=False)
    return made.getvalue()


def _wanted(file: PurePosixPath) -> bool:
    odd = file.is_absolute() or ".." in file.parts or file.suffix in {".pyi", ".a", ".h", ".lib", ".pxd"}
    return not odd and not any(
        re.fullmatch(r"tests?|benchmarks|f2py|include|.*\.dist-info", part) for part in file.parts
    )
