"""Wrappers in Gymnasium's sense: an environment around an environment. They compose in any order, the first innermost.

What a limit ends is `truncated`, as in Gymnasium: nobody judges it, and the rewards so far are its outcome. An
environment that has a limit of its own (`max_steps`) judges the state at its end; prefer that where there is one.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from agentgym.env import Env, Info
from agentgym.environments.context import Budget, counter, cut
from agentgym.errors import UsageError
from agentgym.types import Message, Observation, StepResult, Task


class Wrapper(Env):
    """Passes everything on to `env`; a subclass overrides what it changes.

    Example:
        @agentgym.register_wrapper("polite")
        class Polite(Wrapper):
            async def step(self, action):
                result = await super().step(action)
                return result._replace(reward=result.reward * ("please" in action.content))
    """

    def __init__(self, env: Env) -> None:
        self.env = env

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Message) -> StepResult:
        return StepResult(*await self.env.step(action))

    async def close(self) -> None:
        await self.env.close()

    async def oracle(self, task: Task) -> list[Message]:
        return await self.env.oracle(task)

    @property
    def unwrapped(self) -> Env:
        """The environment inside all wrappers."""
        return self.env.unwrapped if isinstance(self.env, Wrapper) else self.env

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.env!r}>"


def over(result: StepResult) -> bool:
    """Whether a step ended its episode."""
    return result.terminated or result.truncated


def cut_short(result: StepResult, limit: str) -> StepResult:
    """The step as the last one, truncated by `limit`; one that ended the episode anyway stays as it is."""
    if over(result):
        return result
    return result._replace(truncated=True, info={**result.info, "end": limit, "reason": limit})


class StepLimit(Wrapper):
    """The episode is truncated after `max_steps` messages of the policy."""

    def __init__(self, env: Env, *, max_steps: int = 16) -> None:
        super().__init__(env)
        self.max_steps = positive("step_limit", max_steps=max_steps)
        self.steps = 0

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        self.steps = 0
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Message) -> StepResult:
        self.steps += 1
        result = await super().step(action)
        return cut_short(result, "step_limit") if self.steps >= self.max_steps else result


class TimeLimit(Wrapper):
    """The episode is truncated by the first step that ends more than `seconds` of wall time after the reset.

    A step is never interrupted: what hangs is the machine's fault, and `rollout.step_timeout_s` deals with that.
    """

    def __init__(self, env: Env, *, seconds: float = 300.0) -> None:
        super().__init__(env)
        self.seconds = positive("time_limit", seconds=seconds)
        self.until = math.inf

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        first = await super().reset(seed=seed, options=options)
        self.until = time.monotonic() + self.seconds
        return first

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        return cut_short(result, "time_limit") if time.monotonic() > self.until else result


class TokenBudget(Wrapper):
    """All that is said in an episode fits into `tokens`: each observation is cut to half of what is left.

    The episode is truncated when there is no room for another exchange.

    Args:
        tokens: of messages and tools, both sides.
        tokenizer: a folder or file with the tokenizer.json that counts them; estimated without.
    """

    def __init__(self, env: Env, *, tokens: int = 4096, tokenizer: str = "") -> None:
        super().__init__(env)
        self.tokens = positive("token_budget", tokens=tokens)
        self.count = counter(tokenizer)
        self.budget = Budget(self.tokens, self.count)

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        observation, info = await super().reset(seed=seed, options=options)
        self.budget = Budget(self.tokens, self.count)
        for tool in observation.tools:
            self.budget.take(msgspec.json.encode(tool.to_openai()).decode())
        return with_text(observation, self.budget.fit), info

    async def step(self, action: Message) -> StepResult:
        self.budget.take(action.content + "".join(call.name + call.arguments for call in action.tool_calls))
        result = await super().step(action)
        result = result._replace(observation=with_text(result.observation, self.budget.fit))
        return cut_short(result, "token_budget") if self.budget.spent else result


class TruncateObservation(Wrapper):
    """Each message that comes back, and the first observation but for its system message, has at most `max_chars`.

    Head and tail are kept, with a note of how many characters are left out.
    """

    def __init__(self, env: Env, *, max_chars: int = 4000) -> None:
        super().__init__(env)
        self.max_chars = positive("truncate", max_chars=max_chars)

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        observation, info = await super().reset(seed=seed, options=options)
        return self._cut(observation), info

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        return result._replace(observation=self._cut(result.observation))

    def _cut(self, observation: Observation) -> Observation:
        return with_text(observation, lambda text: cut(text, self.max_chars), system=False)


class ShapeReward(Wrapper):
    """Rewards of another size: scaled, shifted at the end, with a price for each step and each unusable message.

    reward = scale * r - step_cost - parse_error_cost * (the message was unusable), clipped to [low, high]; the last step
    gets `bonus` on top if the environment's own rewards sum up to at least 1. `info["unshaped_reward"]` is the
    environment's. A solved task counts as one whose outcome is at least 1, shaped or not: a `bonus` that outweighs the
    costs keeps it so.

    Args:
        function: "module:name" of a function (reward, StepResult) -> reward that is applied before all this.
    """

    def __init__(
        self,
        env: Env,
        *,
        scale: float = 1.0,
        step_cost: float = 0.0,
        parse_error_cost: float = 0.0,
        bonus: float = 0.0,
        low: float | None = None,
        high: float | None = None,
        function: str = "",
    ) -> None:
        super().__init__(env)
        numbers = (scale, step_cost, parse_error_cost, bonus, low or 0.0, high or 0.0)
        if not all(math.isfinite(number) for number in numbers):
            raise UsageError("shape_reward: its options must be finite numbers")
        if low is not None and high is not None and low > high:
            raise UsageError(f"shape_reward: low={low:g} is above high={high:g}")
        self.scale, self.step_cost, self.parse_error_cost, self.bonus = scale, step_cost, parse_error_cost, bonus
        self.low = -math.inf if low is None else low
        self.high = math.inf if high is None else high
        self.function = _load(function) if function else None
        self.outcome = 0.0

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        self.outcome = 0.0
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        self.outcome += result.reward
        reward = result.reward if self.function is None else float(self.function(result.reward, result))
        reward = self.scale * reward - self.step_cost - self.parse_error_cost * bool(result.info.get("parse_error"))
        reward = min(max(reward, self.low), self.high) + self.bonus * (over(result) and self.outcome >= 1.0)
        return result._replace(reward=reward, info={**result.info, "unshaped_reward": result.reward})


def with_text(observation: Observation, change: Callable[[str], str], *, system: bool = True) -> Observation:
    """The observation with `change` made to the text of each message, system messages only if `system`."""
    messages = tuple(
        msgspec.structs.replace(message, content=change(message.content))
        if system or message.role != "system"
        else message
        for message in observation.messages
    )
    return msgspec.structs.replace(observation, messages=messages)


def positive(who: str, **values: Any) -> Any:
    """The one value, which must be greater than 0. Raises UsageError."""
    ((name, value),) = values.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{who}: {name}={value!r} must be a number greater than 0")
    return value


def _load(path: str) -> Callable[[float, StepResult], float]:
    module, _, name = path.partition(":")
    try:
        function: Callable[[float, StepResult], float] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"shape_reward: function={path!r} is no 'module:name' of a function: {error}") from error
    return function
