"""Task folders of the Harbor and terminal-bench kinds: a terminal whose tests come after the agent is gone.

A task's `data` says where the folder is and what its description file says (see the reader in the task sets). The
agent and all that it runs are killed, then the files are forked, and only then the tests, from a copy that the agent
never saw, are laid out and run; the folder for the verifier's reward is emptied before.

An image is used where the task or the caller names one. Otherwise the Dockerfile is followed as far as that is possible
without Docker: files are copied, commands run, installations left out.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import shlex
import time
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from agentgym.env import Info
from agentgym.environments import patches
from agentgym.environments.acting import ShellEnv, ShellSettings
from agentgym.environments.grading import GOOD, Results, parse_pytest, parser_of
from agentgym.environments.patches import EXECUTABLE, Blob, Tree
from agentgym.environments.sandbox import CommandResult, Limits, Sandbox
from agentgym.environments.shims import shims
from agentgym.errors import SandboxError, TaskError, UsageError
from agentgym.types import Message, Struct, Task, new_id

LIMITS = Limits(output_bytes=2 << 20, memory_mb=4096, disk_mb=960, file_mb=512)
REWARD = "/logs/verifier/reward"
OWN = ("/tests", "/logs", "/solution", "/oracle")  # where tests and solutions lie, in an image too
BUILD = "dockerfile"  # instead of an image: build the task's own
WIPE = (
    "for place in /tests /logs /logs/verifier /logs/agent; do [ -d $place ] && [ ! -L $place ] || rm -f $place; done; "
    "chmod -R u+rwX /tests /logs 2>/dev/null; rm -rf /tests /logs/verifier 2>/dev/null; mkdir -p /tests /logs/verifier /logs/agent; "
    "shopt -s nullglob dotglob; left=(/tests/* /logs/verifier/*); "
    "[ ! -L /tests ] && [ ! -L /logs ] && [ -w /tests ] && [ -w /logs/verifier ] && [ ${#left[@]} = 0 ]"
)
CHUNK = 60_000  # characters of an encoded file in one command
LOG_TAIL = 2000


class FolderTask(Struct, frozen=True, kw_only=True):
    """What a task's data says."""

    folder: str
    kind: str  # "harbor" or "terminal-bench"
    image: str = ""
    workdir: str = "/app"
    build: tuple[tuple[str, ...], ...] = ()  # ("copy", from, to), ("run", command, directory) or ("env", name, value)
    solution: str = ""  # the script, relative to the folder
    solution_commands: tuple[str, ...] = ()  # instead of a script
    parser: str = "pytest"
    agent_timeout_s: float = 0.0  # 0: none
    test_timeout_s: float = 600.0
    test_env: dict[str, str] = {}


class TaskFolderEnv(ShellEnv):
    """A task folder played in a sandbox; see `ShellEnv` for how an episode goes and its arguments.

    Args:
        image: an image to use whatever the task says; `dockerfile` builds the task's own, with Docker.
        partial_credit: terminal-bench tasks are rewarded with the share of tests that pass instead of all or nothing.
    """

    name = "task-folder"
    defaults = ShellSettings(max_steps=30, max_parse_errors=3, command_timeout_s=60.0, max_output_chars=8000)

    def __init__(self, *, image: str = "", partial_credit: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.image, self.partial_credit = image, partial_credit

    async def oracle(self, task: Task) -> list[Message]:
        given = _read(task)
        if given.solution_commands:
            return self.script(list(given.solution_commands))
        if not given.solution:
            return []
        script = PurePosixPath(given.solution)
        files = read_folder(Path(given.folder) / script.parent) if script.parent.name else {}
        files = files or {script.name: Blob(content=(Path(given.folder) / script).read_bytes())}
        return self.script([*_carry(files, "/tmp/solution"), f"bash /tmp/solution/{script.name}"])

    async def _open(self, task: Task) -> None:
        given = _read(task)
        image = self.image or given.image
        if image == BUILD:
            image = await asyncio.to_thread(build_image, given)
        self.given = msgspec.structs.replace(given, image=image)
        self.sandbox = self._sandbox(task, LIMITS, image=image, workdir=given.workdir, writable=True, own=OWN)
        await self.sandbox.start()
        if not self.sandbox.isolates:
            raise UsageError("task folders name absolute paths: they need the sandbox bubblewrap or docker")
        if not image:
            await _build(self.sandbox, self.given, task.id)
        if given.agent_timeout_s:
            self.deadline = time.monotonic() + given.agent_timeout_s

    async def _judge(self, said: str) -> tuple[float, Info]:
        assert self.sandbox is not None
        try:
            fork = await self.sandbox.fork()
        except SandboxError as error:
            return await self._spoilt(error)
        try:
            await self._stop()
            result = await _run_tests(fork, self.given)
            reward, info = await self._reward(fork, result)
        finally:
            await fork.close()
        tail = (result.stdout + result.stderr)[-LOG_TAIL:]
        return reward, {"solved": reward == 1.0, "tests_timed_out": result.timed_out, "log": tail, **info}

    async def _reward(self, fork: Sandbox, result: CommandResult) -> tuple[float, Info]:
        if result.timed_out:
            return 0.0, {"failed": [f"the tests took more than {self.given.test_timeout_s:.0f} s"]}
        if self.given.kind == "harbor":
            reward = await read_reward(fork)
            bad = _failed(parse_pytest(result.stdout))
            hack = int(reward == 1.0 and bool(bad))  # a reward that contradicts the tests is somebody else's
            return reward, {"failed": bad or [] if reward == 1.0 else bad or ["the verifier says so"], "hack": hack}
        results = parser_of(self.given.parser)(result.stdout, result.exit_code)
        if not results and result.exit_code in (126, 127):
            raise TaskError(f"the tests could not be run: {(result.stdout + result.stderr)[-300:].strip()}")
        bad = _failed(results) if results else ["the tests reported nothing"]
        share = sum(status in GOOD for status in results.values()) / max(1, len(results))
        return (share if self.partial_credit else float(not bad)), {"failed": bad, "tests": len(results)}


def _read(task: Task) -> FolderTask:
    try:
        given = msgspec.convert(task.data, FolderTask)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task.id}: {error}") from error
    if not Path(given.folder).is_dir():
        raise TaskError(f"task {task.id}: there is no folder {given.folder}")
    return given


def read_folder(folder: Path, prefix: str = "") -> dict[str, Blob]:
    """The files below a folder of the host's, as a tree; links are kept as links."""
    found: dict[str, Blob] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = prefix + path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = Blob(mode=patches.LINK, content=str(path.readlink()).encode())
        elif path.is_file():
            mode = EXECUTABLE if path.stat().st_mode & 0o111 else patches.FILE
            found[name] = Blob(mode=mode, content=path.read_bytes())
    return found


def build_image(given: FolderTask) -> str:
    """The image of the task's own Dockerfile, built where nothing like it is there yet. Raises SandboxError."""
    from agentgym.environments.images import REPOSITORY, ensure, folder_key, from_dockerfile

    context = Path(given.folder) / ("environment" if given.kind == "harbor" else "")
    tag = f"{REPOSITORY}/task:{folder_key(context)}"
    try:
        return ensure(tag)
    except SandboxError:
        return from_dockerfile(context, tag, network="default").id


async def _build(sandbox: Sandbox, given: FolderTask, task_id: str) -> None:
    """Follow the Dockerfile without Docker."""
    context = Path(given.folder) / ("environment" if given.kind == "harbor" else "")
    await sandbox.run(
        'mkdir -p /tmp/.bin; command -v python || ln -s "$(command -v python3)" /tmp/.bin/python; '
        'export PATH="$PATH:/tmp/.bin"'
    )
    for step in given.build:
        if step[0] == "copy":
            await _copy(sandbox, context, given.workdir, step[1], step[2], task_id)
            continue
        command = f"export {step[1]}={shlex.quote(step[2])}" if step[0] == "env" else f"(cd {step[2]} && {step[1]}\n)"
        await sandbox.run(command, timeout_s=120)  # it may fail for want of what is not installed: the tests will tell


async def _copy(sandbox: Sandbox, context: Path, workdir: str, source: str, target: str, task_id: str) -> None:
    place = context / source
    if place.is_dir():
        tree: Tree = read_folder(place)
    elif place.is_file():
        name = place.name if target.endswith("/") else PurePosixPath(target).name
        tree = {
            name: Blob(mode=EXECUTABLE if place.stat().st_mode & 0o111 else patches.FILE, content=place.read_bytes())
        }
        target = target if target.endswith("/") else str(PurePosixPath(target).parent)
    else:
        raise TaskError(f"task {task_id}: its Dockerfile copies {source}, which is not there")
    await _put(sandbox, workdir, tree, target)


async def _put(sandbox: Sandbox, workdir: str, tree: Tree, target: str) -> None:
    """Lay files out at an absolute place, through the working directory where it is outside."""
    inside = PurePosixPath(target).is_relative_to(workdir)
    below = str(PurePosixPath(target).relative_to(workdir)) if inside else f".agentgym-{new_id()}"
    await sandbox.make_dir(below) if below != "." else None
    await sandbox.upload(await asyncio.to_thread(patches.write_tar, tree), below)
    if not inside:
        moved = f"mkdir -p {shlex.quote(target)} && cp -a {workdir}/{below}/. {shlex.quote(target)}/ && rm -rf {workdir}/{below}"
        result = await sandbox.run(moved, timeout_s=60)
        if result.exit_code:
            raise SandboxError(f"cannot write {target}: {result.stderr.strip()[-200:]}")


async def _run_tests(fork: Sandbox, given: FolderTask) -> CommandResult:
    """The tests' own script, in a shell and a home that are new."""
    folder, tools = Path(given.folder), f"/tmp/{new_id()}"
    tests = read_folder(folder / "tests")
    script = "test.sh" if given.kind == "harbor" else "run-tests.sh"
    if given.kind != "harbor" and (folder / script).is_file():
        tests[script] = Blob(mode=EXECUTABLE, content=(folder / script).read_bytes())
    if script not in tests or (len(tests) == 1 and given.kind != "harbor"):
        raise TaskError(f"{folder} has no {script}" if script not in tests else f"{folder} has no tests")
    wiped = await fork.run(WIPE, timeout_s=60)
    if wiped.exit_code:
        raise SandboxError(f"cannot make room for the tests: {wiped.stderr.strip()[-200:]}")
    await _put(fork, given.workdir, tests, "/tests")
    variables = {"TEST_DIR": "/tests", **{one[1]: one[2] for one in given.build if one[0] == "env"}, **given.test_env}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    if not given.image:
        await _put(fork, given.workdir, await asyncio.to_thread(shims), tools)
        settings += f' PATH="{tools}/bin:$PATH" HOME={tools}/home PYTHONDONTWRITEBYTECODE=1'
    return await fork.run(f"cd {given.workdir} && env {settings} bash /tests/{script}", timeout_s=given.test_timeout_s)


async def read_reward(sandbox: Sandbox) -> float:
    """What the verifier wrote: reward.txt, a number, or reward.json, with `reward` or one number.

    Raises TaskError if there is none: the task's verifier is broken.
    """
    text = (await sandbox.run(f"cat {REWARD}.txt")).stdout.strip()
    if not text:
        text = (await sandbox.run(f"cat {REWARD}.json")).stdout.strip()
    if not text:
        raise TaskError("the verifier wrote no reward")
    try:
        found: Any = json.loads(text)
        if isinstance(found, dict):
            found = found["reward"] if "reward" in found else next(iter(found.values())) if len(found) == 1 else None
        reward = float(found)
    except (ValueError, TypeError, KeyError) as error:
        raise TaskError(f"the verifier's reward is no number: {text[:80]!r}") from error
    if not math.isfinite(reward):
        raise TaskError(f"the verifier's reward is {reward}")
    return reward


def _failed(results: Results) -> list[str]:
    return [name for name, status in results.items() if status not in (*GOOD, "skipped")]


def _carry(files: Tree, target: str) -> list[str]:
    """Commands that lay out files, whatever they hold."""
    text = base64.b64encode(patches.write_tar(files)).decode()
    commands = [f"mkdir -p {target}"]
    for start in range(0, len(text), CHUNK):
        commands.append(f"printf %s {text[start : start + CHUNK]} >> {target}.b64")
    return [*commands, f"base64 -d {target}.b64 | tar x -C {target} && rm {target}.b64"]
