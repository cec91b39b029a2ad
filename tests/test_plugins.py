import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.config import load_config
from agentgym.errors import ConfigError, UsageError
from agentgym.plugins import import_modules

LETTERS = """
import agentgym
from tests.fakes import EchoEnv, Words

agentgym.register("echo", EchoEnv)
agentgym.register_tasks("words", Words)
"""


def test_files_of_a_config_are_beside_it_and_those_of_the_command_line_here(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.yaml").write_text("imports: [mine.py, package.module, /abs/x.py]\n")
    config = load_config(tmp_path / "sub" / "run.yaml")
    assert config.imports == [str(tmp_path / "sub" / "mine.py"), "package.module", "/abs/x.py"]
    monkeypatch.chdir(tmp_path)
    config = load_config(tmp_path / "sub" / "run.yaml", ["imports=[other.py]"])
    assert config.imports == [str(tmp_path / "other.py")]
    with pytest.raises(ConfigError, match="imports"):
        load_config(None, ["imports=mine.py"])


def test_what_cannot_be_imported_is_told_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError, match=r"imports: nowhere_at_all: ModuleNotFoundError"):
        import_modules(["nowhere_at_all"], "imports:")
    with pytest.raises(UsageError, match="there is no such file"):
        import_modules([str(tmp_path / "none.py")])
    (tmp_path / "broken_plugin.py").write_text("\n1 / 0\n")
    with pytest.raises(UsageError, match=r"ZeroDivisionError.*broken_plugin.py, line 2"):
        import_modules([str(tmp_path / "broken_plugin.py")])


def test_a_malformed_value_names_its_argument():
    with pytest.raises(ConfigError, match=r"argument 'env.wrappers=\[\{a:\{b:1\}\}\]'"):
        load_config(None, ["env.wrappers=[{a:{b:1}}]"])


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[1])
    return subprocess.run([sys.executable, "-m", "agentgym", *arguments], cwd=folder, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": root, "COLUMNS": "200"}, timeout=60)  # fmt: skip


def test_a_config_brings_its_environment_and_its_wrappers(tmp_path):
    (tmp_path / "mine.py").write_text(LETTERS)
    (tmp_path / "run.yaml").write_text(
        "imports: [mine.py]\nmodel: {path: tiny, max_length: 256}\ntasks: {name: words}\n"
        "env: {wrappers: [{step_limit: {max_stepz: 4}}]}\nengine: {backend: transformers}\n"
    )
    done = run(tmp_path, "train", "run.yaml", "--dry-run")
    assert done.returncode == 2 and "did you mean 'max_steps'" in done.stderr
    done = run(tmp_path, "train", "run.yaml", "env.wrappers=[{step_limit: {max_steps: 4}}, recording]", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"imports:\n- {tmp_path}/mine.py\n" in done.stdout


def test_checks_and_plays_take_wrappers(tmp_path):
    (tmp_path / "mine.py").write_text(LETTERS)
    given = ("--import", "mine.py")
    done = run(tmp_path, *given, "envs", "check", "echo", "-w", "recording", "-w", "shape_reward: {step_cost: 0.5}")
    assert done.returncode == 1 and "oracle is rewarded 0.5" in done.stdout
    assert list((tmp_path / "recordings").glob("*.cast"))
    done = run(tmp_path, *given, "play", "echo", "--oracle", "-w", "shape_reward: {scale: 7}")
    assert done.returncode == 0 and "reward 7" in done.stdout
    done = run(tmp_path, *given, "tasks", "check", "words", "-w", "step_limit: {max_steps: 4")
    assert done.returncode == 2 and "--wrap" in done.stderr
    names = json.loads(run(tmp_path, "envs", "wrappers", "--json").stdout)
    assert {"faults", "recording", "step_limit", "time_limit", "token_budget", "tool_format", "truncate"} <= set(names)
    assert "most_in_a_row" in run(tmp_path, "envs", "wrappers", "faults").stdout
