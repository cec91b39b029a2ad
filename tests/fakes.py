"""Small real environments, tasks and policies for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentgym.env import Env, Info
from agentgym.judge import Judge
from agentgym.policy import Policy, PolicyAddress, Session
from agentgym.task import TaskSet
from agentgym.types import (
    Completion,
    Exchange,
    Judgement,
    Message,
    Observation,
    Prompt,
    Sampling,
    StepResult,
    Task,
)


class EchoEnv(Env):
    """Rewards a message that holds the task's word; ends after `turns` turns; `fault` is called at each method."""

    def __init__(self, turns: int = 1, fault: Callable[[str], Any] | None = None) -> None:
        self.turns, self.fault = turns, fault
        self.closed = 0
        self.word = ""
        self.step_number = 0

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        await self._maybe("reset")
        self.word = (options or {})["task"].data["word"]
        self.step_number = 0
        return Observation(messages=(Message(role="user", content=f"Say {self.word}."),)), {}

    async def step(self, action: Message) -> StepResult:
        await self._maybe("step")
        self.step_number += 1
        last = self.step_number == self.turns
        reward = float(last and self.word in action.content)
        came_back = () if last else (Message(role="user", content=f"Again: {self.word}."),)
        return StepResult(Observation(messages=came_back), reward, last, False, {"turn": self.step_number})

    async def close(self) -> None:
        await self._maybe("close")
        self.closed += 1

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content=task.data["word"])] * self.turns

    async def _maybe(self, where: str) -> None:
        if self.fault:
            result = self.fault(where)
            if asyncio.iscoroutine(result):
                await result


def word_task(word: str, index: int = 0, split: str = "train") -> Task:
    return Task(
        id=f"words/{split}/{index}",
        env="echo",
        instruction=f"Say {word}.",
        family="say",
        split=split,
        data={"word": word},
    )


class Words(TaskSet):
    """Tasks of the echo environment."""

    name, env = "words", "echo"

    def __init__(self, n_train: int = 16, n_test: int = 8) -> None:
        self.numbers = {"train": n_train, "test": n_test}

    def tasks(self, split: str) -> Sequence[Task]:
        return [word_task("ab"[index % 2], index, split) for index in range(self.numbers[split])]


class TokenPolicy(Policy):
    """Answers `answer(prompt)` with one token per character, log-prob -0.5 and version 0."""

    def __init__(self, answer: Callable[[Prompt], str] = lambda prompt: "yes") -> None:
        self.answer = answer
        self.samplings: list[Sampling] = []

    async def __call__(self, prompt: Prompt, *, session: Session, sampling: Sampling) -> Completion:
        self.samplings.append(sampling)
        text = self.answer(prompt)
        new = prompt.messages[session.n_messages :]
        prompt_ids = session.ids + tuple(ord(c) for message in new for c in f"<{message.content}>")
        ids = tuple(ord(c) for c in text)
        session.ids, session.n_messages = prompt_ids + ids, len(prompt.messages) + 1
        return completion(prompt_ids, ids, text)


def completion(prompt_ids: tuple[int, ...], ids: tuple[int, ...], text: str = "", **changes: Any) -> Completion:
    values: dict[str, Any] = {
        "prompt_ids": prompt_ids,
        "ids": ids,
        "logprobs": (-0.5,) * len(ids),
        "versions": (0,) * len(ids),
        "finish_reason": "stop",
        "message": Message(role="assistant", content=text),
    }
    return Completion(**(values | changes))


class LetterEnv(Env):
    """Rewards the share of the letter `e` in a message of one turn: something that a tiny model can learn."""

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        return Observation(messages=(Message(role="user", content=(options or {})["task"].instruction),)), {}

    async def step(self, action: Message) -> StepResult:
        reward = action.content.count("e") / max(8, len(action.content))
        return StepResult(Observation(messages=()), reward, True, False, {})

    async def close(self) -> None:
        pass

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content="eeeeeeee")]


class Letters(TaskSet):
    """Tasks of the letter environment."""

    name, env = "letters", "letters"

    def tasks(self, split: str) -> Sequence[Task]:
        return [
            Task(id=f"letters/{split}/{index}", env="letters", instruction=f"{index}", family="letters", split=split)
            for index in range(64 if split == "train" else 16)
        ]


class ScriptedJudge(Judge):
    """Says of an exchange what `answer` does: a score, or (score, hints); an exception is raised; None scores nothing."""

    def __init__(self, answer: Callable[[Exchange], Any] = lambda exchange: 1, wait_s: float = 0.0) -> None:
        self.answer, self.wait_s = answer, wait_s
        self.asked: list[tuple[str, int]] = []
        self.closed = 0

    async def __call__(self, exchange: Exchange) -> Judgement:
        self.asked.append((exchange.trajectory_id, exchange.turn))
        await asyncio.sleep(self.wait_s)
        said = self.answer(exchange)
        if isinstance(said, Exception):
            raise said
        score, hints = said if isinstance(said, tuple) else (said, ())
        return Judgement(
            trajectory_id=exchange.trajectory_id, turn=exchange.turn, judge="scripted", score=score, hints=hints,
            votes=() if score is None else (score,), reason="nothing to say" if score is None else "",
        )  # fmt: skip

    async def close(self) -> None:
        self.closed += 1


def hinted(prompt: Prompt, served: tuple[int, ...], hints: Sequence[str]) -> list[tuple[int, ...] | None]:
    """The teacher's prompts of `TokenPolicy`: the prompt as served, and the hint after it, one token per character."""
    return [(*served, *(ord(c) for c in hint)) for hint in hints]


class StubbornEnv(EchoEnv):
    """Misbehaves, in the way that its task's word names, in `step`; other words it takes as the echo environment does."""

    async def step(self, action: Message) -> StepResult:
        kind, _, argument = self.word.partition(" ")
        self._misbehave(kind, argument)
        if kind == "sleep":
            await asyncio.sleep(float(argument))
        if kind == "leak":
            leaked = []
            for _ in range(int(argument) // 10):
                leaked.append(b"x" * (10 << 20))
                await asyncio.sleep(0.01)
            await asyncio.sleep(60)
        if kind == "nonsense":
            return StepResult(Observation(messages=({"role": "user"},)), 0.0, False, False, {})  # type: ignore[arg-type]
        return await super().step(action)

    def _misbehave(self, kind: str, argument: str) -> None:
        if kind == "exit":
            os._exit(int(argument))
        if kind == "quit":
            raise SystemExit(argument)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "block":
            time.sleep(float(argument))
        if kind == "raise":
            raise ValueError(argument)
        if kind == "once" and not Path(argument).exists():  # dies unless it was here before
            Path(argument).touch()
            os._exit(9)
        if kind == "leave":  # dies, and leaves a process behind that has no parent and a session of its own
            subprocess.run(["setsid", "--fork", "sleep", argument], check=True)
            os._exit(5)


class Parrot(TokenPolicy):
    """Says what the last message asked it to say; made from an address."""

    address = PolicyAddress(factory="tests.fakes:Parrot")

    def __init__(self) -> None:
        super().__init__(lambda prompt: prompt.messages[-1].content)


class Fragile(Parrot):
    """Can be made only so many times, by all processes together that name the same folder."""

    def __init__(self, folder: str, times: int) -> None:
        super().__init__()
        made = len(list(Path(folder).glob("made-*")))
        if made == times:
            raise RuntimeError(f"made {made} times")
        (Path(folder) / f"made-{made}").touch()


class DeafEnv(EchoEnv):
    """Cannot be cancelled in `step`."""

    async def step(self, action: Message) -> StepResult:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
