"""Pytest for sandboxes that have none: copied from the running installation, with a launcher that nobody can bend.

The launcher runs in Python's isolated mode: no PYTHON* variable, no user site and no file of the working directory is
in effect until pytest is loaded; then the tree's import paths are added. Plugins load only by name. It ends with
`os._exit`, so that nothing is printed after pytest's own summary.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from agentgym.environments.patches import EXECUTABLE, Blob
from agentgym.errors import InfrastructureError, UsageError

PLACE = ".agentgym"  # below the working directory; never part of a tree
LAUNCHER = """\
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(here, "site"))
import pytest
cut = sys.argv.index("--")
sys.path[:0] = [os.path.abspath(path) for path in sys.argv[1:cut]]
for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
    os.environ.pop(name, None)
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
code = pytest.main(sys.argv[cut + 1:])
sys.stdout.flush()
sys.stderr.flush()
os._exit(int(code))
"""
QUIET = ("-rA", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider", "--continue-on-collection-errors")
NEUTRAL = ("-o", "addopts=", "--color=no", "--rootdir=.")
WRAPPER = """\
#!/bin/sh
exec python3 -I "$(dirname "$0")/../run.py" PATHS -- -p no:cacheprovider "$@"
"""
LEXERS = {"__init__.py", "_mapping.py", "diff.py", "python.py", "special.py"}  # of hundreds, what pytest needs


@functools.lru_cache(maxsize=8)
def toolbox(extra: tuple[str, ...] = ()) -> dict[str, Blob]:
    """The launcher, pytest, the distributions named `extra` and what they need, as files below PLACE.

    Raises:
        UsageError: one of them is not installed here.
    """
    files = {f"{PLACE}/run.py": Blob(content=LAUNCHER.encode())}
    for name in sorted(_closure(("pytest", *extra))):
        for file in importlib.metadata.files(name) or ():
            if _wanted(file):
                files[f"{PLACE}/site/{file}"] = Blob(content=file.locate().read_bytes())  # type: ignore[attr-defined]
    return files


def wrapper(paths: Sequence[str]) -> dict[str, Blob]:
    """A `pytest` for the agent's own use."""
    return {f"{PLACE}/bin/pytest": Blob(mode=EXECUTABLE, content=WRAPPER.replace("PATHS", shlex.join(paths)).encode())}


def pytest_command(
    tests: Sequence[str], *, paths: Sequence[str] = (".",), options: Sequence[str] = (), python: str = "python3"
) -> str:
    """The command that runs `tests` with the toolbox, in the working directory that holds the tree and the toolbox."""
    arguments = [python, "-I", f"{PLACE}/run.py", *paths, "--", *QUIET, *NEUTRAL, *options, *tests]
    return f"PYTHONPATH={shlex.quote(':'.join(paths))} PYTHONDONTWRITEBYTECODE=1 {shlex.join(arguments)} 2>&1"


def _wanted(file: PurePosixPath) -> bool:
    if not file.parts or file.parts[0] == ".." or file.is_absolute() or "__pycache__" in file.parts:
        return False
    if file.parts[:2] == ("pygments", "lexers"):
        return file.name in LEXERS
    return file.suffix not in {".so", ".pyc", ".pth"}  # the sandbox may have another Python


def _closure(names: Iterable[str]) -> set[str]:
    """The installed distributions that `names` need, themselves included."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            if name in {"pytest"}:
                raise UsageError(f"running tests needs {name}: pip install 'agentgym[swe]'") from None
            continue  # for another Python or another system
        found.add(name)
        for line in needed:
            if "extra ==" not in line and (match := re.match(r"[A-Za-z0-9._-]+", line)):
                pending.append(match[0])
    return found


def must_have_run(output: str, exit_code: int) -> None:
    """Raise InfrastructureError if it was the tools that failed and not the tests."""
    if exit_code == 127 or "No module named pytest" in output:
        raise InfrastructureError(f"the tests could not be started: {output.strip()[-200:]}")
