"""The teacher contract: an engine outside of the run that scores a response under the prompt with the hint.

A teacher inside the learner (`teacher.kind` `self` and `reference`) needs none of this: it is a forward pass there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from agentgym.config import Config
from agentgym.registry import TEACHERS
from agentgym.types import Taught


class Teacher(ABC):
    """Scores ids with other weights; its tokens must be those of the model in training."""

    @abstractmethod
    async def start(self) -> None:
        """Check that it can be asked.

        Raises:
            UsageError: its tokens are others, or it does not return the log-probs that `algorithm.opd` needs.
            EngineError: it cannot be reached.
        """

    @abstractmethod
    async def score(self, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...]) -> Taught:
        """The log-probs of the T ids of a response after the prompt with a hint, at temperature 1.

        Raises:
            EngineError: no answer in time, or one about other tokens. That is a missing term, never zeros.
        """

    async def close(self) -> None:
        """Free everything; safe to call twice."""


def make_teacher(config: Config, model: Path) -> Teacher | None:
    """The external teacher of a config; None where the learner is its own, or nobody is taught.

    Args:
        model: the Hugging Face folder of the model in training, whose tokenizer counts.

    Raises:
        ConfigError: settings that cannot work.
    """
    if not config.algorithm.w_opd or config.teacher.kind not in TEACHERS.names():
        return None
    teacher: Teacher = TEACHERS.load(config.teacher.kind)(config, model=model)
    return teacher
