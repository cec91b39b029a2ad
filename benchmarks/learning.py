"""Does it learn? RL only, OPD only and the hybrid of both, with the same budget, on the cipher task, over several seeds.

    python -m benchmarks.learning --seeds 5 --steps 80 --out runs/learning

What runs is what trains any model: the `Training` loop, pool, store, verifier judge, environment hints, credit, loss and
DeepSpeed learner (in this process), and the transformers engine. Small are the model (0.1M parameters, from scratch) and
the task. Per seed, one model first learns the form of an answer and what a hint is, from lessons that know no cipher;
all arms begin with it. Measured is the exact chance of a right answer to held-out words, without any hint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np

from agentgym.charts import Point, Series, line_chart
from agentgym.collect import TaskStream
from agentgym.config import Config, load_config
from agentgym.judge import make_judge
from agentgym.metrics import read_metrics
from agentgym.models import make_tiny
from agentgym.policy import Session
from agentgym.pool import RolloutPool
from agentgym.run import Run
from agentgym.scoring import Scorer
from agentgym.trainers.loop import Training
from agentgym.trainers.process import LearnerProcess
from agentgym.types import Message, Prompt, Sample, ScoredSample
from benchmarks.cipher import Cipher, CipherEnv, lessons, sample_of

ARMS = {"RL only": (1.0, 0.0), "OPD only": (0.0, 1.0), "hybrid": (1.0, 1.0)}  # w_rl, w_opd
LESSONS, LESSON_EPOCHS, LESSON_RATE = 3000, 3, 3e-3
EVERY = 5  # steps between evaluations
SVG = "http://www.w3.org/2000/svg"
THRESHOLD = 0.5  # of held-out success: how many steps until it is reached
BASE = [
    "model.max_length=128", "engine.dtype=float32", "engine.backend=transformers", "trainer.precision=fp32",
    "rollout.group_size=8", "rollout.groups_per_step=8", "rollout.oversample=1", "rollout.max_tokens=6",
    "judge.kind=verifier", "algorithm.estimator=step_wise", "algorithm.repetition_share=1.0",
    "trainer.micro_batch_tokens=8192", "trainer.checkpoint_every=1000000000", "trainer.learning_rate=1e-3",
    f"evaluation.every={EVERY}", "guard.gap_mean=1e9", "guard.max_kl=1e9", "guard.gap_every=1000000000",
    "algorithm.truncation=penalise",
    "algorithm.opd_k=16",  # all letters are in it: before it has learned anything the model thinks all are as likely
    "teacher.kind=reference",  # so small a model forgets what a hint is while it learns the cipher
]  # fmt: skip


class InProcess:
    """The learner of this process, awaited as one in a process of its own is."""

    def __init__(self, config: Config, model: Path, folder: Path) -> None:
        import torch.distributed as dist

        from agentgym.trainers import process

        if dist.is_initialized():
            from agentgym.trainers.learner import Learner

            self.learner = Learner(config, model)
        else:
            os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            self.learner = process._learner(config, model, 0, 1, str(folder))

    async def step(self, samples: Sequence[ScoredSample]) -> dict[str, float]:
        found: dict[str, float] = self.learner.step(samples)
        return found

    async def logprobs(self, samples: Sequence[Sample]) -> list[list[float | None]]:
        found: list[list[float | None]] = self.learner.logprobs(samples)
        return found

    async def publish(self, directory: Path) -> None:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        self.learner.publish(directory)

    async def save(self, directory: Path) -> None:
        """The curve is the result; nobody resumes."""


def first_model(folder: Path, seed: int) -> Path:
    """A tiny model that answers in the right form and follows hints, and knows no cipher."""
    from agentgym.policies.template import ChatTemplate

    raw, taught = folder / f"raw-{seed}", folder / f"model-{seed}"
    raw.mkdir()
    make_tiny(raw, seed=seed)
    config = load_config(None, [*BASE, f"model.path={raw}", "warm_start.batch_size=32", f"seed={seed}"])
    learner = InProcess(config, raw, folder).learner
    samples = lessons(ChatTemplate(raw), config.hints.template, LESSONS, seed)
    learner.sft(samples, epochs=LESSON_EPOCHS, learning_rate=LESSON_RATE)
    taught.mkdir()
    learner.publish(taught)
    return taught


async def train(folder: Path, model: Path, arm: str, seed: int, steps: int, overrides: Sequence[str]) -> Path:
    """One arm with one seed; returns its run folder."""
    from agentgym.policies.transformers import TransformersPolicy

    w_rl, w_opd = ARMS[arm]
    config = load_config(
        None,
        [
            *BASE, f"model.path={model}", f"dir={folder}", f"name={arm.split()[0].lower()}", f"seed={seed}",
            f"algorithm.w_rl={w_rl}", f"algorithm.w_opd={w_opd}", f"trainer.steps={steps}", *overrides,
        ],
    )  # fmt: skip
    tasks = Cipher(seed=seed, **config.tasks.options)
    run = Run.create(config)
    run.store.add_version(step=0, life=run.life)
    learner = InProcess(config, model, run.folder)
    policy = TransformersPolicy(config, model=model, folder=run.folder)
    judge = make_judge(config, cache=run.store)
    scorer = Scorer(judge, run.store, config, run.stored, policy.hinted if w_opd else None)
    exam = questions(policy, tasks)

    async def success(step: int) -> float:
        return exact_success(await learner.logprobs(exam))

    await policy.start()
    try:
        pool = RolloutPool(policy, config, lambda task: CipherEnv())
        run.metrics.write(0, eval_success=await success(0))
        stream = TaskStream(tasks.tasks("train"), seed)
        await Training(
            run, policy, pool, cast(LearnerProcess, learner), stream, scorer=scorer, evaluate=success
        ).train()
    finally:
        await scorer.close()
        await policy.close()
        run.close()
    return run.folder


def questions(policy: Any, tasks: Cipher) -> list[Sample]:
    """Every held-out word as the first one of an episode, with its right answer."""
    found = []
    for word in tasks.words["test"]:
        prompt = policy.template.encode_prompt(Session(word), Prompt(messages=(Message(role="user", content=word),)))
        answer = policy.template.encode_response(Message(role="assistant", content=tasks.answer(word)))
        found.append(sample_of(word, prompt, answer))
    return found


def exact_success(logprobs: Sequence[Sequence[float | None]]) -> float:
    """The mean chance of sampling the right answer, from its log-probs."""
    return float(np.mean([np.exp(sum(value for value in row if value is not None)) for row in logprobs]))


def curve(folder: Path) -> dict[int, float]:
    """Held-out success by step."""
    return {line["step"]: line["eval_success"] for line in read_metrics(folder) if "eval_success" in line}


def main() -> None:
    """Run the study, or what is left of it, and write table and plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="config of all arms")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.out.mkdir(parents=True, exist_ok=True)
    results = given.out / "curves.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    with tempfile.TemporaryDirectory(prefix="agentgym-learning-") as scratch:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            missing = [arm for arm in given.arms if f"{arm}/{seed}" not in found]
            model = first_model(Path(scratch), seed) if missing else Path()
            for arm in missing:
                began = time.monotonic()
                folder = asyncio.run(train(Path(scratch), model, arm, seed, given.steps, given.set))
                lines = read_metrics(folder)
                found[f"{arm}/{seed}"] = {
                    "curve": curve(folder),
                    "seconds": time.monotonic() - began,
                    "last": lines[-1],
                }
                results.write_text(json.dumps(found, indent=1))
                shutil.copy(folder / "metrics.jsonl", given.out / f"{arm.replace(' ', '-')}-s{seed}.jsonl")
                print(
                    f"{arm}, seed {seed}: {list(curve(folder).values())[-1]:.3f} in {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                shutil.rmtree(folder)
    write(given.out, found)


def write(out: Path, found: dict[str, Any]) -> None:
    """Write `table.md`, `summary.json` and `plot.svg` from the curves of all arms and seeds."""
    arms = {arm: curves_of(found, arm) for arm in ARMS if any(name.startswith(f"{arm}/") for name in found)}
    summary = {arm: summary_of(*curves) for arm, curves in arms.items()}
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    (out / "table.md").write_text(table(summary) + paired({arm: curves[1][:, -1] for arm, curves in arms.items()}))
    (out / "plot.svg").write_text(plot(arms))
    print((out / "table.md").read_text())


def curves_of(found: dict[str, Any], arm: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which an arm was evaluated (E), and its success there for each seed (S, E)."""
    curves = [entry["curve"] for name, entry in sorted(found.items()) if name.startswith(f"{arm}/")]
    steps_E = sorted({int(step) for curve in curves for step in curve})
    rows = [[{int(k): v for k, v in curve.items()}[step] for step in steps_E] for curve in curves]
    return np.array(steps_E), np.array(rows)


def summary_of(steps_E: np.ndarray, success_SE: np.ndarray) -> dict[str, Any]:
    """Success at the end, its mean over all steps, and the steps to the threshold; intervals are Student's, over seeds."""
    reached = [steps_E[row >= THRESHOLD] for row in success_SE]
    first = [int(steps[0]) if len(steps) else None for steps in reached]
    known = sorted(steps for steps in first if steps is not None)
    median = float(np.median([steps_E[-1] + 1 if steps is None else steps for steps in first]))
    return {
        "seeds": len(success_SE),
        "final": mean_interval(success_SE[:, -1]),
        "mean_over_steps": mean_interval(success_SE.mean(axis=1)),
        "reached_threshold": len(known),
        "steps_to_threshold": first,
        "median_steps": median if median <= steps_E[-1] else None,
    }


def mean_interval(values_S: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95% interval (Student's t) over seeds."""
    from scipy.stats import t

    n, mean = len(values_S), float(values_S.mean())
    half = float(t.ppf(0.975, n - 1) * values_S.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return mean, mean - half, mean + half


def table(summary: dict[str, Any]) -> str:
    """The result as a table in Markdown."""
    rows = [
        f"| arm | seeds | success at the end | mean over all steps | steps to {THRESHOLD:.0%} (median) | reached it |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm, one in summary.items():
        ends = " | ".join(shown(one[key], 0.0) for key in ("final", "mean_over_steps"))
        median = "not reached" if one["median_steps"] is None else f"{one['median_steps']:g}"
        rows.append(f"| {arm} | {one['seeds']} | {ends} | {median} | {one['reached_threshold']} of {one['seeds']} |")
    return "\n".join(rows) + "\n"


def paired(finals: dict[str, np.ndarray]) -> str:
    """How much better the hybrid ended than each other arm, seed by seed."""
    if "hybrid" not in finals:
        return ""
    rows = [
        "",
        "| hybrid against | difference at the end, paired by seed | seeds in which it ended higher |",
        "| --- | --- | --- |",
    ]
    for arm, final_S in finals.items():
        if arm != "hybrid" and len(final_S) == len(finals["hybrid"]):
            gains_S = finals["hybrid"] - final_S
            rows.append(f"| {arm} | {shown(mean_interval(gains_S))} | {int((gains_S > 0).sum())} of {len(gains_S)} |")
    return "\n".join(rows) + "\n"


def shown(found: tuple[float, float, float], least: float = -1.0) -> str:
    """A mean with its interval, which ends where values do."""
    mean, low, high = found
    return f"{mean:.3f} [{max(low, least):.3f}, {min(high, 1.0):.3f}]"


def plot(arms: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Mean success and its 95% interval over seeds, by step, as an SVG that stands alone."""
    series = []
    for arm, (steps_E, success_SE) in arms.items():
        points = []
        for step, values_S in zip(steps_E, success_SE.T, strict=True):
            mean, low, high = mean_interval(values_S)
            points.append(Point(float(step), mean, *((max(0.0, low), min(1.0, high)) if len(values_S) > 1 else ())))
        series.append(Series(name=arm, points=points, band=True))
    figure = line_chart("Held-out success", series, percent=True, width=720, height=300)
    drawing = figure[figure.index("<svg") : figure.index("</svg>")].replace("<svg", f'<svg xmlns="{SVG}"', 1)
    style = (files("agentgym") / "report.css").read_text(encoding="utf-8")
    names = "".join(
        f'<circle class="s{n + 1} dot" cx="{60 + 110 * n}" cy="20" r="4"/><text x="{70 + 110 * n}" y="24">{arm}</text>'
        for n, arm in enumerate(arms)
    )
    return f"{drawing}<style>{style}</style>{names}</svg>\n"


if __name__ == "__main__":
    main()
