"""`eval`: attempts at a task set by any model."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from agentgym.cli.console import ProgressView, out, print_json, run
from agentgym.config import Config, load_config, to_yaml
from agentgym.errors import UsageError
from agentgym.evaluate import Evaluation, evaluate, select_tasks
from agentgym.models import resolve_model
from agentgym.plugins import import_modules
from agentgym.pool import RolloutPool
from agentgym.registry import TASK_SETS
from agentgym.run import lock, make_folder, read_config, write_text
from agentgym.store import Store
from agentgym.types import Sampling


def add_to(app: typer.Typer) -> None:
    app.command("eval")(evaluate_model)


def evaluate_model(
    model: Annotated[str, typer.Option(help="a Hugging Face folder or hub id, or a run folder (its last checkpoint)")],
    output: Annotated[Path, typer.Option("--out", help="folder for episodes and result; the same folder goes on")],
    tasks: Annotated[str | None, typer.Option(help="a task set; of a run: its own, with its options")] = None,
    attempts: Annotated[int | None, typer.Option(min=1, help="episodes per task; of a run: as its own, else 1")] = None,
    n_tasks: Annotated[
        int | None,
        typer.Option(min=0, help="held-out tasks, 0 takes all; of a run's own tasks: as many as it took, else 0"),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="config overrides, key=value")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Evaluate a model: success by task with a 95% interval. Stopped and called again, it goes on."""
    from agentgym.results import evaluation_table, write_evaluation

    config, source = _config_for(model, tasks, attempts, n_tasks, overrides or [])
    make_folder(output)
    owned = lock(output)
    _check_same(output, source, config)
    try:
        with ProgressView() as progress:
            found = run(
                _evaluate(config, source, output, progress), when_stopped=f"the same command goes on in {output}"
            )
    finally:
        owned.close()
    result = write_evaluation(output, found, model=source)
    if as_json:
        print_json(result)
    else:
        out.print(evaluation_table(f"{source} on {config.tasks.name}", found))
        out.print(f"{output / 'result.json'}", soft_wrap=True, highlight=False, markup=False)


def _config_for(
    model: str, tasks: str | None, attempts: int | None, n_tasks: int | None, overrides: list[str]
) -> tuple[Config, str]:
    """The config to evaluate under, and the model: a run brings its own config and its last checkpoint.

    Of a run's config, options of its tasks and of its environment apply to these and not to others.
    """
    asked = {"tasks.name": tasks, "evaluation.attempts": attempts, "evaluation.n_tasks": n_tasks}
    given = [*(f"{key}={value}" for key, value in asked.items() if value is not None), *overrides]
    folder = Path(model)
    if not ((folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()):
        return load_config(None, ["evaluation.n_tasks=0", *given, f"model.path={model}"]), model
    from agentgym.trainers import checkpoint

    found = checkpoint.latest(folder / "checkpoints")
    if found is None:
        raise UsageError(f"the run {folder} has no whole checkpoint yet")
    own = read_config(folder)
    import_modules(own.imports, "imports:")
    config = read_config(folder, [*given, f"model.path={found}"])
    if config.tasks.name != own.tasks.name:
        alone = load_config(None, ["evaluation.n_tasks=0", *given])
        config.tasks.options, config.evaluation.n_tasks = alone.tasks.options, alone.evaluation.n_tasks
        if _env_of(config) != _env_of(own):
            config.env.options, config.env.wrappers = alone.env.options, alone.env.wrappers
    return config, str(found)


def _env_of(config: Config) -> str:
    """The environment that a config's tasks are for."""
    name = config.tasks.name
    known = getattr(TASK_SETS.load(name), "env", "")
    return str(known or TASK_SETS.make(name, **config.tasks.options).env)


def _check_same(output: Path, source: str, config: Config) -> None:
    """A folder holds one evaluation: of one model under one config."""
    text = f"# model: {source}\n{to_yaml(config)}"
    path = output / "evaluation.yaml"
    if path.is_file() and path.read_text() != text:
        raise UsageError(f"{output} holds another evaluation (see {path}): choose another --out")
    write_text(path, text)


async def _evaluate(config: Config, source: str, output: Path, progress: ProgressView) -> Evaluation:
    from agentgym.pipeline import load_tasks, serving

    began = time.monotonic()
    chosen = select_tasks(load_tasks(config, "test"), config.evaluation.n_tasks)
    model = resolve_model(source, progress=lambda remark: progress("model", 0, 0, remark))
    store = Store(output / "store.sqlite")
    async with (
        serving(config, model, output, 0, lambda remark: progress("engine", 0, 0, remark)) as policy,
        RolloutPool(policy, config) as pool,
    ):
        found = await evaluate(
            pool,
            chosen,
            store,
            stage="eval",
            seed=config.seed,
            attempts=config.evaluation.attempts,
            sampling=Sampling(temperature=config.evaluation.temperature, max_tokens=config.rollout.max_tokens),
            progress=partial(progress, "evaluate"),
        )
    store.close()
    return msgspec.structs.replace(found, seconds=time.monotonic() - began)
