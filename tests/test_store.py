import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from agentgym.config import AlgorithmConfig, load_config
from agentgym.errors import ConfigError, InfrastructureError, UsageError
from agentgym.run import Run, lock, owner_of, read_config, read_json
from agentgym.samples import samples_from
from agentgym.store import Store
from agentgym.types import Sample, Trajectory, Turn
from tests.fakes import completion, word_task
from tests.test_store_scores import judgement


def trajectory(id: str, outcome: float | None = 1.0) -> Trajectory:
    turn = Turn(index=0, completion=completion((1, 2), (3, 4)), info={"exit_code": 0})
    return Trajectory(
        id=id, task_id="k", group_id="g", env="e", seed=0, turns=(turn,), outcome=outcome,
        status="completed" if outcome is not None else "infrastructure", reason="" if outcome is not None else "boom",
    )  # fmt: skip


def sample(id: str) -> Sample:
    return samples_from(trajectory(id), AlgorithmConfig())[0][0]


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store.sqlite")
    yield made
    made.close()


def test_what_is_written_comes_back_equal_and_twice_is_once(store):
    for _ in range(2):
        store.add_trajectory(trajectory("t"), stage="train", step=1, life=0)
        store.add_tasks([word_task("a")])
        store.add_sample(sample("t"), step=1, advantages=(0.5,))
    assert list(store.trajectories(stage="train")) == [trajectory("t")]
    assert store.trajectory("t") == trajectory("t")
    assert store.task("words/train/0") == word_task("a")
    (kept,) = store.samples()
    assert (kept.sample, kept.advantages, kept.step) == (sample("t"), (0.5,), 1)


def add(store: Store, id: str, step: int, versions: tuple[int, int] = (0, 0)) -> None:
    """A trajectory with its sample, trained on by `step`."""
    made = trajectory(id)
    turn = msgspec.structs.replace(made.turns[0], completion=completion((1, 2), (3, 4), versions=versions))
    store.add_trajectory(msgspec.structs.replace(made, turns=(turn,)), stage="train", step=step, life=0)
    store.add_sample(sample(id), step=step, advantages=(0.5,))
    store.consume([f"{id}/0"], step=step, life=0)


def test_a_sample_is_consumed_once(store):
    add(store, "t", 1)
    with pytest.raises(RuntimeError, match="t/0 was trained on before"):
        store.consume(["t/0"], step=2, life=0)
    with pytest.raises(RuntimeError, match="never stored"):
        store.consume(["other/0"], step=2, life=0)
    assert store.consumed() == {1: 1}


def test_a_transaction_that_fails_leaves_nothing(store):
    store.add_trajectory(trajectory("t"), stage="train", step=1, life=0)
    with pytest.raises(RuntimeError), store.transaction():
        store.add_sample(sample("t"), step=1, advantages=(0.5,))
        store.consume(["t/0"], step=1, life=0)
        store.consume(["t/0"], step=1, life=0)
    assert list(store.samples()) == []
    assert store.consumed() == {}


def test_rewind_takes_back_what_came_after_and_keeps_what_older_weights_sampled(store):
    for step in (0, 1, 2, 3):
        assert store.add_version(step=step, life=0) == step
    add(store, "a", 1, versions=(0, 0))
    add(store, "b", 2, versions=(1, 1))
    add(store, "c", 3, versions=(1, 2))  # its second token is of weights that step 2 made
    add(store, "d", 3, versions=(1, 1))
    store.rewind(1)
    assert [kept.id for kept in store.trajectories(stage="train")] == ["a", "b", "d"]
    assert len(list(store.trajectories(stage="train", undone=True))) == 4
    assert [(kept.sample.trajectory_id, kept.consumed_step) for kept in store.samples()] == [
        ("a", 1),
        ("b", None),
        ("d", None),
    ]
    assert [entry["undone"] for entry in store.versions()] == [0, 0, 1, 1]
    assert store.consumed() == {1: 1}
    assert store.add_version(step=1, life=1) == 4, "a version number is never used twice"
    store.consume(["b/0"], step=2, life=1)
    assert store.consumed() == {1: 1, 2: 1}


def test_a_group_goes_on_with_its_task_and_its_surviving_members(store):
    assert [store.start_group(f"g{number}", step=1, number=number) for number in range(3)] == [0, 1, 2]
    assert store.start_group("g1", step=1, number=1) == 1, "a group that was started keeps its task"
    assert store.start_group("h0", step=2, number=0) == 3
    store.add_trajectory(trajectory("a"), stage="train", step=1, life=0)
    store.add_trajectory(trajectory("b", None), stage="train", step=1, life=0)
    assert [member.id for member in store.members("g")] == ["a"], "an infrastructure failure is run again"


def test_threads_may_write_at_the_same_time(store):
    def write(index: int) -> None:
        with store.transaction():
            store.add_trajectory(trajectory(f"t{index}"), stage="train", step=1, life=0)
            store.add_sample(sample(f"t{index}"), step=1, advantages=(0.5,))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(64)))
    assert len(list(store.samples())) == 64


def test_a_full_disk_is_one_line_that_says_what_to_do(store):
    store._db.execute("PRAGMA max_page_count = 40")
    with pytest.raises(InfrastructureError, match="full: free some space and resume the run"):
        for index in range(10_000):
            store.add_trajectory(trajectory(f"t{index}"), stage="train", step=1, life=0)
    assert store.trajectory("t0") == trajectory("t0"), "what was kept stays"


def test_counts_and_failures(store):
    store.add_trajectory(trajectory("a"), stage="train", step=1, life=0)
    store.add_trajectory(trajectory("b", None), stage="train", step=1, life=0)
    assert store.counts() == {"train": {"completed": 1, "infrastructure": 1}}
    assert store.failures() == {"infrastructure: boom": 1}


def test_another_format_is_refused(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    store.set_meta("format", "99")
    store.close()
    with pytest.raises(UsageError, match="has format 99, this agentgym reads format 2"):
        Store(tmp_path / "store.sqlite")


def test_a_store_of_format_1_gets_the_tables_of_judging_when_it_is_written_to(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    store.add_trajectory(trajectory("old"), stage="train", step=1, life=0)
    for table in ("judgements", "judge_cache", "turns"):
        store._write(f"DROP TABLE {table}")
    store.set_meta("format", "1")
    store.close()
    with pytest.raises(UsageError, match=r"has format 1, .* resume the run, which brings it up to date"):
        Store(tmp_path / "store.sqlite", read_only=True)
    again = Store(tmp_path / "store.sqlite")
    again.add_judgement(judgement("old"))
    again.close()
    read = Store(tmp_path / "store.sqlite", read_only=True)
    assert read.meta("format") == "2"
    assert read.trajectory("old") == trajectory("old")
    assert read.judgements("old") == {0: judgement("old")}
    read.close()


def test_a_missing_store_is_refused_when_reading(tmp_path):
    with pytest.raises(UsageError, match="is this a run folder"):
        Store(tmp_path / "store.sqlite", read_only=True)


def test_a_run_belongs_to_one_process_at_a_time(tmp_path):
    import os

    run = Run.create(load_config(None, [f"dir={tmp_path}"]))
    assert owner_of(run.folder) == os.getpid()
    with pytest.raises(UsageError, match=f"in use by the process with pid {os.getpid()}"):
        Run.open(run.folder)
    run.close()
    assert owner_of(run.folder) is None
    again = Run.open(run.folder)
    assert again.life == 1
    again.close()


def test_a_run_goes_on_with_what_it_knew(tmp_path):
    config = load_config(None, [f"dir={tmp_path}", "trainer.steps=7"])
    run = Run.create(config)
    run.save_progress(evaluations={"base": 1})
    run.close()
    with pytest.raises(UsageError, match="go on with `agentgym train --resume"):
        Run.create(config)
    again = Run.open(run.folder, ["trainer.steps=9"])
    assert again.progress["evaluations"] == {"base": 1}
    assert again.config.trainer.steps == 9
    assert read_config(run.folder).trainer.steps == 7, "nothing is kept before it was checked"
    again.save_config()
    assert read_config(run.folder).trainer.steps == 9
    again.close()


@pytest.mark.parametrize(
    "change", ["seed=1", "tasks.name=other", "rollout.group_size=4", "algorithm.truncation=penalise"]
)
def test_what_a_runs_data_depend_on_cannot_be_changed(tmp_path, change):
    run = Run.create(load_config(None, [f"dir={tmp_path}"]))
    run.close()
    with pytest.raises(ConfigError, match=f"{change.split('=')[0]}: the run has .* cannot go on with"):
        Run.open(run.folder, [change])


def test_a_look_at_the_owner_does_not_keep_it_out(tmp_path):
    """`agentgym status --watch` asks for the owner once a second."""
    looking = threading.Event()

    def look() -> None:
        while not looking.is_set():
            owner_of(tmp_path)

    lock(tmp_path).close()
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(50):
            lock(tmp_path).close()
    finally:
        looking.set()
        watcher.join()


def test_damage_is_one_line_that_says_what_to_do(tmp_path):
    (tmp_path / "store.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(InfrastructureError, match="not a database: it is damaged: restore it from a copy"):
        Store(tmp_path / "store.sqlite")
    (tmp_path / "progress.json").write_text("{")
    with pytest.raises(UsageError, match=r"progress.json is damaged"):
        read_json(tmp_path / "progress.json")
