"""Office work in the browser: a shop, a mailbox and an administration, 13 families of wishes, one to three at once."""

from __future__ import annotations

import random

from agentgym.tasks.families import Drawn, FamilyTasks
from agentgym.tasks.shop_families import FAMILIES, ONCE, Draft

LEVELS = (1, 2, 3)


class ShopTasks(FamilyTasks):
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
    known_families = FAMILIES
    known_levels = LEVELS
    max_misses = 300
    shuffled = False

    def __init__(
        self,
        families: list[str] | None = None,
        levels: list[int] | None = None,
        n_train: int = 512,
        n_test: int = 128,
        seed: int = 0,
    ) -> None:
        super().__init__(families, levels, n_train, n_test, seed)

    def draw(self, seed: str, family: str, level: int) -> Drawn:
        draft = draw(random.Random(seed), family, level)
        data = {"site": "shop", "state": draft.state, "changes": draft.changes, "solution": draft.steps}
        data |= {"uploads": draft.uploads} if draft.uploads else {}
        data |= {"answer": draft.answer} if draft.answer is not None else {}
        return Drawn("\n".join(draft.wishes), data)


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
