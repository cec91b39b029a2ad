"""The learner's processes: how they die, and that they never outlive their owner."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from agentgym.errors import DeadlineError, LearnerError, UsageError
from agentgym.trainers.process import LearnerProcess
from agentgym.types import ScoredSample
from tests.trainers.conftest import small_config

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(180)]


def children() -> list[psutil.Process]:
    """This process's own learners."""
    found = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in found if "spawn_main" in " ".join(child.cmdline())]


async def test_an_idle_learner_sleeps_ignores_ctrl_c_and_its_death_is_explained(
    tiny: Path, batch: list[ScoredSample], tmp_path: Path
) -> None:
    learner = LearnerProcess(small_config(tiny), model=tiny, folder=tmp_path)
    said: list[str] = []
    with pytest.raises(LearnerError, match="not running"):
        await learner.step(batch)
    await learner.start(said.append)
    assert said[-1] == "the trainer is ready"
    (child,) = children()
    await learner.step(batch)
    child.send_signal(signal.SIGINT)
    used = sum(child.cpu_times()[:2])
    await asyncio.sleep(1.0)
    assert sum(child.cpu_times()[:2]) - used < 0.1  # it waits without spinning
    assert (await learner.step(batch))["tokens_trained"] > 0

    step = asyncio.create_task(learner.step(batch * 200))
    await asyncio.sleep(0.2)
    child.kill()
    with pytest.raises(LearnerError, match=r"lower trainer\.micro_batch_tokens"):
        await step
    with pytest.raises(LearnerError, match="not running"):
        await learner.publish(tmp_path / "late")
    await learner.close()
    await learner.close()
    assert children() == []


async def test_a_deadline_and_a_cancellation_leave_nothing_running(
    tiny: Path, batch: list[ScoredSample], tmp_path: Path
) -> None:
    learner = LearnerProcess(small_config(tiny), model=tiny, folder=tmp_path)
    await learner.start()
    step = asyncio.create_task(learner.step(batch * 500))
    await asyncio.sleep(0.2)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert children() == []

    slow = LearnerProcess(small_config(tiny, "trainer.step_timeout_s=0.01"), model=tiny, folder=tmp_path)
    with pytest.raises(DeadlineError, match="step_timeout_s"):
        await slow.start()
    assert children() == []
    await slow.close()


async def test_what_goes_wrong_inside_comes_out_in_one_line(
    tiny: Path, batch: list[ScoredSample], tmp_path: Path
) -> None:
    learner = LearnerProcess(small_config(tiny), model=tiny, folder=tmp_path)
    try:
        await learner.start()
        with pytest.raises(UsageError, match="no trainer state"):
            await learner.load(tmp_path / "nothing")
        sample = batch[1].sample
        foreign = msgspec.structs.replace(sample, ids=(*sample.ids[:-1], 10**6))  # not in the vocabulary
        with pytest.raises(LearnerError, match=r"details in .*learner\.log") as raised:
            await learner.logprobs([foreign])
        assert "\n" not in str(raised.value)
        assert "Traceback" in (tmp_path / "learner.log").read_text()
        assert len(await learner.logprobs([sample])) == 1  # it goes on
    finally:
        await learner.close()


OWNER = """
import asyncio, sys
from pathlib import Path
from agentgym.config import load_config
from agentgym.trainers.process import LearnerProcess

async def main():
    learner = LearnerProcess(load_config(None, []), model=Path(sys.argv[1]), folder=Path(sys.argv[2]))
    await learner.start()
    assert "torch" not in sys.modules and "deepspeed" not in sys.modules
    print("ready", flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_it_dies_with_its_owner_which_imports_no_torch(tiny: Path, tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, script, tiny, tmp_path], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "ready\n"
        learners = psutil.Process(owner.pid).children()
        assert learners
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    until = time.monotonic() + 10
    while any(learner.is_running() and learner.status() != "zombie" for learner in learners):
        assert time.monotonic() < until, "a learner outlives its owner"
        time.sleep(0.05)
