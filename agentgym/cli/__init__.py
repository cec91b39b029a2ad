"""The command line. Exit codes: 0 done, 1 failed, 2 bad usage or config, 130 and 143 stopped by Ctrl-C and TERM."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from agentgym.cli import catalogue, evaluation, inspect, training
from agentgym.errors import AgentgymError

app = typer.Typer(
    name="agentgym", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__,
    rich_markup_mode=None,
)  # fmt: skip
for module in (training, evaluation, catalogue, inspect):
    module.add_to(app)


def main() -> None:
    """Entry point of `agentgym`: errors raised on purpose become one line and an exit code."""
    try:
        app()
    except AgentgymError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
