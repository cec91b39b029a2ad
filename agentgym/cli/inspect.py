"""`status`, `audit` and `versions`: looking at a run."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentgym.cli.console import err, out, print_json
from agentgym.evaluate import Evaluation
from agentgym.metrics import read_metrics
from agentgym.run import owner_of, read_config, read_json
from agentgym.store import Store

Folder = Annotated[Path, typer.Argument(help="a run folder")]
Json = Annotated[bool, typer.Option("--json", help="print as JSON")]


def add_to(app: typer.Typer) -> None:
    app.command()(status)
    app.command("audit")(audit_run)
    app.command()(versions)


def status(
    run: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="show it anew every second, until Ctrl-C")] = False,
    as_json: Json = False,
) -> None:
    """Where a run stands: who works on it, what waits for what, its stages, episodes and last metrics."""
    if as_json:
        print_json(_status(run))
        return
    if not watch:
        out.print(_shown(run, _status(run)))
        return
    with suppress(KeyboardInterrupt), Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
        while True:
            live.update(_shown(run, _status(run)), refresh=True)
            time.sleep(1.0)


def _shown(run: Path, found: dict[str, Any]) -> Group:
    """A status for people."""
    working = f"pid {found['owner']} is working on it" if found["owner"] else "nobody is working on it"
    parts: list[Any] = [Text(f"{run}: step {found['step']} of {found['steps']}; {working}")]
    parts += [Text(f"  {what}: {doing}") for what, doing in found["doing"].items()]
    parts += [Text(f"  success {stage}: {success:.1%}") for stage, success in found["evaluations"].items()]
    episodes = Table("stage", "fate", "number", title="episodes")
    for stage, fates in found["episodes"].items():
        for fate, number in fates.items():
            episodes.add_row(stage, fate, str(number))
    parts.append(episodes)
    if found["samples"]:
        samples = Table("samples", "number")
        for state, number in found["samples"].items():
            samples.add_row(state, str(number))
        parts.append(samples)
    parts += [Text(f"  {number} x {reason}") for reason, number in found["failures"].items()]
    if found["last"]:
        metrics = Table("metric", "value", title=f"metrics of step {found['last'].get('step')}")
        for name, value in found["last"].items():
            metrics.add_row(name, f"{value:.5g}" if isinstance(value, float) else str(value))
        parts.append(metrics)
    return Group(*parts)


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
    episodes, failures, samples = store.counts(), store.failures(), store.sample_counts()
    store.close()
    lines = read_metrics(run)
    owner = owner_of(run)
    evaluations = progress.get("evaluations", {})
    return {
        "owner": owner,
        "step": lines[-1]["step"] if lines else 0,
        "steps": config.trainer.steps,
        "finished": progress.get("finished_steps") == config.trainer.steps,
        "doing": _doing(run) if owner else {},
        "stages": progress.get("stages", {}),
        "evaluations": {stage: msgspec.convert(body, Evaluation).success for stage, body in evaluations.items()},
        "episodes": episodes,
        "samples": samples,
        "failures": failures,
        "last": lines[-1] if lines else {},
    }


def _doing(run: Path) -> dict[str, str]:
    """What the loops do or wait for, in words."""
    doing = read_json(run / "live.json") or {}
    found = {"trainer": doing["trainer"]} if "trainer" in doing else {}
    ahead = sorted(int(key.partition("/")[2]) for key in doing if key.startswith("collecting/"))
    for step in ahead:
        done, wanted = doing[f"collecting/{step}"]
        state = "ready, waits for the trainer" if done >= wanted else "being collected"
        found[f"episodes of step {step}"] = f"{done} of {wanted} groups; {state}"
    pool = doing.get("pool", {})
    if pool:
        found["pool"] = ", ".join(f"{name} {value:g}" for name, value in pool.items())
    return found
