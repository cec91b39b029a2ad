"""Task folders as others publish them, both generations, read as they are.

Harbor: `task.toml`, `instruction.md`, `environment/` with a Dockerfile, `tests/test.sh`, `solution/solve.sh`.
terminal-bench: `task.yaml` with the instruction, a Dockerfile beside it, `run-tests.sh` and `tests/`, `solution.sh` or
`solution.yaml`.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from agentgym.errors import UsageError
from agentgym.task import TaskSet
from agentgym.tasks.families import SPLITS, split_of
from agentgym.types import Task

DESCRIPTIONS = {"task.toml": "harbor", "task.yaml": "terminal-bench"}
LEVELS = {"trivial": 1, "easy": 1, "medium": 2, "hard": 3}
INSTALLERS = ("apt-get", "apt", "apk", "pip", "pip3", "python -m pip", "python3 -m pip", "npm install", "npm i ", "uv ",
              "curl", "wget", "rm -rf /var/lib/apt", "yum", "dnf", "conda", "cargo install", "gem install", "git clone",
              "chown", "useradd", "adduser", "groupadd", "sudo", "add-apt-repository", "update-alternatives", "locale-gen")  # fmt: skip

SEPARATOR = re.compile(r"""&&(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""")  # outside quotes


class TaskFolders(TaskSet):
    """The task folders below a path.

    Args:
        path: a task folder, or a folder that has some, at any depth.
        image: an image for all of them, instead of their Dockerfiles; `none` for none, also where a task names one.
        split: all tasks in this split; by default one in six is in the test split, by the folder's name.
        names: some of the folders' names; all by default.
        limit: so many at most.
    """

    name = "terminal/folders"
    env = "task-folder"

    def __init__(
        self,
        path: str,
        image: str = "",
        split: str | None = None,
        names: list[str] | None = None,
        limit: int | None = None,
    ) -> None:
        self.path, self.image, self.split, self.names, self.limit = Path(path).expanduser(), image, split, names, limit
        if not self.path.is_dir():
            raise UsageError(f"{self.name}: there is no folder {path}")
        if split is not None and split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        self._made: list[Task] | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        if self._made is None:
            self._made = list(self._read())
        return [task for task in self._made if task.split == split]

    def _read(self) -> Iterator[Task]:
        folders = sorted({file.parent for name in DESCRIPTIONS for file in self.path.rglob(name)})
        folders = [folder for folder in folders if self.names is None or folder.name in self.names]
        if not folders:
            raise UsageError(f"{self.name}: no task.toml or task.yaml below {self.path}")
        for folder in folders[: self.limit]:
            id = folder.name if folder == self.path else folder.relative_to(self.path).as_posix()
            yield self._task(id, folder)

    def _task(self, id: str, folder: Path) -> Task:
        instruction, about, data = read_task_folder(folder)
        return Task(
            id=f"{self.name}/{id}",
            env=self.env,
            instruction=instruction,
            family=str(about.get("category", "")),
            level=LEVELS.get(str(about.get("difficulty", "")), 0),
            split=self.split or split_of(id),
            data=data | {"image": "" if self.image == "none" else self.image or data.get("image", "")},
        )


def read_task_folder(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(instruction, what the description says about the task, the task's data). Raises UsageError."""
    try:
        if (folder / "task.toml").is_file():
            return _harbor(folder)
        return _terminal_bench(folder)
    except (
        OSError,
        UnicodeError,
        tomllib.TOMLDecodeError,
        yaml.YAMLError,
        AttributeError,
        KeyError,
        TypeError,
    ) as error:
        raise UsageError(f"{folder} is no task folder: {type(error).__name__}: {error}") from error


def _harbor(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    about = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    environment, verifier = about.get("environment", {}), about.get("verifier", {})
    data = _data(folder, "harbor", folder / "environment" / "Dockerfile")
    data |= {
        "image": environment.get("docker_image", ""),
        "agent_timeout_s": float(about.get("agent", {}).get("timeout_sec", 0)),
        "test_timeout_s": float(verifier.get("timeout_sec", 600)),
        "test_env": {name: str(value) for name, value in verifier.get("env", {}).items()},
        "allowed_hosts": list(environment.get("allowed_hosts", [])),
    }
    if (folder / "solution" / "solve.sh").is_file():
        data["solution"] = "solution/solve.sh"
    return (folder / "instruction.md").read_text(encoding="utf-8").strip(), about.get("metadata", {}), data


def _terminal_bench(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    about = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
    data = _data(folder, "terminal-bench", folder / "Dockerfile")
    data |= {
        "parser": about.get("parser_name", "pytest"),
        "agent_timeout_s": float(about.get("max_agent_timeout_sec", 0)),
        "test_timeout_s": float(about.get("max_test_timeout_sec", 600)),
    }
    if (folder / "solution.sh").is_file():
        data["solution"] = "solution.sh"
    elif (folder / "solution.yaml").is_file():
        steps = yaml.safe_load((folder / "solution.yaml").read_text(encoding="utf-8"))
        data["solution_commands"] = [step["command"] for step in steps]
    return str(about["instruction"]).strip(), about, data


def _data(folder: Path, kind: str, dockerfile: Path) -> dict[str, Any]:
    text = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
    workdir, build = read_dockerfile(text)
    return {"folder": str(folder.absolute()), "kind": kind, "workdir": workdir, "build": build}


def read_dockerfile(text: str) -> tuple[str, list[list[str]]]:
    """The last WORKDIR (/app where there is none) and what can be done without Docker, step by step.

    Installations are left out: what they install has to be on the machine.

    Example:
        read_dockerfile("FROM x\\nWORKDIR /srv\\nCOPY a.txt .\\n") == ("/srv", [["copy", "a.txt", "/srv/"]])
    """
    here = "/app"
    steps: list[list[str]] = []
    for word, rest in _instructions(text):
        if word == "WORKDIR":
            here = str(PurePosixPath(here) / rest.strip("\"'"))
        elif word in ("COPY", "ADD"):
            steps += _copies(rest, here)
        elif word == "ENV":
            steps += _variables(rest)
        elif word == "RUN" and (command := without_installing(rest)):
            steps.append(["run", command, here])
    return here, steps


def without_installing(command: str) -> str:
    """A shell command without the parts of it that install something or ask for the network.

    Parts are what stands between `&&`; a command with such a part and `;` in it is cut there too.
    """
    parts = [part.strip() for part in SEPARATOR.split(command)]
    if any(part.startswith(INSTALLERS) and ";" in part for part in parts):
        parts = [piece.strip() for part in parts for piece in part.split(";")]
    return " && ".join(part for part in parts if part and not part.startswith(INSTALLERS))


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word.upper(), rest.strip()


def _copies(rest: str, here: str) -> list[list[str]]:
    words = [word for word in shlex.split(rest.strip("[]").replace('",', '" ')) if not word.startswith("--")]
    if len(words) < 2 or "--from=" in rest or "<<" in rest:
        return []
    *sources, target = words
    place = str(PurePosixPath(here) / target)
    place += "/" if target.endswith(("/", ".")) or len(sources) > 1 else ""
    return [["copy", source, place] for source in sources]


def _variables(rest: str) -> list[list[str]]:
    if "=" not in rest.split(" ")[0]:
        name, _, value = rest.partition(" ")
        return [["env", name, value.strip("\"'")]]
    return [["env", *word.split("=", 1)] for word in shlex.split(rest) if "=" in word]
