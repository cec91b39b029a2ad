"""Task sets: named, seeded, split collections of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentgym.types import Task


class TaskSet(ABC):
    """Tasks of one kind. The same arguments give the same tasks on every machine.

    Splits never share an instance.
    """

    name: str = ""
    env: str = ""

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split ("train" or "test"), in a fixed order."""
