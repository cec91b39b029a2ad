"""The command line. Exit codes: 0 done, 1 failed, 2 bad usage or config, 130 and 143 stopped by Ctrl-C and TERM."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentgym.cli import catalogue, evaluation, images, inspect, serving, training
from agentgym.cli.options import hint, import_modules
from agentgym.errors import AgentgymError

app = typer.Typer(
    name="agentgym", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__,
    rich_markup_mode=None,
)  # fmt: skip
for module in (training, evaluation, serving, catalogue, images, inspect):
    module.add_to(app)


@app.callback(help=__doc__)
def begin(
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="import a module or .py file first, which registers environments or tasks",
        ),
    ] = None,
) -> None:
    import_modules(modules or [])


def main() -> None:
    """Entry point of `agentgym`: errors raised on purpose become one line and an exit code."""
    try:
        app()
    except AgentgymError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {_escape(str(error) + hint(str(error)))}", soft_wrap=True, highlight=False
        )
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:  # a fault of ours: one line for the user, the rest for whoever mends it
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            what += ": free some space, or choose a folder that can be written to"
        report = Path(tempfile.gettempdir()) / f"agentgym-error-{os.getpid()}.txt"
        with suppress(OSError):
            report.write_text(traceback.format_exc())
            what += f" (traceback: {report})"
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(what)}", soft_wrap=True, highlight=False)
        sys.exit(1)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
