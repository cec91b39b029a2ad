"""Errands at a small desk (calendar, mail, files, rooms) made from a seed: six families, each in levels 1 to 3.

What is judged is the state of the desk: everything that was asked for is as it should be, and nothing else was touched.
An instance belongs to a split by the hash of its instruction, whatever the seed: train and test can share none.
"""

from __future__ import annotations

from typing import Any

from agentgym.errors import UsageError
from agentgym.tasks.desk_families import FAMILIES
from agentgym.tasks.desk_office import Desk, Slot
from agentgym.tasks.desk_world import Errand, World
from agentgym.tasks.families import Drawn, FamilyTasks

LEVELS = (1, 2, 3)
SYSTEM = (
    "You are the assistant of the user, and work at their desk by means of tools. Do all that is asked for and nothing "
    "else. Ask the user about what only they can know. When everything is done, say so."
)


class Desks(FamilyTasks):
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
    known_families = FAMILIES
    known_levels = LEVELS

    def __init__(
        self,
        families: list[str] | None = None,
        levels: list[int] | None = None,
        n_train: int = 512,
        n_test: int = 96,
        seed: int = 0,
        tools: str = "all",
    ) -> None:
        super().__init__(families, levels, n_train, n_test, seed)
        if tools not in ("all", "few"):
            raise UsageError(f"{self.name}: tools is all or few, got {tools!r}")
        self.few = tools == "few"

    def draw(self, seed: str, family: str, level: int) -> Drawn | None:
        world = World(seed)
        try:
            errand = FAMILIES[family](world, level)
        except ValueError:  # a world in which it cannot be done
            return None
        return Drawn(f"{errand.instruction} {world.today()}", task_data(world, errand, self.few))


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
