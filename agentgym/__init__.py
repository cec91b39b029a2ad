"""agentgym: train language-model agents by reinforcement learning in real environments.

Importing this package loads none of torch, vllm, deepspeed, docker or playwright. It registers
"agentgym/Terminal-v0" with Gymnasium, which since its version 1.0 looks for no plug-ins by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from agentgym.env import Env
from agentgym.policy import Policy, ServingPolicy, Session
from agentgym.registry import ENVIRONMENTS, TASK_SETS, WRAPPERS
from agentgym.task import TaskSet
from agentgym.types import Completion, Message, Observation, Prompt, Sampling, StepResult, Task, Trajectory
from agentgym.wrapping import wrap

if TYPE_CHECKING:
    from agentgym.check import check_env, check_tasks

__version__ = "0.1.0"

register = ENVIRONMENTS.register
make = ENVIRONMENTS.make
register_tasks = TASK_SETS.register
make_tasks = TASK_SETS.make
register_wrapper = WRAPPERS.register

gymnasium.register(id="agentgym/Terminal-v0", entry_point="agentgym.environments.adapter:GymEnv")

__all__ = [
    "Completion", "Env", "Message", "Observation", "Policy", "Prompt", "Sampling", "ServingPolicy", "Session",
    "StepResult", "Task", "TaskSet", "Trajectory", "check_env", "check_tasks", "make", "make_tasks", "register",
    "register_tasks", "register_wrapper", "wrap",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("check_env", "check_tasks"):
        from agentgym import check

        return getattr(check, name)
    raise AttributeError(f"module 'agentgym' has no attribute {name!r}")
