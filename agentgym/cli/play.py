"""An episode at the terminal: the person (or the oracle) says what the policy would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from agentgym.cli.console import out
from agentgym.env import Env
from agentgym.errors import UsageError
from agentgym.types import Message, Observation, Task

HOW = "A message ends with the ``` that closes a block, or with an empty line outside one; Ctrl-D stops."


async def play_episode(env: Env, task: Task, oracle: bool) -> None:
    """Play one episode of `task` and print what is said, and how it ended."""
    try:
        observation, _ = await env.reset(seed=task.seed, options={"task": task})
        actions = iter(await env.oracle(task)) if oracle else _read_messages()
        _show(observation)
        ended, spoken = False, 0
        for action in actions:
            spoken += 1
            if oracle:
                _heading(action.role)
                _say(action.content)
            observation, reward, terminated, truncated, info = await env.step(action)
            _show(observation)
            if ended := terminated or truncated:
                _verdict(reward, info)
                break
        if oracle and not spoken:
            raise UsageError(f"no oracle is known for {task.id}")
        if not ended:
            _say("the episode is not finished: " + ("the oracle has no more to say" if oracle else "the input ended"))
    finally:
        await env.close()


def _read_messages() -> Iterator[Message]:
    """Messages from standard input, each as far as `HOW` says."""
    _say(HOW)
    while True:
        if sys.stdin.isatty():
            out.print("assistant> ", end="", style="bold")
        text = _read_message()
        if text is None:
            return
        yield Message(role="assistant", content=text)


def _read_message() -> str | None:
    """The next message; None at the end of input."""
    lines: list[str] = []
    fence = ""
    for line in iter(sys.stdin.readline, ""):
        line = line.rstrip("\n")
        if not line.strip() and not fence:
            return "\n".join(lines)
        lines.append(line)
        ticks = line.strip()[: len(line.strip()) - len(line.strip().lstrip("`"))]
        if not fence and len(ticks) >= 3:
            fence = ticks
        elif fence and line.strip() == ticks and len(ticks) >= len(fence):
            return "\n".join(lines)
    return "\n".join(lines) if lines else None


def _show(observation: Observation) -> None:
    for message in observation.messages:
        _heading(message.role)
        _say(message.content)


def _verdict(reward: float, info: dict[str, Any]) -> None:
    """How it ended: the reward, each verdict in a line of its own, and what else the environment tells."""
    _say(f"the episode ended; reward {reward:g}")
    for verdict in info.get("verdicts", []):
        good = "ok  " if verdict.get("ok") else "FAIL"
        why = f": {verdict['why']}" if verdict.get("why") and not verdict.get("ok") else ""
        _say(f"  {good} {verdict.get('kind', '')} {verdict.get('path', '')}".rstrip() + why)
    rest = {key: value for key, value in info.items() if key not in ("verdicts", "failed")}
    _say("  " + ", ".join(f"{key}={value}" for key, value in rest.items()))


def _heading(text: str) -> None:
    out.print(Text(text, style="bold"))


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
