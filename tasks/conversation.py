"""`conversation/preferences`: users who have wishes that nobody tells the policy before it fails them.

An instance belongs to a split by the hash of what is asked, whatever the seed: train and test can share none.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import count

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.task import TaskSet
from agentgym.tasks.conversation_users import USERS, Instance
from agentgym.types import Task

SPLITS = ("train", "test")
TEST_SHARE = 5  # one instance in five belongs to the test split
MAX_MISSES = 500  # draws in a row that give nothing new


class ConversationPreferences(TaskSet):
    """What several users ask in turn; each `family` is a user.

    Several users at once are the joint mode: one agent serves them all, one after another in rounds, and has to tell
    them apart by who they are and what they ask. With one of them the agent has a single user.

    Args:
        users: some of `student`, `reviewer`, `teacher`, `abroad`, `engineer`, `editor`, `manager`; all by default.
        n_train, n_test: tasks in each split.
        seed: another one makes other instances.
    """

    name = "conversation/preferences"
    env = "conversation"

    def __init__(self, users: list[str] | None = None, n_train: int = 448, n_test: int = 112, seed: int = 0) -> None:
        self.users = list(USERS) if users is None else list(users)
        for user in self.users:
            if user not in USERS:
                known = ", ".join(USERS)
                raise UsageError(f"{self.name}: unknown user {user!r}{nearest(user, USERS)}; known: {known}")
        if not self.users or n_train < 0 or n_test < 0:
            raise UsageError(f"{self.name}: it takes at least one user, and no negative numbers of tasks")
        self.sizes = {"train": n_train, "test": n_test}
        self.seed = seed
        self._made: dict[str, Sequence[Task]] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: {', '.join(SPLITS)}")
        if split not in self._made:
            sources = [self._of(split, user) for user in self.users]
            self._made[split] = [next(sources[index % len(sources)]) for index in range(self.sizes[split])]
        return self._made[split]

    def _of(self, split: str, user: str) -> Iterator[Task]:
        """The tasks of one user, without end."""
        seen: set[str] = set()
        misses = 0
        for attempt in count():
            made = USERS[user](random.Random(f"{self.seed}/{user}/{attempt}"))
            if split_of(made.asks) != split or made.asks in seen:
                misses += 1
                if misses > MAX_MISSES:
                    raise UsageError(f"{self.name}: {user} has only {len(seen)} {split} instances: ask for fewer tasks")
                continue
            misses = 0
            yield self._task(split, user, len(seen), made)
            seen.add(made.asks)

    def _task(self, split: str, user: str, index: int, made: Instance) -> Task:
        who = {"name": made.name, "role": made.role, "persona": made.persona, "thanks": made.thanks}
        return Task(
            id=f"{self.name}{f'@{self.seed}' if self.seed else ''}/{split}/{user}-{index}",
            env=self.env,
            instruction=made.asks,
            family=user,
            split=split,
            seed=self.seed * 1_000_003 + index,
            data={"user": {**who, "stages": made.stages}, "solution": made.replies},
        )


def split_of(asks: str) -> str:
    """The split that an instance belongs to: by its hash alone."""
    return "test" if hashlib.sha256(asks.encode()).digest()[0] % TEST_SHARE == 0 else "train"
