import json
import subprocess
import sys

import pytest

from agentgym.cli import main


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
        (["tasks", "show", "terminal/basics", "-o", "nonsense=1"], "nonsense"),
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


def test_the_oracle_plays(call, capsys):
    assert call("play", "terminal", "--oracle") == 0
    assert "the episode ended; reward 1" in capsys.readouterr().out


def test_checking_an_environment(call, capsys):
    assert call("envs", "check", "terminal") == 0
    assert "terminal" in capsys.readouterr().out


def test_doctor_finds_what_is_there(call, capsys):
    assert call("doctor", "--json") == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["python"]["ok"]


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
