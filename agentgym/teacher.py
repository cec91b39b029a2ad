"""The teacher contract: an engine outside of the run that scores a response under the prompt with the hint.

A teacher inside the learner (`teacher.kind` `self` and `reference`) needs none of this: it is a forward pass there.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from agentgym.config import Config
from agentgym.registry import TEACHERS
from agentgym.types import Completion, Judgement, Taught

TEMPERATURE = "sampled at another temperature than the teacher's"


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


@asynccontextmanager
async def teaching(config: Config, model: Path) -> AsyncIterator[Teacher | None]:
    """The external teacher of a config, if there is one, started; closed whatever happens."""
    teacher = make_teacher(config, model)
    try:
        if teacher is not None:
            await teacher.start()
        yield teacher
    finally:
        if teacher is not None:
            await teacher.close()


async def with_taught(teacher: Teacher, judgement: Judgement, completion: Completion) -> Judgement:
    """The judgement with what `teacher` says of the response under each of its hints; it is asked for all at once.

    A hint under which it failed, or said something of another length, is refused with the reason: that term is missing.
    """
    said: list[Taught | str | BaseException]
    if completion.temperature != 1.0:
        said = [TEMPERATURE] * len(judgement.hinted)
    else:
        calls = (teacher.score(prompt, completion.ids) for prompt in judgement.hinted)
        said = list(await asyncio.gather(*calls, return_exceptions=True))
    kept = [_why_not(one, completion) for one in said]
    return msgspec.structs.replace(
        judgement,
        hints=tuple(hint for hint, why in zip(judgement.hints, kept, strict=True) if not why),
        hinted=tuple(ids for ids, why in zip(judgement.hinted, kept, strict=True) if not why),
        taught=tuple(one for one, why in zip(said, kept, strict=True) if not why and isinstance(one, Taught)),
        refused_hints=judgement.refused_hints + tuple(filter(None, kept)),
    )


def _why_not(said: Taught | str | BaseException, completion: Completion) -> str:
    """Why it is of no use; empty if it is."""
    if isinstance(said, Taught):
        n = len(said.logprobs)
        return "" if n == len(completion.ids) else f"the teacher failed: it told {n} of {len(completion.ids)} log-probs"
    if isinstance(said, BaseException):
        return " ".join(f"the teacher failed: {str(said) or type(said).__name__}".split())[:300]
    return said
