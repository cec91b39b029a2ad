"""`quickstart`, `train` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentgym.cli.console import ProgressView, err, out, print_json, run
from agentgym.config import Config, load_config, to_yaml
from agentgym.errors import UsageError
from agentgym.run import Run

Overrides = Annotated[list[str] | None, typer.Argument(help="config overrides, key=value")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


def add_to(app: typer.Typer) -> None:
    app.command()(quickstart)
    app.command()(train)
    app.command()(compare)


def quickstart(
    overrides: Overrides = None,
    config: Annotated[str, typer.Option(help="a config file, or the name of one that ships")] = "quickstart",
    seed: Annotated[int | None, typer.Option(help="another seed is another run")] = None,
    fresh: Annotated[bool, typer.Option(help="begin anew in a new folder")] = False,
    as_json: Json = False,
) -> None:
    """Evaluate a small real model, train it, evaluate it again and write a report; called again, it goes on."""
    given = [*(overrides or []), *([f"seed={seed}"] if seed is not None else [])]
    settings = load_config(config, given)
    folder = Path(settings.dir) / f"{settings.name}-s{settings.seed}"
    if fresh:
        folder = _unused(folder)
    if (folder / "config.yaml").exists():
        err.print(f"going on with {folder} (--fresh begins anew)")
        opened = Run.open(folder, given)
    else:
        opened = _create(settings, folder)
    _finish(opened, as_json)


def train(
    config: Annotated[str | None, typer.Argument(help="a config file, or the name of one that ships")] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, typer.Option(help="go on with this run, under its own config")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check config, model and tasks, print the config, and stop")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train as a config says. `agentgym train --resume RUN [key=value ...]` goes on with a run."""
    if resume is not None:
        given = [*([config] if config else []), *(overrides or [])]
        opened = Run.open(resume, given) if not dry_run else None
        settings = opened.config if opened else load_config(resume / "config.yaml", given)
    else:
        if config is None:
            raise UsageError("name a config: `agentgym train CONFIG [key=value ...]`, or `agentgym train --resume RUN`")
        settings = load_config(config, overrides or [])
        opened = None if dry_run else _create(settings)
    if opened is None:
        _dry_run(settings)
    else:
        _finish(opened, as_json)


def compare(
    run_a: Annotated[Path, typer.Argument(help="a run folder, or the --out folder of an evaluation")],
    run_b: Annotated[Path, typer.Argument(help="another one, on the same tasks")],
    as_json: Json = False,
) -> None:
    """Compare two evaluations by task: the paired difference with its interval and p-value."""
    from agentgym.results import comparison, final_evaluation

    a, b = final_evaluation(run_a), final_evaluation(run_b)
    try:
        found = comparison(a, b)
    except ValueError as error:
        raise UsageError(f"{run_a} and {run_b}: {error}") from error
    found |= {"success_a": a.success, "success_b": b.success, "n_tasks": len(a.task_ids)}
    if as_json:
        print_json(found)
        return
    low, high = found["interval"]
    out.print(f"A {a.success:.1%}, B {b.success:.1%} on {len(a.task_ids)} tasks")
    out.print(f"B - A: {found['difference']:+.1%}, 95% interval [{low:+.1%}, {high:+.1%}], p = {found['p_value']:.2g}")


def _create(settings: Config, folder: Path | None = None) -> Run:
    """A new run, made only once everything that can be checked was: a mistake leaves no folder behind."""
    from agentgym.pipeline import check_start

    check_start(settings, lambda remark: err.print(remark, highlight=False, markup=False))
    return Run.create(settings, folder)


def _finish(opened: Run, as_json: bool) -> None:
    from agentgym.pipeline import Pipeline
    from agentgym.results import result_table

    again = f"go on with: agentgym train --resume {opened.folder}"
    try:
        with ProgressView() as progress:
            result = run(Pipeline(opened, progress).go(), when_stopped=again)
    finally:
        opened.close()
    if as_json:
        print_json(result)
        return
    _summarise(opened.folder, result, result_table)


def _summarise(folder: Path, result: dict[str, Any], result_table: Any) -> None:
    if "success_after" in result:
        out.print(result_table(result))
    out.print(f"{result['seconds'] / 60:.1f} minutes in all")
    out.print(f"report:     {folder / 'report.html'}", soft_wrap=True, highlight=False)
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    if checkpoints:
        out.print(f"checkpoint: {checkpoints[-1]}", soft_wrap=True, highlight=False)
    out.print("go on with:")
    for command in (
        f"agentgym status {folder}",
        f"agentgym audit {folder}",
        f"agentgym eval --model {folder} --tasks terminal/basics --attempts 4 --out {folder}-eval",
        f"agentgym train --resume {folder} trainer.steps={2 * result['steps']}",
    ):
        out.print(f"  {command}", soft_wrap=True, highlight=False)


def _dry_run(settings: Config) -> None:
    from agentgym.pipeline import check_start, engine_name, load_tasks

    model = check_start(settings)
    engine = engine_name(settings)
    numbers = {split: len(load_tasks(settings, split)) for split in ("train", "test")}
    out.print(to_yaml(settings), highlight=False, markup=False)
    out.print(
        f"# model in {model}; engine: {engine}; tasks: {numbers['train']} train, {numbers['test']} test", soft_wrap=True
    )


def _unused(folder: Path) -> Path:
    number = 2
    while (candidate := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return candidate if folder.exists() else folder
