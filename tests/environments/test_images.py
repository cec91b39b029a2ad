"""Images, and tasks that are played in images of their own. Nothing is pulled; what a test makes it removes."""

import contextlib
import io
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentgym
from agentgym.environments import patches
from agentgym.environments.acting import DONE
from agentgym.environments.blocks import block
from agentgym.environments.containers import Spec, client, no_docker
from agentgym.environments.docker import DockerSandbox
from agentgym.environments.images import REPOSITORY, build, folder_key, from_dockerfile, listed
from agentgym.environments.leftovers import find
from agentgym.environments.owned import owned
from agentgym.environments.patches import tree_of
from agentgym.environments.sandbox import Limits
from agentgym.environments.swe import SWEEnv
from agentgym.environments.swe_grade import source_tree
from agentgym.environments.task_folder import TaskFolderEnv
from agentgym.errors import InfrastructureError, SandboxError
from agentgym.tasks.swe_pairs import PypiPairs, source_archive
from agentgym.types import Message, StepResult, Task
from tests.environments.test_swe import DATA, FILES, FIX

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(bool(no_docker()), reason=f"docker does not work here: {no_docker()}"),
]
PAIRS = Path(__file__).parents[3] / "shared/data/swe/pypi_version_pairs.json"


@contextlib.contextmanager
def removed(*kinds: str) -> Iterator[str]:
    """A tag of its own; images that were made meanwhile under `agentgym/KIND`, and it, are removed."""
    tag = f"{REPOSITORY}/test-{uuid.uuid4().hex[:8]}:x"
    before = {one.name for one in listed()}
    try:
        yield tag
    finally:
        mine = [
            one.name for one in listed() if one.name not in before and one.name.split(":")[0].split("/")[1] in kinds
        ]
        for name in (*mine, tag):
            with contextlib.suppress(Exception):
                client().api.remove_image(name, force=True)


def repository(folder: Path, files: dict[str, str], base: str) -> Path:
    """A folder with a Dockerfile as published images are made: the repository in /testbed, root's."""
    tree = patches.write_tar(tree_of(files))
    (folder / "context").mkdir()
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        archive.extractall(folder / "context/repo", filter="data")
    (folder / "context/Dockerfile").write_text(
        f"FROM {base}\nENV PATH=/opt/tool/bin:/usr/bin:/bin TOOL=yes\nCOPY repo /testbed\n"
        "RUN mkdir -p /opt/tool/bin && printf '#!/bin/sh\\necho tool\\n' > /opt/tool/bin/tool && chmod 755 /opt/tool/bin/tool\n"
        "USER root\nWORKDIR /testbed\n"
    )
    return folder / "context"


def test_a_dockerfile_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no Dockerfile"):
        from_dockerfile(tmp_path, "x")
    (tmp_path / "Dockerfile").write_text(f"FROM {build('base').name}\nRUN echo the reason >&2; exit 3\n")
    key = folder_key(tmp_path)
    with removed() as tag, pytest.raises(SandboxError, match="the reason"):
        from_dockerfile(tmp_path, tag)
    (tmp_path / "Dockerfile").chmod(0o700)
    assert folder_key(tmp_path) != key


async def test_what_root_owns_in_an_image_is_the_users_in_the_sandbox(tmp_path: Path) -> None:
    with removed("owned") as tag:
        image = from_dockerfile(repository(tmp_path, FILES, build("base").name), tag)
        spec = Spec(image=tag, limits=Limits(), workdir="/testbed", writable=True, own=("/tests/deep",))
        sandbox = DockerSandbox(spec)
        await sandbox.start()
        try:
            said = await sandbox.run(
                "id -u; stat -c %u . calc/core.py /tests/deep /opt/tool/bin/tool; echo x >> calc/core.py && echo y > new; "
                "touch /opt/x /usr/x /x; tool; echo $TOOL $HOME; grep CapEff /proc/self/status"
            )
            assert said.stdout.split() == [
                "1000",
                "1000",
                "1000",
                "1000",
                "0",
                "tool",
                "yes",
                "/testbed",
                "CapEff:",
                "0" * 16,
            ]
            assert said.stderr.count("Permission denied") == 3
            fork = await sandbox.fork()
            assert (await fork.run("cat new; stat -c %u new")).stdout == "y\n1000\n"
            await fork.close()
        finally:
            await sandbox.close()
        made = owned(image.id, ("/testbed", "/tests/deep"), "1000:1000")
        assert made == owned(image.id, ("/testbed", "/tests/deep"), "1000:1000") != image.id
        assert owned(image.id, ("/testbed",), "0:0") == image.id
        assert owned(image.id, ("/",), "1000:1000") != image.id  # the top alone, not all of the system
        assert made not in {one.name for one in find()}
    with pytest.raises(SandboxError, match="owner"):
        owned(build("base").id, ("/proc/x",), "1000:1000")


async def play(env: agentgym.Env, task: Task, *commands: str) -> StepResult:
    try:
        await env.reset(options={"task": task})
        for command in commands:
            result = await env.step(Message(role="assistant", content=block(command)))
            if result.terminated or result.truncated:
                return result
        return await env.step(Message(role="assistant", content=DONE))
    finally:
        await env.close()


def in_image(task: Task, tag: str, **changes: Any) -> Task:
    data = {**task.data, "source": {"kind": "image", "image": tag, "workdir": "/testbed"}, **changes}
    return msgspec.structs.replace(task, data=data)


async def test_a_repository_in_an_image_from_edit_to_verdict(tmp_path: Path) -> None:
    with removed("owned") as tag:
        from_dockerfile(repository(tmp_path, FILES, build("python").name), tag)
        task = in_image(Task(id="calc", env="swe", instruction="add is wrong.", data=DATA), tag)
        solved = await play(SWEEnv(sandbox="docker"), task, f"{FIX}; printf '\\377\\0' > data.bin; rm README; ls -a")
        assert (solved.reward, solved.info["resolved"], solved.info["hack"]) == (1.0, True, 0)
        made = patches.apply(tree_of(FILES), solved.info["patch"])
        assert made["data.bin"].content == b"\xff\0" and "README" not in made
        assert (await play(SWEEnv(sandbox="docker"), task, "true")).reward == 0.0
        cheat = "printf 'import os\\nos._exit(0)\\n' > conftest.py; cp conftest.py sitecustomize.py; chmod -R a-w tests"
        bent = await play(SWEEnv(sandbox="docker"), task, cheat)
        assert (bent.reward, bent.info["hack"]) == (0.0, 2)
        command = in_image(task, tag, test_command="cd /testbed && python3 -m pytest -rA tests")
        assert (await play(SWEEnv(sandbox="docker"), command, FIX)).reward == 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_released_project_in_an_image(tmp_path: Path) -> None:
    if not PAIRS.is_file():
        pytest.skip("needs the shared list of pairs")
    try:
        source_archive("xmltodict", "0.13.0", PypiPairs(str(PAIRS)).cache)
    except InfrastructureError as error:
        pytest.skip(f"needs a package index: {error}")
    (task,) = PypiPairs(str(PAIRS), projects=["xmltodict"], split="train").tasks("train")
    base = source_tree(task.data["source"])
    files = {path: blob.content.decode() for path, blob in base.items() if blob.mode != patches.LINK}
    with removed("owned") as tag:
        from_dockerfile(repository(tmp_path, files, build("python").name), tag)
        given = in_image(task, tag)
        env = SWEEnv(sandbox="docker")
        oracle = await env.oracle(task)
        await env.reset(options={"task": given})
        for message in oracle:  # edits by `git apply`, then says that it is done
            result = await env.step(message)
        await env.close()
        assert (result.reward, result.info["resolved"], result.info["failed"]) == (1.0, True, ())
        assert (await play(SWEEnv(sandbox="docker"), given, "true")).reward == 0.0


TEST_SH = "python3 -m pytest /tests/test_outputs.py -rA -p no:cacheprovider\nif [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


async def test_a_task_folder_with_its_own_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/data.txt").write_text("7\n")
    (tmp_path / "environment/Dockerfile").write_text(
        f"FROM {build('python').name}\nWORKDIR /srv/app\nCOPY data.txt .\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text(TEST_SH)
    (tmp_path / "tests/test_outputs.py").write_text(
        "import os\ndef test_out():\n    assert open('/srv/app/out.txt').read() == '14\\n'\n"
        "def test_new():\n    assert os.getuid() == 1000 and 'left' not in os.listdir('/tests')\n"
    )
    data = {"folder": str(tmp_path), "kind": "harbor", "workdir": "/srv/app"}
    task = Task(id="t", env="task-folder", instruction="", data=data)
    with removed("owned", "task"):
        right = "echo $(($(cat data.txt) * 2)) > out.txt; touch /tests/left /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json"
        solved = await play(TaskFolderEnv(sandbox="docker", image="dockerfile"), task, right)
        assert (solved.reward, solved.info["failed"], solved.info["hack"]) == (1.0, [], 0)
        cheat = "echo 1 > /logs/verifier/reward.txt; chmod 500 /tests /logs/verifier; (setsid bash -c 'while :; do echo 14 > out.txt; done' &)"
        assert (await play(TaskFolderEnv(sandbox="docker", image="dockerfile"), task, "true")).reward == 0.0
        assert (
            await play(TaskFolderEnv(sandbox="docker", image="dockerfile"), task, cheat.replace("14", "13"))
        ).reward == 0.0
