"""Modules of a user's own, imported by name or as a file: what they register is known from then on."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import UsageError


def import_modules(names: Sequence[str], what: str = "--import") -> None:
    """Import modules (or .py files), so that what they register is known by name; once, however often it is asked for.

    Args:
        what: asked for it, for messages.

    Raises:
        UsageError: one cannot be found, or fails.
    """
    if names:
        add_path(Path.cwd())
    for name in names:
        try:
            importlib.import_module(_module_of(name, what))
        except UsageError:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if "importlib" in at.filename else f" ({at.filename}, line {at.lineno})"
            raise UsageError(f"{what} {name}: {type(error).__name__}: {error}{where}") from error


def located(names: Sequence[Any], folder: Path) -> list[Any]:
    """`names` with the files among them as absolute paths; relative ones are below `folder`."""
    return [str((folder / name).absolute()) if str(name).endswith(".py") else name for name in names]


def _module_of(name: str, what: str) -> str:
    """The module that a name means; the folder of a file becomes importable, also in worker processes."""
    if not name.endswith(".py"):
        return name
    path = Path(name).absolute()
    if not path.is_file():
        raise UsageError(f"{what} {name}: there is no such file")
    add_path(path.parent)
    found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if found is None or not found.origin or Path(found.origin).resolve() != path.resolve():
        raise UsageError(f"{what} {name}: another module is called {path.stem!r}: rename the file")
    return path.stem


def add_path(folder: Path) -> None:
    """Find modules in `folder` too, also in worker processes."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
