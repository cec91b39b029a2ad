"""Tasks on pages of the test's own, for the environment `gui`."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym.environments.gui import GuiEnv
from agentgym.environments.gui_browser import no_browser
from agentgym.types import Message, StepResult, Task

needs_browser = pytest.mark.skipif(bool(no_browser()), reason=f"no browser: {no_browser()}")


def page_task(*pages: str, **data: Any) -> Task:
    """A task on pages: the first is "/", the others "/1", "/2" ..."""
    served = {"/" if index == 0 else f"/{index}": page for index, page in enumerate(pages)}
    served |= data.pop("more", {})
    return Task(
        id="page", env="gui", instruction="Do it.", data={"site": "pages", "pages": served, "answer": "x", **data}
    )


async def opened(*pages: str, options: dict[str, Any] | None = None, **data: Any) -> tuple[GuiEnv, str]:
    """An environment with the first page open, and what it shows."""
    env = GuiEnv(**{"protocol": "block", "max_steps": 100, **(options or {})})
    observation, _ = await env.reset(options={"task": page_task(*pages, **data)})
    return env, observation.messages[-1].content


async def act(env: GuiEnv, line: str) -> StepResult:
    """Do one action, written in a block."""
    return await env.step(Message(role="assistant", content=f"```action\n{line}\n```"))


def text(result: StepResult) -> str:
    """What the policy reads."""
    return "\n".join(message.content for message in result.observation.messages)


def ref(shown: str, what: str) -> str:
    """The ref of the first line that holds `what`."""
    line = next(line for line in shown.splitlines() if what in line and "[ref=" in line)
    return line.partition("[ref=")[2].partition("]")[0]
