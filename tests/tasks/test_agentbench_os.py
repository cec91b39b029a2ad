import json
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym.environments.acting import DONE
from agentgym.environments.agentbench_os import AgentBenchOSEnv, answer, same
from agentgym.environments.blocks import block
from agentgym.environments.bubblewrap import why_not
from agentgym.errors import InfrastructureError, TaskError, UsageError
from agentgym.tasks.agentbench_os import AgentBenchOS, at_home, read_files
from agentgym.types import Message, StepResult, Task

walls = pytest.mark.skipif(bool(why_not()), reason="these tasks name absolute paths and need bubblewrap")
INTEGER = [None, {"language": "python", "file": "check/integer-match.py"}]
ROWS: list[dict[str, Any]] = [
    {
        "id": 0,
        "description": "How many .dat files are in /root?",
        "create": {"init": {"code": "touch /root/a.dat /root/b.dat /root/c.txt"}},
        "evaluation": {"check": INTEGER, "example": "ls /root | grep -c dat"},
        "labels": ["file"],
    },
    {
        "id": 1,
        "description": "What is in the file?",
        "create": {"init": ["echo <random-string> > word", "mkdir -p /data/x && echo plum > /data/x/y"]},
        "evaluation": {"match": "plum"},
    },
    {
        "id": 2,
        "description": "Make the files in ~/v 600.",
        "create": {"init": "mkdir v; touch v/a v/b"},
        "evaluation": {
            "check": {"code": "[ -z \"$(find ~/v -type f ! -perm 600)\" ]"},
            "example": {"code": "chmod 600 ~/v/*"},
        },
    },
    {
        "id": 3,
        "description": "Make a command hi.",
        "evaluation": {"check": {"file": "checking/0.sh"}, "example": {"file": "example/0.sh"}},
    },
    {"id": 4, "description": "Make a and a/b, and count.", "evaluation": {"check": INTEGER, "example": "mkdir -p a/b; find a -type d | wc -l"}},
    {"id": 5, "description": "How many processes?", "evaluation": {"check": INTEGER, "example": "ps ax 2>/dev/null | grep -c nothing-such-x || true"}},
    {"id": 6, "description": "Which file grows?", "start": "python3 -c 'import time\nwhile True:\n\topen(\"/root/log\", \"a\").write(\"x\")\n\ttime.sleep(0.1)' &", "evaluation": {"match": "log"}},
]  # fmt: skip
LEFT_OUT: list[dict[str, Any]] = [
    {"id": 7, "description": "", "create": {"init": {"code": "useradd x"}}, "evaluation": {"match": "1"}},
    {"id": 8, "description": "", "create": {"init": {"file": "init/x.sh"}}, "evaluation": {"match": "1"}},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "agent_bench_os.json").write_text(json.dumps(ROWS))
    (tmp_path / "agent_bench_os_test.json").write_text(json.dumps(LEFT_OUT))
    for name, text in (
        ("checking/0.sh", '[ "$(hi)" = hello ]'),
        ("example/0.sh", "echo echo hello > hi; chmod +x hi; mv hi /usr/local/bin"),
    ):
        (tmp_path / "scripts" / name).parent.mkdir(parents=True)
        (tmp_path / "scripts" / name).write_text(text)
    return tmp_path


async def play(task: Task, *texts: str) -> StepResult:
    env = AgentBenchOSEnv()
    try:
        await env.reset(options={"task": task})
        for text in texts:
            result = await env.step(Message(role="assistant", content=text))
        return result
    finally:
        await env.close()


@walls
def test_each_form_of_task_is_solved_by_its_oracle_and_not_by_doing_nothing(data: Path) -> None:
    report = agentgym.check_tasks("agentbench/os", options={"path": str(data)}, concurrency=2)
    assert (report.failures, report.checked) == ((), len(ROWS))


def test_what_cannot_be_played_is_left_out_with_a_reason(data: Path) -> None:
    tasks = AgentBenchOS(str(data))
    assert tasks.tasks("test") == [] and tasks.skipped == {
        "agentbench/os/test/7": "it must be root",
        "agentbench/os/test/8": "scripts/init/x.sh is missing",
    }
    assert [task.id for task in AgentBenchOS(str(data), root=True).tasks("test")] == ["agentbench/os/test/7"]
    first, second = tasks.tasks("train")[:2]
    assert (first.family, second.family) == ("file", "os") and "b7c1f0e2" in second.data["init"][0]
    assert "/root" not in json.dumps(first.data)
    with pytest.raises(UsageError, match="split"):
        tasks.tasks("dev")
    with pytest.raises(UsageError, match="not the wheel"):
        read_files(str(data / "agent_bench_os.json"))


@walls
async def test_answers_and_changes(data: Path) -> None:
    tasks = AgentBenchOS(str(data)).tasks("train")
    assert (await play(tasks[0], block("ls"), "I counted.\nAnswer: 2")).reward == 1.0
    assert (await play(tasks[0], block("ls"), "**2**")).reward == 1.0
    assert (await play(tasks[0], block("ls"), "Answer: 3")).reward == 0.0
    assert (await play(tasks[0], block("ls"), DONE)).reward == 0.0
    assert (await play(tasks[2], block("chmod 600 v/a"), DONE)).reward == 0.0
    assert (await play(tasks[4], block("mkdir -p a/b"), "2")).reward == 1.0


@walls
async def test_changing_the_question_earns_nothing(data: Path) -> None:
    tasks = AgentBenchOS(str(data)).tasks("train")
    assert (await play(tasks[0], block("rm *.dat"), "Answer: 0")).reward == 0.0
    tricks = "ls() { echo dat; }; export -f ls; printf '#!/bin/sh\\necho dat\\n' > grep; chmod +x grep; PATH=~:$PATH"
    assert (await play(tasks[0], block(tricks), "Answer: 1")).reward == 0.0


@walls
async def test_the_check_has_a_shell_that_the_agent_never_spoke_to(data: Path) -> None:
    tasks = AgentBenchOS(str(data)).tasks("train")
    forged = "function /usr/bin/env { echo 7; return 0; }; builtin() { command builtin \"$@\"; }; trap 'echo 7' DEBUG"
    assert (await play(tasks[2], block(forged), DONE)).reward == 0.0
    assert (await play(tasks[4], block(forged), "Answer: 7")).reward == 0.0


@walls
async def test_a_broken_task_is_no_reward(data: Path) -> None:
    with pytest.raises(TaskError, match="no evaluation"):
        await play(Task(id="x", env="agentbench-os", instruction=""))
    lost = Task(id="x", env="agentbench-os", instruction="", data={"evaluation": {"check": {"file": "lost.sh"}}})
    with pytest.raises(TaskError, match="no command"):
        await play(lost, block("true"), DONE)


@pytest.mark.parametrize(
    ("given", "right", "matcher", "expected"),
    [("4", "4", "integer", True), (" 04 ", "4", "integer", True), ("4.0", "4", "integer", False), ("four", "4", "integer", False),
     ("12K", "12288", "size", True), ("1.5 MB", "1536K", "size", True), ("12X", "12", "size", False), ("", "1", "size", False),
     ("a\r\nb", "a\nb", "text", True), ("A", "a", "text", False)],
)  # fmt: skip
def test_when_answers_are_the_same(given: str, right: str, matcher: str, expected: bool) -> None:
    assert same(given, right, matcher) is expected


def test_reading_an_answer_and_paths() -> None:
    assert answer("Answer: 1\nno, answer: `2`") == "2" and answer(" plum\n") == "plum" and answer("Answer:") == ""
    assert at_home({"a": ["/root/x", 1], "b": "/usr/y"}) == {"a": ["/home/agent/x", 1], "b": "/home/agent/y"}


def published() -> AgentBenchOS:
    made = AgentBenchOS()
    try:
        made.tasks("train")
    except InfrastructureError as error:
        pytest.skip(f"needs a package index: {error}")
    return made


@walls
def test_some_of_the_published_tasks() -> None:
    made = published()
    report = agentgym.check_tasks(made, limit=4, concurrency=2)
    assert (report.failures, report.checked) == ((), 8)
    assert len(made.tasks("train")) + len(made.tasks("test")) >= 120


@walls
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_published_tasks_that_need_no_image() -> None:
    report = agentgym.check_tasks(published(), concurrency=2)
    failed = {failure.task_id for failure in report.failures}
    assert report.checked - len(failed) >= 120, report.failures
