"""Images for the Docker sandbox, also where no registry is: from this machine's own packages, a Dockerfile or a tar.

An image from packages is named after what is in it (versions of the packages, and this recipe's), so it is made once.
Nothing is ever pulled unless asked for.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO, Any

from agentgym.environments.containers import PATH, client, failing_as_sandbox
from agentgym.errors import SandboxError, UsageError
from agentgym.registry import nearest
from agentgym.types import Struct

RECIPE = 1  # raise it when what goes into an image changes
REPOSITORY = "agentgym"
BASE = [
    "bash",
    "coreutils",
    "findutils",
    "grep",
    "sed",
    "mawk",
    "gawk",
    "tar",
    "gzip",
    "bzip2",
    "xz-utils",
    "zip",
    "unzip",
    "diffutils",
    "patch",
    "procps",
    "util-linux",
    "hostname",
    "ncurses-base",
    "ncurses-bin",
    "libc-bin",
    "debianutils",
    "bsdutils",
    "file",
    "less",
    "tree",
    "bc",
    "jq",
]
PYTHON = [*BASE, *["python3", "python3-minimal", "libpython3-stdlib", "git", "make"]]
WHEELS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
NUMBERS = [*PYTHON, "python3-numpy", "python3-sympy"]  # and what these need
RECIPES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "base": (BASE, ()),
    "python": (PYTHON, WHEELS),
    "interpreter": (NUMBERS, ()),
}
SKIP = (
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/locale",
    "/usr/share/info",
    "/usr/share/lintian",
    "/usr/share/bug",
)
MERGED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
ETC = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/work:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
    "etc/group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/ld.so.conf": "/usr/local/lib\n/usr/lib/x86_64-linux-gnu\n/usr/lib/aarch64-linux-gnu\n",
}


class Image(Struct, frozen=True, kw_only=True):
    """An image that is on this machine."""

    name: str
    id: str  # its digest
    size: int  # bytes
    created: str = ""


def ensure(name: str) -> str:
    """The id of the image `name`; `base`, `python` and `interpreter` are made where they are not there yet.

    Raises SandboxError: there is no such image here. It is not pulled.
    """
    if name in RECIPES:
        return build(name).id
    try:
        return _look(name).id
    except SandboxError as error:
        raise SandboxError(
            f"there is no image {name!r} here; `docker pull {name}`, or see `agentgym images`"
        ) from error


def build(name: str) -> Image:
    """Make `base`, `python` or `interpreter` from this machine's packages, or find what was made before.

    Raises:
        UsageError: no such recipe.
        SandboxError: no daemon, or no Debian packages here.
    """
    if name not in RECIPES:
        raise UsageError(f"unknown image {name!r}{nearest(name, RECIPES)}; known: {', '.join(RECIPES)}")
    packages, wheels = RECIPES[name]
    tag = f"{REPOSITORY}/{name}:{_key(packages, wheels)}"
    try:
        return _look(tag)
    except SandboxError:
        with tempfile.TemporaryFile() as archive:
            _write(archive, _files(packages, wheels))
            archive.seek(0)
            return load(archive, tag)


def load(archive: IO[bytes], tag: str) -> Image:
    """Import a tar of a root file system as `tag`. Raises SandboxError."""
    api = client().api
    repository, _, version = tag.partition(":")
    parameters = {
        "fromSrc": "-",
        "repo": repository,
        "tag": version,
        "changes": [f"ENV PATH={PATH}", "ENV LANG=C.UTF-8"],
    }
    with failing_as_sandbox(f"cannot import {tag}"):
        said = api._result(
            api._post(
                api._url("/images/create"), data=archive, params=parameters, headers={"Content-Type": "application/tar"},
                timeout=600,
            )
        )  # fmt: skip
    if "error" in str(said):
        raise SandboxError(f"cannot import {tag}: {str(said)[-300:]}")
    return _look(tag)


def from_tar(path: Path, tag: str) -> Image:
    """An image from a tar: of a root file system, or what `docker save` wrote. Raises SandboxError."""
    try:
        with tarfile.open(path) as archive:
            saved = "manifest.json" in archive.getnames()
            names = json.load(archive.extractfile("manifest.json") or io.BytesIO(b"[]")) if saved else []
    except (OSError, tarfile.TarError) as error:
        raise SandboxError(f"{path} is not a readable tar: {error}") from error
    with path.open("rb") as content:
        if not saved:
            return load(content, tag)
        with failing_as_sandbox(f"cannot load {path}"):
            (loaded, *_) = client().images.load(content)
            loaded.tag(*tag.rpartition(":")[::2] if ":" in tag else (tag, "latest"))
    return _look(tag if names else str(loaded.id))


def from_dockerfile(folder: Path, tag: str, *, dockerfile: str = "Dockerfile", network: str = "none") -> Image:
    """Build a Dockerfile whose base is on this machine; nothing is pulled. Raises SandboxError."""
    import docker

    if not (folder / dockerfile).is_file():
        raise SandboxError(f"there is no {dockerfile} in {folder}")
    with failing_as_sandbox(f"cannot build {folder}"):
        try:
            client().images.build(
                path=str(folder),
                dockerfile=dockerfile,
                tag=tag,
                pull=False,
                rm=True,
                forcerm=True,
                network_mode=network,
            )
        except docker.errors.BuildError as error:
            said = "".join(str(line.get("stream", line.get("error", ""))) for line in error.build_log)
            raise SandboxError(f"cannot build {folder}: {said.strip()[-500:]}") from error
    return _look(tag)


def folder_key(folder: Path) -> str:
    """A name for what is in a folder: the same content gives the same image."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0{path.lstat().st_mode:o}\0".encode())
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def listed() -> list[Image]:
    """The images that this project made, newest first."""
    with failing_as_sandbox("cannot list images"):
        found = client().api.images()
    mine = [(tag, one) for one in found for tag in one["RepoTags"] or [] if tag.startswith(f"{REPOSITORY}/")]
    return [
        Image(name=tag, id=one["Id"], size=one["Size"], created=str(one["Created"]))
        for tag, one in sorted(mine, key=lambda pair: -pair[1]["Created"])
    ]


def _look(name: str) -> Image:
    with failing_as_sandbox(f"no image {name!r}"):
        said: dict[str, Any] = client().api.inspect_image(name)
    return Image(name=name, id=said["Id"], size=said["Size"], created=said["Created"])


def _key(packages: list[str], wheels: tuple[str, ...]) -> str:
    """The first digits of a hash over what the image is made from."""
    versions = [f"{name} {version}" for name, version in sorted(_installed(packages).items())]
    made_of = [str(RECIPE), *versions, *(f"{name} {distribution(name).version}" for name in _present(wheels))]
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:12]


def _installed(packages: Iterable[str]) -> dict[str, str]:
    """Those of the packages that are here, with what of their dependencies holds Python's own files, and versions."""
    if not shutil.which("dpkg-query"):
        raise SandboxError("no dpkg here: import a tar instead")
    said = _dpkg("-W", "-f", "${db:Status-Abbrev}\t${Package}\t${Version}\t${Depends}\n")
    rows = [line.split("\t") for line in said.splitlines() if line.startswith("ii ")]
    versions = {name: version for _, name, version, _ in rows}
    depends = {name: depends for _, name, _, depends in rows}
    wanted = [name for name in packages if name in versions]
    for name in wanted:  # grows: python3 needs python3.11, and that one its libraries
        needs = [part.split()[0].split(":")[0] for part in depends[name].replace("|", ",").split(",") if part.strip()]
        wanted += [
            need
            for need in needs
            if need.startswith(("python3", "libpython3")) and need in versions and need not in wanted
        ]
    return {name: versions[name] for name in wanted}


def _files(packages: list[str], wheels: tuple[str, ...]) -> dict[str, Path]:
    """Path in the image to path on this machine."""
    owned = [Path(line) for line in _dpkg("-L", *_installed(packages)).splitlines() if line.startswith("/")]
    owned += [path for path in map(Path, ("/etc/ssl/openssl.cnf", "/etc/mime.types")) if path.exists()]
    found: dict[str, Path] = {}
    for path in owned:
        if not str(path).startswith(SKIP) and (path.is_symlink() or path.is_file()):
            found[_merged(path)] = path
            found |= _chain(path)
    programs = [path for path in found.values() if _is_elf(path)]
    for library in _libraries(programs):
        found |= _chain(library) | {_merged(library): library}
    return found | dict(_wheel_files(wheels))


def _chain(path: Path) -> dict[str, Path]:
    """What a link leads to, step by step."""
    found: dict[str, Path] = {}
    while path.is_symlink() and path.exists():
        path = path.parent / path.readlink()
        path = Path(os.path.normpath(path))
        found[_merged(path)] = path
    return found


def _merged(path: Path) -> str:
    """The path in a merged-/usr system, without the leading slash."""
    top, _, rest = str(path).lstrip("/").partition("/")
    return f"{MERGED[top]}/{rest}" if top in MERGED and rest else f"{top}/{rest}".rstrip("/")


def _libraries(programs: list[Path]) -> list[Path]:
    libraries: set[Path] = set()
    for start in range(0, len(programs), 200):
        done = subprocess.run(["ldd", *programs[start : start + 200]], capture_output=True, text=True, check=False)
        words = (word for line in done.stdout.splitlines() for word in line.split())
        libraries |= {Path(word) for word in words if word.startswith("/") and ".so" in word and not word.endswith(":")}
    return sorted(libraries)


def _is_elf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _present(wheels: tuple[str, ...]) -> Iterator[str]:
    for name in wheels:
        try:
            distribution(name)
            yield name
        except PackageNotFoundError:
            continue


def _wheel_files(wheels: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for name in _present(wheels):
        for file in distribution(name).files or []:
            source = Path(str(file.locate()))
            if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                yield f"usr/lib/python3/dist-packages/{file}", source


def _write(archive: IO[bytes], files: dict[str, Path]) -> None:
    """A root file system: the same files give the same bytes."""
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder, mode in (("usr", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("work", 0o777), ("root", 0o700), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755), ("run", 0o755), ("var/tmp", 0o1777)):  # fmt: skip
            _add(tar, folder, tarfile.DIRTYPE, mode)
        for name, target in MERGED.items():
            _add(tar, target, tarfile.DIRTYPE, 0o755)
            _add(tar, name, tarfile.SYMTYPE, 0o777, link=target)
        for name, text in ETC.items():
            _add(tar, name, tarfile.REGTYPE, 0o644, text.encode())
        for name, source in sorted((name, source) for name, source in files.items() if name not in ETC | MERGED):
            if source.is_symlink():
                _add(tar, name, tarfile.SYMTYPE, 0o777, link=str(source.readlink()))
            elif source.is_file():
                _add(tar, name, tarfile.REGTYPE, source.stat().st_mode & 0o755, source.read_bytes())  # no setuid
        for name, target in (("usr/bin/sh", "bash"), ("usr/bin/awk", "mawk")):
            if name not in files:
                _add(tar, name, tarfile.SYMTYPE, 0o777, link=target)


def _add(tar: tarfile.TarFile, name: str, kind: bytes, mode: int, content: bytes = b"", link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(content)
    tar.addfile(info, io.BytesIO(content))


def _dpkg(*arguments: str) -> str:
    done = subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SandboxError(f"dpkg-query: {done.stderr.strip()[-200:]}")
    return done.stdout
