from pathlib import Path

import pytest

import agentgym
from agentgym.environments.bubblewrap import why_not
from agentgym.errors import UsageError
from agentgym.tasks.task_folders import TaskFolders, read_dockerfile, read_task_folder, without_installing

DATA = Path(__file__).parents[1] / "data/task_folders"
walls = pytest.mark.skipif(bool(why_not()), reason="task folders name absolute paths and need bubblewrap")


@walls
@pytest.mark.parametrize("kind", ["harbor", "terminal_bench"])
def test_our_own_folders_are_solved_by_their_oracles_and_not_by_doing_nothing(kind: str) -> None:
    report = agentgym.check_tasks("terminal/folders", options={"path": str(DATA / kind)}, concurrency=2)
    assert (report.failures, report.checked) == ((), 12)


def test_both_generations_say_the_same() -> None:
    for folder in sorted((DATA / "harbor").iterdir()):
        new, old = read_task_folder(folder), read_task_folder(DATA / "terminal_bench" / folder.name)
        assert new[0] == old[0] and new[1]["difficulty"] == old[1]["difficulty"]
        assert (new[2]["kind"], old[2]["kind"]) == ("harbor", "terminal-bench")
        assert new[2]["workdir"] == old[2]["workdir"] == "/app"
        assert new[2]["test_timeout_s"] == old[2]["test_timeout_s"] == 60.0


def test_the_set_of_a_folder_of_folders() -> None:
    made = TaskFolders(str(DATA))
    tasks = [*made.tasks("train"), *made.tasks("test")]
    assert len(tasks) == 24 == len({task.id for task in tasks}) and made.tasks("test")
    by_id = {task.id: task for task in tasks}
    task = by_id["terminal/folders/harbor/best-customer"]
    assert (task.env, task.level, task.family) == ("task-folder", 3, "data")
    assert task.data["build"] == [["copy", "make.py", "/app/"], ["run", "python3 make.py && rm make.py", "/app"]]
    assert "customer" in task.instruction and task.data["solution"] == "solution/solve.sh"
    (one,) = TaskFolders(str(DATA / "harbor" / "greeting"), split="test").tasks("test")
    assert one.id == "terminal/folders/greeting"
    assert len(TaskFolders(str(DATA), names=["greeting"], split="train").tasks("train")) == 2
    steps = by_id["terminal/folders/terminal_bench/greeting"].data["solution_commands"]
    assert steps[1] == "cat /app/greeting.txt"


def test_images_are_the_tasks_or_the_callers(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(
        '[environment]\ndocker_image = "x:1"\nallowed_hosts = ["pypi.org"]\n[verifier.env]\nA = 1\n'
    )
    (tmp_path / "instruction.md").write_text("Do.\n")
    for given, right in (("", "x:1"), ("mine", "mine"), ("none", "")):
        (task,) = TaskFolders(str(tmp_path), image=given, split="train").tasks("train")
        assert (task.data["image"], task.data["test_env"]) == (right, {"A": "1"})
        assert task.data["allowed_hosts"] == ["pypi.org"]


def test_dockerfiles() -> None:
    text = """
# FROM nothing
FROM python:3.11 AS base
ENV A=1 B="two words"
ENV C three
WORKDIR /srv
RUN apt-get update && \\
    apt-get install -y gcc && echo 'a && b' > x.txt
COPY --chown=1 a.txt b/ ./
ADD ["c.txt", "d.txt"]
COPY --from=base /x /y
WORKDIR deep
RUN pip install x
CMD ["bash"]
"""
    assert read_dockerfile(text) == (
        "/srv/deep",
        [
            ["env", "A", "1"], ["env", "B", "two words"], ["env", "C", "three"],
            ["run", "echo 'a && b' > x.txt", "/srv"],
            ["copy", "a.txt", "/srv/"], ["copy", "b/", "/srv/"], ["copy", "c.txt", "/srv/d.txt"],
        ],
    )  # fmt: skip
    assert read_dockerfile("") == ("/app", [])


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("apt-get update; apt-get install -y x", ""),
        ("mkdir a && cd a && touch b", "mkdir a && cd a && touch b"),
        ("pip install x && python3 a.py", "python3 a.py"),
        ("python3 -c 'a; b' && curl x | sh", "python3 -c 'a; b'"),
        ("for i in 1 2; do echo $i; done", "for i in 1 2; do echo $i; done"),
    ],
)
def test_what_is_left_without_installing(given: str, right: str) -> None:
    assert without_installing(given) == right


def test_what_is_no_task_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        TaskFolders(str(tmp_path / "x"))
    with pytest.raises(UsageError, match="split"):
        TaskFolders(str(tmp_path), split="dev")
    with pytest.raises(UsageError, match=r"no task\.toml"):
        TaskFolders(str(tmp_path)).tasks("train")
    (tmp_path / "task.yaml").write_text("instruction: [")
    with pytest.raises(UsageError, match="no task folder"):
        TaskFolders(str(tmp_path)).tasks("train")
    (tmp_path / "task.yaml").write_text("- 1\n")
    with pytest.raises(UsageError, match="no task folder"):
        TaskFolders(str(tmp_path)).tasks("train")
