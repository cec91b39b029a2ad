import subprocess
from pathlib import Path

import pytest

from agentgym.environments.patches import (
    EXECUTABLE,
    LINK,
    Blob,
    PatchError,
    apply,
    diff,
    fresh_repository,
    normalise,
    read_commit,
    read_tar,
    tree_of,
    write_tar,
)
from agentgym.errors import UsageError

BASE = tree_of({"a.py": "one\ntwo\nthree\n", "docs/b.txt": "x" * 200 + "\n" + "y" * 200, "gone.txt": "bye\n"})
PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"

CHANGES = {
    "nothing": dict(BASE),
    "text": BASE | {"a.py": Blob(content=b"one\n2\nthree\n")},
    "new": BASE | {"new/deep.py": Blob(content=b"hello\n"), "stray": Blob(content=b"no newline")},
    "binary": BASE | {"image.png": Blob(content=bytes(range(256)) * 4)},
    "latin-1": BASE | {"a.py": Blob(content="café\n".encode("latin-1"))},
    "crlf": BASE | {"a.py": Blob(content=b"one\r\ntwo\r\nthree\r\n")},
    "mode": BASE | {"a.py": Blob(mode=EXECUTABLE, content=BASE["a.py"].content)},
    "link": BASE | {"a.py": Blob(mode=LINK, content=b"docs/b.txt")},
    "deleted": {path: blob for path, blob in BASE.items() if path != "gone.txt"},
    "renamed": {"a.py": BASE["a.py"], "gone.txt": BASE["gone.txt"], "moved/c.txt": BASE["docs/b.txt"]},
    "odd names": BASE | {'q"uote \\ ü.py': Blob(content=b"1\n"), "line\nbreak": Blob(content=b"2\n")},
    "file to folder": {"a.py/x": Blob(content=b"1\n"), **{k: v for k, v in BASE.items() if k != "a.py"}},
    "empty": BASE | {"empty": Blob()},
    "not utf-8 name": BASE | {"caf\udce9": Blob(content=b"\xff\n")},
}


@pytest.mark.parametrize("after", CHANGES.values(), ids=CHANGES)
def test_a_patch_makes_the_one_tree_into_the_other(after) -> None:
    patch = diff(BASE, after)
    patch.encode()  # plain text, whatever the trees hold
    assert apply(BASE, patch) == after
    assert read_tar(write_tar(after)) == dict(sorted(after.items()))


def test_a_rename_is_told_as_one() -> None:
    assert "rename to moved/c.txt" in diff(BASE, CHANGES["renamed"])


@pytest.mark.parametrize(
    "given",
    [
        PATCH.rstrip("\n"),
        f"```diff\n{PATCH}```",
        PATCH.replace("-1,3 +1,3", "-1,9 +1,7"),
        f"{PATCH}\n\n",
        PATCH.replace(" one\n", "").replace("-1,3 +1,3", "-2,2 +2,2"),
    ],
    ids=["no final newline", "fenced", "wrong counts", "newlines at the end", "short context"],
)
def test_what_people_do_to_patches_is_mended(given: str) -> None:
    assert apply(BASE, given)["a.py"].content == b"one\nTWO\nthree\n"


def test_a_patch_whose_last_empty_context_line_was_stripped_applies() -> None:
    base = tree_of({"a.py": "one\ntwo\n\n"})
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n \n".strip()
    assert apply(base, patch)["a.py"].content == b"one\n2\n\n"


@pytest.mark.parametrize(
    "patch",
    [
        PATCH.replace("two", "other"),
        "garbage",
        "--- a/../out\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/.git/config b/.git/config\nnew file mode 100644\n--- /dev/null\n+++ b/.git/config\n@@ -0,0 +1 @@\n+x\n",
    ],
)
def test_a_patch_that_does_not_apply_or_leads_out_is_refused(patch: str) -> None:
    with pytest.raises(PatchError):
        apply(BASE, patch)


def test_an_empty_patch_changes_nothing() -> None:
    assert normalise(" \n") == "" and apply(BASE, "") == BASE


def test_attributes_and_filters_in_a_tree_do_nothing(tmp_path: Path) -> None:
    hostile = BASE | {".gitattributes": Blob(content=b"* filter=evil diff=evil -text\n*.py text eol=crlf\n")}
    after = hostile | {"a.py": Blob(content=b"one\r\n\xff\n")}
    assert apply(hostile, diff(hostile, after)) == after


def test_caches_and_nested_repositories_are_left_out() -> None:
    tree = BASE | tree_of({"x/.git/config": "evil", "x/__pycache__/a.pyc": "", "b.pyc": "", ".agentgym/t": ""})
    assert read_tar(write_tar(tree)) == BASE


def test_a_fresh_repository_holds_one_commit(tmp_path: Path) -> None:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(fresh_repository(BASE))) as archive:
        archive.extractall(tmp_path, filter="data")
    with tarfile.open(fileobj=io.BytesIO(write_tar(BASE))) as archive:
        archive.extractall(tmp_path, filter="data")

    def git(*arguments: str) -> str:
        command = ["git", "-c", "safe.directory=*", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert git("status", "--porcelain") == ""
    assert git("log", "--all", "--format=%s") == "base\n"
    assert git("tag") == git("remote") == git("reflog") == git("fsck", "--unreachable", "--no-progress") == ""
    assert not (tmp_path / ".git/logs").exists() and not (tmp_path / ".git/packed-refs").exists()
    assert read_commit(tmp_path, "HEAD") == BASE
    (tmp_path / ".gitattributes").write_text("docs export-ignore\na.py export-subst\n")
    (tmp_path / "run").symlink_to("a.py")
    git("add", "-A")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "more")
    more = read_commit(tmp_path, "HEAD")
    assert more["docs/b.txt"] == BASE["docs/b.txt"] and more["run"] == Blob(mode=LINK, content=b"a.py")
    with pytest.raises(UsageError, match="no such commit"):
        read_commit(tmp_path, "0" * 40)
    with pytest.raises(UsageError, match="not a git repository"):
        read_commit(tmp_path / "docs", "HEAD")
