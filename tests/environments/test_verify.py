import gzip
import io
import tarfile
import zipfile
from typing import Any

import pytest

from agentgym.environments.archive import BadArchive, read_archive
from agentgym.environments.sandbox import Entry, Snapshot
from agentgym.environments.verify import verify
from agentgym.errors import TaskError


def file(content: bytes | str, mode: int = 0o644) -> Entry:
    raw = content.encode() if isinstance(content, str) else content
    return Entry(kind="file", mode=mode, size=len(raw), content=raw)


DIR = Entry(kind="dir", mode=0o755)
BEFORE: Snapshot = {"a": file("one\n"), "d": DIR, "d/x": file("x"), "l": Entry(kind="link", target="a")}


def judge(expectation: dict[str, Any], changes: dict[str, Entry | None]) -> list[str]:
    after = {path: entry for path, entry in {**BEFORE, **changes}.items() if entry is not None}
    return [verdict.why for verdict in verify([expectation], BEFORE, after) if not verdict.ok]


def tar(members: dict[str, str], mode: str = "w:gz") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode) as made:  # type: ignore[call-overload]
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            made.addfile(info, io.BytesIO(text.encode()))
    return raw.getvalue()


def zipped(members: dict[str, str]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as made:
        for name, text in members.items():
            made.writestr(name, text)
    return raw.getvalue()


HOLDS: list[tuple[dict[str, Any], dict[str, Entry | None]]] = [
    ({"kind": "text", "path": "n", "text": "hi"}, {"n": file("hi\n")}),
    ({"kind": "text", "path": "n", "text": "7", "tolerance": "space"}, {"n": file("  7 \n")}),
    ({"kind": "text", "path": "e/f/n", "text": "hi"}, {"e": DIR, "e/f": DIR, "e/f/n": file("hi")}),
    ({"kind": "lines", "path": "n", "lines": ["a", "b"]}, {"n": file("a\nb \n\n")}),
    ({"kind": "lines", "path": "n", "lines": ["a", "b"], "order": "any", "prefix": "./"}, {"n": file("./b\na\n")}),
    ({"kind": "lines", "path": "n", "lines": []}, {"n": file("")}),
    ({"kind": "json", "path": "n", "value": {"a": [1, True]}}, {"n": file('{"a":[1.0,true]}')}),
    ({"kind": "archive", "path": "n", "members": {"d/x": "x"}}, {"n": file(tar({"./d/x": "x"}))}),
    ({"kind": "archive", "path": "n", "members": {"d/x": "x"}}, {"n": file(tar({"d/x": "x"}, "w:xz"))}),
    ({"kind": "archive", "path": "n", "members": {"d/x": "x"}}, {"n": file(zipped({"d/x": "x", "d/": ""}))}),
    ({"kind": "dir", "path": "e/f"}, {"e": DIR, "e/f": DIR}),
    ({"kind": "absent", "path": "d"}, {"d": None, "d/x": None}),
    ({"kind": "mode", "path": "a", "mode": "600"}, {"a": file("one\n", 0o600)}),
    ({"kind": "link", "path": "n", "target": "d/x"}, {"n": Entry(kind="link", target="./d/x")}),
    ({"kind": "like", "path": "n", "source": "a"}, {"n": file("one\n")}),
]


@pytest.mark.parametrize(("expectation", "changes"), HOLDS)
def test_an_expectation_holds(expectation: dict[str, Any], changes: dict[str, Entry | None]) -> None:
    assert judge(expectation, changes) == []
    assert judge(expectation, {}) != []  # and not before


@pytest.mark.parametrize(
    ("expectation", "changes", "why"),
    [
        ({"kind": "text", "path": "n", "text": "hi"}, {"n": file("ho\n")}, "n holds 'ho\\n' instead of 'hi'"),
        ({"kind": "text", "path": "n", "text": "hi", "tolerance": "none"}, {"n": file("hi\n")}, "n holds"),
        ({"kind": "text", "path": "n", "text": "one"}, {"n": Entry(kind="link", target="a")}, "n is a link, not"),
        ({"kind": "text", "path": "n", "text": "hi"}, {}, "n is missing"),
        ({"kind": "text", "path": "n", "text": "hi"}, {"n": Entry(kind="file", size=9 << 20)}, "n is far too long"),
        ({"kind": "lines", "path": "n", "lines": ["a", "b"]}, {"n": file("b\na\n")}, "n has line 1 'b' instead of 'a'"),
        ({"kind": "lines", "path": "n", "lines": ["a"]}, {"n": file("a\nb")}, "n has 2 lines instead of 1"),
        ({"kind": "json", "path": "n", "value": 1}, {"n": file("true")}, "n holds another JSON value"),
        ({"kind": "json", "path": "n", "value": 1}, {"n": file("[" * 100_000)}, "n is not valid JSON"),
        ({"kind": "json", "path": "n", "value": 1}, {"n": file("9" * 5000)}, "n "),
        ({"kind": "archive", "path": "n", "members": {}}, {"n": file("no")}, "n is not a readable archive"),
        (
            {"kind": "archive", "path": "n", "members": {"x": "y"}},
            {"n": file(tar({"x": "z"}))},
            "n has another content",
        ),
        ({"kind": "absent", "path": "a"}, {}, "a is still there"),
        ({"kind": "mode", "path": "a", "mode": "600"}, {}, "a has mode 644 instead of 600"),
        ({"kind": "link", "path": "l", "target": "d"}, {}, "l points to 'a' instead of 'd'"),
    ],
)
def test_a_failed_expectation_says_why(expectation: dict[str, Any], changes: dict[str, Entry | None], why: str) -> None:
    assert judge(expectation, changes)[0].startswith(why)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"a": file("two\n")}, "a was changed"),
        ({"a": file("one\n", 0o600)}, "a was changed"),
        ({"d/x": None}, "d/x is gone"),
        ({"junk": file("")}, "junk should not be there"),
        ({"\udcff": file("")}, "? should not be there"),
        ({"l": Entry(kind="link", target="d")}, "l was changed"),
    ],
)
def test_everything_else_stays_untouched(changes: dict[str, Entry | None], why: str) -> None:
    assert judge({"kind": "text", "path": "n", "text": "hi"}, {"n": file("hi"), **changes}) == [why]


def test_a_mode_expectation_guards_the_content() -> None:
    assert judge({"kind": "mode", "path": "a", "mode": "600"}, {"a": file("two\n", 0o600)}) == ["a was changed"]


@pytest.mark.parametrize(
    "broken",
    [{"kind": "nosuch", "path": "a"}, {"kind": "text", "path": "a"}, {"path": "a"}, {"kind": "mode", "path": "a", "mode": "rw"},
     {"kind": "like", "path": "a", "source": "nosuch"}, "a"],
)  # fmt: skip
def test_a_malformed_expectation_is_the_tasks_fault(broken: Any) -> None:
    with pytest.raises(TaskError):
        verify([broken], BEFORE, BEFORE)


@pytest.mark.parametrize(
    "hostile",
    [b"", b"PK", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", gzip.compress(bytes(9 << 20)), zipped({"x": "y" * (9 << 20)}),
     tar({str(n): "" for n in range(2001)}), tar({"x": "y" * 600}, "w")[:700], tar({"x": "y"})[:40]],
)  # fmt: skip
def test_hostile_archives_are_bad_archives(hostile: bytes) -> None:
    with pytest.raises(BadArchive):
        read_archive(hostile)
