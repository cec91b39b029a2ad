"""A run whose turns are judged, on real parts: an endpoint that fails half of the time, and a kill before training."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from agentgym.config import Config, load_config
from agentgym.metrics import read_metrics
from agentgym.pipeline import Pipeline
from agentgym.policies.mock import MockPolicyServer
from agentgym.policies.mock_judge import saying
from agentgym.run import Run, read_config
from agentgym.store import Store
from agentgym.trainers.audit import audit
from tests.letters import SMALL, register

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
JUDGED = [
    *SMALL, "tasks.name=cipher", "engine.backend=transformers", "judge.kind=llm", "judge.model=mock", "judge.votes=1",
    "judge.retries=0", "judge.concurrency=4", "algorithm.estimator=step_wise", "evaluation.before_and_after=false",
    "rollout.groups_per_step=2", "rollout.group_size=4", "rollout.oversample=1",
]  # fmt: skip


def verdicts(prompt: str, code: str, rng) -> str:
    return json.dumps({"reason": "", "code": code, "score": rng.choice([-1, 0, 1]), "hint": ""})


def judged(folder: Path, server: MockPolicyServer, *overrides: str) -> Config:
    return load_config(None, [*JUDGED, f"dir={folder}", f"judge.url={server.url}/v1", *overrides])


@pytest.mark.slow
async def test_a_judge_endpoint_that_fails_half_of_the_time_costs_turns_and_nothing_else(tmp_path):
    register()
    async with MockPolicyServer(answer=saying(verdicts), faults={"500": 0.5}) as server:
        run = Run.create(judged(tmp_path, server, "trainer.steps=3"))
        try:
            await Pipeline(run, lambda what, done, total, remark="": None).go()
        finally:
            run.close()
    lines = read_metrics(run.folder)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert server.met["500"] > 0
    store = Store(run.folder / "store.sqlite", read_only=True)
    assert audit(store, run.config).problems == ()
    counts = store.turn_counts()
    store.close()
    assert counts.judged == counts.collected == 3 * 2 * 4 * 2
    assert counts.judged - counts.scored == server.met["500"]
    assert sum(counts.unscored.values()) == server.met["500"]
    assert all("500" in reason for reason in counts.unscored)
    assert sum(counts.trained.values()) > 0
    assert counts.rejected["unscored"] == server.met["500"]
    assert all(0 < line["scored_share"] < 1 for line in lines)


@pytest.mark.slow
async def test_killed_between_scoring_and_training_a_run_trains_on_what_it_had_judged_and_pays_nothing_twice(tmp_path):
    async with MockPolicyServer(answer=saying(verdicts), latency_s=0.05) as server:
        given = [*JUDGED, f"dir={tmp_path}", "name=killed", f"judge.url={server.url}/v1", "trainer.steps=2"]
        config = tmp_path / "empty.yaml"
        config.write_text("{}\n")
        folder = tmp_path / "killed-s0"
        first = await started("train", str(config), *given, "rollout.groups_per_step=8", "rollout.group_size=8")
        before = await until_judged(folder, 64, first)
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        asked = server.asked.copy()
        again = await started("train", "--resume", str(folder))
        assert await asyncio.wait_for(again.wait(), 200) == 0, (tmp_path / "log").read_text()[-2000:]
    store = Store(folder / "store.sqlite", read_only=True)
    assert audit(store, read_config(folder)).problems == ()
    counts = store.turn_counts()
    assert store.consumed().keys() == {1, 2}
    kept = rows(store)
    store.close()
    assert before.items() <= kept.items(), "what was judged before the kill stands"
    assert counts.judged == counts.collected
    twice = sum(server.asked.values()) - len(kept)
    assert twice <= 4, f"{twice} calls more than judgements; {sum(asked.values())} before the kill"


@pytest.mark.parametrize("arm", ["hybrid", pytest.param("opd", marks=pytest.mark.slow)])
async def test_a_run_learns_from_scores_and_from_hints_in_one_code_path(tmp_path, arm):
    register()
    given = [
        *JUDGED, f"dir={tmp_path}", f"algorithm.preset={arm}", "judge.kind=verifier", "trainer.steps=2",
    ]  # fmt: skip
    run = Run.create(load_config(None, given))
    try:
        await Pipeline(run, lambda what, done, total, remark="": None).go()
    finally:
        run.close()
    lines = read_metrics(run.folder)
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["opd_tokens"] > 0 and line["opd_loss"] != 0 for line in lines)
    store = Store(run.folder / "store.sqlite", read_only=True)
    assert audit(store, run.config).problems == ()
    counts = store.turn_counts()
    store.close()
    assert counts.hinted == counts.judged == 2 * 2 * 4 * 2, "a random model is always wrong, and always told how"
    assert counts.rejected == {} and set(counts.trained) <= {"hint and score", "hint only"}
    assert ("hint only" in counts.trained) or arm == "hybrid"


async def started(*command: str) -> asyncio.subprocess.Process:
    folder = Path(next(part for part in command if part.startswith("/"))).parent
    with (folder / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.letters", *command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )


async def until_judged(
    folder: Path, n: int, process: asyncio.subprocess.Process
) -> dict[tuple[str, int], float | None]:
    """Wait until `n` turns are judged and none is trained on; what they were judged to be."""
    async with asyncio.timeout(120):
        while True:
            assert process.returncode is None, (folder.parent / "log").read_text()[-2000:]
            await asyncio.sleep(0.02)
            if (folder / "store.sqlite").exists() and (found := await asyncio.to_thread(look, folder)):
                judgements, consumed = found
                assert not consumed, "it trained before it could be killed"
                if len(judgements) >= n:
                    return judgements


def look(folder: Path):
    try:
        store = Store(folder / "store.sqlite", read_only=True)
    except Exception:  # it is being made
        return None
    try:
        return rows(store), store.consumed()
    finally:
        store.close()


def rows(store: Store) -> dict[tuple[str, int], float | None]:
    return {(id, turn): score for id, turn, score in store._all("SELECT trajectory_id, turn, score FROM judgements")}
