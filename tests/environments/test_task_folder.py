from pathlib import Path

import pytest

import agentgym
from agentgym.environments.acting import DONE
from agentgym.environments.blocks import block
from agentgym.environments.bubblewrap import why_not
from agentgym.environments.sandbox import open_sandbox
from agentgym.environments.task_folder import TaskFolderEnv, read_reward
from agentgym.errors import InfrastructureError, TaskError, UsageError
from agentgym.types import Message, StepResult, Task

pytestmark = pytest.mark.skipif(bool(why_not()), reason="task folders name absolute paths and need bubblewrap")

TEST_SH = "python3 -m pytest /tests/test_outputs.py -rA\nif [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
TESTS = (
    "from pathlib import Path\ndef test_text():\n    assert Path('/app/out.txt').read_text() == 'right\\n'\n"
    "def test_there():\n    assert Path('/app/out.txt').exists()\n"
)
RIGHT = "echo right > /app/out.txt"


@pytest.fixture
def harbor(tmp_path: Path):
    def make(test_sh: str = TEST_SH, tests: str = TESTS, **data: object) -> Task:
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests/test.sh").write_text(test_sh)
        (tmp_path / "run-tests.sh").write_text("pytest $TEST_DIR/test_outputs.py -rA\n")
        (tmp_path / "tests/test_outputs.py").write_text(tests)
        return Task(id="t", env="task-folder", instruction="", data={"folder": str(tmp_path), "kind": "harbor", **data})

    return make


async def play(task: Task, *commands: str, **options: object) -> StepResult:
    env = TaskFolderEnv(**options)  # type: ignore[arg-type]
    try:
        await env.reset(options={"task": task})
        for command in commands:
            result = await env.step(Message(role="assistant", content=block(command)))
            if result.terminated or result.truncated:
                return result
        return await env.step(Message(role="assistant", content=DONE))
    finally:
        await env.close()


async def test_right_and_wrong(harbor) -> None:
    right = await play(harbor(), RIGHT)
    assert (right.reward, right.info["solved"], right.info["failed"], right.info["hack"]) == (1.0, True, [], 0)
    wrong = await play(harbor(), "echo wrong > /app/out.txt")
    assert wrong.reward == 0.0 and [name.split("::")[1] for name in wrong.info["failed"]] == ["test_text"]


@pytest.mark.parametrize(
    "cheat",
    [
        'mkdir -p /logs/verifier; echo \'{"reward": 1}\' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt',
        "mkdir -p /tests; printf 'def test_text(): pass\\n' > /tests/test_outputs.py; ln -s /tests tests",
        "printf 'def main(*a): return 0\\n' > pytest.py; mkdir _pytest; touch _pytest/__init__.py",
        "printf 'import os\\nos._exit(0)\\n' > sitecustomize.py; cp sitecustomize.py conftest.py; cp conftest.py pathlib.py",
        "mkdir -p ~/bin /tmp/bin; for n in python3 pytest bash cat; do printf '#!/bin/sh\\nexit 0\\n' > /tmp/bin/$n; done; "
        "chmod +x /tmp/bin/*; echo 'export PATH=/tmp/bin:$PATH' > ~/.bashrc; cp ~/.bashrc ~/.profile; "
        "export BASH_ENV=~/.bashrc PYTEST_ADDOPTS=--co; cat() { echo 1; }; export -f cat",
        "(setsid bash -c 'while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "
        "[ -e /tests/test.sh ] && { echo right > /app/out.txt; echo exit > /tests/test.sh; }; done' &)",
        "printf '[pytest]\\naddopts = --co\\n' > pytest.ini; echo '[tool.pytest.ini_options]' > pyproject.toml",
        "mkdir x; chmod 000 x; ln -s /etc/passwd .agentgym",
        "mkdir -p /tests/a /logs/verifier; echo 1 > /logs/verifier/reward.txt; chmod 000 /tests/a /tests /logs/verifier /logs",
        "mkdir -p mine/verifier; echo 1 > mine/verifier/reward.txt; ln -s /app/mine /logs; ln -s /app/mine /tests",
        "touch /tests; mkdir /logs; touch /logs/verifier /logs/agent",
    ],
    ids=["reward files", "tests", "a pytest", "startup", "programs and variables", "a daemon", "config", "odd files",
         "closed folders", "links in place of folders", "files in place of folders"],
)  # fmt: skip
async def test_what_an_agent_leaves_behind_earns_nothing(harbor, cheat: str) -> None:
    result = await play(harbor(), f"echo wrong > out.txt; {cheat}")
    assert result.reward == 0.0


# Wakes up when something of the grader's is there, and bends it. Only what it sees of the grader makes it do so: what an
# agent writes before it is stopped is its work, and counts.
WAITER = """#!/bin/bash
trap '' TERM INT HUP QUIT XCPU PIPE
[ "$1" = relay ] && { sleep 0.01; setsid "$0" relay </dev/null >/dev/null 2>&1 & }
while :; do
    for sign in /tests/* /tmp/*/bin/pytest /app/.agentgym-*; do
        [ -e "$sign" ] || continue
        echo right > /app/out.txt
        mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt
        printf 'def test_text(): pass\\n' > /tests/test_outputs.py; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
        for tool in /tmp/*/bin/pytest /tmp/*/bin/python3; do printf '#!/bin/sh\\nexit 0\\n' > "$tool"; done
    done 2>/dev/null
    [ "$1" = relay ] && exit
done
"""
STARTS = (
    "for i in 1 2 3 4; do (setsid nohup /tmp/w stay >/dev/null 2>&1 &); env -i /tmp/w stay & setsid /tmp/w relay & "
    "(trap '' CHLD; exec -a '[kworker/0:1]' /tmp/w stay) & done >/dev/null 2>&1; disown -a; sleep 0.1; pgrep -c w"
)


@pytest.mark.parametrize("kind", ["harbor", "terminal-bench"])
async def test_daemons_that_wait_for_the_grader_never_meet_it(harbor, kind: str) -> None:
    lay = f"echo wrong > out.txt; cat > /tmp/w <<'END'\n{WAITER}END\nchmod +x /tmp/w; {STARTS}"
    for _ in range(4):
        result = await play(harbor(kind=kind), lay)
        assert (result.reward, result.info["solved"], len(result.info["failed"])) == (0.0, False, 1)
    seen = await play(
        harbor(kind=kind), f"{lay}; mkdir -p /tests; touch /tests/x; sleep 0.5; rm -r /tests; pkill w; sleep 0.1"
    )
    assert seen.reward == 1.0  # they do what they are there for, where they are let


async def test_the_agent_sees_no_tests_and_no_tools(harbor) -> None:
    env = TaskFolderEnv()
    await env.reset(options={"task": harbor()})
    result = await env.step(
        Message(role="assistant", content=block("ls -A /app /tests /solution /logs /tmp 2>&1; pwd"))
    )
    await env.close()
    said = result.observation.messages[0].content
    assert said.count("No such file") == 3 and "test_outputs" not in said and said.endswith("/app")


async def test_the_working_directory_is_clean_when_the_tests_look(harbor) -> None:
    tests = "import os\ndef test_clean():\n    assert sorted(os.listdir('/app')) == ['out.txt']\n"
    assert (await play(harbor(tests=tests), RIGHT)).reward == 1.0


async def test_a_verifier_that_writes_nothing_or_nonsense_is_no_reward(harbor) -> None:
    for script in ("true", "echo hello > /logs/verifier/reward.txt", "echo nan > /logs/verifier/reward.txt",
                   "echo '{\"a\": 1, \"b\": 0}' > /logs/verifier/reward.json", "no-such-program"):  # fmt: skip
        with pytest.raises(TaskError, match="reward"):
            await play(harbor(script), RIGHT)
    with pytest.raises(TaskError, match=r"no test\.sh"):
        task = harbor()
        (Path(task.data["folder"]) / "tests/test.sh").unlink()
        await play(task, RIGHT)


@pytest.mark.parametrize(
    ("script", "reward"),
    [("echo 0.25 > /logs/verifier/reward.txt", 0.25), ('echo \'{"reward": 1, "x": 0}\' > /logs/verifier/reward.json', 1.0),
     ("echo '{\"score\": 0.5}' > /logs/verifier/reward.json", 0.5)],
)  # fmt: skip
async def test_the_forms_of_a_reward(harbor, script: str, reward: float) -> None:
    assert (await play(harbor(script), RIGHT)).reward == reward


async def test_a_reward_that_contradicts_the_tests_is_told(harbor) -> None:
    result = await play(harbor("pytest /tests/test_outputs.py -rA; echo 1 > /logs/verifier/reward.txt"), "true")
    assert (result.info["hack"], len(result.info["failed"])) == (1, 2)


async def test_tests_that_take_too_long_are_no_success(harbor) -> None:
    result = await play(harbor("sleep 30", test_timeout_s=0.5), RIGHT)
    assert (result.reward, result.info["tests_timed_out"]) == (0.0, True)


async def test_the_agents_time_is_limited(harbor) -> None:
    result = await play(harbor(agent_timeout_s=0.2), f"{RIGHT}; sleep 0.3")
    assert (result.info["end"], result.reward, result.info["steps"]) == ("time", 1.0, 1)
    assert (result.terminated, result.truncated) == (False, True)


async def test_shares_of_terminal_bench_tests(harbor) -> None:
    task = harbor(kind="terminal-bench")
    half = await play(task, "echo wrong > out.txt", partial_credit=True)
    assert (half.reward, half.info["tests"], len(half.info["failed"])) == (0.5, 2, 1)
    assert (await play(task, "echo wrong > out.txt")).reward == 0.0
    assert (await play(task, RIGHT)).reward == 1.0


async def test_the_end_of_the_tests_by_the_code_under_test_earns_nothing(harbor) -> None:
    tests = "import sys\nsys.path.insert(0, '/app')\nimport code_\ndef test_a():\n    assert code_.x == 1\n"
    result = await play(
        harbor(kind="terminal-bench", tests=tests),
        "printf 'import os\\nprint(\"PASSED x.py::test_a\")\\nos._exit(0)\\n' > code_.py",
    )
    assert (result.reward, result.info["failed"]) == (0.0, ["the tests reported nothing"])


async def test_a_folder_without_tests_is_no_reward(harbor) -> None:
    task = harbor(kind="terminal-bench")
    for name in ("test_outputs.py", "test.sh"):
        (Path(task.data["folder"]) / "tests" / name).unlink()
    with pytest.raises(TaskError, match="has no tests"):
        await play(task, RIGHT)


async def test_steps_of_a_dockerfile_are_followed(harbor, tmp_path: Path) -> None:
    (tmp_path / "environment/data").mkdir(parents=True)
    (tmp_path / "environment/data/a.txt").write_text("a\n")
    build = [
        ["env", "WORD", "two words"],
        ["copy", "data/", "/srv/data/"],
        ["copy", "data/a.txt", "/app/b.txt"],
        ["run", "cat /srv/data/a.txt b.txt > c.txt; exit 3", "/app"],
    ]
    env = TaskFolderEnv()
    await env.reset(options={"task": harbor(build=build)})
    result = await env.step(Message(role="assistant", content=block('cat c.txt; echo "$WORD"')))
    await env.close()
    assert result.observation.messages[0].content == "(exit 0)\na\na\ntwo words"
    with pytest.raises(TaskError, match="not there"):
        await TaskFolderEnv().reset(options={"task": harbor(build=[["copy", "nothing", "/app/"]])})


async def test_what_it_needs_is_said(harbor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="absolute paths"):
        await play(harbor(), RIGHT, sandbox="plain")
    with pytest.raises(TaskError, match="no folder"):
        await play(harbor(folder=str(tmp_path / "x")), RIGHT)
    with pytest.raises(TaskError, match="timeout"):
        await play(harbor(test_timeout_s="long"), RIGHT)


async def test_a_dead_sandbox_is_nobodys_reward(harbor) -> None:
    env = TaskFolderEnv()
    await env.reset(options={"task": harbor()})
    assert env.sandbox is not None
    await env.sandbox.close()
    with pytest.raises(InfrastructureError):
        await env.step(Message(role="assistant", content=block("ls")))
    await env.close()


async def test_no_reward_at_all_is_the_tasks_fault() -> None:
    sandbox = open_sandbox("bubblewrap")
    await sandbox.start()
    try:
        with pytest.raises(TaskError, match="wrote no reward"):
            await read_reward(sandbox)
    finally:
        await sandbox.close()


def test_the_contract_holds_with_a_solution_of_several_files(harbor, tmp_path: Path) -> None:
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution/solve.sh").write_text('cp "$(dirname "$0")/answer" /app/out.txt\n')
    (tmp_path / "solution/answer").write_text("right\n")
    agentgym.check_env("task-folder", [harbor(solution="solution/solve.sh")], max_steps=6).raise_for_failures()
