"""What policies that sample tokens have in common: messages in, a completion with ids, log-probs and versions out."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentgym.config import Config
from agentgym.policies.hinting import hinted_prompt
from agentgym.policies.template import ChatTemplate
from agentgym.policy import ContextOverflow, Piece, Policy, Session, TokenServer
from agentgym.types import Completion, FinishReason, Prompt, Sampling

LONG = 20_000  # characters whose tokenisation would hold up the event loop for longer than a thread costs


class Sampled(NamedTuple):
    """T sampled tokens."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason


class TokenClient(Policy):
    """A policy that renders its prompts itself; a subclass samples."""

    def __init__(self, config: Config, template: ChatTemplate) -> None:
        self.config = config
        self.template = template

    async def __call__(self, prompt: Prompt, *, session: Session, sampling: Sampling) -> Completion:
        """Sample one completion and extend `session` by it.

        Raises:
            ContextOverflow: the prompt leaves no room for one token in `model.max_length`.
            EngineError: the engine failed or took longer than `engine.request_timeout_s`.
        """
        prompt_ids = await self._encode(session, prompt)
        room = self.config.model.max_length - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(f"{len(prompt_ids)} tokens leave no room in {self.config.model.max_length}")
        began = time.monotonic()
        capped = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room))
        sampled = await self.sample(prompt_ids, capped)
        completion = Completion(
            prompt_ids=prompt_ids,
            ids=sampled.ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish_reason=sampled.finish_reason,
            message=self.template.decode_response(sampled.ids, prompt.tools),
            temperature=sampling.temperature,
            seconds=time.monotonic() - began,
        )
        self.template.advance(session, prompt, completion)
        return completion

    @abstractmethod
    async def sample(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sampled:
        """Sample after `prompt_ids`, at most `sampling.max_tokens` tokens; cancelling the task frees the engine."""

    @abstractmethod
    def stream(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """The same, piece by piece; closing the iterator frees the engine."""

    async def _encode(self, session: Session, prompt: Prompt) -> tuple[int, ...]:
        if prompt.ids is None and sum(len(message.content) for message in prompt.messages) > LONG:
            return await asyncio.to_thread(self.template.encode_prompt, session, prompt)
        return self.template.encode_prompt(session, prompt)


class TokenPolicy(TokenClient, TokenServer):
    """A serving policy that renders its prompts itself; a subclass samples."""

    template: ChatTemplate

    def __init__(self, config: Config, *, model: Path, folder: Path, version: int = 0) -> None:
        super().__init__(config, ChatTemplate(model, config.model.chat_template, config.model.tool_format))
        self.model = model
        self.folder = folder
        self.version = version

    def hinted(self, prompt: Prompt, served_ids: tuple[int, ...], hints: Sequence[str]) -> list[tuple[int, ...] | None]:
        """The teacher's prompt for each hint (see `hinting`); None where it cannot be told. Safe in any thread."""
        told = self.config.hints.template
        return [hinted_prompt(self.template, prompt.messages, prompt.tools, served_ids, hint, told) for hint in hints]
