"""Shell tasks made from a seed: 18 families, each in levels 1 (one short command) to 4 (several, odd names, noise).

An instance belongs to a split by the hash of its instruction, whatever the seed: train and test can share none.
"""

from __future__ import annotations

from collections.abc import Callable

from agentgym.tasks import terminal_data, terminal_files, terminal_more, terminal_text
from agentgym.tasks.families import Drawn, FamilyTasks
from agentgym.tasks.terminal_draw import Draw, Instance

Family = Callable[[Draw, int], Instance]

FAMILIES: dict[str, Family] = {
    **terminal_files.FAMILIES,
    **terminal_text.FAMILIES,
    **terminal_data.FAMILIES,
    **terminal_more.FAMILIES,
}
LEVELS = (1, 2, 3, 4)
EASY = ("create", "nested", "delete", "rename", "count", "grep", "sort", "copy", "append")


class TerminalBasics(FamilyTasks):
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
    known_families = FAMILIES
    known_levels = LEVELS

    def __init__(
        self,
        families: list[str] | None = None,
        levels: list[int] | None = None,
        n_train: int = 2048,
        n_test: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__(families, levels, n_train, n_test, seed)

    def draw(self, seed: str, family: str, level: int) -> Drawn:
        made = FAMILIES[family](Draw(seed), level)
        return Drawn(made.instruction, {"files": made.files, "expect": made.expect, "solution": made.solution})
