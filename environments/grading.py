"""From the log of a test run to what became of each test: pytest, unittest, SymPy's runner, and plain exit codes.

A parser takes (log, exit code) and gives {test name: status}. Lines that look like a result and are none are skipped;
where a test is reported twice the worse report counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

from agentgym.errors import TaskError
from agentgym.registry import nearest

PASSED, FAILED, ERROR, SKIPPED, XFAILED, XPASSED = "passed", "failed", "error", "skipped", "xfailed", "xpassed"
GOOD = (PASSED, XFAILED)
WORST_FIRST = (ERROR, FAILED, XPASSED, SKIPPED, XFAILED, PASSED)
WHOLE = "exit"  # the one name of a run judged by its exit code

Results = dict[str, str]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORDS = {"PASSED": PASSED, "FAILED": FAILED, "ERROR": ERROR, "SKIPPED": SKIPPED, "XFAIL": XFAILED, "XPASS": XPASSED}
_HEADER = re.compile(r"^=+ short test summary info =+$")
_SUMMARY = re.compile(rf"^({'|'.join(_WORDS)}) (\S.*)$")
_VERBOSE = re.compile(rf"^(\S.*?(?:::|\.py).*?) ({'|'.join(_WORDS)})(?: \(.*\))?(?:\s+\[\s*\d+%\])?$")
_UNITTEST = re.compile(r"^(\w+) \(([\w.]+)\)(?:.*?) \.\.\. (.*)$")
_UNITTEST_NAME = re.compile(r"^(\w+) \(([\w.]+)\)$")
_SYMPY = re.compile(r"^(test_\w+) (ok|F|E|f|X|s|w)(?:\s.*)?$")


def parse_pytest(log: str, exit_code: int = 0) -> Results:
    """Results of `pytest -rA`, or of `pytest -v` where there is no summary of the tests that passed.

    Example:
        parse_pytest("tests/test_x.py::test_a PASSED\\nPASSED\\n") == {"tests/test_x.py::test_a": "passed"}
    """
    lines = _lines(log)
    headers = [index for index, line in enumerate(lines) if _HEADER.match(line)]
    summary = _summary(lines[headers[-1] + 1 :] if headers else lines)
    if headers and any(status == PASSED for status in summary.values()):
        return summary
    found: Results = {}
    for line in lines:
        match = _VERBOSE.match(line)
        if match and "::" in match[1]:
            _note(found, match[1], _WORDS[match[2]])
    for name, status in summary.items():
        _note(found, name, status)
    return found


def parse_unittest(log: str, exit_code: int = 0) -> Results:
    """Results of `python -m unittest -v` and Django's runner.

    A test is known as `test (module.Class)`, as `test (module.Class.test)` and as `module.Class.test`.
    """
    found: Results = {}
    pending: tuple[str, str] | None = None  # a test with a docstring has its result on the next line
    for line in _lines(log):
        match, name = _UNITTEST.match(line), _UNITTEST_NAME.match(line)
        if match:
            _note_unittest(found, match[1], match[2], match[3])
        elif name:
            pending = (name[1], name[2])
            continue
        elif pending and " ... " in line:
            _note_unittest(found, *pending, line.rpartition(" ... ")[2])
        pending = None
    return found


def parse_sympy(log: str, exit_code: int = 0) -> Results:
    """Results of SymPy's `bin/test --verbose`: bare function names."""
    words = {"ok": PASSED, "F": FAILED, "E": ERROR, "f": XFAILED, "X": XPASSED, "s": SKIPPED, "w": SKIPPED}
    found: Results = {}
    for line in _lines(log):
        if match := _SYMPY.match(line):
            _note(found, match[1], words[match[2]])
    return found


def parse_exit(log: str, exit_code: int) -> Results:
    """One result, called `exit`: whether the command succeeded."""
    return {WHOLE: PASSED if exit_code == 0 else FAILED}


Parser = Callable[[str, int], Results]
PARSERS: dict[str, Parser] = {
    "pytest": parse_pytest, "unittest": parse_unittest, "sympy": parse_sympy, "exit": parse_exit,
}  # fmt: skip


def parser_of(name: str) -> Parser:
    """The parser called `name`. Raises TaskError."""
    if name not in PARSERS:
        raise TaskError(f"unknown log parser {name!r}{nearest(name, PARSERS)}; known: {', '.join(PARSERS)}")
    return PARSERS[name]


def passed(name: str, results: Results) -> bool:
    """Whether the test `name` ran, and well.

    Names are as the published sets have them: one that was cut at a space stands for all that begin with it, one
    without parameters for all its parameters, one without a file for the function in any file.
    """
    found = [results[name]] if name in results else [status for full, status in results.items() if _means(name, full)]
    return bool(found) and all(status in GOOD for status in found)


def share(names: Sequence[str], results: Results) -> float:
    """The share of the tests that ran well; 1 if none is asked for."""
    return sum(passed(name, results) for name in names) / len(names) if names else 1.0


def test_names(value: object) -> tuple[str, ...]:
    """A list of test names, also written as JSON text, as the published sets have it. Raises TaskError."""
    try:
        listed = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise TaskError(f"a list of tests is not JSON: {error}") from error
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise TaskError("a list of tests is not a list of names")
    return tuple(listed)


test_names.__test__ = False  # type: ignore[attr-defined]


def headers(log: str) -> int:
    """How many summaries of pytest a log holds: more than one means that somebody else wrote one."""
    return sum(bool(_HEADER.match(line)) for line in _lines(log))


def _means(name: str, full: str) -> bool:
    cut = "[" in name and not name.endswith("]")
    if cut and full.startswith(name):
        return True
    if full.startswith(f"{name}["):
        return True
    return "::" not in name and re.search(rf"::{re.escape(name)}(?:\[.*\])?$", full) is not None


def _summary(lines: Iterable[str]) -> Results:
    found: Results = {}
    for line in lines:
        match = _SUMMARY.match(line)
        if match and match[1] != "SKIPPED":  # "SKIPPED [1] file:line: reason" names no test
            name = match[2] if match[1] == "PASSED" else _without_message(match[2])
            _note(found, name, _WORDS[match[1]])
    return found


def _without_message(text: str) -> str:
    """The test of "test - message"; " - " may be in the brackets of a parameter too."""
    opening, dash = text.find("["), text.find(" - ")
    if 0 <= opening < dash and (closing := text.find("] - ", opening)) >= 0:
        return text[: closing + 1]
    return text[:dash] if dash >= 0 else text


def _note(found: Results, name: str, status: str) -> None:
    known = found.get(name)
    found[name] = status if known is None else min(known, status, key=WORST_FIRST.index)


def _note_unittest(found: Results, test: str, place: str, said: str) -> None:
    words = {
        "ok": PASSED, "FAIL": FAILED, "ERROR": ERROR, "skipped": SKIPPED, "expected failure": XFAILED,
        "unexpected success": XPASSED,
    }  # fmt: skip
    status = next((words[word] for word in words if re.match(rf"{word}\b", said)), None)
    if status is None:
        return
    home = place.removesuffix(f".{test}")  # Python 3.11 and later name the test in the brackets too
    for name in (f"{test} ({home})", f"{test} ({home}.{test})", f"{home}.{test}"):
        _note(found, name, status)


def _lines(log: str) -> list[str]:
    return [line.rstrip() for line in _ANSI.sub("", log).replace("\r\n", "\n").split("\n")]
