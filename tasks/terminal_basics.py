"""Shell tasks made from a seed: 18 families, each in levels 1 (one short command) to 4 (several, odd names, noise).

An instance belongs to a split by the hash of its instruction, whatever the seed: train and test can share none.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.task import TaskSet
from agentgym.tasks import terminal_data, terminal_files, terminal_more, terminal_text
from agentgym.tasks.terminal_draw import Draw, Instance
from agentgym.types import Task

Family = Callable[[Draw, int], Instance]

FAMILIES: dict[str, Family] = {
    **terminal_files.FAMILIES,
    **terminal_text.FAMILIES,
    **terminal_data.FAMILIES,
    **terminal_more.FAMILIES,
}
LEVELS = (1, 2, 3, 4)
EASY = ("create", "nested", "delete", "rename", "count", "grep", "sort", "copy", "append")
SPLITS = ("train", "test")
TEST_SHARE = 6  # one instance in six belongs to the test split
MAX_MISSES = 2000  # draws in a row that give nothing new


class TerminalBasics(TaskSet):
    """Balanced over families and levels, shuffled by the seed.

    A task's id names its split, family, level and index; what it is depends on these and the seed alone.

    Args:
        families: some of FAMILIES; all by default.
        levels: some of 1 to 4; all by default.
        n_train, n_test: tasks in each split.
        seed: another one makes other instances.
    """

    name = "terminal/basics"
    env = "terminal"

    def __init__(
        self,
        families: list[str] | None = None,
        levels: list[int] | None = None,
        n_train: int = 2048,
        n_test: int = 256,
        seed: int = 0,
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
        self.sizes = {"train": n_train, "test": n_test}
        self.seed = seed
        self._made: dict[str, Sequence[Task]] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._made:
            self._made[split] = self._make(split)
        return self._made[split]

    def _make(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        cells = [(family, level) for family in self.families for level in self.levels]
        shuffle = random.Random(f"{self.seed}/{split}").shuffle
        shuffle(cells)
        sources = [self._cell(split, family, level) for family, level in cells]
        made = [next(sources[index % len(cells)]) for index in range(self.sizes[split])]
        shuffle(made)
        return made

    def _cell(self, split: str, family: str, level: int) -> Iterator[Task]:
        """The tasks of one family and level, without end."""
        seen: set[str] = set()
        index = misses = 0
        for attempt in count():
            made = FAMILIES[family](Draw(f"{self.seed}/{family}/{level}/{attempt}"), level)
            if split_of(made.instruction) != split or made.instruction in seen:
                misses += 1
                if misses > MAX_MISSES:
                    raise UsageError(
                        f"{self.name}: {family} level {level} has only {index} {split} instances: ask for fewer tasks, "
                        "or for more families or levels"
                    )
                continue
            misses = 0
            seen.add(made.instruction)
            yield self._task(split, family, level, index, made)
            index += 1

    def _task(self, split: str, family: str, level: int, index: int, made: Instance) -> Task:
        return Task(
            id=f"{self.name}{f'@{self.seed}' if self.seed else ''}/{split}/{family}-{level}-{index}",
            env=self.env,
            instruction=made.instruction,
            family=family,
            level=level,
            split=split,
            seed=self.seed * 1_000_003 + index,
            data={"files": made.files, "expect": made.expect, "solution": made.solution},
        )


def split_of(instruction: str) -> str:
    """The split that an instruction belongs to: by its hash alone, so in every task set the same."""
    bucket = hashlib.sha256(instruction.encode()).digest()[0] % TEST_SHARE
    return "test" if bucket == 0 else "train"
