"""Environments as a config asks for them: made by name, then wrapped.

A wrapper is named in a list, alone or with its options, and the first one is the innermost:

    ["step_limit"]    [{"step_limit": {"max_steps": 4}}, "recording"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.env import Env
from agentgym.errors import UsageError
from agentgym.registry import ENVIRONMENTS, WRAPPERS


def make_env(name: str, options: Mapping[str, Any] | None = None, wrappers: Sequence[Any] = ()) -> Env:
    """The environment `name` with its options, in its wrappers. Raises UsageError."""
    env: Env = ENVIRONMENTS.make(name, **(options or {}))
    return wrap(env, wrappers)


def wrap(env: Env, wrappers: Sequence[Any]) -> Env:
    """`env` in wrappers, the first one innermost.

    Raises:
        UsageError: one is unknown, or does not take its options.

    Example:
        wrap(env, [{"faults": {"error": 0.1, "seed": 3}}, {"step_limit": {"max_steps": 8}}])
    """
    for entry in wrappers:
        name, options = named(entry)
        env = WRAPPERS.make(name, env=env, **options)
    return env


def named(entry: Any) -> tuple[str, dict[str, Any]]:
    """Name and options of one entry. Raises UsageError."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, options),) = entry.items()
        if isinstance(name, str) and isinstance(options, Mapping) and "env" not in options:
            return name, dict(options)
    raise UsageError(f"env.wrappers: {entry!r} is neither a name nor {{name: {{option: value}}}}")
