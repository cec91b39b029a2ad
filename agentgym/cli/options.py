"""What the commands take from their user: `--import`, `-o key=value`, `--wrap`, and how the program was called."""

from __future__ import annotations

import inspect
import shlex
import shutil
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentgym import plugins
from agentgym.errors import UsageError
from agentgym.wrapping import named

_imported: list[str] = []


def import_modules(names: Sequence[str]) -> None:
    """Import modules (or .py files), so that what they register is known by name.

    Raises:
        UsageError: one cannot be found, or fails.
    """
    _imported[:] = names
    plugins.add_path(Path.cwd())
    plugins.import_modules(names)


def wrappers(given: Sequence[str] | None) -> list[Any]:
    """What `--wrap` options mean: `NAME`, or `NAME: {option: value, ...}`. Raises UsageError."""
    found = []
    for text in given or []:
        try:
            made: Any = OmegaConf.to_container(OmegaConf.create(f"[{text}]"))
            (entry,) = made
        except Exception as error:  # yaml has many error types, all meaning the same to a user
            raise UsageError(f"--wrap {text!r} is neither NAME nor 'NAME: {{option: value}}'") from error
        named(entry)
        found.append(entry)
    return found


def program() -> str:
    """How to call this program again, ready to paste: the path by which it was called, and its `--import`s."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        parts = [_short(Path(sys.executable)), "-m", "agentgym"]
    elif shutil.which(called.name) and Path(shutil.which(called.name) or "").absolute() == called.absolute():
        parts = [called.name]
    else:
        parts = [_short(called)]
    return shlex.join([*parts, *(part for name in _imported for part in ("--import", name))])


def hint(message: str) -> str:
    """What to do about a name that nobody registered; empty for other messages."""
    unknown = message.startswith(("unknown environment", "unknown task set"))
    return f"; one of your own: `{program()} --import MODULE ...`" if unknown and not _imported else ""


def keywords(options: Sequence[str] | None, factory: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments that `key=value` options mean for `factory`, by its annotations.

    A single value will do where a list is wanted.

    Raises:
        UsageError: an option is malformed or of the wrong type; one that the factory does not know is left to it.
    """
    types = _annotations(factory)
    found = {}
    for option in options or []:
        key, equals, text = option.partition("=")
        if not equals:
            raise UsageError(f"{option!r} is not of the form key=value")
        found[key] = _converted(key, text, _parsed(option, key, text), types.get(key, Any))
    return found


def _converted(key: str, text: str, value: Any, wanted: Any) -> Any:
    complaint = ""
    for candidate in (value, [value], text):
        try:
            return msgspec.convert(candidate, wanted)
        except msgspec.ValidationError as error:
            complaint = complaint or str(error)
        except TypeError:  # a type that msgspec does not know: the factory will judge
            return value
    shown = getattr(wanted, "__name__", "") if isinstance(wanted, type) and not typing.get_args(wanted) else str(wanted)
    raise UsageError(f"{key}={text}: {key} is a {shown} ({complaint[0].lower()}{complaint[1:]})")


def _parsed(option: str, key: str, text: str) -> Any:
    try:
        made = OmegaConf.to_container(OmegaConf.from_dotlist([option]), resolve=False)
    except (OmegaConfBaseException, ValueError) as error:
        raise UsageError(f"{option!r}: {str(error).splitlines()[0]}") from error
    for part in key.split("."):
        made = made[part] if isinstance(made, dict) and part in made else text
    return made


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    """The types of a factory's arguments, as far as they can be found out."""
    target = factory.__init__ if inspect.isclass(factory) else factory  # type: ignore[misc]
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
