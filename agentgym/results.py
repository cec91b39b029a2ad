"""What a run achieved: result.json, the report, and the tables for the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from agentgym import stats
from agentgym.errors import UsageError
from agentgym.evaluate import Evaluation
from agentgym.report import write_report
from agentgym.run import Run, read_json, write_text
from agentgym.types import Trajectory

STAGES = {"base": "base model", "before": "before RL (after the warm start)", "after": "after RL"}


def evaluations_of(run: Run) -> dict[str, Evaluation]:
    """The evaluations that are done: `base`, `before`, `after`; without a warm start `before` is `base`."""
    kept = run.progress.get("evaluations", {})
    found = {stage: msgspec.convert(body, Evaluation) for stage, body in kept.items()}
    if "base" in found:
        found.setdefault("before", found["base"])
    return found


def comparison(before: Evaluation, after: Evaluation, seed: int = 0) -> dict[str, Any]:
    """The paired difference of two evaluations of the same tasks, with its 95% interval and p-value.

    Raises ValueError if the tasks differ.
    """
    if before.task_ids != after.task_ids:
        raise ValueError("the two evaluations are of different tasks: they cannot be compared by task")
    difference, interval = stats.paired_bootstrap(before.success_N, after.success_N, seed=seed)
    p_value = stats.paired_permutation(before.success_N, after.success_N, seed=seed)
    return {"difference": difference, "interval": list(interval), "p_value": p_value}


def write_result(run: Run) -> dict[str, Any]:
    """Write `result.json` and `report.html` into the run folder and return the result."""
    found = evaluations_of(run)
    result: dict[str, Any] = {"name": run.config.name, "seed": run.config.seed, "model": run.config.model.path}
    result["steps"] = run.config.trainer.steps
    if {"base", "before", "after"} <= found.keys():
        base, before, after = found["base"], found["before"], found["after"]
        total, learned = comparison(base, after), comparison(before, after)
        result |= {f"success_{stage}": found[stage].success for stage in ("base", "before", "after")}
        result |= {f"interval_{stage}": list(found[stage].interval) for stage in ("base", "before", "after")}
        result |= {"total_difference": total["difference"], "total_difference_interval": total["interval"]}
        result |= {"total_p_value": total["p_value"], "difference": learned["difference"]}
        result |= {"difference_interval": learned["interval"], "p_value": learned["p_value"]}
        result |= {"n_tasks": len(base.task_ids), "attempts": base.attempts}
        result["errors"] = {stage: evaluation.errors for stage, evaluation in found.items()}
        result["families"] = _families(found)
    result |= {"stages": run.progress.get("stages", {}), "seconds": run.seconds}
    write_text(run.folder / "result.json", json.dumps(result, indent=1))
    write_report(run.folder, examples=_examples(run))
    return result


def _examples(run: Run) -> dict[str, list[Trajectory]]:
    """The same few held-out tasks before and after, one of each family."""
    shown: dict[str, list[Trajectory]] = {}
    for stage, label in STAGES.items():
        found: dict[str, Trajectory] = {}
        for trajectory in run.store.trajectories(stage=f"eval-{stage}"):
            task = run.store.task(trajectory.task_id)
            found.setdefault(task.family if task else "", trajectory)
        if found:
            shown[label] = [found[family] for family in sorted(found)]
    return shown


def _families(found: dict[str, Evaluation]) -> dict[str, dict[str, float]]:
    rates = {stage: evaluation.by_family() for stage, evaluation in found.items()}
    return {family: {stage: rates[stage][family] for stage in rates} for family in rates["base"]}


def result_table(result: dict[str, Any]) -> Table:
    """The closing table: success at each point and the paired differences."""
    table = Table(title=f"Held-out success: {result['n_tasks']} tasks, {result['attempts']} attempts each")
    for column in ("", "success", "95% interval", "p-value"):
        table.add_column(column, justify="left" if not column else "right")
    for stage, label in STAGES.items():
        table.add_row(label, f"{result[f'success_{stage}']:.1%}", _interval(result[f"interval_{stage}"]), "")
    table.add_section()
    rows = {
        "RL alone (before to after)": ("difference", "p_value"),
        "in all (base to after)": ("total_difference", "total_p_value"),
    }
    for label, (difference, p_value) in rows.items():
        table.add_row(
            label, f"{result[difference]:+.1%}", _interval(result[f"{difference}_interval"]), f"{result[p_value]:.2g}"
        )
    return table


def evaluation_table(name: str, evaluation: Evaluation) -> Table:
    """One evaluation as a table, family by family."""
    table = Table(title=f"{name}: {len(evaluation.task_ids)} tasks, {evaluation.attempts} attempts each")
    table.add_column("family")
    table.add_column("success", justify="right")
    for family, rate in evaluation.by_family().items():
        table.add_row(family, f"{rate:.1%}")
    table.add_section()
    table.add_row("all", f"{evaluation.success:.1%}  {_interval(evaluation.interval)}")
    if evaluation.errors:
        table.add_row("errors (counted as failures)", str(evaluation.errors))
    return table


def _interval(interval: list[float] | tuple[float, float]) -> str:
    return f"[{interval[0]:.1%}, {interval[1]:.1%}]"


def write_evaluation(folder: Path, evaluation: Evaluation, *, model: str) -> dict[str, Any]:
    """Write an evaluation's `result.json` and return it."""
    result = {
        "model": model,
        "success": evaluation.success,
        "interval": list(evaluation.interval),
        "pass_at": {str(k): evaluation.pass_at(k) for k in range(1, evaluation.attempts + 1)},
        "outcome_mean": evaluation.outcome_mean,
        "n_tasks": len(evaluation.task_ids),
        "attempts": evaluation.attempts,
        "errors": evaluation.errors,
        "families": evaluation.by_family(),
        "seconds": evaluation.seconds,
        "evaluation": msgspec.to_builtins(evaluation),
    }
    write_text(folder / "result.json", json.dumps(result, indent=1))
    return result


def final_evaluation(folder: Path) -> Evaluation:
    """The last evaluation in a run folder or in the folder of `agentgym eval`."""
    progress = read_json(folder / "progress.json") or {}
    body = (read_json(folder / "result.json") or {}).get("evaluation") or progress.get("evaluations", {}).get("after")
    if body is None:
        raise UsageError(f"{folder} holds no finished evaluation")
    return msgspec.convert(body, Evaluation)
