"""Games of other packages as plain Gymnasium environments of text, and these as ours: as their users would write them.

Importing this file registers "lake-in-words", "sums" (the package reasoning-gym) and "arena" (textarena); the packages
are imported when an environment is made.
"""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium.spaces import Text

import agentgym
from agentgym import Message, Task
from agentgym.environments.adapter import FromGymnasium, Seeds

TEXT = Text(max_length=20_000, min_length=0, charset=string.printable)
MOVES = ("left", "down", "right", "up")


class InWords(gymnasium.Wrapper[Any, Any, Any, Any]):
    """FrozenLake in words: where one is, and the names of the moves."""

    observation_space = action_space = TEXT

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        place, info = self.env.reset(**given)
        return self._said(place), info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        place, reward, terminated, truncated, info = self.env.step(MOVES.index(action))
        return self._said(place), reward, terminated, truncated, info

    def _said(self, place: int) -> str:
        return f"You are in row {place // 4 + 1}, column {place % 4 + 1}."


def move(text: str) -> str:
    """The one move that a message names."""
    named = [word for word in MOVES if word in text.lower().split()]
    if len(named) != 1:
        raise ValueError(f"name one of {', '.join(MOVES)}")
    return named[0]


@agentgym.register("lake-in-words")
class Lake(FromGymnasium):
    """FrozenLake in words."""

    def __init__(self) -> None:
        super().__init__(lambda: InWords(gymnasium.make("FrozenLake-v1", is_slippery=False)), to_action=move)

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content=f"I go {MOVES[int(digit)]}") for digit in "112212"]


@agentgym.register_tasks("lake-in-words/walks")
class Walks(Seeds):
    """Walks over the lake."""

    name, env = "lake-in-words/walks", "lake-in-words"
    instruction = "Cross the lake from row 1, column 1 to row 4, column 4. Say left, down, right or up."


class Puzzle(gymnasium.Env[str, str]):
    """One question of a generator of reasoning-gym, and its score."""

    observation_space = action_space = TEXT

    def __init__(self, generator: str = "basic_arithmetic") -> None:
        self.generator = generator

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        from reasoning_gym import create_dataset

        super().reset(seed=seed)
        self.questions = create_dataset(self.generator, size=1, seed=int(self.np_random.integers(1 << 30)))
        self.entry = self.questions[0]
        return self.entry["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(self.questions.score_answer(action.strip(), self.entry) >= 1), True, False, {}


@agentgym.register("sums")
class Sums(FromGymnasium):
    """Questions of reasoning-gym."""

    def __init__(self, *, generator: str = "basic_arithmetic") -> None:
        self.puzzle = Puzzle(generator)
        super().__init__(self.puzzle)

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content=self.puzzle.entry["answer"])]


@agentgym.register_tasks("sums/arithmetic")
class Arithmetic(Seeds):
    """Arithmetic."""

    name, env, instruction = "sums/arithmetic", "sums", "Answer with the result and nothing else."


class Game(gymnasium.Env[str, str]):
    """A game of textarena for one player."""

    observation_space = action_space = TEXT

    def __init__(self, game: str = "GuessTheNumber-v0") -> None:
        self.game = game

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        import textarena

        super().reset(seed=seed)
        self.arena = textarena.make(self.game)
        self.arena.reset(num_players=1, seed=int(self.np_random.integers(1 << 30)))
        return self.arena.get_observation()[1], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        done, _ = self.arena.step(action)
        if not done:
            return self.arena.get_observation()[1], 0.0, False, False, {}
        rewards, info = self.arena.close()
        return "", float(rewards[0] >= 1), True, False, {"reason": info[0]["reason"]}


@agentgym.register("arena")
class Arena(FromGymnasium):
    """Games of textarena."""

    def __init__(self, *, game: str = "GuessTheNumber-v0") -> None:
        self.played = Game(game)
        super().__init__(self.played)

    async def oracle(self, task: Task) -> list[Message]:
        return [Message(role="assistant", content=f"[{self.played.arena.state.game_state['game_number']}]")]


@agentgym.register_tasks("arena/numbers")
class Numbers(Seeds):
    """Numbers to guess."""

    name, env, instruction = "arena/numbers", "arena", "Play the game."
