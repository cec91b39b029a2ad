"""The teacher's prompts: a conversation as it was served, with a hint added to its last user message.

Ids as served and as sampled are kept: only the stretch between two special tokens that holds the changed message is
encoded again. Where that stretch cannot be told in the served ids (a template that puts no special tokens around a
message, a history that was served otherwise than it reads now) the whole conversation is rendered afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from agentgym.policies.template import ChatTemplate
from agentgym.types import Message, ToolSpec

SLOT = "{hint}"  # where `hints.template` has the hint

Ids = tuple[int, ...]
T = TypeVar("T")


def hinted_prompt(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: tuple[ToolSpec, ...],
    served_ids: Ids,
    hint: str,
    hint_template: str,
) -> Ids | None:
    """The ids of the same prompt with `hint` at the end of its last user message; special tokens in it stay text.

    None where no hint can be told: no message is a user's (or the messages are not known), or the chat template prints
    nothing of it.

    Raises:
        UsageError: the chat template refuses the conversation.

    Example:
        hinted_prompt(template, messages, (), served_ids, "Use mkdir -p.", "\\n\\nHint: {hint}")
    """
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        return None
    content = messages[last].content + hint_template.replace(SLOT, hint)
    told = msgspec.structs.replace(messages[last], content=content)
    before = template.render(messages, tools)
    after = template.render([*messages[:last], told, *messages[last + 1 :]], tools)
    if before == after:
        return None
    return _spliced(template, before, after, served_ids) or template.encode(after)


def _spliced(template: ChatTemplate, before: str, after: str, served_ids: Ids) -> Ids | None:
    """The served ids with that stretch encoded again in which `before` and `after` differ; None if it is not one.

    A stretch is known by its text and the special tokens around it. It must be served as often as it is in `before`, or
    it would not be sure which one is meant.
    """
    old, new = template.stretches(before), template.stretches(after)
    changed = [index for index, (one, other) in enumerate(zip(old, new, strict=False)) if one != other]
    if len(old) != len(new) or len(changed) != 1:
        return None
    (index,) = changed
    alike = [place for place in range(0, len(old), 2) if _around(old, place) == _around(old, index)]
    wanted = tuple(template.encode(text) for text in _around(old, index))
    served = _cut(served_ids, template.special_ids)
    found = [place for place in range(0, len(served), 2) if _around(served, place) == wanted]
    if len(found) != len(alike):
        return None
    served[found[alike.index(index)]] = template.encode(new[index])
    return tuple(id for part in served for id in part)


def _around(parts: Sequence[T], place: int) -> tuple[T, ...]:
    """The part at `place` with its neighbours."""
    return tuple(parts[max(0, place - 1) : place + 2])


def _cut(ids: Ids, special: frozenset[int]) -> list[Ids]:
    """The ids cut around special ones: plain, special, plain, ..., plain."""
    cuts = [place for at, id in enumerate(ids) if id in special for place in (at, at + 1)]
    return [ids[start:end] for start, end in pairwise([0, *cuts, len(ids)])]
