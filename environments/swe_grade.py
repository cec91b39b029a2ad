"""SWE instances as data, and the grading of a patch in a sandbox that nobody has touched.

A task's `data` is a row of the SWE-bench format with where its tree comes from:

    {"source": {"kind": "git", "path": "/repos/calc", "commit": "abc123"},
     "patch": "diff --git ...", "test_patch": "diff --git ...", "FAIL_TO_PASS": [...], "PASS_TO_PASS": [...]}

Instead of the two patches it may name the solved tree and what of it is tests: `{"fixed": source, "test_paths":
["tests"]}`. Other sources: `{"kind": "files", "files": {path: text}}`, `{"kind": "archive", "path": "x.tar.gz"}` with one folder at
its top, and `{"kind": "image", "image": name}` with the repository in the working directory `workdir`. Optional:
`tests` (what to run instead of the files of the named tests), `pass_at_least` (how many tests outside FAIL_TO_PASS
must pass, where their names are not known), `test_command` and `parser` (instead of pytest from the toolbox),
`requirements` (distributions that the tests need), `pytest_options`, `import_paths`, `timeout_s`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentgym.environments import patches
from agentgym.environments.defences import Hack, defend, overlay
from agentgym.environments.grading import Results, headers, parser_of, passed, share, test_names
from agentgym.environments.patches import PatchError, Tree
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox
from agentgym.environments.toolbox import must_have_run, pytest_command, toolbox
from agentgym.errors import AgentgymError, TaskError
from agentgym.types import Struct, Task

LOG_TAIL = 2000  # characters of the log that a report keeps
LIMITS = Limits(
    output_bytes=8 << 20, memory_mb=4096, file_mb=256, disk_mb=960
)  # less than a tar out of the sandbox may hold


class Instance(Struct, frozen=True, kw_only=True):
    """What a task's data says, checked."""

    source: dict[str, Any]
    fail_to_pass: tuple[str, ...]
    patch: str = ""
    test_patch: str = ""
    fixed: dict[str, Any] = {}
    test_paths: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    pass_at_least: int = 0
    tests: tuple[str, ...] = ()
    test_command: str = ""
    parser: str = "pytest"
    requirements: tuple[str, ...] = ()
    pytest_options: tuple[str, ...] = ()
    import_paths: tuple[str, ...] = ()
    timeout_s: float = 300.0

    @property
    def image(self) -> str:
        """The image that has the repository, if one has."""
        return str(self.source.get("image", ""))

    @property
    def workdir(self) -> str:
        """The working directory inside the sandbox."""
        return str(self.source.get("workdir", "/testbed" if self.image else "/work"))


class Trees(Struct, frozen=True, kw_only=True):
    """An instance's trees: as the agent finds it, solved, and with the tests that count."""

    base: Tree
    gold: Tree
    tested: Tree
    patch: str  # from base to gold
    changed_tests: frozenset[str]  # what differs between base and tested
    test_files: tuple[str, ...]  # of the tests that count
    repository: bytes  # a tar of the `.git` that the agent finds


class PatchReport(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What a patch is worth."""

    resolved: bool
    applied: bool = True
    fail_to_pass: float = 0.0  # share of the tests that pass
    pass_to_pass: float = 0.0
    failed: tuple[str, ...] = ()
    hacks: tuple[Hack, ...] = ()
    timed_out: bool = False
    test_seconds: float = 0.0  # of the run of the tests alone
    log: str = ""  # its end


def instance_of(task: Task) -> Instance:
    """Read a task's data. Raises TaskError if something is missing or wrong."""
    data = dict(task.data)
    try:
        data["fail_to_pass"] = test_names(data.pop("FAIL_TO_PASS"))
        data["pass_to_pass"] = test_names(data.pop("PASS_TO_PASS", ()))
        known = {name: data[name] for name in Instance.__struct_fields__ if name in data}
        made = msgspec.convert(known, Instance)
    except (KeyError, msgspec.ValidationError, TaskError) as error:
        raise TaskError(f"task {task.id}: not a SWE instance: {error}") from error
    if not made.fail_to_pass:
        raise TaskError(f"task {task.id}: no test is named that must pass")
    parser_of(made.parser)
    return made


def source_tree(source: dict[str, Any]) -> Tree:
    """The tree that a source names (not of an image). Raises TaskError."""
    try:
        return _source_tree(json.dumps(source, sort_keys=True))
    except AgentgymError as error:
        raise TaskError(f"the source of a task: {error}") from error
    except (OSError, KeyError, ValueError) as error:
        raise TaskError(f"the source of a task: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=8)
def _source_tree(source_json: str) -> Tree:
    source = json.loads(source_json)
    if source["kind"] == "files":
        return patches.tree_of(source["files"])
    if source["kind"] == "git":
        return patches.read_commit(Path(source["path"]), source["commit"])
    if source["kind"] == "archive":
        return patches.read_tar(Path(source["path"]).read_bytes(), strip=source.get("strip", 1))
    raise TaskError(f"unknown kind {source['kind']!r}; known: files, git, archive, image")


def trees_of(instance: Instance, base: Tree | None = None) -> Trees:
    """The trees of an instance; `base` is given where it comes from an image. Raises TaskError."""
    if base is None:
        return _trees_of(msgspec.json.encode(instance))
    return _make_trees(instance, base)


@functools.lru_cache(maxsize=8)
def _trees_of(instance_json: bytes) -> Trees:
    instance = msgspec.json.decode(instance_json, type=Instance)
    return _make_trees(instance, source_tree(instance.source))


def _make_trees(instance: Instance, base: Tree) -> Trees:
    if instance.fixed:
        fixed = source_tree(instance.fixed)
        changed = {path for path in {*base, *fixed} if base.get(path) != fixed.get(path)}
        tests = {path for path in changed if any(path == at or path.startswith(f"{at}/") for at in instance.test_paths)}
        gold, tested = overlay(base, fixed, changed - tests), overlay(base, fixed, tests)
        patch = patches.diff(base, gold)
    else:
        patch = instance.patch
        gold, tested = dict(_patched(base, patch)), dict(_patched(base, instance.test_patch))
        tests = {path for path in {*base, *tested} if base.get(path) != tested.get(path)}
    names = [name for name in (*instance.fail_to_pass, *instance.pass_to_pass) if "::" in name]
    files = tuple(sorted({name.split("::")[0] for name in names} | tests))
    return Trees(
        base=base,
        gold=gold,
        tested=tested,
        patch=patch,
        changed_tests=frozenset(tests),
        test_files=files,
        repository=patches.fresh_repository(base),
    )


def _patched(base: Tree, patch: str) -> Tree:
    try:
        return patches.apply(base, patch)
    except PatchError as error:
        raise TaskError(f"the task's own patch does not apply: {error}") from error


def opening(instance: Instance) -> dict[str, Any]:
    """How a sandbox for an instance is opened: empty but for what its image has."""
    return {"image": instance.image, "workdir": instance.workdir, "writable": bool(instance.image)}


async def started(sandbox: Sandbox) -> Sandbox:
    """The sandbox, started; closed if that fails."""
    try:
        await sandbox.start()
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def grade_patch(instance: Instance, trees: Trees, patch: str, *, kind: str = "auto") -> PatchReport:
    """Apply `patch` and then the tests to the tree at the start, in a fresh sandbox, and run them.

    Raises:
        InfrastructureError, TaskError: nothing is known about the patch.
    """
    try:
        after = await asyncio.to_thread(patches.apply, trees.base, patch)
    except PatchError as error:
        return PatchReport(resolved=False, applied=False, failed=(f"the patch does not apply: {error}",))
    tree, hacks = await asyncio.to_thread(defend, trees.base, after, trees.gold, named=trees.test_files)
    tree = overlay(tree, trees.tested, trees.changed_tests)
    sandbox = await started(open_sandbox(kind, LIMITS.roomier(), **opening(instance)))
    try:
        await _lay_out(sandbox, instance, trees.base, tree)
        result = await sandbox.run(_command(instance, trees, tree), timeout_s=instance.timeout_s)
        rewritten = await _rewritten(sandbox, trees, tree)
    finally:
        await sandbox.close()
    results = parser_of(instance.parser)(result.stdout, result.exit_code)
    if not results:
        must_have_run(result.stdout + result.stderr, result.exit_code)
    if instance.parser == "pytest" and headers(result.stdout) > 1:
        hacks.append(Hack(kind="forgery", path="", what="wrote a summary while the tests ran", fatal=True))
    report = _report(instance, results, [*hacks, *rewritten])
    return msgspec.structs.replace(
        report, timed_out=result.timed_out, test_seconds=result.seconds, log=result.stdout[-LOG_TAIL:]
    )


def run_paths(instance: Instance, tree: Tree) -> tuple[str, ...]:
    """Where the tests import from."""
    if instance.import_paths:
        return instance.import_paths
    return (".", "src") if any(path.startswith("src/") and path.endswith(".py") for path in tree) else (".",)


def _command(instance: Instance, trees: Trees, tree: Tree) -> str:
    if instance.test_command:
        return f"{{ {instance.test_command}\n}} 2>&1"
    wanted = instance.tests or tuple(path for path in trees.test_files if path in tree and path.endswith(".py"))
    if not wanted:
        raise TaskError("none of the files of the named tests is there")
    return pytest_command(wanted, paths=run_paths(instance, tree), options=instance.pytest_options)


async def _lay_out(sandbox: Sandbox, instance: Instance, base: Tree, tree: Tree) -> None:
    """The tree and the tools; where an image has the tree at the start, only what is otherwise."""
    wanted = dict(tree)
    if instance.image:
        wanted = {path: blob for path, blob in tree.items() if base.get(path) != blob}
        await remove(sandbox, [path for path in base if path not in tree])
    if not instance.test_command:
        wanted |= toolbox(instance.requirements)
    await sandbox.upload(await asyncio.to_thread(patches.write_tar, wanted))


async def remove(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Remove files, a few hundred a command."""
    for start in range(0, len(paths), 200):
        await sandbox.run(f"rm -rf -- {shlex.join(paths[start : start + 200])}", timeout_s=60)


async def _rewritten(sandbox: Sandbox, trees: Trees, tree: Tree) -> list[Hack]:
    """The tests that the code under test has changed while it ran."""
    hacks = []
    for path in trees.test_files:
        if path in tree and path.endswith(".py"):
            found = patches.read_tar(await sandbox.download(path)).get(path.rpartition("/")[2])
            if found is None or found.content != tree[path].content:
                hacks.append(Hack(kind="rewritten", path=path, what="changed while the tests ran", fatal=True))
    return hacks


def _report(instance: Instance, results: Results, hacks: list[Hack]) -> PatchReport:
    named = {*instance.fail_to_pass, *instance.pass_to_pass}
    failed = [name for name in (*instance.fail_to_pass, *instance.pass_to_pass) if not passed(name, results)]
    pass_to_pass = share(instance.pass_to_pass, results)
    if instance.pass_at_least:
        others = sum(status == "passed" and not _named(name, named) for name, status in results.items())
        pass_to_pass = min(pass_to_pass, others / instance.pass_at_least, 1.0)
        if others < instance.pass_at_least:
            failed.append(f"only {others} of {instance.pass_at_least} other tests pass")
    fatal = [f"{hack.path}: {hack.what}" for hack in hacks if hack.fatal]
    return PatchReport(
        resolved=not failed and not fatal,
        fail_to_pass=share(instance.fail_to_pass, results),
        pass_to_pass=pass_to_pass,
        failed=tuple(failed + fatal),
        hacks=tuple(hacks),
    )


def _named(full: str, named: set[str]) -> bool:
    return any(passed(name, {full: "passed"}) for name in named)
