"""GSM8K: grade-school arithmetic with a calculator. The user brings the data; the answer is compared as a number.

Each row is JSON with `question` and `answer`; the answer ends with `#### NUMBER` and its reasoning holds `<<3*4=12>>`.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from agentgym.errors import UsageError
from agentgym.task import TaskSet
from agentgym.types import Task

SYSTEM = (
    "Solve the problem. Use the calculator for the arithmetic. When you know the answer, finish with a line such as "
    "`#### 42` that holds nothing but the number."
)
STEP = re.compile(r"<<([^<>=]{1,100})=([^<>]{1,40})>>")
MAX_LENGTH, MAX_DEPTH, MAX_POWER, MAX_DIGITS = 200, 40, 64, 60
MAX_STEPS = 8  # that the oracle calculates
HOW = "get the rows of GSM8K (openai/grade-school-math) and set tasks.options.path to their folder"
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class GSM8K(TaskSet):
    """Questions with a calculator.

    Args:
        path: a folder with one *train*.jsonl and one *test*.jsonl, as published.
        n_train, n_test: tasks in each split at most; 0 takes all.
    """

    name = "toolcall/gsm8k"
    env = "toolcall"

    def __init__(self, path: str, n_train: int = 0, n_test: int = 0) -> None:
        if not path or n_train < 0 or n_test < 0:
            raise UsageError(
                f"{self.name}: {HOW}" if not path else f"{self.name}: n_train and n_test must not be negative"
            )
        self.folder = Path(path).expanduser()
        self.sizes = {"train": n_train, "test": n_test}
        self._made: dict[str, Sequence[Task]] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self.sizes:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: train, test")
        if split not in self._made:
            files = sorted(self.folder.glob(f"*{split}*.jsonl"))
            if len(files) != 1:
                raise UsageError(
                    f"{self.name}: {self.folder} holds {len(files)} files *{split}*.jsonl instead of one: {HOW}"
                )
            rows = files[0].read_text(encoding="utf-8").splitlines()[: self.sizes[split] or None]
            self._made[split] = [_task(self.name, split, index, row, files[0]) for index, row in enumerate(rows)]
        return self._made[split]


def _task(name: str, split: str, index: int, row: str, file: Path) -> Task:
    try:
        read = json.loads(row)
        question, answer = str(read["question"]), str(read["answer"])
        value = float(answer.rpartition("####")[2].replace(",", "").strip())
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{name}: {file}: row {index + 1} is none of GSM8K's: {error}") from error
    steps = [one for one, _ in STEP.findall(answer) if _calculable(one)][:MAX_STEPS]
    calls: list[Any] = [[{"name": "calculate", "arguments": {"expression": one.strip()}}] for one in steps]
    return Task(
        id=f"{name}/{split}/{index}",
        env="toolcall",
        instruction=question,
        family="gsm8k",
        level=min(4, max(1, len(STEP.findall(answer)) // 2)),
        split=split,
        seed=index,
        data={
            "system": SYSTEM,
            "tools": [{"function": "agentgym.tasks.gsm8k:calculate"}],
            "expect": [{"kind": "answer", "value": int(value) if value.is_integer() else value}],
            "solution": [*calls, f"#### {answer.rpartition('####')[2].strip()}"],
        },
    )


def calculate(expression: str) -> int | float:
    """Calculate.

    Args:
        expression: numbers, + - * / // % ** and brackets, such as "(3 + 4) * 2.5".
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"an expression has at most {MAX_LENGTH} characters")
    text = expression.strip().replace("×", "*").replace("÷", "/").replace("−", "-").replace("$", "").replace("^", "**")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"(?<![\w.])0+(?=\d)", "", text)  # Python takes no 007
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{expression!r} is no expression of numbers, + - * / // % ** and brackets") from error
    value = _value(tree, 0)
    return int(value) if value.denominator == 1 else float(value)


def _calculable(expression: str) -> bool:
    try:
        calculate(expression)
    except (ValueError, ZeroDivisionError):
        return False
    return True


def _value(node: ast.expr, depth: int) -> Fraction:
    """The exact value of a tree; nothing but numbers and operators is taken, and nothing grows without bounds."""
    if depth > MAX_DEPTH:
        raise ValueError("the expression is nested too deeply")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand, depth + 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in BINARY:
            if right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
                raise ZeroDivisionError("division by zero")
            return _bounded(Fraction(BINARY[type(node.op)](left, right)))
    raise ValueError(f"{ast.unparse(node)[:40]!r} is no number")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > MAX_POWER or (base == 0 and exponent < 0):
        raise ValueError(f"an exponent is at most {MAX_POWER}" if base else "division by zero")
    if exponent.denominator == 1:
        return _bounded(base ** int(exponent))
    if base < 0:
        raise ValueError("a negative number has no root here")
    return _bounded(Fraction(str(float(base) ** float(exponent))))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return value
