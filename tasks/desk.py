"""Errands at a small desk (calendar, mail, files, rooms) made from a seed: six families, each in levels 1 to 3.

What is judged is the state of the desk: everything that was asked for is as it should be, and nothing else was touched.
An instance belongs to a split by the hash of its instruction, whatever the seed: train and test can share none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.task import TaskSet
from agentgym.tasks.desk_families import FAMILIES
from agentgym.tasks.desk_office import Desk, Slot
from agentgym.tasks.desk_world import Errand, World
from agentgym.tasks.terminal_basics import split_of
from agentgym.types import Task

LEVELS = (1, 2, 3)
SPLITS = ("train", "test")
MAX_MISSES = 2000  # draws in a row that give nothing new
SYSTEM = (
    "You are the assistant of the user, and work at their desk by means of tools. Do all that is asked for and nothing "
    "else. Ask the user about what only they can know. When everything is done, say so."
)


class Desks(TaskSet):
    """Balanced over families and levels, shuffled by the seed.

    Args:
        families: some of FAMILIES; all by default.
        levels: some of 1 to 3; all by default.
        n_train, n_test: tasks in each split.
        seed: another one makes other instances.
        tools: `all` 18 are on offer (some 2,000 tokens), or the `few` that a task needs, for small models.
    """

    name = "toolcall/desk"
    env = "toolcall"

    def __init__(
        self,
        families: list[str] | None = None,
        levels: list[int] | None = None,
        n_train: int = 512,
        n_test: int = 96,
        seed: int = 0,
        tools: str = "all",
    ) -> None:
        self.families = list(FAMILIES) if families is None else list(families)
        self.levels = list(LEVELS) if levels is None else list(levels)
        for family in self.families:
            if family not in FAMILIES:
                known = ", ".join(FAMILIES)
                raise UsageError(f"{self.name}: unknown family {family!r}{nearest(family, FAMILIES)}; known: {known}")
        if not self.families or not self.levels or not set(self.levels) <= set(LEVELS):
            raise UsageError(f"{self.name}: levels are some of {LEVELS}, got {self.levels}")
        if n_train < 0 or n_test < 0:
            raise UsageError(f"{self.name}: n_train and n_test must not be negative")
        if tools not in ("all", "few"):
            raise UsageError(f"{self.name}: tools is all or few, got {tools!r}")
        self.few = tools == "few"
        self.sizes = {"train": n_train, "test": n_test}
        self.seed = seed
        self._made: dict[str, Sequence[Task]] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        if split not in self._made:
            cells = [(family, level) for family in self.families for level in self.levels]
            shuffle = random.Random(f"{self.seed}/{split}").shuffle
            shuffle(cells)
            sources = [self._cell(split, family, level) for family, level in cells]
            made = [next(sources[index % len(cells)]) for index in range(self.sizes[split])]
            shuffle(made)
            self._made[split] = made
        return self._made[split]

    def _cell(self, split: str, family: str, level: int) -> Iterator[Task]:
        """The tasks of one family and level, without end."""
        seen: set[str] = set()
        index = misses = 0
        for attempt in count():
            world = World(f"{self.seed}/{family}/{level}/{attempt}")
            try:
                errand = FAMILIES[family](world, level)
            except ValueError:  # a world in which it cannot be done
                continue
            instruction = f"{errand.instruction} {world.today()}"
            if split_of(instruction) != split or instruction in seen:
                misses += 1
                if misses > MAX_MISSES:
                    raise UsageError(f"{self.name}: {family} level {level} has only {index} {split} instances")
                continue
            misses = 0
            seen.add(instruction)
            yield Task(
                id=f"{self.name}{f'@{self.seed}' if self.seed else ''}/{split}/{family}-{level}-{index}",
                env=self.env,
                instruction=instruction,
                family=family,
                level=level,
                split=split,
                seed=self.seed * 1_000_003 + index,
                data=task_data(world, errand, self.few),
            )
            index += 1


def task_data(world: World, errand: Errand, few: bool = False) -> dict[str, Any]:
    """What the environment needs: the tools with their world, what must hold in the end, and a solution."""
    plain = world.plain()
    expect: list[dict[str, Any]] = [
        {"kind": "state", "value": state_after(plain, errand.solution), "ignore": ["sent"]},
        {"kind": "function", "function": "agentgym.tasks.desk_office:judge_mails", "mails": errand.mails},
    ]
    expect += [{"kind": "answer", "value": word, "compare": "contains"} for word in errand.says]
    tools: dict[str, Any] = {"class": "agentgym.tasks.desk_office:Desk", "options": {"world": plain}}
    if few:
        tools["only"] = sorted({call["name"] for said in errand.solution if isinstance(said, list) for call in said})
    data: dict[str, Any] = {
        "system": SYSTEM,
        "tools": [tools],
        "expect": expect,
        "solution": errand.solution,
    }
    return data | ({"user": {"facts": errand.facts}} if errand.facts else {})


def state_after(world: dict[str, Any], solution: list[Any]) -> dict[str, Any]:
    """The state that the calls of a solution leave behind, without the mails sent."""
    desk = Desk(world)
    for said in solution:
        for call in [] if isinstance(said, str) else said:
            arguments = {key: Slot(**value) if key == "when" else value for key, value in call["arguments"].items()}
            getattr(desk, call["name"])(**arguments)
    return {key: value for key, value in desk.state().items() if key != "sent"}
