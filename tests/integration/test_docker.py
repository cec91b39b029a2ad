"""Containers: ready ones, many at once, and what becomes of them when something dies."""

import asyncio
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentgym.cli import images as command_line
from agentgym.cli.leftovers import finding, reap
from agentgym.environments import images
from agentgym.environments.containers import Spec, client, no_docker
from agentgym.environments.docker import DockerSandbox
from agentgym.environments.leftovers import LABEL, owner_token
from agentgym.environments.sandbox import Limits, open_sandbox
from agentgym.environments.warm import close_pools, fill
from agentgym.errors import SandboxError, UsageError

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(bool(no_docker()), reason=f"docker does not work here: {no_docker()}"),
]
SMALL = Limits(memory_mb=128, processes=32, disk_mb=16)


def containers(token: str) -> list[str]:
    found = client().api.containers(all=True, filters={"label": f"{LABEL}={token}"})
    return [one["Id"] for one in found]


@pytest.fixture
async def box() -> AsyncIterator[DockerSandbox]:
    made = DockerSandbox(Spec(image="base", limits=SMALL, run_id="run-7"))
    await made.start()
    yield made
    await made.close()


async def test_a_container_says_whose_it_is_and_what_it_is_made_from(box: DockerSandbox) -> None:
    said = client().api.inspect_container(box.id)
    assert said["Config"]["Labels"][LABEL] == owner_token() and said["Config"]["Labels"]["agentgym.run"] == "run-7"
    assert float(said["Config"]["Labels"]["agentgym.started"]) <= time.time()
    assert box.digest == images.ensure("base") and box.digest.startswith("sha256:")


async def test_a_container_that_died_between_two_commands_is_a_failure_of_the_sandbox(box: DockerSandbox) -> None:
    await box.run("echo hi")
    client().api.kill(box.id)
    await asyncio.sleep(0.5)
    for call in (box.run("echo hi"), box.read("x"), box.snapshot()):
        with pytest.raises(SandboxError, match="died"):
            await call


async def test_a_container_that_dies_under_a_command_is_a_failure_of_the_sandbox(box: DockerSandbox) -> None:
    call = asyncio.create_task(box.run("sleep 60", 30))
    await asyncio.sleep(0.5)
    client().api.kill(box.id)
    with pytest.raises(SandboxError):
        await call


async def test_stopping_ends_what_runs_and_keeps_the_files(box: DockerSandbox) -> None:
    await box.run("echo 1 > f; cd /tmp; X=1; (setsid sh -c 'while :; do date > /work/beat; sleep 0.1; done' &)")
    await box.stop()
    assert (await box.run("rm -f /work/beat; sleep 0.4; ls /work; echo $X")).stdout == "f\n\n"


async def test_orphans_are_reaped(box: DockerSandbox) -> None:
    await box.run("for i in $(seq 20); do (sh -c 'sleep 0.05 & exit' &) ; done; sleep 0.5")
    assert (await box.run("cat /proc/[0-9]*/status | grep -c '^State:.Z' || :")).stdout == "0\n"


async def test_a_ready_container_is_taken_at_once_and_replaced() -> None:
    spec = Spec(image="base", limits=SMALL)
    pool = await fill(spec, 2)
    assert len(pool.ready) == 2
    begun = time.monotonic()
    sandbox = open_sandbox("docker", SMALL, warm=2)
    await sandbox.start()
    took_s = time.monotonic() - begun
    assert (await sandbox.run("echo hi; pwd; touch f")).stdout == "hi\n/work\n" and took_s < 0.1
    assert (await sandbox.run("sleep 9", 0.3)).shell_replaced and (await sandbox.run("ls")).stdout == "f\n"
    for _ in range(200):
        if len(pool.ready) == 2:
            break
        await asyncio.sleep(0.05)
    assert len(pool.ready) == 2
    await sandbox.close()
    await close_pools()
    assert containers(owner_token()) == []


async def test_a_writable_image_is_forked_with_all_its_files() -> None:
    box = open_sandbox("docker", SMALL, writable=True, user="0:0", workdir="/opt/app")
    await box.start()
    fork = None
    try:
        await box.run("echo one > f; echo x > /etc/mine; echo t > /tmp/t")
        fork = await box.fork()
        assert (await fork.run("cat f /etc/mine /tmp/t; echo two > f; pwd")).stdout == "one\nx\nt\n/opt/app\n"
        assert await box.read("f") == b"one\n"
    finally:
        await box.close()
        if fork is not None:
            await fork.close()
    assert not client().api.images(filters={"label": f"{LABEL}={owner_token()}"})


async def test_absolute_paths_lead_to_the_image(box: DockerSandbox) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("t.py"))
    await box.upload(made.getvalue(), "/tmp/tests")
    assert (await box.run("ls /tmp/tests")).stdout == "t.py\n"
    with tarfile.open(fileobj=io.BytesIO(await box.download("/tmp/tests"))) as tar:
        assert tar.getnames() == ["t.py"]


@pytest.mark.slow
async def test_sixty_four_at_once_do_not_mix() -> None:
    boxes = [DockerSandbox(Spec(image="base", limits=SMALL)) for _ in range(64)]
    await asyncio.gather(*(box.start() for box in boxes))
    try:
        results = await asyncio.gather(*(box.run(f"echo {n} > f; cat f", 60) for n, box in enumerate(boxes)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(64)]
    finally:
        await asyncio.gather(*(box.close() for box in boxes))
    assert containers(owner_token()) == []


OWNER = """
import asyncio, sys
from agentgym.environments.sandbox import open_sandbox
async def episode():
    while True:
        sandbox = open_sandbox("docker", warm=2)
        await sandbox.start()
        print("started", flush=True)
        await sandbox.run("setsid sleep 97355 & sleep 0.3")
        await (await sandbox.fork()).close()
        await sandbox.close()
async def main():
    await asyncio.gather(*(episode() for _ in range(3)))
asyncio.run(main())
"""


@pytest.mark.slow  # at random moments
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_killed_owner_whenever_it_dies(number: int) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"started\n"
        token = owner_token(owner.pid)
        time.sleep(random.Random(os.getpid() + number).uniform(0, 1))
        owner.send_signal(number)
        owner.wait(timeout=30)
        begun = time.monotonic()
    while containers(token):
        assert time.monotonic() - begun < 5, "containers are left"
        time.sleep(0.1)


def test_images_from_packages_are_made_once(tmp_path: Path) -> None:
    made = images.build("base")
    assert images.build("base") == made and made.name in [image.name for image in images.listed()]
    assert made.size < 150e6
    with pytest.raises(UsageError, match="did you mean 'base'"):
        images.build("bse")
    with pytest.raises(SandboxError, match="docker pull"):
        images.ensure("nosuch/image:1")


def test_images_are_made_and_listed_on_the_command_line() -> None:
    app = typer.Typer()
    command_line.add_to(app)
    made = CliRunner().invoke(app, ["images", "build", "base", "--json"])
    assert made.exit_code == 0 and json.loads(made.stdout)[0]["id"] == images.ensure("base")
    assert "agentgym/base:" in CliRunner().invoke(app, ["images", "list", "--json"]).stdout


def test_doctor_lists_and_removes_what_a_dead_owner_left() -> None:
    dead = subprocess.Popen(["sleep", "60"])
    token = owner_token(dead.pid)
    dead.kill()
    dead.wait()
    made = client().api.create_container(images.ensure("base"), ["/bin/bash"], labels={LABEL: token})["Id"]
    said = finding()
    assert not said.ok and "of kind container" in said.detail and said.remedy
    assert f"container {made}" in reap() and containers(token) == []


async def test_the_python_image_runs_pytest_and_git() -> None:
    box = open_sandbox("docker", image="python")
    await box.start()
    try:
        await box.write("test_x.py", b"def test_a(): assert 1 + 1 == 2\n")
        result = await box.run("git init -q . && git add . && python3 -m pytest -q -p no:cacheprovider", 60)
        assert "1 passed" in result.stdout, result
    finally:
        await box.close()


async def test_an_image_from_a_tar_and_one_from_a_dockerfile(tmp_path: Path) -> None:
    base = images.build("base")
    (tmp_path / "Dockerfile").write_text(f"FROM {base.name}\nCOPY note /opt/note\nRUN echo built >> /opt/note\n")
    (tmp_path / "note").write_text("copied\n")
    tag = f"agentgym/test:{images.folder_key(tmp_path)}"
    try:
        assert images.from_dockerfile(tmp_path, tag).name == tag
        box = open_sandbox("docker", image=tag)
        await box.start()
        assert (await box.run("cat /opt/note")).stdout == "copied\nbuilt\n"
        await box.close()
        (tmp_path / "no.tar").write_bytes(b"x")
        with pytest.raises(SandboxError, match="not a readable tar"):
            images.from_tar(tmp_path / "no.tar", "agentgym/test:no")
        with (tmp_path / "saved.tar").open("wb") as saved:
            saved.writelines(client().images.get(tag).save())
        assert images.from_tar(tmp_path / "saved.tar", "agentgym/test:saved").id == images.ensure(tag)
    finally:
        for name in (tag, "agentgym/test:saved"):
            try:
                client().api.remove_image(name, force=True)
            except Exception as error:
                assert "No such image" in str(error)
