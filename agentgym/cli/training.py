"""`quickstart`, `train` and `compare`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentgym.cli.console import ProgressView, err, in_words, out, print_json, run
from agentgym.cli.options import program
from agentgym.config import Config, load_config, to_yaml
from agentgym.errors import UsageError
from agentgym.evaluate import Evaluation
from agentgym.run import Run

Overrides = Annotated[list[str] | None, typer.Argument(help="config overrides, key=value")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
MIN_COMMON = 10  # tasks that two evaluations must share to be compared by task


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
    made = f" (`make {config}`)" if config in ("quickstart", "learn") else ""
    _finish(opened, as_json, "go on with" if fresh else f"the same command{made} goes on where it was; so does")


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
            raise UsageError(
                f"name a config: `{program()} train CONFIG [key=value ...]`, or `{program()} train --resume RUN`"
            )
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
    both, note = _on_common_tasks(a, b, run_a, run_b)
    found = comparison(*both)
    a, b = both
    found |= {"success_a": a.success, "success_b": b.success, "n_tasks": len(a.task_ids)}
    if as_json:
        print_json(found)
        return
    low, high = found["interval"]
    if note:
        out.print(note, soft_wrap=True, markup=False, highlight=False)
    out.print(f"A {a.success:.1%}, B {b.success:.1%} on {len(a.task_ids)} tasks")
    out.print(
        f"B - A: {found['difference']:+.1%}, 95% interval [{low:+.1%}, {high:+.1%}], p = {found['p_value']:.2g}",
        markup=False,
    )


def _on_common_tasks(
    a: Evaluation, b: Evaluation, run_a: Path, run_b: Path
) -> tuple[tuple[Evaluation, Evaluation], str]:
    """Both evaluations on the tasks that both have, and what to say about it where they differ."""
    if a.task_ids == b.task_ids:
        return (a, b), ""
    common = [id for id in a.task_ids if id in set(b.task_ids)]
    counts = f"{run_a} has {len(a.task_ids)} tasks, {run_b} has {len(b.task_ids)}, and both have {len(common)} of them"
    if len(common) < MIN_COMMON:
        raise UsageError(
            f"{counts}: too few to compare; evaluate both on the same tasks: `{program()} eval --model MODEL "
            "--tasks NAME --n-tasks N --out DIR` with the same NAME and N"
        )
    return (restricted(a, common), restricted(b, common)), f"{counts}: compared on these"


def restricted(evaluation: Evaluation, task_ids: Sequence[str]) -> Evaluation:
    """The evaluation of some of its tasks, in the given order."""
    index = {id: place for place, id in enumerate(evaluation.task_ids)}
    places = [index[id] for id in task_ids]
    return msgspec.structs.replace(
        evaluation,
        task_ids=tuple(task_ids),
        families=tuple(evaluation.families[place] for place in places),
        success_N=tuple(evaluation.success_N[place] for place in places),
    )


def _create(settings: Config, folder: Path | None = None) -> Run:
    """A new run, made only once everything that can be checked was: a mistake leaves no folder behind."""
    from agentgym.pipeline import check_start

    check_start(settings, lambda remark: err.print(remark, highlight=False, markup=False))
    return Run.create(settings, folder)


def _finish(opened: Run, as_json: bool, go_on: str = "go on with") -> None:
    from agentgym.pipeline import Pipeline
    from agentgym.results import result_table

    again = f"{go_on}: {program()} train --resume {shlex.quote(str(opened.folder))}"
    try:
        with ProgressView(partial(_moves, opened)) as progress:
            result = run(Pipeline(opened, progress).go(), when_stopped=again)
    finally:
        opened.close()
    if as_json:
        print_json(result)
        return
    _summarise(opened.folder, opened.config, result, result_table)


def _moves(opened: Run, what: str) -> str:
    """What moves inside a training step, for the progress."""
    doing = in_words(opened.doing.copy()) if what == "train" else {}
    return "; ".join(f"{part}: {how}" for part, how in doing.items() if part != "pool")


def _summarise(folder: Path, config: Config, result: dict[str, Any], result_table: Any) -> None:
    if "success_after" in result:
        out.print(result_table(result))
    out.print(f"{result['seconds'] / 60:.1f} minutes in all")
    out.print(f"report:     {folder / 'report.html'}", soft_wrap=True, highlight=False, markup=False)
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    if checkpoints:
        out.print(f"checkpoint: {checkpoints[-1]}", soft_wrap=True, highlight=False, markup=False)
    out.print("go on with:")
    run, other, called = shlex.quote(str(folder)), shlex.quote(f"{folder}-eval"), program()
    for command in (
        f"{called} status {run}",
        f"{called} audit {run}",
        f"{called} eval --model {run} --tasks {config.tasks.name} --attempts 4 --out {other}",
        f"{called} train --resume {run} trainer.steps={2 * result['steps']}",
    ):
        out.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)


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
