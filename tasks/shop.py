"""Office work in the browser: a shop, a mailbox and an administration, 13 families of wishes, one to three at once."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import count

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.task import TaskSet
from agentgym.tasks.shop_families import FAMILIES, ONCE, Draft
from agentgym.types import Task

LEVELS = (1, 2, 3)
SPLITS = ("train", "test")
MAX_MISSES = 300  # draws in a row that give nothing new
TEST_SHARE = 6  # one instance in six belongs to the test split


class ShopTasks(TaskSet):
    """Balanced over families and levels; each task has a state of its own.

    Level 1 is one wish of its family; level 2 adds a second one of the family (or of another one where it has no
    second), level 3 two of other families. A task belongs to a split by the hash of its instruction.

    Args:
        families: some of FAMILIES; all by default.
        levels: some of 1 to 3; all by default.
        n_train, n_test: tasks in each split.
        seed: another one makes other tasks.
    """

    name = "gui/shop"
    env = "gui"

    def __init__(
        self,
        families: list[str] | None = None,
        levels: list[int] | None = None,
        n_train: int = 512,
        n_test: int = 128,
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

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        cells = [(family, level) for level in self.levels for family in self.families]
        sources = [self._cell(split, family, level) for family, level in cells]
        return [next(sources[index % len(cells)]) for index in range(self.sizes[split])]

    def _cell(self, split: str, family: str, level: int) -> Iterator[Task]:
        """The tasks of one family and level, without end."""
        index = misses = 0
        seen: set[str] = set()
        for attempt in count():
            if misses > MAX_MISSES:
                raise UsageError(f"{self.name}: {family} level {level} has only {index} {split} tasks: ask for fewer")
            seed = f"{self.seed}/{family}/{level}/{attempt}"
            draft = draw(random.Random(seed), family, level)
            instruction = "\n".join(draft.wishes)
            if split_of(instruction) != split or instruction in seen:
                misses += 1
                continue
            misses = 0
            seen.add(instruction)
            yield self._task(split, family, level, index, instruction, draft)
            index += 1

    def _task(self, split: str, family: str, level: int, index: int, instruction: str, draft: Draft) -> Task:
        data = {"site": "shop", "state": draft.state, "changes": draft.changes, "solution": draft.steps}
        data |= {"uploads": draft.uploads} if draft.uploads else {}
        data |= {"answer": draft.answer} if draft.answer is not None else {}
        return Task(
            id=f"{self.name}{f'@{self.seed}' if self.seed else ''}/{split}/{family}-{level}-{index}",
            env=self.env,
            instruction=instruction,
            family=family,
            level=level,
            split=split,
            seed=self.seed * 1_000_003 + index,
            data=data,
        )


def draw(rng: random.Random, family: str, level: int) -> Draft:
    """A draft of `level` wishes that do not get into one another's way; a question comes last."""
    while True:
        draft = Draft(rng)
        try:
            for wish in sorted(_wishes(rng, family, level), key=lambda name: name == "question"):
                FAMILIES[wish](draft)
        except LookupError:
            continue
        draft.go(["answer", draft.answer if draft.answer is not None else "Done."])
        return draft


def _wishes(rng: random.Random, family: str, level: int) -> list[str]:
    others = [name for name in FAMILIES if name != family]
    if level == 3:
        return [family, *rng.sample(others, 2)]
    if level == 2 and family in ONCE:
        return [family, rng.choice([name for name in others if name not in ONCE])]
    return [family] * level


def split_of(instruction: str) -> str:
    """The split that an instruction belongs to: by its hash alone."""
    return "test" if hashlib.sha256(instruction.encode()).digest()[0] % TEST_SHARE == 0 else "train"
