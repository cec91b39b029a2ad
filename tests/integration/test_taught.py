"""A run whose teacher is another model behind HTTP, on real parts; its endpoint fails half of the time."""

import pytest

from agentgym.config import load_config
from agentgym.errors import UsageError
from agentgym.metrics import read_metrics
from agentgym.models import resolve_model
from agentgym.pipeline import Pipeline
from agentgym.run import Run
from agentgym.store import Store
from agentgym.trainers.audit import audit
from tests.integration.test_judging import JUDGED
from tests.letters import register
from tests.policies.test_teacher import Engine, serving

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(300)]
TAUGHT = ("algorithm.preset=opd", "judge.kind=verifier", "teacher.kind=http", "teacher.model=t", "trainer.steps=2")


def quiet(what: str, done: int, total: int, remark: str = "") -> None:
    """Progress that nobody watches."""


async def test_an_outside_teacher_that_fails_half_of_the_time_costs_hints_and_nothing_else(tmp_path):
    register()
    engine = Engine(resolve_model("tiny"), plan=["ok", *[400, "ok"] * 32])  # the first is asked when the run starts
    async with serving(engine) as url:
        given = [*JUDGED, f"dir={tmp_path}", *TAUGHT, f"teacher.url={url}", "algorithm.opd=token"]
        run = Run.create(load_config(None, given))
        try:
            await Pipeline(run, quiet).go()
        finally:
            run.close()
    lines = read_metrics(run.folder)
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["opd_tokens"] > 0 and line["opd_gap"] > 0 and "opd_forwards" not in line for line in lines)
    failed = sum(line["hints_refused/the_teacher_failed"] for line in lines)
    assert failed == 16 and sum(line["hints_accepted"] for line in lines) == engine.asked - 1 - failed
    store = Store(run.folder / "store.sqlite", read_only=True)
    assert audit(store, run.config).problems == ()
    counts = store.turn_counts()
    store.close()
    assert counts.trained.keys() == {"hint only"} and counts.rejected.keys() == {"no hint"}
    assert sum(counts.trained.values()) + sum(counts.rejected.values()) == counts.collected


async def test_a_teacher_with_other_tokens_ends_the_run_before_it_begins(tmp_path):
    register()
    async with serving(Engine(resolve_model("tiny"), tokens=lambda ids: ids[::-1])) as url:
        given = [*JUDGED, f"dir={tmp_path}", *TAUGHT, f"teacher.url={url}", "algorithm.opd=token"]
        run = Run.create(load_config(None, given))
        try:
            with pytest.raises(UsageError, match="another vocabulary"):
                await Pipeline(run, quiet).go()
        finally:
            run.close()
    assert read_metrics(run.folder) == []
