import io
import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agentgym.cli import main
from agentgym.cli.console import ProgressView
from agentgym.cli.evaluation import _config_for
from agentgym.cli.inspect import USEFUL
from agentgym.cli.options import program
from agentgym.cli.training import _summarise
from agentgym.config import Config, load_config, to_yaml
from agentgym.evaluate import Evaluation
from agentgym.results import write_evaluation
from agentgym.run import Run
from agentgym.store import Store
from agentgym.trainers import checkpoint
from agentgym.types import Task, Trajectory
from tests.letters import register
from tests.test_store_scores import judgement, two_spans, two_turns


def agentgym(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["agentgym", *arguments])
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@pytest.fixture
def call(monkeypatch):
    return lambda *arguments: agentgym(*arguments, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "quickstart", "rollout.goup_size=4"], "did you mean 'rollout.group_size'"),
        (["train", "quickstart", "trainer.steps=many"], "trainer.steps"),
        (["train", "quickstrat"], "no config 'quickstrat'"),
        (["train"], "name a config"),
        (["train", "--resume", "nowhere"], "is no run folder"),
        (["train", "quickstart", "--dry-run", "tasks.name=terminal/basic"], "did you mean 'terminal/basics'"),
        (["train", "quickstart", "--dry-run", "model.path=./nowhere"], "nowhere"),
        (["envs", "show", "termnal"], "did you mean 'terminal'"),
        (["envs", "show", "termnal"], "--import MODULE"),
        (["tasks", "show", "terminal/basics", "-o", "nonsense=1"], "nonsense"),
        (["tasks", "show", "terminal/basics", "-o", "levels=one"], "levels=one: levels is a list[int] | None"),
        (["tasks", "show", "terminal/basics", "-o", "levels"], "'levels' is not of the form key=value"),
        (["play", "terminal", "-o", "max_steps=abc"], "max_steps=abc: max_steps is a int (expected `int`, got `str`)"),
        (["--import", "nowhere.py", "envs", "list"], "--import nowhere.py: there is no such file"),
        (["--import", "no_such_module", "envs", "list"], "--import no_such_module: ModuleNotFoundError"),
        (["play", "terminal", "--task", "terminal/basics/train/crate-1-0"], "no task"),
        (["status", "nowhere"], "is no run folder"),
        (["audit", "nowhere"], "is no run folder"),
        (["compare", "nowhere", "nowhere"], "no finished evaluation"),
    ],
)
def test_bad_usage_is_one_line_that_says_what_to_do_and_exit_code_2(
    call, capsys, tmp_path, monkeypatch, arguments, says
):
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    captured = capsys.readouterr().err
    assert says in captured
    assert captured.startswith("error: ")
    assert "Traceback" not in captured
    assert not list(tmp_path.glob("runs/*"))


def test_listing(call, capsys):
    assert call("envs", "list", "--json") == 0
    assert "terminal" in json.loads(capsys.readouterr().out)
    assert call("tasks", "list") == 0
    assert "terminal/basics" in capsys.readouterr().out
    assert call("tasks", "show", "terminal/basics", "--json", "--limit", "3") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_a_single_value_is_a_list_too(call, capsys):
    assert call("tasks", "show", "terminal/basics", "-o", "levels=2", "-o", "families=count", "--limit", "1") == 0
    shown = capsys.readouterr().out
    assert "2048 tasks" in shown and "level 2" in shown and "level 1" not in shown
    assert "families: list[str] | None = None" in shown  # as in the source, without quotes


def test_a_task_set_that_needs_arguments_still_says_what_they_are(call, capsys):
    assert call("tasks", "show", "terminal/folders") == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("terminal/folders(path: ") and "missing a required argument: 'path'" in shown.err


def test_the_oracle_plays_and_each_verdict_has_a_line(call, capsys):
    assert call("play", "terminal", "--oracle") == 0
    lines = capsys.readouterr().out.splitlines()
    ended = lines.index("the episode ended; reward 1")
    assert [line.split()[0] for line in lines[ended + 1 : -1]] and lines.count("assistant") >= 1
    assert all(line.startswith("  ok   ") for line in lines[ended + 1 : -1])


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("```bash\necho '[x]'\n\necho two\n```\nDone.\n\n", "(exit 0)\n[x]\ntwo\n"),
        ("```bash\necho one\n```\n", "the episode is not finished: the input ended"),
        ("", "the episode is not finished: the input ended"),
    ],
)
def test_a_message_ends_with_its_block_or_with_an_empty_line(call, capsys, monkeypatch, typed, says):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert call("play", "terminal") == 0
    shown = capsys.readouterr().out
    assert says in shown and "A message ends with" in shown
    assert ("the episode ended; reward 0" in shown) == ("Done." in typed)


def test_checking_an_environment(call, capsys):
    assert call("envs", "check", "terminal") == 0
    assert capsys.readouterr().out == "terminal: 16 tasks played, no failures\n"


def test_doctor_finds_what_is_there(call, capsys, monkeypatch, tmp_path):
    assert call("doctor", "--json") == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["python"]["ok"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("doctor") == 0
    shown = capsys.readouterr().out
    assert "docker (optional: for sandboxes in containers):\n  apt-get install docker.io\n" in shown
    assert "agentgym[gui]" in shown or found["browser"]["ok"]


def evaluation(folder: Path, ids: list[int], solved: set[int], step: int = 0) -> Evaluation:
    """An evaluation of some tasks, as `agentgym eval` leaves it."""
    made = Evaluation(
        stage="eval", task_ids=tuple(f"t/{id}" for id in ids), families=("f",) * len(ids),
        success_N=tuple(float(id in solved) for id in ids), outcome_mean=0.0, attempts=1, errors=0, step=step,
    )  # fmt: skip
    folder.mkdir()
    (folder / "evaluation.yaml").write_text(f"# model: some/model\n{to_yaml(Config())}")
    Store(folder / "store.sqlite").close()
    write_evaluation(folder, made, model="some/model")
    return made


def test_different_task_lists_are_compared_on_what_both_have(call, capsys, tmp_path):
    a, b, c = (str(tmp_path / name) for name in "abc")
    evaluation(Path(a), list(range(20)), {0, 1, 18})
    evaluation(Path(b), list(range(15, 4, -1)), {5, 6, 7})
    evaluation(Path(c), list(range(12, 20)), set())
    assert call("compare", a, b) == 0
    shown = capsys.readouterr().out
    assert f"{a} has 20 tasks, {b} has 11, and both have 11 of them: compared on these" in shown
    assert "A 0.0%, B 27.3% on 11 tasks" in shown
    assert call("compare", a, c) == 2
    says = capsys.readouterr().err
    assert "both have 8 of them: too few to compare" in says and "--n-tasks N" in says


def test_the_status_of_an_evaluation(call, capsys, tmp_path):
    folder = tmp_path / "eval"
    evaluation(folder, list(range(4)), {1})
    assert call("status", str(folder)) == 0
    shown = capsys.readouterr().out
    assert "is an evaluation of some/model on terminal/basics: finished" in " ".join(shown.split())
    assert "25.0%" in shown
    assert call("status", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "evaluation"


@pytest.fixture
def a_run(tmp_path):
    """A run folder that has come to step 7."""
    run = Run.create(load_config("quickstart"), tmp_path / "run")
    run.metrics.write(7, **dict.fromkeys((*USEFUL, "much", "more"), 0.5))
    made = evaluation(tmp_path / "e", [1, 2], {1}, step=3)
    run.save_progress(evaluations={"after": msgspec.to_builtins(made)})
    run.store.add_tasks([Task(id="t", env="terminal", instruction="")])
    for number in range(9):
        episode = Trajectory(id=str(number), task_id="t", group_id="g", env="terminal", seed=0,
                             status="infrastructure", reason=f"reason {number}")  # fmt: skip
        run.store.add_trajectory(episode, stage="train", step=1, life=0)
    run.close()
    return run.folder


def test_a_status_fits_a_screen(call, capsys, a_run):
    assert call("status", str(a_run)) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 30
    assert "success after (step 3): 50.0%" in shown and "episodes of train: 9 infrastructure" in shown
    assert "reward_mean" in shown and "much" not in shown and "and 6 more reasons (--all)" in shown
    assert call("status", str(a_run), "--all") == 0
    everything = capsys.readouterr().out
    assert "much" in everything and "reason 8" in everything


@pytest.mark.parametrize("kind", ["none", "verifier"])
def test_a_status_says_how_far_the_turns_are_and_why_some_get_no_further(call, capsys, tmp_path, kind):
    run = Run.create(load_config("quickstart", [f"judge.kind={kind}"]), tmp_path / "run")
    for id in ("a", "b", "c"):
        run.store.add_trajectory(two_turns(id), stage="train", step=1, life=0)
    if kind != "none":
        run.store.add_judgement(judgement("a", 0, hints=("look at the header",)))
        run.store.add_judgement(judgement("a", 1, None, reason="no valid vote: a timeout"))
        run.store.add_judgement(judgement("b", 0))
    run.store.add_sample(two_spans("a"), step=1, advantages=(0.5, None), fates=("hint and score", "unscored"))
    run.store.consume(["a/0"], step=1, life=0)
    run.close()
    assert call("status", str(run.folder), "--json") == 0
    found = json.loads(capsys.readouterr().out)["turns"]
    assert (found["collected"], found["trained"], found["rejected"]) == (6, {"hint and score": 1}, {"unscored": 1})
    assert call("status", str(run.folder)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    if kind == "none":
        assert (found["waiting"], found["ready"]) == (0, 4)
        assert "6 collected, 4 ready, 1 trained (1 hint and score)" in shown
    else:
        assert (found["waiting"], found["scored"], found["hinted"], found["ready"]) == (3, 2, 1, 1)
        assert "3 waiting for the judge, 2 scored, 1 hinted, 1 ready, 1 trained (1 hint and score)" in shown
        assert "1 unscored: no valid vote: a timeout" in shown
    assert "1 not trained: unscored" in shown


def test_an_evaluation_of_a_run_takes_the_runs_own_tasks_unless_told_otherwise(a_run):
    with checkpoint.writing(a_run / "checkpoints", 7, {"step": 7}) as folder:
        (folder / "config.json").write_text("{}")
    own, source = _config_for(str(a_run), None, None, None, [])
    assert source == own.model.path == str(a_run / "checkpoints" / "step-000007")
    assert (own.tasks.name, own.tasks.options["levels"]) == ("terminal/basics", [1])
    assert (own.evaluation.n_tasks, own.evaluation.attempts, own.env.options) == (96, 2, {"max_steps": 1})
    told, _ = _config_for(str(a_run), "terminal/basics", 4, 10, [])
    assert (told.tasks.options, told.evaluation.n_tasks, told.evaluation.attempts) == (own.tasks.options, 10, 4)
    register()
    other, _ = _config_for(str(a_run), "letters", None, None, ["tasks.options.n=3"])
    assert (other.tasks.name, other.tasks.options, other.env.options) == ("letters", {"n": 3}, {})
    assert (other.evaluation.n_tasks, other.rollout.max_tokens) == (0, own.rollout.max_tokens)
    alone, _ = _config_for("tiny", None, None, None, [])
    assert (alone.tasks.name, alone.evaluation.n_tasks, alone.evaluation.attempts) == ("terminal/basics", 0, 1)


def test_commands_are_printed_as_they_were_called(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentgym.cli.options._imported", [])
    for called, shown in (
        (".venv/bin/agentgym", ".venv/bin/agentgym"),
        (str(tmp_path / "bin/agentgym"), "bin/agentgym"),
        ("/elsewhere/bin/agentgym", "/elsewhere/bin/agentgym"),
        ("/x/agentgym/__main__.py", f"{sys.executable} -m agentgym"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        assert program() == shown
    monkeypatch.setattr("agentgym.cli.options._imported", ["my envs.py"])
    assert program().endswith(" --import 'my envs.py'")
    monkeypatch.setattr("agentgym.cli.options._imported", [])
    monkeypatch.setattr(sys, "argv", [".venv/bin/agentgym"])
    config = Config()
    config.tasks.name = "letters"
    _summarise(Path("runs/x-s0"), config, {"seconds": 60.0, "steps": 5}, None)
    eval_hint = "  .venv/bin/agentgym eval --model runs/x-s0 --tasks letters --attempts 4 --out runs/x-s0-eval\n"
    assert eval_hint in capsys.readouterr().out


def test_progress_without_a_terminal_tells_what_moves_and_the_end(monkeypatch, capsys):
    monkeypatch.setattr("agentgym.cli.console.PLAIN_EVERY_S", 0.2)
    monkeypatch.setattr("agentgym.cli.console.TICK_S", 0.05)
    with ProgressView(lambda what: f"inside {what}") as progress:
        progress("train", 3, 20)
        time.sleep(0.8)
        for done in range(1, 21):
            progress("evaluate", done, 20)
    lines = [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[:3] == ["train 3/20", *["train 3/20 inside train"] * 2]
    assert lines[-2:] == ["evaluate 1/20", "evaluate 20/20"]


def test_the_installed_command_says_its_verbs():
    shown = subprocess.run([sys.executable, "-m", "agentgym", "--help"], capture_output=True, text=True, check=True)
    for verb in (
        "quickstart",
        "train",
        "eval",
        "compare",
        "envs",
        "tasks",
        "play",
        "status",
        "audit",
        "versions",
        "doctor",
    ):
        assert verb in shown.stdout
