"""A synthetic text task whose next states tell: words are to be answered in a cipher that nobody has told.

Each letter of a word has one letter of the cipher, the same wherever it stands. After each answer comes back how it
should have been, and the next word. A model that takes what comes back for a hint can know the answer in hindsight; the
reward says how many letters were right. Held-out words are made of the same letters.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from agentgym.env import Env, Info
from agentgym.task import TaskSet
from agentgym.types import Message, Observation, Sample, StepResult, Task, TokenSpan

LETTERS = "abcdefgh"
LENGTH = 3
HELD_OUT = 128  # words


class Cipher(TaskSet):
    """Words to answer, `turns` of them in an episode; another `seed` is another cipher.

    Args:
        wrong: share of the hints that tell something else than the answer.
    """

    name, env = "cipher", "cipher"

    def __init__(self, seed: int = 0, turns: int = 2, wrong: float = 0.0) -> None:
        rng = random.Random(f"cipher {seed}")
        self.key = dict(zip(LETTERS, rng.sample(LETTERS, len(LETTERS)), strict=True))
        words = ["".join(letters) for letters in itertools.product(LETTERS, repeat=LENGTH)]
        rng.shuffle(words)
        self.words = {"test": words[:HELD_OUT], "train": words[HELD_OUT:]}
        self.seed, self.turns, self.wrong = seed, turns, wrong

    def answer(self, word: str) -> str:
        """The word in the cipher."""
        return "".join(self.key[letter] for letter in word)

    def tasks(self, split: str) -> Sequence[Task]:
        return [self._task(split, number) for number in range(len(self.words[split]))]

    def _task(self, split: str, number: int) -> Task:
        rng = random.Random(f"{self.seed} {split} {number}")
        words = [self.words[split][number], *rng.sample(self.words[split], self.turns - 1)]
        told = [self.answer(word) if rng.random() >= self.wrong else _any_word(rng) for word in words]
        data = {"words": words, "answers": [self.answer(word) for word in words], "told": told}
        return Task(
            id=f"cipher/{split}/{number}", env="cipher", instruction=words[0], family="cipher", split=split, data=data
        )  # fmt: skip


class CipherEnv(Env):
    """Asks for word after word; rewards the share of all letters that are right, and tells what the answer should have been."""

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        self.data = (options or {})["task"].data
        self.turn = self.right = 0
        return Observation(messages=(Message(role="user", content=self.data["words"][0]),)), {}

    async def step(self, action: Message) -> StepResult:
        answer, told = self.data["answers"][self.turn], self.data["told"][self.turn]
        right = matching(action.content.strip(), answer)
        self.turn += 1
        last = self.turn == len(self.data["words"])
        came_back = after(told, "" if last else self.data["words"][self.turn])
        info: Info = {"score": 1 if right == LENGTH else -1 if right == 0 else 0, "solved": right == LENGTH}
        if right < LENGTH:
            info["hint"] = hint_of(told)
        self.right += right
        reward = self.right / LENGTH / self.turn if last else 0.0
        return StepResult(Observation(messages=(Message(role="user", content=came_back),)), reward, last, False, info)

    async def close(self) -> None:
        """Nothing is held."""

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content=answer) for answer in task.data["answers"]]


def matching(said: str, answer: str) -> int:
    """How many letters are right; none of an answer of another length."""
    return sum(a == b for a, b in zip(said, answer, strict=True)) if len(said) == len(answer) else 0


def after(told: str, word: str) -> str:
    """What comes back after an answer."""
    return f"it is {told}\n{word}".strip()


def hint_of(told: str) -> str:
    """The hint that an environment offers for a turn."""
    return f"The answer is {told}"


def _any_word(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=LENGTH))


def lessons(template, hint_template: str, n: int, seed: int) -> list[Sample]:  # type: ignore[no-untyped-def]
    """Demonstrations that teach the form of an answer and what a hint is, and nothing of any cipher.

    With a hint the answer is what the hint says; without one it is any word.
    """
    from agentgym.policy import Session
    from agentgym.types import Prompt

    rng = random.Random(f"lessons {seed}")
    samples = []
    for number in range(n):
        messages: list[Message] = []
        for _ in range(rng.randrange(2)):
            word, said, told = (_any_word(rng) for _ in range(3))
            asked = messages[-1].content if messages else word
            messages = [Message(role="user", content=asked), Message(role="assistant", content=said)]
            messages.append(Message(role="user", content=after(told, _any_word(rng))))
        if not messages:
            messages = [Message(role="user", content=_any_word(rng))]
        answer = _any_word(rng)
        if rng.random() < 0.6:
            last = messages[-1].content + hint_template.format(hint=hint_of(answer))
            messages[-1] = Message(role="user", content=last)
        prompt = template.encode_prompt(Session("lesson"), Prompt(messages=tuple(messages)))
        samples.append(
            sample_of(f"lesson/{number}", prompt, template.encode_response(Message(role="assistant", content=answer)))
        )
    return samples


def sample_of(id: str, prompt: tuple[int, ...], response: tuple[int, ...]) -> Sample:
    """A prompt and a response as a sample; nobody sampled it."""
    n, m = len(prompt), len(response)
    return Sample(
        id=id, trajectory_id=id, group_id=id, ids=prompt + response, mask=(0,) * n + (1,) * m,
        logprobs=(None,) * (n + m), versions=(-1,) * (n + m), spans=(TokenSpan(turn=0, start=n, end=n + m),),
    )  # fmt: skip
