"""What the commands take from their user: `--import`, `-o key=value`, and how the program was called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import shlex
import shutil
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentgym.errors import UsageError

_imported: list[str] = []


def import_modules(names: Sequence[str]) -> None:
    """Import modules (or .py files), so that what they register is known by name.

    Raises:
        UsageError: one cannot be found, or fails.
    """
    _imported[:] = names
    _add_path(Path.cwd())
    for name in names:
        try:
            importlib.import_module(_module_of(name))
        except UsageError:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if "importlib" in at.filename else f" ({at.filename}, line {at.lineno})"
            raise UsageError(f"--import {name}: {type(error).__name__}: {error}{where}") from error


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


def _module_of(name: str) -> str:
    """The module that `--import name` means; the folder of a file becomes importable, also in worker processes."""
    if not name.endswith(".py"):
        return name
    path = Path(name).absolute()
    if not path.is_file():
        raise UsageError(f"--import {name}: there is no such file")
    _add_path(path.parent)
    found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if found is None or not found.origin or Path(found.origin).resolve() != path.resolve():
        raise UsageError(f"--import {name}: another module is called {path.stem!r}: rename the file")
    return path.stem


def _add_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
