import json
from pathlib import Path

import pytest

import agentgym
from agentgym.errors import UsageError
from agentgym.tasks.gsm8k import GSM8K, calculate

DATA = Path(__file__).parents[3] / "shared" / "data" / "toolcall"


def write(folder, rows, split="train"):
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


ROW = {"question": "Two and two?", "answer": "It is 2+2=<<2+2=4>>4.\n#### 4"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("16 - 3 - 4", 9),
        ("(3 + 4) * 2.5", 17.5),
        ("0.1 + 0.2", 0.3),
        ("80,000 * 1.5", 120000),
        ("$12.50 × 2", 25),
        ("7 ÷ 2", 3.5),
        ("7 // 2 + 7 % 2", 4),
        ("2^10", 1024),
        ("2 ** -1", 0.5),
        ("4 ** 0.5", 2),
        ("-(-3)", 3),
        ("007 + .5", 7.5),
        ("1e3", 1000),
    ],
)
def test_it_calculates(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "two", "1 +", "__import__('os')", "(1).real", "[1]", "1 if 1 else 2", "1 < 2", "'a' * 9", "True", "9 ** 9 ** 9",
        "10 ** 64", "9" * 150, "(" * 90 + "1" + ")" * 90 + "+" * 60 + "1", "1 " * 200, "(-8) ** 0.5", "0 ** -1", "1; 2", "x := 1", "1j",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused_at_once(expression):
    with pytest.raises(ValueError):
        calculate(expression)


def test_division_by_zero():
    for expression in ("1 / 0", "1 // 0", "1 % 0"):
        with pytest.raises(ZeroDivisionError):
            calculate(expression)


def test_rows_become_tasks(tmp_path):
    write(tmp_path, [ROW])
    write(tmp_path, [{**ROW, "question": "Three?", "answer": "#### 1,234.50"}], "test")
    tasks = GSM8K(str(tmp_path))
    assert [task.id for task in tasks.tasks("train")] == ["toolcall/gsm8k/train/0"]
    assert tasks.tasks("test")[0].data["expect"] == [{"kind": "answer", "value": 1234.5}]
    report = agentgym.check_tasks(tasks)
    assert report.ok and report.checked == 2, report


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(UsageError, match="path"):
        GSM8K("")
    with pytest.raises(UsageError, match=r"holds 0 files \*train\*"):
        GSM8K(str(tmp_path)).tasks("train")
    write(tmp_path, [ROW, {"question": "x", "answer": "none"}])
    with pytest.raises(UsageError, match="row 2"):
        GSM8K(str(tmp_path)).tasks("train")
    with pytest.raises(UsageError, match="unknown split"):
        GSM8K(str(tmp_path)).tasks("dev")
    assert len(GSM8K(str(tmp_path), n_train=1).tasks("train")) == 1


@pytest.mark.skipif(not DATA.is_dir(), reason="no rows of GSM8K beside the repository (../shared/data/toolcall)")
def test_every_oracle_on_the_real_rows():
    tasks = GSM8K(str(DATA))
    assert (len(tasks.tasks("train")), len(tasks.tasks("test"))) == (400, 200)
    report = agentgym.check_tasks(tasks)
    assert report.ok, report
    calculating = [task for task in tasks.tasks("train") if len(task.data["solution"]) > 1]
    assert len(calculating) > 390
