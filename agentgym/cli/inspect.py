"""`status`, `audit` and `versions`: looking at a run."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from omegaconf import OmegaConf
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentgym.cli.console import err, in_words, out, print_json
from agentgym.evaluate import Evaluation
from agentgym.gateway.ledger import Ledger
from agentgym.metrics import read_metrics
from agentgym.results import evaluation_table
from agentgym.run import owner_of, read_config, read_json
from agentgym.store import Store
from agentgym.store_scores import TurnCounts

Folder = Annotated[Path, typer.Argument(help="a run folder")]
Json = Annotated[bool, typer.Option("--json", help="print as JSON")]


MOST_FAILURES = 3
LONGEST_REASON = 100  # characters
USEFUL = (
    "reward_mean", "eval_success", "groups", "groups_dropped", "samples", "samples_rejected", "response_length",
    "scored_share", "hinted_share", "judge_agreement", "truncated_share", "parse_error_share", "infrastructure_share",
    "kl", "entropy", "gap_mean", "importance_mean", "clip_share", "staleness_mean", "grad_norm", "tokens_per_second",
    "wait_seconds", "collect_seconds", "train_seconds", "publish_seconds",
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    app.command()(status)
    app.command("audit")(audit_run)
    app.command()(versions)


def status(
    run: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="show it anew every second, until Ctrl-C")] = False,
    everything: Annotated[bool, typer.Option("--all", help="all metrics and all failures")] = False,
    as_json: Json = False,
) -> None:
    """Where a run (or an evaluation) stands: who works on it, what waits for what, episodes and last metrics."""
    if as_json:
        print_json(_evaluation_status(run) if _is_evaluation(run) else _status(run))
        return
    if not watch:
        out.print(_shown(run, everything))
        return
    with suppress(KeyboardInterrupt), Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
        while True:
            live.update(_shown(run, everything), refresh=True)
            time.sleep(1.0)


def _shown(run: Path, everything: bool) -> Group:
    """A status for people; without `everything` it fits a screen of 30 lines."""
    if _is_evaluation(run):
        return _evaluation_shown(run, _evaluation_status(run))
    found = _status(run)
    working = f"pid {found['owner']} is working on it" if found["owner"] else "nobody is working on it"
    lines = [f"{run}: step {found['step']} of {found['steps']}; {working}"]
    lines += [f"  {what}: {doing}" for what, doing in found["doing"].items()]
    steps = found["evaluated_at"]
    lines += [f"  success {stage} (step {steps[stage]}): {rate:.1%}" for stage, rate in found["evaluations"].items()]
    lines += _episode_lines(found["episodes"])
    if found["samples"]:
        lines.append("samples: " + _listed(found["samples"]))
    lines += _turn_lines(found["turns"], everything)
    lines += _gateway_lines(found["gateway"])
    failures = list(found["failures"].items())
    shown = failures if everything else failures[:MOST_FAILURES]
    lines += [f"  {number} x {reason if everything else reason[:LONGEST_REASON]}" for reason, number in shown]
    if len(failures) > len(shown):
        lines.append(f"  and {len(failures) - len(shown)} more reasons (--all)")
    return Group(Text("\n".join(lines)), *_metrics(found["last"], everything))


def _gateway_lines(gateway: dict[str, dict[str, int]]) -> list[str]:
    """How the gateway took its requests, and what became of the turns: both sums are that of all turns."""
    if not gateway.get("fates"):
        return []
    total = sum(gateway["fates"].values())
    return [f"gateway: {total} turns: {_listed(gateway['fates'])}", f"  taken as {_listed(gateway['taken'])}"]


def _turn_lines(turns: dict[str, Any], everything: bool) -> list[str]:
    """How far the turns are on their way from episode to training, and why some get no further."""
    if not turns["collected"]:
        return []
    judged = (
        f"{turns['waiting']} waiting for the judge, {turns['scored']} scored, {turns['hinted']} hinted, "
        if turns["judging"]
        else ""
    )
    by = f" ({_listed(turns['trained'])})" if turns["trained"] else ""
    trained = sum(turns["trained"].values())
    lines = [f"turns: {turns['collected']} collected, {judged}{turns['ready']} ready, {trained} trained{by}"]
    for what, key in (("not trained", "rejected"), ("unscored", "unscored")):
        reasons = list(turns[key].items())
        shown = reasons if everything else reasons[:MOST_FAILURES]
        lines += [f"  {number} {what}: {reason if everything else reason[:LONGEST_REASON]}" for reason, number in shown]
        if len(reasons) > len(shown):
            lines.append(f"  and {len(reasons) - len(shown)} more reasons (--all)")
    return lines


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in numbers.items())


def _turns(counts: TurnCounts, judging: bool) -> dict[str, Any]:
    """How many turns wait for the judge, are scored and hinted, are ready, were trained; and why the others were not."""
    judged = counts.judged if judging else counts.collected
    return {
        "judging": judging,
        "collected": counts.collected,
        "waiting": counts.collected - judged,
        "scored": counts.scored,
        "hinted": counts.hinted,
        "ready": sum(counts.ready.values()) + max(0, judged - counts.assembled),
        "trained": counts.trained,
        "rejected": counts.rejected,
        "unscored": counts.unscored,
    }


def _episode_lines(episodes: dict[str, dict[str, int]]) -> list[str]:
    """One line for each stage and what became of its episodes."""
    return [f"episodes of {stage}: {_listed(fates)}" for stage, fates in episodes.items()]


def _metrics(last: dict[str, Any], everything: bool) -> list[Any]:
    """The metrics of the last step in two columns."""
    names = [name for name in (last if everything else USEFUL) if name in last and name != "step"]
    if not names:
        return []
    half = (len(names) + 1) // 2
    table = Table.grid(padding=(0, 2))
    for left, right in zip_longest(names[:half], names[half:], fillvalue=""):
        table.add_row(*(cell for name in (left, right) for cell in (Text(name), Text(_value(last.get(name))))))
    rest = "" if everything or len(names) == len(last) - 1 else " (--all shows more)"
    return [Text(f"metrics of step {last.get('step')}{rest}:"), table]


def _value(value: Any) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def _is_evaluation(folder: Path) -> bool:
    """Whether it is an `--out` folder of `agentgym eval`."""
    return (folder / "evaluation.yaml").is_file() and not (folder / "config.yaml").is_file()


def _evaluation_status(folder: Path) -> dict[str, Any]:
    first, _, text = (folder / "evaluation.yaml").read_text().partition("\n")
    config = OmegaConf.create(text)
    episodes: dict[str, Any] = {}
    if (folder / "store.sqlite").is_file():
        store = Store(folder / "store.sqlite", read_only=True)
        episodes = store.counts()
        store.close()
    result = read_json(folder / "result.json") or {}
    return {
        "kind": "evaluation",
        "model": first.removeprefix("# model: "),
        "tasks": str(config.tasks.name),
        "attempts": int(config.evaluation.attempts),
        "owner": owner_of(folder),
        "finished": bool(result),
        "episodes": episodes,
        "evaluation": result.get("evaluation"),
    }


def _evaluation_shown(folder: Path, found: dict[str, Any]) -> Group:
    working = f"pid {found['owner']} is working on it" if found["owner"] else "nobody is working on it"
    state = "finished" if found["finished"] else f"not finished; {working}"
    lines = [f"{folder} is an evaluation of {found['model']} on {found['tasks']}: {state}"]
    parts: list[Any] = [Text("\n".join([*lines, *_episode_lines(found["episodes"])]))]
    if found["evaluation"]:
        evaluation = msgspec.convert(found["evaluation"], Evaluation)
        parts.append(evaluation_table(found["tasks"], evaluation))
    return Group(*parts)


def audit_run(run: Folder, as_json: Json = False) -> None:
    """Check everything that a run trained on: ids as served, masks, versions, nothing twice."""
    from agentgym.trainers.audit import audit

    config = read_config(run)
    store = Store(run / "store.sqlite", read_only=True)
    found = audit(store, config)
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
    turns = _turns(store.turn_counts(), config.judge.kind != "none")
    store.close()
    ledger = Ledger(run / "store.sqlite", read_only=True)
    gateway = ledger.counts()
    ledger.close()
    lines = read_metrics(run)
    owner = owner_of(run)
    kept = progress.get("evaluations", {})
    evaluations = {stage: msgspec.convert(body, Evaluation) for stage, body in kept.items()}
    return {
        "owner": owner,
        "gateway": gateway,
        "step": lines[-1]["step"] if lines else 0,
        "steps": config.trainer.steps,
        "finished": progress.get("finished_steps") == config.trainer.steps,
        "doing": in_words(read_json(run / "live.json") or {}) if owner else {},
        "stages": progress.get("stages", {}),
        "evaluations": {stage: evaluation.success for stage, evaluation in evaluations.items()},
        "evaluated_at": {stage: evaluation.step for stage, evaluation in evaluations.items()},
        "episodes": episodes,
        "samples": samples,
        "turns": turns,
        "failures": failures,
        "last": lines[-1] if lines else {},
    }
