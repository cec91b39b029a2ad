"""`envs`, `tasks`, `play` and `doctor`: what there is, and trying it by hand."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from agentgym.check import Report, check_env, check_tasks, task_set_for
from agentgym.cli.console import out, print_json, run
from agentgym.cli.options import keywords, wrappers
from agentgym.cli.play import play_episode
from agentgym.errors import UsageError
from agentgym.registry import ENVIRONMENTS, TASK_SETS, WRAPPERS, Registry, nearest
from agentgym.task import TaskSet
from agentgym.types import Task
from agentgym.wrapping import make_env

Json = Annotated[bool, typer.Option("--json", help="print as JSON")]
Options = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="keyword argument of the task set, key=value")
]
Wraps = Annotated[
    list[str] | None,
    typer.Option("--wrap", "-w", help="a wrapper, NAME or 'NAME: {option: value}'; the first is innermost"),
]


def add_to(app: typer.Typer) -> None:
    envs = typer.Typer(no_args_is_help=True, help="Environments and wrappers: list, show, check.")
    envs.command("list")(list_envs)
    envs.command("wrappers")(list_wrappers)
    envs.command("show")(show_env)
    envs.command("check")(check_environment)
    app.add_typer(envs, name="envs")
    tasks = typer.Typer(no_args_is_help=True, help="Task sets: list, show, check.")
    tasks.command("list")(list_tasks)
    tasks.command("show")(show_tasks)
    tasks.command("check")(check_task_set)
    app.add_typer(tasks, name="tasks")
    app.command()(play)
    app.command()(doctor)


def list_envs(as_json: Json = False) -> None:
    """The registered environments."""
    _list(ENVIRONMENTS, as_json)


def list_wrappers(name: Annotated[str, typer.Argument(help="show this one")] = "", as_json: Json = False) -> None:
    """The registered wrappers, or what one of them does and takes (config: env.wrappers)."""
    if name:
        _show(WRAPPERS, name)
    else:
        _list(WRAPPERS, as_json)


def list_tasks(as_json: Json = False) -> None:
    """The registered task sets."""
    _list(TASK_SETS, as_json)


def show_env(name: str) -> None:
    """What an environment does and its keyword arguments (config: env.options)."""
    _show(ENVIRONMENTS, name)


def show_tasks(name: str, option: Options = None, split: str = "train", limit: int = 5, as_json: Json = False) -> None:
    """What a task set holds: its keyword arguments (config: tasks.options), families and first tasks."""
    if not as_json:
        _show(TASK_SETS, name)
    tasks = TASK_SETS.make(name, **keywords(option, TASK_SETS.load(name))).tasks(split)
    if as_json:
        shown = tasks[:limit] if limit else tasks
        print_json([{"id": t.id, "family": t.family, "level": t.level, "instruction": t.instruction} for t in shown])
        return
    counts = Counter((task.family, task.level) for task in tasks)
    levels = sorted({level for _, level in counts})
    table = Table(title=f"{len(tasks)} tasks in {split}")
    for column in ("family", *(f"level {level}" for level in levels)):
        table.add_column(column)
    for family in sorted({family for family, _ in counts}):
        table.add_row(family or "-", *(str(counts[family, level] or "") for level in levels))
    out.print(table)
    for task in tasks[:limit]:
        out.print(f"{task.id}\n  {task.instruction}", soft_wrap=True, highlight=False, markup=False)


def check_environment(
    name: str,
    tasks: Annotated[str, typer.Option(help="a task set; empty: the first one for it")] = "",
    wrap: Wraps = None,
) -> None:
    """Check that an environment keeps its contract."""
    _report(check_env(name, _task_set(name, tasks), wrappers=wrappers(wrap)))


def check_task_set(name: str, option: Options = None, limit: int = 0, wrap: Wraps = None) -> None:
    """Check that the oracle scores full marks, doing nothing none, and a reset repeats itself."""
    made = TASK_SETS.make(name, **keywords(option, TASK_SETS.load(name)))
    _report(check_tasks(made, limit=limit or None, wrappers=wrappers(wrap)))


def play(
    env: Annotated[str, typer.Argument(help="an environment")],
    task: Annotated[str, typer.Option(help="id of the task; empty: the first one")] = "",
    tasks: Annotated[str, typer.Option(help="the task set that has it; empty: the first one for the environment")] = "",
    oracle: Annotated[bool, typer.Option("--oracle", help="let the oracle play")] = False,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="keyword argument of the environment")
    ] = None,
    wrap: Wraps = None,
) -> None:
    """Play an episode by hand, or watch the oracle."""
    chosen = _find_task(env, tasks, task)
    made = make_env(env, keywords(option, ENVIRONMENTS.load(env)), wrappers(wrap))
    run(play_episode(made, chosen, oracle))


def doctor(
    reap: Annotated[bool, typer.Option("--reap", help="remove what killed runs left on this machine")] = False,
    as_json: Json = False,
) -> None:
    """What is installed, what is missing, what killed runs left, and the command that mends it."""
    from agentgym.cli import leftovers
    from agentgym.doctor import diagnose

    if reap:
        for removed in leftovers.reap():
            _say(f"removed {removed}")
    findings = [*diagnose(), leftovers.finding()]
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
        return
    table = Table()
    for column in ("", "part", "found"):
        table.add_column(column)
    for finding in findings:
        mark = "[green]ok[/]" if finding.ok else "[yellow]-[/]" if finding.optional else "[red]--[/]"
        table.add_row(mark, Text(finding.name), Text(finding.detail))
    out.print(table)
    for finding in findings:
        if finding.remedy:
            purpose = f" (optional: for {finding.purpose})" if finding.purpose else ""
            _say(f"{finding.name}{purpose}:\n  {finding.remedy}")


def _find_task(env: str, task_set: str, id: str) -> Task:
    made = _task_set(env, task_set)
    if not id:
        return made.tasks("train")[0]
    found = [task for split in ("train", "test") for task in made.tasks(split)]
    for task in found:
        if task.id == id:
            return task
    raise UsageError(f"no task {id!r} in {made.name}{nearest(id, [task.id for task in found])}")


def _task_set(env: str, name: str) -> TaskSet:
    """The named task set, which must be one for `env`; without a name, the first one that is."""
    ENVIRONMENTS.load(env)
    if not name:
        return task_set_for(env)
    made: TaskSet = TASK_SETS.make(name)
    if made.env != env:
        raise UsageError(f"{name} is no task set for the environment {env!r}: see `agentgym tasks list`")
    return made


def _list(registry: Registry, as_json: bool) -> None:
    if as_json:
        print_json(registry.names())
        return
    for name in registry.names():
        doc = (registry.load(name).__doc__ or "").strip().splitlines()
        out.print(Text.assemble(name, "  ", (doc[0] if doc else "", "dim")), soft_wrap=True)


def _show(registry: Registry, name: str) -> None:
    factory = registry.load(name)
    _say(f"{name}{_signature(factory)}")
    _say(inspect.getdoc(factory) or "")


def _signature(factory: Any) -> str:
    """As in the source, without the quotes of postponed annotations."""
    signature = inspect.signature(factory)
    plain = [one.replace(annotation=_unquoted(one.annotation)) for one in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _unquoted(annotation: Any) -> Any:
    """Something that prints as the annotation is written."""
    return type(annotation, (), {"__module__": "builtins"}) if isinstance(annotation, str) else annotation


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def _report(report: Report) -> None:
    _say(str(report))
    if not report.ok:
        raise typer.Exit(1)
