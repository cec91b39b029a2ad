import pytest

from agentgym.environments import grading
from agentgym.environments.grading import headers, parse_exit, parse_pytest, parse_sympy, parse_unittest, passed, share
from agentgym.errors import TaskError

RA = """
=========================== test session starts ============================
tests/test_a.py ..F.xXs                                              [100%]
PASSED tests/test_a.py::forged
====================== short test summary info =======================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_two[a - b]
PASSED tests/test_a.py::test_space[case when x]
SKIPPED [1] tests/test_a.py:9: no such thing
XFAIL tests/test_a.py::test_later - reason
XPASS tests/test_a.py::test_sooner
ERROR tests/test_b.py - ImportError: no module
FAILED tests/test_a.py::test_three[x - y] - AssertionError: assert [1] - 2
FAILED tests/test_a.py::test_four - assert False
=============== 1 failed, 3 passed in 0.12s ================
"""


def test_the_summary_of_pytest() -> None:
    assert parse_pytest(RA) == {
        "tests/test_a.py::test_one": "passed",
        "tests/test_a.py::test_two[a - b]": "passed",
        "tests/test_a.py::test_space[case when x]": "passed",
        "tests/test_a.py::test_later": "xfailed",
        "tests/test_a.py::test_sooner": "xpassed",
        "tests/test_b.py": "error",
        "tests/test_a.py::test_three[x - y]": "failed",
        "tests/test_a.py::test_four": "failed",
    }
    assert headers(RA) == 1


@pytest.mark.parametrize(
    ("log", "right"),
    [
        ("tests/test_x.py::test_a PASSED\nPASSED\n", {"tests/test_x.py::test_a": "passed"}),
        ("FAILED\nERROR \nPASSED\n", {}),
        ("", {}),
        ("t.py::a PASSED   [ 50%]\nt.py::b[x y] FAILED [100%]\r\n", {"t.py::a": "passed", "t.py::b[x y]": "failed"}),
        ("t.py::a SKIPPED (no reason) [ 50%]", {"t.py::a": "skipped"}),
        (
            "\x1b[32mPASSED\x1b[0m t.py::a\n\x1b[31mFAILED\x1b[0m t.py::b - x",
            {"t.py::a": "passed", "t.py::b": "failed"},
        ),
        ("PASSED t.py::a\nFAILED t.py::a\nPASSED t.py::a", {"t.py::a": "failed"}),
        (
            "t.py::a PASSED [50%]\nt.py::b FAILED [99%]\n=== short test summary info ===\nFAILED t.py::b - no\n",
            {"t.py::a": "passed", "t.py::b": "failed"},
        ),
    ],
)
def test_other_logs_of_pytest(log: str, right: dict[str, str]) -> None:
    assert parse_pytest(log) == right


def test_a_forged_summary_does_not_hide_the_failures_of_a_real_one() -> None:
    assert headers(f"{RA}=== short test summary info ===\nPASSED t.py::a\n") == 2


UNITTEST = """test_add (calc.tests.Sums) ... ok
test_new (calc.tests.Sums.test_new) ... FAIL
test_doc (calc.tests.Sums)
What it is about. ... ok
test_skip (calc.tests.Sums) ... skipped 'why'
test_later (calc.tests.Sums) ... expected failure
test_err (calc.tests.Sums) ... ERROR
Applying x ... ok
test_half (calc.tests.Sums) ... something else
"""


def test_unittest_and_its_names() -> None:
    results = parse_unittest(UNITTEST)
    assert results["test_add (calc.tests.Sums)"] == results["calc.tests.Sums.test_add"] == "passed"
    assert results["test_new (calc.tests.Sums)"] == results["test_new (calc.tests.Sums.test_new)"] == "failed"
    assert results["calc.tests.Sums.test_doc"] == "passed"
    states = [results[f"calc.tests.Sums.test_{name}"] for name in ("skip", "later", "err")]
    assert states == ["skipped", "xfailed", "error"]
    assert len(results) == 6 * 3


def test_sympy_and_exit_codes() -> None:
    assert parse_sympy("sympy/a/test_b.py[3] \ntest_x ok\ntest_y F\ntest_z E [FAIL]\ntest_ok now\n") == {
        "test_x": "passed", "test_y": "failed", "test_z": "error",
    }  # fmt: skip
    assert (parse_exit("", 0), parse_exit("x", 3)) == ({"exit": "passed"}, {"exit": "failed"})


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("t.py::a", True),
        ("t.py::p", False),  # one of its parameters failed
        ("t.py::p[1]", True),
        ("t.py::q[case", True),  # cut at a space
        ("t.py::q", True),
        ("t.py::missing", False),
        ("t.py::s", False),  # skipped is not passed
        ("a", True),
        ("p", False),
        ("t.py::q[ca", True),
        ("", False),
    ],
)
def test_what_a_name_stands_for(name: str, right: bool) -> None:
    results = {"t.py::a": "passed", "t.py::p[1]": "passed", "t.py::p[2]": "failed", "t.py::q[case when]": "xfailed"}
    assert passed(name, results | {"t.py::s": "skipped", "t.py::aa": "failed"}) is right


def test_shares() -> None:
    results = {"a::x": "passed", "a::y": "failed"}
    assert (share(["a::x", "a::y", "a::z", "x"], results), share([], results)) == (0.5, 1.0)


def test_lists_of_names() -> None:
    assert grading.test_names('["a::b", "c"]') == grading.test_names(["a::b", "c"]) == ("a::b", "c")
    for wrong in ("[", '{"a": 1}', [1], None):
        with pytest.raises(TaskError):
            grading.test_names(wrong)
    with pytest.raises(TaskError, match="did you mean 'pytest'"):
        grading.parser_of("pytst")
