"""Software-engineering tasks from two released versions of a PyPI project: the older has what the newer mends.

The list of pairs is JSON, `{"NAME OLD->NEW": {"f2p": [test, ...], "p2p": number, "tests": "tests"}}`: tests of the newer
release that fail on the older one and pass on the newer, and how many pass on both. Both source archives come from
the package index by pip, once, into the user's cache.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym.errors import InfrastructureError, UsageError
from agentgym.models import cache_dir
from agentgym.tasks.swe import Rows
from agentgym.types import Task

PIP_TIMEOUT_S = 300
NOTES = re.compile(r"(?i)^(?:docs?/)?(?:change|changes|changelog|history|news|release)[\w-]*(?:\.(?:md|rst|txt))?$")
MAX_NOTES = 2000  # characters of release notes in an instruction


class PypiPairs(Rows):
    """One task per pair of versions.

    Args:
        path: the list of pairs.
        projects: some of the projects in it; all by default.
        requirements: distributions that a project's tests need besides pytest, by project.
        cache: where the archives are kept; a folder of the user's cache by default.
        split, limit: see `Rows`.
    """

    name = "swe/pypi"

    def __init__(
        self,
        path: str,
        projects: list[str] | None = None,
        requirements: dict[str, list[str]] | None = None,
        cache: str = "",
        split: str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(split, limit)
        self.path, self.projects = Path(path).expanduser(), projects
        self.requirements = requirements or {}
        self.cache = Path(cache).expanduser() if cache else cache_dir() / "sdists"
        if not self.path.is_file():
            raise UsageError(f"{self.name}: there is no {path}")

    def _tasks(self) -> Iterator[Task]:
        for title, pair in json.loads(self.path.read_text(encoding="utf-8")).items():
            match = re.fullmatch(r"(\S+) (\S+?)\s*->\s*(\S+)", title)
            if match is None:
                raise UsageError(f"{self.name}: {title!r} is not 'NAME OLD->NEW'")
            if self.projects is None or match[1] in self.projects:
                yield self._pair(match[1], match[2], match[3], pair)

    def _pair(self, project: str, old: str, new: str, pair: dict[str, Any]) -> Task:
        archives = [source_archive(project, version, self.cache) for version in (old, new)]
        source, fixed = ({"kind": "archive", "path": str(archive)} for archive in archives)
        data = {
            "source": source,
            "fixed": fixed,
            "test_paths": [pair["tests"], "conftest.py"],
            "tests": [pair["tests"]],
            "FAIL_TO_PASS": pair["f2p"],
            "pass_at_least": pair.get("p2p", 0),
            "requirements": self.requirements.get(project, []),
        }
        return self._task(f"{project}-{old}-{new}", instruction(project, old, new, pair, archives), data, project)


def instruction(project: str, old: str, new: str, pair: dict[str, Any], archives: list[Path]) -> str:
    """What is asked for: the release notes, as far as they are new, and the names of the tests."""
    tests = "\n".join(f"- {name}" for name in pair["f2p"])
    notes = release_notes(*archives)
    said = f"\n\nIts release notes say:\n\n{notes}" if notes else ""
    return (
        f"This is {project} {old}. The next release, {new}, mends something.{said}\n\nChange the code so that it does "
        f"what {new} does. These tests of {new}, which you do not have, fail now and must pass then:\n{tests}"
    )


def release_notes(old: Path, new: Path) -> str:
    """The lines that are new in the newer archive's change log, up to MAX_NOTES characters."""
    before, after = _notes(old), _notes(new)
    known = set(before.splitlines())
    return "\n".join(line for line in after.splitlines() if line not in known).strip()[:MAX_NOTES]


def source_archive(project: str, version: str, cache: Path) -> Path:
    """The source archive of a release, from the cache or by pip. Raises InfrastructureError if pip cannot get it."""
    stem = f"{re.sub(r'[-_.]+', '[-_.]', project)}-{re.escape(version)}"
    pattern = re.compile(rf"{stem}\.tar\.gz", re.IGNORECASE)
    if found := _find(cache, pattern):
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".pip-") as folder:
            download(f"{project}=={version}", Path(folder), "--no-binary", project)
            made = _find(Path(folder), pattern)
            if made is None:
                raise InfrastructureError(f"pip gave no .tar.gz of {project} {version}")
            return made.rename(cache / made.name)
    except OSError as error:
        raise UsageError(f"cannot write {cache}: {error.strerror}") from error


def download(requirement: str, folder: Path, *options: str) -> None:
    """Let pip download one distribution without what it needs. Raises InfrastructureError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", *options]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), requirement], capture_output=True, text=True, timeout=PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"pip took more than {PIP_TIMEOUT_S} s for {requirement}") from error
    if done.returncode:
        raise InfrastructureError(f"pip cannot download {requirement}: {done.stderr.strip()[-300:]}")


def _find(folder: Path, pattern: re.Pattern[str]) -> Path | None:
    return next((path for path in folder.glob("*.tar.gz") if pattern.fullmatch(path.name)), None)


def _notes(archive: Path) -> str:
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isfile() and NOTES.match(member.name.partition("/")[2]) and (file := opened.extractfile(member)):
                return file.read().decode("utf-8", "replace")
    return ""
