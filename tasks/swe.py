"""Software-engineering tasks that others wrote: rows in the SWE-bench format, local repositories, QuixBugs.

Nothing of them ships with the project: a reader takes a path. Which split a task belongs to depends on its id alone.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import UsageError
from agentgym.task import TaskSet
from agentgym.tasks.families import SPLITS, split_of
from agentgym.types import Task

ROW = ("instance_id", "problem_statement", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
OPTIONAL = (
    "tests",
    "pass_at_least",
    "test_command",
    "parser",
    "requirements",
    "pytest_options",
    "import_paths",
    "timeout_s",
)
DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 {modules}"


class Rows(TaskSet):
    """Tasks in two splits, one in six for the test split, or all in the one named `split`."""

    env = "swe"

    def __init__(self, split: str | None = None, limit: int | None = None) -> None:
        if split is not None and split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        self.split, self.limit = split, limit
        self._made: list[Task] | None = None

    @abstractmethod
    def _tasks(self) -> Iterator[Task]:
        """All tasks, in a fixed order."""

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        if self._made is None:
            self._made = list(self._tasks())[: self.limit]
        return [task for task in self._made if task.split == split]

    def _task(self, id: str, instruction: str, data: dict[str, Any], family: str = "") -> Task:
        split = self.split or split_of(id)
        name = f"{self.name}/{id}"
        return Task(id=name, env=self.env, instruction=instruction, family=family, split=split, data=data)


class SWEBench(Rows):
    """Rows of the SWE-bench format (the Lite, Verified, Gym and smith kinds share it).

    Args:
        path: a .json or .jsonl file, or a folder of them.
        repositories: a folder of clones called `owner__name`, `owner/name` or `name`; or the one repository that all
            rows are about.
        image: the name of an image with the repository in it, such as `swebench/sweb.eval.x86_64.{id}:latest`;
            `{id}` stands for the instance.
        workdir: where the image has the repository.
        test_command: how an image runs its tests; `{files}` and `{modules}` stand for the files of the named tests.
        split, limit: see `Rows`.
    """

    name = "swe/bench"

    def __init__(
        self,
        path: str,
        repositories: str = "",
        image: str = "",
        workdir: str = "/testbed",
        test_command: str = "",
        split: str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(split, limit)
        self.path, self.repositories = Path(path).expanduser(), repositories
        self.image, self.workdir, self.test_command = image, workdir, test_command
        if not self.path.exists():
            raise UsageError(f"{self.name}: there is no {path}")

    def _tasks(self) -> Iterator[Task]:
        for row in read_rows(self.path):
            missing = [key for key in ROW if key not in row]
            if missing:
                raise UsageError(f"{self.name}: {self.path} has a row without {', '.join(missing)}")
            data = {key: row[key] for key in (*ROW[2:], *OPTIONAL) if key in row}
            data["source"] = row.get("source") or self._source(row)
            command = self.test_command or (DJANGO if row.get("repo") == "django/django" else "")
            if command and "test_command" not in row:
                data |= _command(command, row)
            yield self._task(row["instance_id"], row["problem_statement"], data, row.get("repo", ""))

    def _source(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self.image:
            name = self.image.format(id=row["instance_id"])
            return {"kind": "image", "image": name, "workdir": self.workdir}
        places = clones(Path(self.repositories or ".").expanduser(), row.get("repo", ""))
        found = next((place for place in places if (place / ".git").exists() or (place / "HEAD").exists()), places[0])
        return {"kind": "git", "path": str(found.absolute()), "commit": row["base_commit"]}


class QuixBugs(Rows):
    """The small Python programs of a QuixBugs checkout, each with one bug. Judged by the exit code of its tests.

    Args:
        path: the checkout (github.com/jkoppel/QuixBugs).
        slow: also the tests that its authors mark as slow.
        split, limit: see `Rows`.
    """

    name = "swe/quixbugs"

    def __init__(self, path: str, slow: bool = False, split: str | None = None, limit: int | None = None) -> None:
        super().__init__(split, limit)
        self.path, self.slow = Path(path).expanduser(), slow
        if not (self.path / "python_testcases").is_dir():
            raise UsageError(f"{self.name}: {path} is no checkout of QuixBugs")

    def _tasks(self) -> Iterator[Task]:
        for test in sorted((self.path / "python_testcases").glob("test_*.py")):
            yield self._program(test.stem.removeprefix("test_"))

    def _program(self, name: str) -> Task:
        file, test = f"python_programs/{name}.py", f"python_testcases/test_{name}.py"
        helpers = [
            "conftest.py",
            "python_testcases/load_testdata.py",
            "python_testcases/node.py",
            f"json_testcases/{name}.json",
        ]
        base = read_files(self.path, [file, "python_programs/node.py"])
        fixed = base | read_files(self.path, [test, *helpers])
        fixed[file] = (self.path / "correct_python_programs" / f"{name}.py").read_text(encoding="utf-8")
        data = {
            "source": {"kind": "files", "files": base},
            "fixed": {"kind": "files", "files": fixed},
            "test_paths": [test, *helpers],
            "FAIL_TO_PASS": ["exit"],
            "parser": "exit",
            "tests": [test],
            "pytest_options": ["-x", *["--runslow"] * self.slow],
            "timeout_s": 15.0,
        }
        says = f"The program {file} has a bug in one line: it does not do what its documentation says. Mend it."
        return self._task(name, says, data, "quixbugs")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .json file (one row, a list, or `{"rows": [{"row": ...}]}`), a .jsonl file, or a folder of them."""
    if path.is_dir():
        for file in sorted([*path.glob("*.json"), *path.glob("*.jsonl")]):
            yield from read_rows(file)
        return
    text = path.read_text(encoding="utf-8")
    try:
        found = (
            [json.loads(line) for line in text.splitlines() if line.strip()]
            if path.suffix == ".jsonl"
            else json.loads(text)
        )
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if isinstance(found, dict):
        found = [one["row"] for one in found["rows"]] if "rows" in found else [found]
    yield from found


def read_files(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The text of those files that are there."""
    return {name: (folder / name).read_text(encoding="utf-8") for name in names if (folder / name).is_file()}


def clones(folder: Path, repo: str) -> list[Path]:
    """Where a clone of `owner/name` may be, the likeliest first."""
    return [folder / repo.replace("/", "__"), folder / repo, folder / repo.split("/")[-1], folder]


def _command(command: str, row: Mapping[str, Any]) -> dict[str, Any]:
    lines = row["test_patch"].split("\n")
    files = sorted({line[6:] for line in lines if line.startswith("+++ b/") and line.endswith(".py")})
    modules = [file.removeprefix("tests/").removesuffix(".py").replace("/", ".") for file in files]
    parser = "unittest" if row.get("repo") == "django/django" else row.get("parser", "pytest")
    return {"test_command": command.format(files=" ".join(files), modules=" ".join(modules)), "parser": parser}
