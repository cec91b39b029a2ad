"""`status`, `audit` and `versions`: looking at a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from agentgym.cli.console import err, out, print_json
from agentgym.metrics import read_metrics
from agentgym.run import owner_of, read_config, read_json
from agentgym.store import Store

Folder = Annotated[Path, typer.Argument(help="a run folder")]
Json = Annotated[bool, typer.Option("--json", help="print as JSON")]


def add_to(app: typer.Typer) -> None:
    app.command()(status)
    app.command("audit")(audit_run)
    app.command()(versions)


def status(run: Folder, as_json: Json = False) -> None:
    """Where a run stands: who works on it, its stages, episodes and last metrics."""
    found = _status(run)
    if as_json:
        print_json(found)
        return
    working = f"pid {found['owner']} is working on it" if found["owner"] else "nobody is working on it"
    out.print(f"{run}: step {found['step']} of {found['steps']}; {working}", highlight=False, soft_wrap=True)
    for stage, evaluation in found["evaluations"].items():
        out.print(f"  success {stage}: {evaluation:.1%}", highlight=False)
    table = Table(title="episodes")
    for column in ("stage", "fate", "number"):
        table.add_column(column)
    for stage, fates in found["episodes"].items():
        for fate, number in fates.items():
            table.add_row(stage, fate, str(number))
    out.print(table)
    if found["failures"]:
        out.print("infrastructure and task failures:")
        for reason, number in found["failures"].items():
            out.print(f"  {number} x {reason}", highlight=False, markup=False, soft_wrap=True)
    if found["last"]:
        table = Table(title=f"metrics of step {found['last'].get('step')}")
        table.add_column("metric")
        table.add_column("value", justify="right")
        for name, value in found["last"].items():
            table.add_row(name, f"{value:.5g}" if isinstance(value, float) else str(value))
        out.print(table)


def audit_run(run: Folder, as_json: Json = False) -> None:
    """Check everything that a run trained on: ids as served, masks, versions, nothing twice."""
    from agentgym.audit import audit

    config = read_config(run)
    store = Store(run / "store.sqlite", read_only=True)
    found = audit(store, config.algorithm)
    store.close()
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        out.print(
            f"{found.samples} samples, {found.trained} trained on ({found.tokens_trained} tokens)", highlight=False
        )
        for reason, number in sorted(found.rejected.items()):
            out.print(f"  {number} not trained on: {reason}", highlight=False, markup=False)
        for problem in found.problems[:50]:
            err.print(f"  {problem}", markup=False, highlight=False)
        out.print(f"{len(found.problems)} problems" if found.problems else "no problems", highlight=False)
    if found.problems:
        raise typer.Exit(1)


def versions(run: Folder, as_json: Json = False) -> None:
    """The weight versions of a run."""
    store = Store(run / "store.sqlite", read_only=True)
    found = store.versions()
    store.close()
    if as_json:
        print_json(found)
        return
    table = Table()
    for column in ("version", "after step", "life", "made", ""):
        table.add_column(column)
    for entry in found:
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["created"]))
        table.add_row(
            str(entry["version"]), str(entry["step"]), str(entry["life"]), made, "undone" if entry["undone"] else ""
        )
    out.print(table)


def _status(run: Path) -> dict[str, Any]:
    config = read_config(run)
    progress = read_json(run / "progress.json") or {}
    store = Store(run / "store.sqlite", read_only=True)
    episodes, failures = store.counts(), store.failures()
    store.close()
    lines = read_metrics(run)
    evaluations = progress.get("evaluations", {})
    success = {stage: sum(body["success_N"]) / max(1, len(body["success_N"])) for stage, body in evaluations.items()}
    return {
        "owner": owner_of(run),
        "step": lines[-1]["step"] if lines else 0,
        "steps": config.trainer.steps,
        "finished": progress.get("finished_steps") == config.trainer.steps,
        "stages": progress.get("stages", {}),
        "evaluations": success,
        "episodes": episodes,
        "failures": failures,
        "last": lines[-1] if lines else {},
    }
