"""The audit finds what was tampered with, and nothing in a run that was not."""

import asyncio
import shutil

import msgspec
import pytest

from agentgym.run import read_config
from agentgym.store import Store
from agentgym.trainers.audit import Audit, audit
from agentgym.types import Judgement, Sample, Trajectory
from tests.fakes import ScriptedJudge
from tests.trainers.test_loop import HYBRID, opinion, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run, *_ = asyncio.run(train(tmp_path_factory.mktemp("run"), 3, 1, 0.001, 0.0))
    return run.folder


@pytest.fixture
def folder(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def looked_at(folder) -> Audit:
    store = Store(folder / "store.sqlite", read_only=True)
    found = audit(store, read_config(folder))
    store.close()
    return found


def change_sample(store: Store, **changes) -> None:
    id, body = store._all(
        "SELECT s.id, s.body FROM samples s JOIN consumptions c ON c.sample_id = s.id AND c.undone = 0 LIMIT 1"
    )[0]
    sample = msgspec.msgpack.decode(body, type=Sample)
    values = {name: change(getattr(sample, name)) for name, change in changes.items()}
    store._write(
        "UPDATE samples SET body = ? WHERE id = ?",
        (msgspec.msgpack.encode(msgspec.structs.replace(sample, **values)), id),
    )


def change_outcome(store: Store) -> None:
    query = "SELECT t.id, t.body FROM trajectories t JOIN samples s ON s.trajectory_id = t.id WHERE s.rejected IS NULL LIMIT 1"
    id, body = store._all(query)[0]
    trajectory = msgspec.msgpack.decode(body, type=Trajectory)
    other = msgspec.structs.replace(trajectory, outcome=1.0 - (trajectory.outcome or 0.0))
    store._write("UPDATE trajectories SET body = ? WHERE id = ?", (msgspec.msgpack.encode(other), id))


FIRST = "(SELECT sample_id FROM consumptions WHERE undone = 0 LIMIT 1)"
TAMPERING = {
    "a mask": (lambda s: change_sample(s, mask=lambda m: (1, *m[1:])), "mask differ"),
    "an id": (lambda s: change_sample(s, ids=lambda i: (9, *i[1:])), "ids differ"),
    "a version": (lambda s: change_sample(s, versions=lambda v: (*v[:-1], 77)), "versions differ"),
    "a log-prob": (lambda s: change_sample(s, logprobs=lambda p: (*p[:-1], -9.0)), "logprobs differ"),
    "advantages": (
        lambda s: s._write(f"UPDATE samples SET advantages = ? WHERE id = {FIRST}", (msgspec.msgpack.encode((9.0,)),)),
        "advantages",
    ),
    "an outcome": (change_outcome, "advantages"),
    "a consumption moved": (lambda s: s._write(f"UPDATE consumptions SET step = 99 WHERE sample_id = {FIRST}"), "consumed by"),
    "a consumption gone": (lambda s: s._write(f"DELETE FROM consumptions WHERE sample_id = {FIRST}"), "neither trained"),
    "a consumption of nothing": (lambda s: s._write("INSERT INTO consumptions VALUES ('no/0', 1, 0, 0)"), "consumptions, but"),
    "a sample gone": (lambda s: s._write(f"DELETE FROM samples WHERE id = {FIRST}"), "not in the store"),
    "a step's books gone": (
        lambda s: (s._write("DELETE FROM consumptions WHERE step = 2"), s._write("DELETE FROM samples WHERE step = 2 AND rejected IS NULL")),
        "not in the store|no such sample|neither",
    ),
    "rejected though trained": (lambda s: s._write(f"UPDATE samples SET rejected = 'x' WHERE id = {FIRST}"), "should be trained on"),
    "a trajectory gone": (
        lambda s: s._write(f"DELETE FROM trajectories WHERE id = (SELECT trajectory_id FROM samples WHERE id = {FIRST})"),
        "episodes with",
    ),
    "a version undone": (lambda s: s._write("UPDATE versions SET undone = 1 WHERE version = 0"), "which was undone"),
    "a version unknown": (lambda s: s._write("DELETE FROM versions WHERE version = 0"), "unknown version"),
    "an episode twice": (
        lambda s: s._write(
            "INSERT INTO trajectories SELECT id || 'x', stage, step, life, group_id, task_id, status, outcome, version, undone, "
            "body FROM trajectories WHERE stage = 'train' LIMIT 1"
        ),
        "episodes with",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained_hybrid(tmp_path_factory):
    judge = ScriptedJudge(opinion)
    run, *_ = asyncio.run(
        train(tmp_path_factory.mktemp("hybrid"), 3, 1, 0.001, 0.0, *HYBRID, judge=judge, turns=2)
    )  # fmt: skip
    return run.folder


def change_judgement(store: Store, where: str, **changes) -> None:
    query = f"SELECT trajectory_id, turn, body FROM judgements WHERE {where} LIMIT 1"
    id, turn, body = store._all(query)[0]
    changed = msgspec.structs.replace(msgspec.msgpack.decode(body, type=Judgement), **changes)
    store._write(
        "UPDATE judgements SET body = ? WHERE trajectory_id = ? AND turn = ?",
        (msgspec.msgpack.encode(changed), id, turn),
    )


JUDGED = "trajectory_id IN (SELECT trajectory_id FROM samples WHERE rejected IS NULL)"
OTHERWISE = {
    "a score": (lambda s: change_judgement(s, f"score = 1 AND {JUDGED}", score=-1.0, votes=(-1,)), "advantages"),
    "a score against its votes": (lambda s: change_judgement(s, f"score = 1 AND {JUDGED}", score=-1.0), "majority"),
    "a hint gone": (lambda s: change_judgement(s, f"hints > 0 AND {JUDGED}", hints=(), hinted=()), "mask differ|advantages|should be by"),
    "a prompt of the teacher gone": (lambda s: change_judgement(s, f"hints > 0 AND {JUDGED}", hinted=((1,), (2,))), "teacher's prompts"),
    "judgements gone": (lambda s: s._write("DELETE FROM judgements"), "should be"),
    "a turn that never was": (
        lambda s: s._write("INSERT INTO judgements SELECT trajectory_id, 99, score, hints, reason, body FROM judgements LIMIT 1"),
        "of another turn, or of none",
    ),
    "no reason": (lambda s: change_judgement(s, f"score IS NULL AND {JUDGED}", reason=""), "without a reason"),
}  # fmt: skip


def test_an_honest_hybrid_run_has_no_problems(trained_hybrid):
    found = looked_at(trained_hybrid)
    assert found.problems == ()
    assert found.trained > 0


@pytest.mark.parametrize("what", OTHERWISE)
def test_tampering_with_judgements_is_found(trained_hybrid, tmp_path, what):
    shutil.copytree(trained_hybrid, tmp_path / "run")
    tamper, says = OTHERWISE[what]
    store = Store(tmp_path / "run" / "store.sqlite")
    tamper(store)
    store.close()
    problems = looked_at(tmp_path / "run").problems
    assert problems
    assert any(part in problem for problem in problems for part in says.split("|")), problems[:3]


def test_an_honest_run_has_no_problems(folder):
    found = looked_at(folder)
    assert found.problems == ()
    assert found.trained > 0 and found.samples >= found.trained


@pytest.mark.parametrize("what", TAMPERING)
def test_tampering_is_found(folder, what):
    tamper, says = TAMPERING[what]
    store = Store(folder / "store.sqlite")
    tamper(store)
    store.close()
    problems = looked_at(folder).problems
    assert problems
    assert any(part in problem for problem in problems for part in says.split("|")), problems[:3]
