"""`envs`, `tasks`, `play` and `doctor`: what there is, and trying it by hand."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from agentgym.cli.console import out, print_json, run
from agentgym.env import Env
from agentgym.errors import UsageError
from agentgym.registry import ENVIRONMENTS, TASK_SETS, Registry, nearest
from agentgym.task import TaskSet
from agentgym.types import Message, Observation, Task

Json = Annotated[bool, typer.Option("--json", help="print as JSON")]
Options = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="keyword argument of the task set, key=value")
]


def add_to(app: typer.Typer) -> None:
    envs = typer.Typer(no_args_is_help=True, help="Environments: list, show, check.")
    envs.command("list")(list_envs)
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


def list_tasks(as_json: Json = False) -> None:
    """The registered task sets."""
    _list(TASK_SETS, as_json)


def show_env(name: str) -> None:
    """What an environment does and its keyword arguments (config: env.options)."""
    _show(ENVIRONMENTS, name)


def show_tasks(name: str, option: Options = None, split: str = "train", limit: int = 5, as_json: Json = False) -> None:
    """What a task set holds: its keyword arguments (config: tasks.options), families and first tasks."""
    tasks = TASK_SETS.make(name, **_keywords(option)).tasks(split)
    if as_json:
        shown = tasks[:limit] if limit else tasks
        print_json([{"id": t.id, "family": t.family, "level": t.level, "instruction": t.instruction} for t in shown])
        return
    _show(TASK_SETS, name)
    counts = Counter((task.family, task.level) for task in tasks)
    levels = sorted({level for _, level in counts})
    table = Table(title=f"{len(tasks)} tasks in {split}")
    for column in ("family", *(f"level {level}" for level in levels)):
        table.add_column(column)
    for family in sorted({family for family, _ in counts}):
        table.add_row(family, *(str(counts[family, level] or "") for level in levels))
    out.print(table)
    for task in tasks[:limit]:
        out.print(f"{task.id}\n  {task.instruction}", soft_wrap=True, highlight=False, markup=False)


def check_environment(
    name: str, tasks: Annotated[str, typer.Option(help="a task set; empty: the first one for it")] = ""
) -> None:
    """Check that an environment keeps its contract."""
    from agentgym.check import check_env

    _report(check_env(name, _task_set(name, tasks)))


def check_task_set(name: str, option: Options = None, limit: int = 0) -> None:
    """Check that the oracle scores full marks, doing nothing none, and a reset repeats itself."""
    from agentgym.check import check_tasks

    _report(check_tasks(TASK_SETS.make(name, **_keywords(option)), limit=limit or None))


def play(
    env: Annotated[str, typer.Argument(help="an environment")],
    task: Annotated[str, typer.Option(help="id of the task; empty: the first one")] = "",
    tasks: Annotated[str, typer.Option(help="the task set that has it; empty: the first one for the environment")] = "",
    oracle: Annotated[bool, typer.Option("--oracle", help="let the oracle play")] = False,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="keyword argument of the environment")
    ] = None,
) -> None:
    """Play an episode by hand, or watch the oracle. A message ends with an empty line; end of input stops."""
    chosen = _find_task(env, tasks, task)
    run(_play(ENVIRONMENTS.make(env, **_keywords(option)), chosen, oracle))


def doctor(as_json: Json = False) -> None:
    """What is installed, what is missing, and the command that mends it."""
    from agentgym.doctor import diagnose

    findings = diagnose()
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
        return
    table = Table()
    for column in ("", "part", "found", "remedy"):
        table.add_column(column)
    for finding in findings:
        table.add_row("[green]ok[/]" if finding.ok else "[red]--[/]", finding.name, finding.detail, finding.remedy)
    out.print(table)


async def _play(env: Env, task: Task, oracle: bool) -> None:
    try:
        observation, _ = await env.reset(seed=task.seed, options={"task": task})
        script = await env.oracle(task) if oracle else []
        if oracle and not script:
            raise UsageError(f"no oracle is known for {task.id}")
        _print(observation)
        while True:
            action = _next_action(script, oracle)
            if action is None:
                return
            observation, reward, terminated, truncated, info = await env.step(action)
            _print(observation)
            if terminated or truncated:
                out.print(f"the episode ended; reward {reward:g}", highlight=False)
                out.print(str(info), markup=False, highlight=False)
                return
    finally:
        await env.close()


def _next_action(script: list[Message], oracle: bool) -> Message | None:
    if oracle:
        action = script.pop(0) if script else Message(role="assistant", content="Done.")
        out.print(
            f"[bold]assistant[/]\n{action.content}" if "[" not in action.content else action.content, highlight=False
        )
        return action
    lines: list[str] = []
    while True:
        line = sys.stdin.readline()
        if not line:
            return Message(role="assistant", content="\n".join(lines)) if lines else None
        if not line.strip():
            return Message(role="assistant", content="\n".join(lines))
        lines.append(line.rstrip("\n"))


def _print(observation: Observation) -> None:
    for message in observation.messages:
        out.print(f"[bold]{message.role}[/]")
        out.print(message.content, markup=False, highlight=False, soft_wrap=True)


def _find_task(env: str, task_set: str, id: str) -> Task:
    made = _task_set(env, task_set)
    found = [task for split in ("train", "test") for task in made.tasks(split)]
    if not id:
        return found[0]
    for task in found:
        if task.id == id:
            return task
    raise UsageError(f"no task {id!r} in {made.name}{nearest(id, [task.id for task in found])}")


def _task_set(env: str, name: str) -> TaskSet:
    """The named task set, which must be one for `env`; without a name, the first one that is."""
    ENVIRONMENTS.load(env)
    for candidate in [name] if name else TASK_SETS.names():
        made: TaskSet = TASK_SETS.make(candidate)
        if made.env == env:
            return made
    wanted = f"{name} is no task set" if name else "there is no task set"
    raise UsageError(f"{wanted} for the environment {env!r}: see `agentgym tasks list`")


def _list(registry: Registry, as_json: bool) -> None:
    if as_json:
        print_json(registry.names())
        return
    for name in registry.names():
        out.print(f"{name}  [dim]{(registry.load(name).__doc__ or '').strip().splitlines()[0]}[/]", soft_wrap=True)


def _show(registry: Registry, name: str) -> None:
    factory = registry.load(name)
    out.print(f"{name}{inspect.signature(factory)}", markup=False, highlight=False, soft_wrap=True)
    out.print(inspect.getdoc(factory) or "", markup=False, highlight=False)


def _keywords(options: list[str] | None) -> dict[str, Any]:
    from omegaconf import OmegaConf

    for option in options or []:
        if "=" not in option:
            raise UsageError(f"{option!r} is not of the form key=value")
    return dict(OmegaConf.to_container(OmegaConf.from_dotlist(options or [])) or {})  # type: ignore[arg-type]


def _report(report: Any) -> None:
    out.print(str(report), highlight=False, markup=False)
    report.raise_for_failures()
