import pytest

import agentgym
from agentgym.environments import patches
from agentgym.environments.acting import DONE
from agentgym.environments.blocks import block
from agentgym.environments.patches import tree_of
from agentgym.environments.sandbox import open_sandbox
from agentgym.environments.swe import SWEEnv, apply_commands
from agentgym.environments.swe_grade import grade_patch, instance_of, trees_of
from agentgym.errors import InfrastructureError, TaskError, UsageError
from agentgym.types import Message, StepResult, Task

FILES = {
    "calc/__init__.py": "from calc.core import add, half\n",
    "calc/core.py": "def add(a, b):\n    return a - b\n\n\ndef half(a):\n    return a / 2\n",
    "tests/test_calc.py": "import calc\n\n\ndef test_half():\n    assert calc.half(4) == 2\n",
    "pyproject.toml": '[project]\nname = "calc"\n',
    "README": "Sums.\n",
}
FIXED = FILES | {"calc/core.py": FILES["calc/core.py"].replace("a - b", "a + b")}
TESTED = FILES | {
    "tests/test_calc.py": FILES["tests/test_calc.py"]
    + "\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n\n\ndef test_neg():\n    assert calc.add(1, -2) == -1\n"
}
DATA = {
    "source": {"kind": "files", "files": FILES},
    "patch": patches.diff(tree_of(FILES), tree_of(FIXED)),
    "test_patch": patches.diff(tree_of(FILES), tree_of(TESTED)),
    "FAIL_TO_PASS": '["tests/test_calc.py::test_add", "tests/test_calc.py::test_neg"]',
    "PASS_TO_PASS": ["tests/test_calc.py::test_half"],
    "timeout_s": 60.0,
}
TASK = Task(id="calc", env="swe", instruction="add is wrong.", data=DATA)
FIX = "sed -i 's/a - b/a + b/' calc/core.py"


def task(**changes: object) -> Task:
    return Task(id="calc", env="swe", instruction="add is wrong.", data=DATA | changes)


async def play(*commands: str, given: Task = TASK, **options: object) -> StepResult:
    env = SWEEnv(**options)  # type: ignore[arg-type]
    try:
        await env.reset(options={"task": given})
        for command in commands:
            result = await env.step(Message(role="assistant", content=block(command)))
        return await env.step(Message(role="assistant", content=DONE)) if not result.terminated else result
    finally:
        await env.close()


def test_the_contract_holds() -> None:
    agentgym.check_env("swe", [TASK], max_steps=6).raise_for_failures()


async def test_a_fix_resolves_and_the_patch_tells_it() -> None:
    result = await play(FIX)
    assert (result.reward, result.info["resolved"], result.info["hack"]) == (1.0, True, 0)
    assert patches.apply(tree_of(FILES), result.info["patch"]) == tree_of(FIXED)
    assert (result.info["fail_to_pass"], result.info["pass_to_pass"]) == (1.0, 1.0)


async def test_half_a_fix_gets_its_share_where_that_is_asked_for() -> None:
    half = "sed -i 's/a - b/3/' calc/core.py"
    result = await play(half, reward="share")
    assert (result.reward, result.info["fail_to_pass"], result.info["resolved"]) == (0.5, 0.5, False)
    assert (await play(half)).reward == 0.0
    broken = await play(half + "; sed -i 's/a \\/ 2/7/' calc/core.py", reward="share")
    assert (broken.reward, broken.info["pass_to_pass"]) == (0.0, 0.0)


async def test_what_a_patch_can_hold() -> None:
    result = await play(
        f"{FIX}; printf '\\377\\0' > data.bin; chmod +x README; git mv calc/core.py calc/kern.py; "
        "sed -i 's/core/kern/' calc/__init__.py; ln -s README link; printf new > stray; mkdir -p a/b; echo > a/b/c; "
        "touch a/x.pyc; git add -A; git commit -qm mine; echo x > .bash_history"
    )
    assert result.reward == 1.0
    made = patches.apply(tree_of(FILES), result.info["patch"])
    assert {path: made[path].mode for path in ("README", "link", "calc/kern.py")} == {
        "README": "100755", "link": "120000", "calc/kern.py": "100644",
    }  # fmt: skip
    assert made["data.bin"].content == b"\xff\0" and made["stray"].content == b"new" and "a/b/c" in made
    assert not {"calc/core.py", ".bash_history", "a/x.pyc"} & made.keys()


async def test_the_agent_can_run_the_tests_and_sees_one_commit() -> None:
    env = SWEEnv()
    observation, _ = await env.reset(options={"task": TASK})
    assert observation.messages[-1].content == "add is wrong."
    try:
        said = [
            (await env.step(Message(role="assistant", content=block(command)))).observation.messages[0].content
            for command in (
                "git status --porcelain",
                "git log --all --format=%s; git tag; git remote; git reflog; git stash list",
                "git fsck --unreachable --lost-found; ls .git/packed-refs .git/logs",
                "git log --all -S 'a + b' --format=%H; git show origin/main",
                "pytest -q tests 2>&1 | tail -3",
            )
        ]
    finally:
        await env.close()
    assert said[0] == "(exit 0)" and said[1] == "(exit 0)\nbase"
    assert "dangling" not in said[2] and said[2].count("No such file") == 2
    assert "unknown revision" in said[3] and "1 passed" in said[4]


async def test_a_task_that_is_broken_is_no_reward() -> None:
    env = SWEEnv()
    for changes in (
        {"FAIL_TO_PASS": "["},
        {"FAIL_TO_PASS": []},
        {"source": {"kind": "git", "path": "/nowhere", "commit": "x"}},
        {"source": {"kind": "cloud"}},
        {"test_patch": DATA["patch"].replace("a - b", "other")},
        {"parser": "nose"},
    ):
        with pytest.raises(TaskError):
            await env.reset(options={"task": task(**changes)})
    with pytest.raises(TaskError):
        await env.reset(options={"task": Task(id="x", env="swe", instruction="", data={})})
    with pytest.raises(UsageError, match="reward"):
        SWEEnv(reward="both")
    await env.close()


async def test_an_agent_whose_sandbox_died_gets_no_reward() -> None:
    env = SWEEnv()
    await env.reset(options={"task": TASK})
    assert env.sandbox is not None
    await env.sandbox.close()
    with pytest.raises(InfrastructureError):
        await env.step(Message(role="assistant", content=block("ls")))
    await env.close()


async def test_a_tree_too_large_to_take_out_is_the_policys_fault() -> None:
    result = await play("for n in 1 2 3 4 5; do truncate -s 250M big$n; done; ls")
    assert result.reward == 0.0 and "cannot be read" in result.info["failed"][0]


async def grade(patch: str, given: Task = TASK):
    instance = instance_of(given)
    return await grade_patch(instance, trees_of(instance), patch)


async def test_a_patch_from_elsewhere_is_normalised_or_told_not_to_apply() -> None:
    assert (await grade(DATA["patch"].rstrip("\n"))).resolved
    report = await grade("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-no\n+yes\n")
    assert (report.applied, report.resolved) == (False, False) and "does not apply" in report.failed[0]


async def test_tests_that_hang_are_the_patchs_fault() -> None:
    hang = patches.diff(tree_of(FILES), tree_of(FIXED | {"calc/__init__.py": "while True: pass\n"}))
    report = await grade(hang, task(timeout_s=3.0))
    assert (report.timed_out, report.resolved, report.fail_to_pass) == (True, False, 0.0)


async def test_tests_that_cannot_be_started_are_nobodys_reward() -> None:
    with pytest.raises(InfrastructureError, match="could not be started"):
        await grade(DATA["patch"], task(test_command="no-such-program -v"))


async def test_a_command_and_a_parser_of_the_tasks_own() -> None:
    given = task(
        test_patch="",
        test_command="python3 -c 'import calc; assert calc.add(1, 1) == 2'",
        parser="exit",
        FAIL_TO_PASS=["exit"],
        PASS_TO_PASS=[],
    )
    assert (await grade(DATA["patch"], given)).resolved and not (await grade("", given)).resolved
    unit = "import unittest, calc\n\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(calc.add(1, 1), 2)\n"
    given = task(
        test_patch=patches.diff(tree_of(FILES), tree_of(FILES | {"tests/test_u.py": unit})),
        test_command="python3 -m unittest -v tests.test_u",
        parser="unittest",
        FAIL_TO_PASS=["test_a (tests.test_u.T)"],
        PASS_TO_PASS=[],
    )
    assert (await grade(DATA["patch"], given)).resolved and not (await grade("", given)).resolved


async def test_at_least_so_many_other_tests_pass() -> None:
    given = task(PASS_TO_PASS=[], pass_at_least=1, tests=["tests"])
    assert (await grade(DATA["patch"], given)).resolved
    report = await grade(DATA["patch"], task(PASS_TO_PASS=[], pass_at_least=2, tests=["tests"]))
    assert (report.resolved, report.pass_to_pass) == (False, 0.5)


async def test_a_patch_of_any_length_goes_through_the_oracle() -> None:
    long = FIXED | {"big.txt": "x" * 60_000 + "\n" + "line of text\r\n" * 9_000, "b.bin": "\0\x80" * 99}
    patch = patches.diff(tree_of(FILES), tree_of(long))
    assert len(apply_commands(patch)) > 4
    sandbox = open_sandbox()
    await sandbox.start()
    try:
        await sandbox.upload(patches.write_tar(tree_of(FILES)))
        for command in ("git init -q", *apply_commands(patch)):
            result = await sandbox.run(command)
            assert result.exit_code == 0, result
        assert patches.read_tar(await sandbox.download(".")) == tree_of(long)
    finally:
        await sandbox.close()


async def test_a_task_may_name_the_solved_tree_instead_of_patches() -> None:
    both = {path: TESTED[path] if path.startswith("tests/") else FIXED[path] for path in FILES}
    data = {key: value for key, value in DATA.items() if "patch" not in key}
    given = Task(
        id="calc",
        env="swe",
        instruction="",
        data=data | {"fixed": {"kind": "files", "files": both}, "test_paths": ["tests"]},
    )
    trees = trees_of(instance_of(given))
    assert (trees.patch, trees.changed_tests) == (DATA["patch"], {"tests/test_calc.py"})
    assert (await grade(DATA["patch"], given)).resolved and not (await grade("", given)).resolved
    agentgym.check_env(SWEEnv(), [given]).raise_for_failures()
