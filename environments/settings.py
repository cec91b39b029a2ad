"""What all environments with a shell take, once: typed, with each environment's own defaults.

An environment names its defaults and, in its `__init__`, only what it alone takes; the signature that `agentgym envs
show`, the command line and error messages read is made of both.

Example:
    class TerminalEnv(ShellEnv):
        defaults = ShellSettings(max_steps=8)

        def __init__(self, *, partial_credit: bool = False, **shared: Any) -> None:
            super().__init__(**shared)
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.types import Struct


class ShellSettings(Struct, frozen=True, kw_only=True):
    """The keyword arguments that they share."""

    sandbox: str = "auto"  # `auto`, or one of the sandboxes by name
    max_steps: int = 8  # messages the policy may write; with 1 the first command ends the episode
    protocol: Literal["block", "tools"] = "block"  # how the policy acts: a ```bash block a message, or tool calls
    max_parse_errors: int = 2  # unusable messages in a row that end the episode
    command_timeout_s: float = 20.0  # seconds one command may take
    max_output_chars: int = 2000  # of one observation; head and tail are kept
    context_tokens: int = 0  # of a whole episode, as far as the environment can tell; 0: no budget
    tokenizer: str = ""  # a folder or file with a tokenizer.json that counts them; empty: estimated
    network: Literal["task", "none"] = "task"  # what a task asks for and no more, or nothing whatever it asks for
    system_prompt: str | None = None  # replaces the first message; empty for none

    def checked(self, name: str) -> ShellSettings:
        """Itself. Raises UsageError about the environment `name` for values that make no sense."""
        for field in ("max_steps", "max_parse_errors", "command_timeout_s"):
            if getattr(self, field) <= 0:
                raise UsageError(f"{name}: {field} must be > 0")
        if self.max_output_chars < 2 or self.context_tokens < 0:
            raise UsageError(f"{name}: max_output_chars must be > 1, and context_tokens 0 or more")
        return self


def settings_of(cls: type, defaults: ShellSettings, given: Mapping[str, Any]) -> ShellSettings:
    """The defaults with what was given.

    Raises:
        TypeError: an argument is unknown.
        UsageError: a value is not of its type.
    """
    name = getattr(cls, "name", cls.__name__)
    types = typing.get_type_hints(ShellSettings)
    for key, value in given.items():
        if key not in types:
            known = inspect.signature(cls).parameters
            raise TypeError(f"{cls.__name__} got an unexpected keyword argument {key!r}{nearest(key, known)}")
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError as error:
            raise UsageError(f"{name}: {key}={value!r}: {error}{_near(value, types[key])}") from error
    return msgspec.structs.replace(defaults, **given).checked(name)


def describe(cls: type, base: type, defaults: ShellSettings) -> None:
    """Give an environment the signature of what it takes: its own arguments, then the shared ones."""
    own: dict[str, inspect.Parameter] = {}
    for one in cls.__mro__[: cls.__mro__.index(base)]:
        if "__init__" in vars(one):
            parameters = inspect.signature(vars(one)["__init__"]).parameters.values()
            own |= {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in own}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                cls.__signature__ = inspect.Signature(list(own.values()))  # type: ignore[attr-defined]
                return
    types, raw = typing.get_type_hints(ShellSettings), ShellSettings.__annotations__
    shared = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, key), annotation=raw[key])
        for key in types
    ]
    cls.__signature__ = inspect.Signature([*shared, *own.values()])  # type: ignore[attr-defined]
    if "__init__" in vars(cls):  # where the command line reads types
        vars(cls)["__init__"].__annotations__ |= {key: types[key] for key in types if key not in own}


def _near(value: Any, wanted: Any) -> str:
    choices = typing.get_args(wanted) if typing.get_origin(wanted) is Literal else ()
    return nearest(value, choices) + f"; known: {', '.join(choices)}" if choices and isinstance(value, str) else ""
