"""docs/tutorial.md: each of its blocks and commands does what the page says."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks, python, write_files

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    agentgym (.*)$", PAGE, re.MULTILINE)
LONG = ("train vault.yaml name=try", "eval ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the page writes."""
    return write_files(PAGE, tmp_path)


def test_the_environment_is_plain_gymnasium_and_short(folder):
    lines = [line for name in ("vault.py", "vault_env.py") for line in (folder / name).read_text().splitlines()]
    assert len([line for line in lines if line.strip()]) <= 60
    assert "agentgym" not in (folder / "vault.py").read_text()
    checked = "import vault; from gymnasium.utils.env_checker import check_env; check_env(vault.Vault()); print('ok')"
    assert python(folder, "-W", "ignore", "-c", checked) == "ok\n"


def test_every_command_of_the_page(folder):
    said = [
        python(folder, "-m", "agentgym", *shlex.split(command), stdin="00\n\n71\n\n")
        for command in COMMANDS
        if not command.startswith(LONG)
    ]
    assert said[0] == "vault/codes: 40 tasks played, no failures\n"
    assert said[1] == "vault: 16 tasks played, no failures\n"
    assert "Open!" in said[2] and "the episode ended; reward 1\n" in said[2]
    assert "The code has 2 different digits" in said[3] and said[3].count("in place,") == 2
    assert "faults" in said[4] and "recording" in said[4] and "most_in_a_row" in said[5]
    assert "reward 1\n" in said[6] and list((folder / "casts").glob("vault_codes_train_0-*.cast"))
    assert "tasks: 512 train, 64 test" in said[7]
    assert len(said) == 8


@pytest.mark.parametrize("way", ["by name", "entry points"])
def test_the_other_ways_to_be_known(folder, way):
    if way == "by name":
        (code,) = [block for block in blocks(PAGE, "python") if block.startswith("agentgym.register(")]
        (folder / "names.py").write_text(f"import agentgym\n\n{code}")
        said = python(folder, "-m", "agentgym", "--import", "names.py", "envs", "check", "vault")
    else:
        info = folder / "vault-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault\nVersion: 1.0\n")
        (toml,) = blocks(PAGE, "toml")
        groups = re.sub(r'\[project.entry-points."([\w.]+)"\]', r"[\1]", toml).replace('"', "")
        (info / "entry_points.txt").write_text(groups)
        said = python(folder, "-m", "agentgym", "envs", "check", "vault", PYTHONPATH=str(folder))
    assert said == "vault: 16 tasks played, no failures\n"


EPISODES = """
import asyncio
from agentgym.config import load_config
from agentgym.pipeline import load_tasks
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Sampling
from tests.fakes import Parrot


async def main():
    config = load_config("vault.yaml", ["rollout.workers=1"])
    task = load_tasks(config, "test")[0]
    request = EpisodeRequest(id="e", group_id="g", task=task, seed=0, sampling=Sampling())
    async with RolloutPool(Parrot(), config) as pool:
        async for trajectory in pool.episodes([request]):
            print(trajectory.status, len(trajectory.turns), trajectory.turns[-1].info["left"], trajectory.reason)


if __name__ == "__main__":
    asyncio.run(main())
"""


def test_worker_processes_know_what_the_config_imports(folder):
    (folder / "episodes.py").write_text(EPISODES)
    said = python(folder, "episodes.py", PYTHONPATH=str(ROOT))
    assert said == "truncated 6 0 truncated\n"


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.timeout(400)
def test_it_trains_and_is_evaluated(folder):
    for command in COMMANDS:
        if command.startswith(LONG):
            python(folder, "-m", "agentgym", *shlex.split(command), timeout=190)
    result = json.loads((folder / "runs" / "try-s0" / "result.json").read_text())
    assert (result["n_tasks"], result["steps"]) == (2, 1)
    found = json.loads((folder / "runs" / "try-eval" / "result.json").read_text())
    assert len(found["evaluation"]["task_ids"]) == 4
