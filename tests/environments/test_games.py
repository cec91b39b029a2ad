"""Any `gymnasium.Env` whose play is text is played, checked and trained on through the adapter."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agentgym
from agentgym.check import check_tasks
from agentgym.config import load_config
from agentgym.environments.adapter import Seeds
from agentgym.errors import UsageError
from agentgym.policies.scripted import OraclePolicy, ScriptedPolicy
from agentgym.pool import RolloutPool
from agentgym.rollout import EpisodeRequest
from agentgym.types import Prompt, Sampling, Trajectory
from tests.environments import games

ROOT = Path(__file__).parents[2]
GAMES = {
    "lake-in-words/walks": "gymnasium",
    "sums/arithmetic": "reasoning_gym",
    "arena/numbers": "textarena",
}


@pytest.fixture(params=GAMES)
def tasks(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(GAMES[request.param]) is None:
        pytest.skip(f"the package {GAMES[request.param]} is not installed")
    return str(request.param)


def test_the_oracle_wins_each_of_them_and_silence_loses(tasks):
    report = check_tasks(tasks, limit=12, concurrency=2)
    assert report.ok and report.checked == 24, str(report)


async def episodes(name: str, policy: ScriptedPolicy, n: int) -> list[Trajectory]:
    config = load_config(None, ["rollout.max_turns=20", "rollout.concurrency=4"])
    requests = [
        EpisodeRequest(id=task.id, group_id="g", task=task, seed=0, sampling=Sampling())
        for task in agentgym.make_tasks(name).tasks("train")[:n]
    ]
    async with RolloutPool(policy, config) as pool:
        return [trajectory async for trajectory in pool.episodes(requests)]


async def test_a_policy_that_can_play_wins_and_one_that_cannot_does_not(tasks):
    def halving(prompt: Prompt) -> str:
        """Bisects between what it has been told."""
        low, high = 1, 20
        for said, came in zip(prompt.messages[1::2], prompt.messages[2::2], strict=True):
            guess, hint = int(said.content.strip("[]")), came.content.lower().rsplit("[game]", 1)[-1]
            low, high = (guess + 1, high) if "higher" in hint else (low, guess - 1)
        return f"[{(low + high) // 2}]"

    players = {
        "lake-in-words/walks": ScriptedPolicy(["Down!", *(f"go {games.MOVES[int(digit)]}" for digit in "112212")]),
        "arena/numbers": ScriptedPolicy(halving),
        "sums/arithmetic": OraclePolicy(),
    }
    won = await episodes(tasks, players[tasks], 8)
    assert all(trajectory.status in ("completed", "truncated") for trajectory in won), won[0].reason
    assert sum(trajectory.outcome == 1.0 for trajectory in won) >= 7
    lost = await episodes(tasks, ScriptedPolicy(["right", "", "x"]), 4)
    assert {trajectory.outcome for trajectory in lost} == {0.0}


async def test_an_action_that_cannot_be_read_is_told(tasks):
    if tasks != "lake-in-words/walks":
        pytest.skip("its action space is any text")
    (trajectory,) = await episodes(
        tasks, ScriptedPolicy(["left or right", *(games.MOVES[int(d)] for d in "112212")]), 1
    )
    assert trajectory.turns[0].info["parse_error"] == "name one of left, down, right, up"
    assert trajectory.outcome == 1.0 and len(trajectory.turns) == 7


def test_seeds():
    tasks = Seeds(n_train=3, n_test=2)
    assert [task.seed for split in ("train", "test") for task in tasks.tasks(split)] == [0, 1, 2, 3, 4]
    with pytest.raises(UsageError, match="unknown split"):
        tasks.tasks("dev")
    with pytest.raises(UsageError, match="negative"):
        Seeds(n_train=-1)


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.timeout(400)
def test_a_step_of_training_through_the_adapter(tasks, tmp_path):
    small = [
        "model.path=tiny", "engine.backend=transformers", "trainer.steps=1", "algorithm.truncation=penalise",
        "rollout.group_size=2", "rollout.groups_per_step=2", "rollout.oversample=1", "rollout.max_tokens=4",
        "rollout.max_turns=8", "warm_start.examples=2", "evaluation.n_tasks=2", "model.max_length=1024", "name=game",
    ]  # fmt: skip
    (tmp_path / "game.yaml").write_text(f"imports: [tests.environments.games]\ntasks: {{name: {tasks}}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "agentgym", "train", "game.yaml", *small], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "runs" / "game-s0" / "result.json").read_text())["steps"] == 1
