"""Task sets that are made from a seed, in families and levels.

An instance belongs to a split by the hash of its instruction, whatever the seed: train and test can share none.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, NamedTuple

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.task import TaskSet
from agentgym.types import Task

SPLITS = ("train", "test")
TEST_SHARE = 6  # one instance in six belongs to the test split


class Drawn(NamedTuple):
    """What is to be done, and what the environment needs for it."""

    instruction: str
    data: dict[str, Any]


class FamilyTasks(TaskSet):
    """Balanced over families and levels, shuffled by the seed.

    A task's id names its split, family, level and index; what it is depends on these and the seed alone.
    """

    known_families: ClassVar[Mapping[str, Any]]
    known_levels: ClassVar[tuple[int, ...]]
    max_misses: ClassVar[int] = 2000  # draws in a row that give nothing new
    shuffled: ClassVar[bool] = True  # else all families of the first level, all of the second, ..., again and again

    def __init__(
        self, families: list[str] | None, levels: list[int] | None, n_train: int, n_test: int, seed: int
    ) -> None:
        known, known_levels = self.known_families, self.known_levels
        self.families = list(known) if families is None else list(families)
        self.levels = list(known_levels) if levels is None else list(levels)
        for family in self.families:
            if family not in known:
                raise UsageError(
                    f"{self.name}: unknown family {family!r}{nearest(family, known)}; known: {', '.join(known)}"
                )
        if not self.families or not self.levels or not set(self.levels) <= set(known_levels):
            raise UsageError(f"{self.name}: levels are some of {known_levels}, got {self.levels}")
        if n_train < 0 or n_test < 0:
            raise UsageError(f"{self.name}: n_train and n_test must not be negative")
        self.sizes = {"train": n_train, "test": n_test}
        self.seed = seed
        self._made: dict[str, Sequence[Task]] = {}

    @abstractmethod
    def draw(self, seed: str, family: str, level: int) -> Drawn | None:
        """The instance that `seed` gives; None for one that cannot be done."""

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._made:
            self._made[split] = self._make(split)
        return self._made[split]

    def _make(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        shuffle = random.Random(f"{self.seed}/{split}").shuffle
        if self.shuffled:
            cells = [(family, level) for family in self.families for level in self.levels]
            shuffle(cells)
        else:
            cells = [(family, level) for level in self.levels for family in self.families]
        sources = [self._cell(split, family, level) for family, level in cells]
        made = [next(sources[index % len(cells)]) for index in range(self.sizes[split])]
        if self.shuffled:
            shuffle(made)
        return made

    def _cell(self, split: str, family: str, level: int) -> Iterator[Task]:
        """The tasks of one family and level, without end."""
        seen: set[str] = set()
        index = misses = 0
        for attempt in count():
            drawn = self.draw(f"{self.seed}/{family}/{level}/{attempt}", family, level)
            if drawn is None:
                continue
            if split_of(drawn.instruction) != split or drawn.instruction in seen:
                misses += 1
                if misses > self.max_misses:
                    raise UsageError(
                        f"{self.name}: {family} level {level} has only {index} {split} instances: ask for fewer tasks, "
                        "or for more families or levels"
                    )
                continue
            misses = 0
            seen.add(drawn.instruction)
            yield Task(
                id=f"{self.name}{f'@{self.seed}' if self.seed else ''}/{split}/{family}-{level}-{index}",
                env=self.env,
                instruction=drawn.instruction,
                family=family,
                level=level,
                split=split,
                seed=self.seed * 1_000_003 + index,
                data=drawn.data,
            )
            index += 1


def split_of(instruction: str) -> str:
    """The split that an instruction belongs to: by its hash alone, so in every task set the same."""
    bucket = hashlib.sha256(instruction.encode()).digest()[0] % TEST_SHARE
    return "test" if bucket == 0 else "train"
