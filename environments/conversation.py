"""A conversation with a simulated user: the next state is what the user replies.

A task's instruction is what the user says first; its `data["user"]` is who speaks:

    {"name": "Mina", "role": "a student", "thanks": "Thanks!",
     "stages": [{"rules": [{"rule": "no_markup"}]}, {"asks": "Now shorter, please.", "rules": [...]}]}

A stage is passed by a reply against which none of its rules (see `conversation_rules`) has anything; then the user asks
the next thing, or is satisfied. `data["solution"]` are the oracle's replies. With `user="llm"` a language model speaks
for the user; whether a reply is as wanted is still for the rules to say, where there are any, else for the model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from agentgym.env import Env, Info
from agentgym.environments.conversation_rules import complaints
from agentgym.environments.toolcall import answer_in
from agentgym.errors import TaskError, UsageError
from agentgym.types import Message, Observation, StepResult, Struct, Task

SYSTEM = "You are the assistant of {name}, {role}."
OPENINGS = ("Hm.", "No, not like that.", "That is not what I need.", "Sorry, but no.")
THANKS = "Thank you, that is what I wanted."
USERS = ("rules", "llm")


class Verdict(Struct, frozen=True, kw_only=True):
    """What a user makes of a reply."""

    satisfied: bool
    complaints: tuple[str, ...] = ()
    says: str = ""  # in the user's words


class Speaker(Protocol):
    """Puts a user's verdict into words."""

    async def __call__(
        self, user: Mapping[str, Any], history: Sequence[Message], found: Sequence[str] | None, seed: int
    ) -> Verdict:
        """The verdict on the last message of `history`; `found` is what the rules have against it, None without rules.

        Raises InfrastructureError.
        """

    async def close(self) -> None:
        """Free everything; safe to call twice."""


class RuleSpeaker:
    """Says what the rules have against a reply, as it is."""

    async def __call__(
        self, user: Mapping[str, Any], history: Sequence[Message], found: Sequence[str] | None, seed: int
    ) -> Verdict:
        if found is None:
            raise TaskError("the user has no rules: give some, or let a language model speak (user=llm)")
        opening = random.Random(seed).choice(OPENINGS)
        says = " ".join([opening, *found]) if found else str(user.get("thanks", THANKS))
        return Verdict(satisfied=not found, complaints=tuple(found), says=says)

    async def close(self) -> None:
        pass


class ConversationEnv(Env):
    """A user who asks for something, and complains until it is as wanted.

    Thinking (<think>) is not shown to the user. The outcome is `discount` to the power of the number of complaints if the user is satisfied in the end, else 0: with
    a discount below 1 a task counts as solved if no reply was complained about. `info` has the evidence of each reply:
    `satisfied`, `score` (1, -1) and, where there is one, the `hint` that is in the complaint.

    Args:
        max_replies: messages the policy may write.
        discount: of the outcome, for each complaint.
        user: `rules`, or `llm` for a language model behind `url`.
        url: base URL of an OpenAI-compatible endpoint (`llm`), such as http://127.0.0.1:8000/v1.
        model: the model's name there.
        key_env: the environment variable that holds the key, if one is asked for.
        timeout_s: of one call of the model.
        system_prompt: replaces the first message, which says whose assistant the policy is; empty for none.
    """

    name = "conversation"

    def __init__(
        self,
        *,
        max_replies: int = 4,
        discount: float = 0.5,
        user: str = "rules",
        url: str = "",
        model: str = "",
        key_env: str = "",
        timeout_s: float = 60.0,
        system_prompt: str | None = None,
    ) -> None:
        if max_replies < 1 or not 0 < discount <= 1:
            raise UsageError("conversation: max_replies must be at least 1, and discount above 0 and at most 1")
        if user not in USERS:
            raise UsageError(f"conversation: unknown user {user!r}; known: {', '.join(USERS)}")
        self.max_replies, self.discount, self.system_prompt = max_replies, discount, system_prompt
        self.speaker: Speaker = RuleSpeaker()
        if user == "llm":
            from agentgym.environments.conversation_llm import ModelSpeaker

            self.speaker = ModelSpeaker(url=url, model=model, key_env=key_env, timeout_s=timeout_s)
        self.task: Task | None = None
        self.ended = True

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError('conversation: reset needs options={"task": Task}')
        self.user = _user_of(task)
        self.stages = list(self.user.get("stages") or [{}])
        self.task, self.ended = task, False
        self.seed = task.seed if seed is None else seed
        self.stage = self.replies = self.complaints = 0
        prompt = SYSTEM.format(name=self.user.get("name", "the user"), role=self.user.get("role", "a user"))
        prompt = prompt if self.system_prompt is None else self.system_prompt
        messages = [Message(role="system", content=prompt)] if prompt else []
        messages.append(Message(role="user", content=task.instruction))
        self.history = tuple(messages)
        return Observation(messages=self.history), {"task": task.id, "user": self.user.get("name", "")}

    async def step(self, action: Message) -> StepResult:
        if self.task is None:
            raise UsageError("conversation: step before reset, or after close")
        if self.ended:
            return StepResult(Observation(messages=()), 0.0, True, False, {"ended": True})
        self.replies += 1
        self.history = (*self.history, msgspec.structs.replace(action, content=answer_in(action.content)))
        verdict = await self._judge(self.history[-1].content)
        info: Info = {"satisfied": verdict.satisfied, "score": 1 if verdict.satisfied else -1, "stage": self.stage}
        if verdict.satisfied:
            self.stage += 1
        else:
            self.complaints += 1
            info["failed"] = list(verdict.complaints)
            info |= {"hint": " ".join(verdict.complaints)} if verdict.complaints else {}
        done = self.stage == len(self.stages)
        says = verdict.says if done or not verdict.satisfied else str(self.stages[self.stage].get("asks", "And now?"))
        reply = Message(role="user", content=says)
        self.history = (*self.history, reply)
        self.ended = done or self.replies >= self.max_replies
        reward = self.discount**self.complaints if done else 0.0
        if self.ended:
            end = "satisfied" if done else "max_replies"
            info |= {"end": end, "solved": done, "complaints": self.complaints, "replies": self.replies}
        return StepResult(Observation(messages=(reply,)), reward, self.ended, False, info)

    async def close(self) -> None:
        self.task = None
        await self.speaker.close()

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content=text) for text in task.data.get("solution", ())]

    async def _judge(self, said: str) -> Verdict:
        rules = self.stages[self.stage].get("rules")
        found = None if rules is None and said.strip() else complaints(said, rules or ())
        return await self.speaker(self.user, self.history, found, hash_of(self.seed, self.replies))


def hash_of(seed: int, reply: int) -> int:
    """A seed for one reply of the user."""
    return random.Random(f"{seed}/{reply}").getrandbits(31)


def _user_of(task: Task) -> Mapping[str, Any]:
    user = task.data.get("user")
    if not isinstance(user, Mapping) or not all(isinstance(stage, Mapping) for stage in user.get("stages", ())):
        raise TaskError(f"task {task.id}: data['user'] is no mapping that says who speaks")
    return user
