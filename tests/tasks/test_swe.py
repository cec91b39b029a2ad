import json
import subprocess
import tarfile
from pathlib import Path

import pytest

import agentgym
from agentgym.environments import grading
from agentgym.environments.blocks import block
from agentgym.environments.swe import SWEEnv
from agentgym.environments.swe_grade import instance_of
from agentgym.errors import InfrastructureError, TaskError, UsageError
from agentgym.tasks.swe import QuixBugs, SWEBench
from agentgym.tasks.swe_pairs import PypiPairs, instruction, release_notes, source_archive
from agentgym.types import Message, Task
from tests.environments.test_swe import DATA, FILES, FIXED

SHARED = Path(__file__).parents[3] / "shared/data/swe"
PAIRS = SHARED / "pypi_version_pairs.json"
QUICK = ["wcwidth", "xmltodict"]
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data")
ROW = {"instance_id": "a__calc-1", "problem_statement": "add is wrong.", "repo": "a/calc", "version": "1", **DATA}


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the fix in its future: a commit, a tag, a branch of a remote, a stash and a reflog."""
    folder = tmp_path / "repos" / "a__calc"
    put(folder, FILES)
    git(folder, "init", "-q")
    for message in ("base", "future fix"):
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", message)
        put(folder, FIXED)
    git(folder, "tag", "v2")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(folder, "gc", "-q")
    return folder


def rows(tmp_path: Path, clone: Path, name: str = "rows.jsonl") -> Path:
    row = {key: value for key, value in ROW.items() if key != "source"} | {
        "base_commit": git(clone, "rev-parse", "HEAD~1")
    }
    path = tmp_path / name
    path.write_text(json.dumps(row) + "\n" if name.endswith("l") else json.dumps({"rows": [{"row": row}]}))
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_rows_on_a_local_repository(tmp_path: Path, clone: Path, name: str) -> None:
    options = {"path": str(rows(tmp_path, clone, name)), "repositories": str(tmp_path / "repos"), "split": "test"}
    report = agentgym.check_tasks("swe/bench", options=options)
    assert (report.failures, report.checked) == ((), 1)


async def test_nothing_of_the_future_is_within_reach(tmp_path: Path, clone: Path) -> None:
    (task,) = SWEBench(str(rows(tmp_path, clone)), repositories=str(clone), split="test").tasks("test")
    env = SWEEnv()
    await env.reset(options={"task": task})
    looks = (
        "git log --all --oneline -S 'a + b'; git show origin/main; git show v2; git reflog; git stash list; git tag; "
        "git branch -a; git for-each-ref; git config --get-regexp remote; cat .git/packed-refs .git/logs/HEAD; "
        "git fsck --lost-found --no-progress; git cat-file --batch-all-objects --batch-check --unordered | wc -l; "
        "grep -r 'a + b' . --include=*.py; git rev-list --all --count; cat .git/shallow .git/objects/info/alternates"
    )
    result = await env.step(Message(role="assistant", content=block(looks)))
    said = result.observation.messages[0].content
    await env.close()
    assert "future" not in said and "a + b" not in said and "v2" not in said.replace("'v2'", "")
    assert said.count("refs/heads/main") == 1 and "refs/tags" not in said and "refs/remotes" not in said
    objects = [line for line in said.splitlines() if line.isdigit()]
    assert objects == [str(len(FILES) + 3 + 1), "1"]  # files, the three trees and the one commit


def test_rows_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no"):
        SWEBench(str(tmp_path / "x.json"))
    path = tmp_path / "rows.json"
    path.write_text("[")
    with pytest.raises(UsageError, match="not JSON"):
        SWEBench(str(path)).tasks("train")
    path.write_text('[{"instance_id": "x"}]')
    with pytest.raises(UsageError, match="without problem_statement"):
        SWEBench(str(path)).tasks("train")
    with pytest.raises(UsageError, match="split"):
        SWEBench(str(path), split="dev")
    with pytest.raises(UsageError, match="split"):
        SWEBench(str(path)).tasks("dev")


async def test_a_clone_that_is_not_there_is_the_tasks_fault(tmp_path: Path, clone: Path) -> None:
    (task,) = SWEBench(str(rows(tmp_path, clone)), repositories=str(tmp_path), split="test").tasks("test")
    with pytest.raises(TaskError, match="not a git repository"):
        await SWEEnv().reset(options={"task": task})


@shared
def test_published_rows_are_read() -> None:
    tasks: list[Task] = []
    for file in sorted(SHARED.glob("swebench_*.json")):
        tasks += SWEBench(str(file), split="test", image="eval.{id}:latest").tasks("test")
    assert len(tasks) == 5
    by_id = {task.id.rpartition("/")[2]: task for task in tasks}
    flask = by_id["pallets__flask-5014"]
    instance = instance_of(flask)
    assert instance.fail_to_pass == ("tests/test_blueprints.py::test_empty_name_not_allowed",)
    assert (instance.image, instance.workdir) == ("eval.pallets__flask-5014:latest", "/testbed")
    assert flask.instruction.startswith("Require a non-empty name") and len(instance.pass_to_pass) == 59
    log = "=== short test summary info ===\n" + "".join(f"PASSED {name}\n" for name in instance.fail_to_pass)
    assert grading.share(instance.fail_to_pass, grading.parse_pytest(log)) == 1.0
    sympy = instance_of(by_id["sympy__sympy-24213"])
    assert grading.share(sympy.fail_to_pass, {f"a/test_x.py::{sympy.fail_to_pass[0]}": "passed"}) == 1.0


def test_django_rows_have_their_own_runner(tmp_path: Path) -> None:
    patch = "--- a/tests/auth/test_x.py\n+++ b/tests/auth/test_x.py\n@@ -0,0 +1 @@\n+x\n"
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW | {"repo": "django/django", "test_patch": patch}))
    (task,) = SWEBench(str(path), split="train").tasks("train")
    assert task.data["parser"] == "unittest" and task.data["test_command"].endswith("--parallel 1 auth.test_x")


def test_a_checkout_of_quixbugs(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "conftest.py": "import pytest\ndef pytest_addoption(parser):\n    parser.addoption('--correct', action='store_true')\n"
            "    parser.addoption('--runslow', action='store_true')\ndef pytest_configure(config):\n    pytest.use_correct = False\n",
            "python_testcases/load_testdata.py": "import json, pathlib\ndef load(name):\n"
            "    place = pathlib.Path(__file__).parent / f'../json_testcases/{name}.json'\n"
            "    return [json.loads(line) for line in place.read_text().splitlines()]\n",
            "python_testcases/test_double.py": "import pytest\nfrom load_testdata import load\nfrom python_programs.double import double\n"
            "@pytest.mark.parametrize('given,right', load('double'))\ndef test_double(given, right):\n    assert double(*given) == right\n",
            "json_testcases/double.json": "[[2], 4]\n[[3], 6]\n",
            "python_programs/double.py": "def double(x):\n    return x ** 2\n",
            "correct_python_programs/double.py": "def double(x):\n    return x * 2\n",
        },
    )
    options = {"path": str(tmp_path), "split": "train"}
    report = agentgym.check_tasks("swe/quixbugs", options=options)
    assert (report.failures, report.checked) == ((), 1)
    (task,) = QuixBugs(str(tmp_path), split="train", slow=True).tasks("train")
    assert task.id == "swe/quixbugs/double" and "--runslow" in task.data["pytest_options"]
    with pytest.raises(UsageError, match="no checkout"):
        QuixBugs(str(tmp_path / "json_testcases"))


def pairs(projects: list[str]) -> dict[str, object]:
    if not PAIRS.is_file():
        pytest.skip("needs the shared list of pairs")
    try:
        source_archive("wcwidth", "0.2.9", PypiPairs(str(PAIRS)).cache)
    except InfrastructureError as error:
        pytest.skip(f"needs a package index: {error}")
    return {"path": str(PAIRS), "projects": projects}


def test_pairs_of_released_versions_fail_before_and_pass_after() -> None:
    report = agentgym.check_tasks("swe/pypi", options=pairs(QUICK), concurrency=2)
    assert (report.failures, report.checked) == ((), 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_pairs_fail_before_and_pass_after() -> None:
    projects = {title.split()[0] for title in json.loads(PAIRS.read_text())} if PAIRS.is_file() else set()
    report = agentgym.check_tasks("swe/pypi", options=pairs(sorted(projects - set(QUICK))), concurrency=2)
    assert report.failures == () and report.checked >= 5


def test_what_a_pair_asks_for() -> None:
    options = pairs(["xmltodict"])
    (task,) = PypiPairs(**options, split="train").tasks("train")  # type: ignore[arg-type]
    assert task.id == "swe/pypi/xmltodict-0.13.0-0.14.0" and task.data["pass_at_least"] == 56
    assert "This is xmltodict 0.13.0." in task.instruction and "test_streaming_attrs" in task.instruction


def test_release_notes_are_what_is_new_in_them(tmp_path: Path) -> None:
    archives = []
    for version, text in (("1", "Calc\n1: first\n"), ("2", "Calc\n2: mends add\n1: first\n")):
        put(tmp_path / f"calc-{version}", {"CHANGES.rst": text, "calc/changes.py": "no\n"})
        archives.append(tmp_path / f"calc-{version}.tar.gz")
        with tarfile.open(archives[-1], "w:gz") as archive:
            archive.add(tmp_path / f"calc-{version}", f"calc-{version}")
    assert release_notes(*archives) == "2: mends add"
    asked = instruction("calc", "1", "2", {"f2p": ["tests/t.py::test_add"]}, archives)
    assert "This is calc 1." in asked and "2: mends add" in asked and "- tests/t.py::test_add" in asked


def test_a_pair_that_pip_cannot_get_and_a_list_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no"):
        PypiPairs(str(tmp_path / "x.json"))
    (tmp_path / "x.json").write_text('{"calc 1": {}}')
    with pytest.raises(UsageError, match="NAME OLD->NEW"):
        PypiPairs(str(tmp_path / "x.json")).tasks("train")
    with pytest.raises(UsageError, match="cannot write"):
        (tmp_path / "file").write_text("")
        source_archive("calc", "1", tmp_path / "file" / "cache")
