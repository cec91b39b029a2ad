"""The Berkeley Function-Calling Leaderboard, as the `bfcl-eval` wheel carries it (an optional dependency).

Categories: `simple`, `multiple` (one call, one function or several on offer), `parallel`, `parallel_multiple` (several
calls), `irrelevance` (none of the functions will do), the same with `live_` before it (asked by users), and conversations
over a state: `multi_turn_base`, `multi_turn_long_context` (its tools return much), `multi_turn_miss_param` (a message
lacks what the next one tells).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.task import TaskSet
from agentgym.tasks.bfcl_check import right_call
from agentgym.tasks.bfcl_data import VERSION, call_of, place, rows
from agentgym.tasks.bfcl_tools import parameters_of
from agentgym.types import Task

FILES = {
    "simple": "simple_python",
    "multiple": "multiple",
    "parallel": "parallel",
    "parallel_multiple": "parallel_multiple",
    "irrelevance": "irrelevance",
    "live_simple": "live_simple",
    "live_multiple": "live_multiple",
    "live_parallel": "live_parallel",
    "live_parallel_multiple": "live_parallel_multiple",
    "live_irrelevance": "live_irrelevance",
    "multi_turn_base": "multi_turn_base",
    "multi_turn_long_context": "multi_turn_long_context",
    "multi_turn_miss_param": "multi_turn_miss_param",
}
LEVELS = {"simple": 1, "irrelevance": 1, "multiple": 2, "parallel": 2, "parallel_multiple": 3}
DEFAULT = ("simple", "multiple", "parallel", "irrelevance", "multi_turn_base")
STEPS_PER_MESSAGE = 6
CALLS_PER_MESSAGE = 16
SINGLE = (
    "You may call functions. If one of them serves the user's request, call it, once for each thing that is asked for; "
    "if none does, say so and call nothing."
)
CONVERSATION = "You help a user by means of functions. Call what is needed for each request, then say that it is done."


class BFCL(TaskSet):
    """Its tasks, each in the split that the hash of what is asked says.

    Args:
        categories: some of FILES.
        path: the wheel of bfcl-eval or a folder that holds `bfcl_eval`; empty: as it is installed.
        test_share: the share of the tasks that is in the test split; 1 to evaluate on all.
    """

    name = "toolcall/bfcl"
    env = "toolcall"

    def __init__(self, categories: list[str] | None = None, path: str = "", test_share: float = 0.5) -> None:
        self.categories = list(DEFAULT if categories is None else categories)
        for one in self.categories:
            if one not in FILES:
                raise UsageError(
                    f"{self.name}: unknown category {one!r}{nearest(one, FILES)}; known: {', '.join(FILES)}"
                )
        if not 0 <= test_share <= 1:
            raise UsageError(f"{self.name}: test_share must be between 0 and 1")
        self.path, self.test_share = path, test_share
        self.place = place(path)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in ("train", "test"):
            raise UsageError(f"{self.name}: unknown split {split!r}; known: train, test")
        return [task for category in self.categories for task in self._category(category, split)]

    def _category(self, category: str, split: str) -> list[Task]:
        file = f"BFCL_{VERSION}_{FILES[category]}.json"
        listed = [row for row in rows(self.place, file) if self._split(row) == split]
        if category.endswith("irrelevance"):
            return [
                self._single(category, split, row, [{"kind": "no_calls"}], ["None of them will do."]) for row in listed
            ]
        right = {row["id"]: row["ground_truth"] for row in rows(self.place, f"possible_answer/{file}")}
        if category.startswith("multi_turn"):
            return [self._conversation(category, split, row, right[row["id"]]) for row in listed]
        return [
            self._single(
                category,
                split,
                row,
                [{"kind": "function", "function": "agentgym.tasks.bfcl_check:judge_calls", "calls": right[row["id"]]}],
                [[right_call(one) for one in right[row["id"]]]],
            )
            for row in listed
        ]

    def _single(self, category: str, split: str, row: dict[str, Any], expect: list[Any], solution: list[Any]) -> Task:
        said = row["question"][0]
        system = "\n\n".join([SINGLE, *(one["content"] for one in said if one["role"] == "system")])
        data = {
            "system": system,
            "tools": [{"provider": "agentgym.tasks.bfcl_tools:Named", "options": {"functions": row["function"]}}],
            "until": "calls",
            "max_steps": 4,
            "expect": expect,
            "solution": solution,
        }
        return self._task(category, split, row["id"], _words(said), data)

    def _conversation(self, category: str, split: str, row: dict[str, Any], right: list[list[str]]) -> Task:
        names = parameters_of(row["involved_classes"], self.path)
        turns = [[call_of(text, names) for text in turn] for turn in right]
        options = {
            "classes": row["involved_classes"],
            "scenario": row["initial_config"],
            "excluded": row.get("excluded_function", []),
            "path": self.path,
            "long_context": category == "multi_turn_long_context",
        }
        first, *then = [_words(said) for said in row["question"]]
        data = {
            "system": CONVERSATION,
            "tools": [{"provider": "agentgym.tasks.bfcl_tools:Office", "options": options}],
            "then": then,
            "max_steps": STEPS_PER_MESSAGE * len(turns)
            + sum(len(turn) > CALLS_PER_MESSAGE for turn in turns) * STEPS_PER_MESSAGE,
            "expect": [{"kind": "replay", "turns": turns, "results": True}],
            "solution": [said for turn in turns for said in _solution(turn)],
        }
        return self._task(category, split, row["id"], first, data)

    def _task(self, category: str, split: str, id: str, instruction: str, data: dict[str, Any]) -> Task:
        return Task(
            id=f"{self.name}/{id}",
            env=self.env,
            instruction=instruction,
            family=category,
            level=LEVELS.get(category.removeprefix("live_"), 4),
            split=split,
            data=data,
        )

    def _split(self, row: dict[str, Any]) -> str:
        asked = json.dumps(
            {key: item for key, item in row.items() if key != "id"}, sort_keys=True
        )  # some are there twice
        share = int.from_bytes(hashlib.sha256(asked.encode()).digest()[:4], "big") / 2**32
        return "test" if share < self.test_share else "train"


def _solution(turn: list[Any]) -> list[Any]:
    """The messages of one turn: its calls, a few at a time, and a word."""
    if not turn:
        return ["That cannot be done."]
    return [*(turn[at : at + CALLS_PER_MESSAGE] for at in range(0, len(turn), CALLS_PER_MESSAGE)), "Done."]


def _words(said: list[dict[str, str]]) -> str:
    return "\n\n".join(one["content"] for one in said if one["role"] == "user")
