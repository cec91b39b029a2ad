"""The code of docs/environments.md and of the README does what they say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> Path:
    """The files that a page writes: each block that begins with its name."""
    for language in ("python", "yaml"):
        for block in blocks(page, language):
            if named := re.match(r"# ([\w.]+)\n", block):
                (folder / named[1]).write_text(block)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the tutorial writes."""
    return write_files(TUTORIAL, tmp_path)


def python(folder: Path, *arguments: str, stdin: str = "", timeout: float = 60, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout, input=stdin,
        env=os.environ | {"COLUMNS": "120"} | env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def agentgym(folder: Path, *arguments: str, **more: float) -> str:
    return python(folder, "-m", "agentgym", "--import", "guess.py", *arguments, **more)  # type: ignore[arg-type]


def test_the_environment_of_the_tutorial_is_short():
    code = next(block for block in blocks(TUTORIAL, "python") if block.startswith("# guess.py"))
    env = code[code.index("@agentgym.register(") : code.index("@agentgym.register_tasks(")]
    assert len(env.strip().splitlines()) <= 40


def test_it_is_checked_by_every_command_that_the_tutorial_names(folder):
    assert "Guess a number" in agentgym(folder, "envs", "show", "guess")
    assert agentgym(folder, "envs", "check", "guess") == "guess: 16 tasks played, no failures\n"
    assert agentgym(folder, "tasks", "check", "guess/numbers") == "guess/numbers: 64 tasks played, no failures\n"
    assert "the episode ended; reward 1\n" in agentgym(folder, "play", "guess", "--oracle", "-o", "max_guesses=7")


def test_its_calls_from_python_print_what_they_say(folder):
    calls = [block for block in blocks(TUTORIAL, "python") if not block.startswith("# ")]
    said = python(folder, "-c", "import agentgym\n" + "\n".join(calls))
    assert said.splitlines() == re.findall(r"^print\(.*  # (.*)$", TUTORIAL, re.MULTILINE)


def test_a_package_with_its_entry_points_needs_no_import(folder):
    info = folder / "guess-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guess\nVersion: 1.0\n")
    (toml,) = blocks(TUTORIAL, "toml")
    groups = re.sub(r'\[project.entry-points."([\w.]+)"\]', r"[\1]", toml).replace('"', "")
    (info / "entry_points.txt").write_text(groups)
    said = python(folder, "-m", "agentgym", "envs", "check", "guess", PYTHONPATH=str(folder))
    assert said == "guess: 16 tasks played, no failures\n"


def test_a_gymnasium_environment_passes_the_checks(folder):
    said = python(folder, "-m", "agentgym", "--import", "lake.py", "tasks", "check", "lake/walks")
    assert said == "lake/walks: 40 tasks played, no failures\n"


def test_wrapping_it_for_gymnasium(folder):
    shown = "print(observation, list(infos['task']), first == other, info['task'], sep='\\n')"
    (folder / "vectors.py").write_text(f"{(folder / 'vectors.py').read_text()}\n{shown}\n")
    said = python(folder, "vectors.py").splitlines()
    assert said[0].startswith("(exit 0)")
    assert said[-3:] == [
        str([f"guess/numbers/train/{number}" for number in (1, 2, 3, 5)]), "True", "guess/numbers/train/7"
    ]  # fmt: skip


WORKER = """
import asyncio
import agentgym
from agentgym.cli.options import import_modules
from agentgym.config import load_config
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Sampling
from tests.fakes import Parrot


async def main():
    task = agentgym.make_tasks("guess/numbers").tasks("train")[0]
    request = EpisodeRequest(id="e", group_id="g", task=task, seed=0, sampling=Sampling())
    async with RolloutPool(Parrot(), load_config(None, ["rollout.workers=1"])) as pool:
        async for trajectory in pool.episodes([request]):
            print(trajectory.status, len(trajectory.turns), trajectory.reason)


if __name__ == "__main__":
    import_modules(["envs/guess.py"])
    asyncio.run(main())
"""


def test_worker_processes_know_what_was_imported_from_a_file(folder):
    (folder / "envs").mkdir()
    (folder / "guess.py").rename(folder / "envs" / "guess.py")
    assert python(folder, "-c", WORKER, PYTHONPATH=str(ROOT)).startswith("truncated 5 ")


def test_a_file_with_the_name_of_another_module_is_refused(folder):
    (folder / "json.py").write_text("")
    done = subprocess.run([sys.executable, "-m", "agentgym", "--import", "json.py", "envs", "list"], cwd=folder,
                          env=os.environ | {"PYTHONSAFEPATH": "1"}, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 2 and "another module is called 'json': rename the file" in done.stderr


@pytest.mark.deepspeed
@pytest.mark.timeout(300)
def test_a_tiny_training_and_an_evaluation_of_it(folder):
    command = re.search(r"^    agentgym --import guess.py (train .*model.path=tiny.*)$", TUTORIAL, re.MULTILINE)
    assert command
    small = ["rollout.group_size=2", "rollout.groups_per_step=2", "rollout.oversample=1", "evaluation.attempts=1"]
    agentgym(folder, *command[1].split(), *small, "rollout.max_tokens=4", "env.options.max_guesses=2", timeout=140)
    result = json.loads((folder / "runs" / "try-s0" / "result.json").read_text())
    assert (result["n_tasks"], result["steps"]) == (8, 2)
    said = agentgym(folder, "eval", "--model", "runs/try-s0", "--out", "runs/try-eval", "--json", timeout=140)
    assert json.loads(said)["evaluation"]["task_ids"] == [f"guess/numbers/test/{number}" for number in range(4, 33, 4)]
    assert "on 8 tasks" in agentgym(folder, "compare", "runs/try-s0", "runs/try-eval")


def test_the_readme_runs():
    (code,) = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    said = python(ROOT, "-c", code)
    assert said.splitlines()[-1].endswith("0.0 False") and "(exit 0)" in said
