"""Kills at random: processes of a training run end by -9 again and again, and its books must balance in the end.

    python -m tests.chaos --kills 100 --seed 0 --backend vllm

Each life of the run is a process tree: controller, learner, workers, and vLLM's own. A seeded choice picks a moment and
a victim in it. What must hold: nothing is left running 10 s after the controller has ended; a resumed run goes on; and
at the end every step was trained once, on samples that stand the audit, by versions that were never used twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil

from agentgym.metrics import read_metrics
from agentgym.run import read_config
from agentgym.store import Store
from agentgym.trainers.audit import audit
from tests.letters import SMALL

ROOT = Path(__file__).parents[1]
GONE_S = 10.0  # by then nothing of a dead owner is left
LIFE_S = 300.0  # a life that nobody kills must end by itself by then


class Chaos:
    """One run, killed and resumed; `marker` is in the environment of every process of it."""

    def __init__(self, folder: Path, seed: int, backend: str) -> None:
        self.random = random.Random(seed)
        self.run = folder / "chaos-s0"
        self.backend = backend
        self.marker = f"AGENTGYM_CHAOS={uuid.uuid4().hex}"
        self.log = folder / "chaos.log"
        self.victims: Counter[str] = Counter()

    def start(self, steps: int) -> subprocess.Popen[bytes]:
        """A new life that means to train until `steps`."""
        if (self.run / "config.yaml").exists():
            given = ["--resume", str(self.run), f"trainer.steps={steps}"]
        else:
            given = [
                "shipped", *SMALL, f"dir={self.run.parent}", "name=chaos", f"engine.backend={self.backend}",
                "rollout.workers=2", "rollout.max_staleness=1", "trainer.checkpoint_every=2", f"trainer.steps={steps}",
                "evaluation.before_and_after=false",
            ]  # fmt: skip
            given[0] = str(self._empty_config())
        key, _, value = self.marker.partition("=")
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.letters", "train", *given],
                cwd=ROOT, env=os.environ | {key: value}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,  # a group of its own, as a shell gives to what it runs in the foreground
            )  # fmt: skip

    def _empty_config(self) -> Path:
        path = self.run.parent / "empty.yaml"
        path.write_text("{}\n")
        return path

    def processes(self) -> list[psutil.Process]:
        """All processes of the run that are alive."""
        found = []
        for process in psutil.process_iter():
            try:
                if self.marker in _environment(process.pid) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def kill_one(self, life: subprocess.Popen[bytes], most_s: float) -> None:
        """Wait for a random moment, kill a random process, and see the life through if that was enough to end it."""
        if self.random.random() < 0.7:  # most kills while it trains, some while it starts
            self._await_steps(life, self.steps_done() + 1, 4 * most_s)
            moment = self.random.uniform(0.0, 6.0)
        else:
            moment = self.random.uniform(0.2, most_s)
        deadline = time.monotonic() + moment
        while time.monotonic() < deadline and life.poll() is None:
            time.sleep(0.02)
        alive = self.processes()
        if not alive:
            return
        victim = self.random.choice(alive)
        name = "controller" if victim.pid == life.pid else _kind(victim)
        self.victims[name] += 1
        try:
            victim.send_signal(signal.SIGKILL)
        except psutil.Error:
            return
        time.sleep(self.random.uniform(0.0, 2.0))

    def _await_steps(self, life: subprocess.Popen[bytes], steps: int, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while self.steps_done() < steps and life.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)

    def end(self, life: subprocess.Popen[bytes]) -> None:
        """Kill the controller if it lives on, and check that nothing of the run outlives it."""
        if life.poll() is None:
            self.victims["controller"] += 1
            life.kill()
        life.wait()
        self.check_gone()

    def check_gone(self) -> None:
        """Raise AssertionError if any process of the run is still there after `GONE_S`."""
        deadline = time.monotonic() + GONE_S
        while left := self.processes():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"left running {GONE_S:g} s after the controller's end: {[_kind(p) for p in left]}"
                )
            time.sleep(0.1)

    def finish(self) -> None:
        """A last life that nobody disturbs."""
        done = self.steps_done()
        for steps in (done + 3, done + 3):  # the first may find that the last kill left nothing to do
            life = self.start(steps)
            code = life.wait(timeout=LIFE_S)
            if code:
                raise AssertionError(f"the last life failed with {code}:\n{self.log.read_text()[-3000:]}")
        self.end(life)

    def steps_done(self) -> int:
        """Training steps in the metrics so far."""
        lines = read_metrics(self.run) if self.run.exists() else []
        return int(lines[-1]["step"]) if lines else 0


def check_books(run: Path) -> dict[str, int]:
    """The sums of a finished run: raises AssertionError if they do not balance."""
    config = read_config(run)
    store = Store(run / "store.sqlite", read_only=True)
    found = audit(store, config)
    assert found.problems == (), found.problems[:5]
    steps = [line["step"] for line in read_metrics(run)]
    assert steps == list(range(1, config.trainer.steps + 1)), f"steps in the metrics: {steps}"
    consumed = store.consumed()
    trained = [line["step"] for line in read_metrics(run) if line.get("samples")]
    assert sorted(consumed) == trained, "the steps that trained are those that consumed"
    for line in read_metrics(run):
        assert consumed.get(line["step"], 0) == line["samples"], f"step {line['step']}: other samples than it says"
    versions = [entry["version"] for entry in store.versions()]
    assert versions == sorted(set(versions)), "a version number was used twice"
    made = [entry["step"] for entry in store.versions() if not entry["undone"]]
    assert set(trained) <= set(made), "a step of the surviving history has no version"
    positions = [row[0] for row in store._all("SELECT position FROM groups ORDER BY position")]
    assert positions == list(range(len(positions))), "a task was skipped, or given out twice"
    stale = [line.get("staleness_max", 0) for line in read_metrics(run)]
    lives = int(store.meta("life") or 0) + 1
    store.close()
    return {"steps": len(steps), "lives": lives, "samples": sum(consumed.values()), "staleness_max": int(max(stale))}


def torment(folder: Path, *, kills: int, seed: int, backend: str) -> dict[str, object]:
    """Kill a run `kills` times, let it finish, and check its books."""
    chaos = Chaos(folder, seed, backend)
    most_s = 15.0 if backend == "transformers" else 45.0
    while sum(chaos.victims.values()) < kills:
        life = chaos.start(steps=chaos.steps_done() + 1000)
        while life.poll() is None and sum(chaos.victims.values()) < kills:
            chaos.kill_one(life, most_s)
            if chaos.random.random() < 0.5:
                break
        chaos.end(life)
    chaos.finish()
    return {**check_books(chaos.run), "kills": dict(chaos.victims)}


def _environment(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")


def _kind(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
    for part, name in (
        ("vllm_supervisor", "vllm supervisor"), ("api_server", "vllm server"), ("VLLM::", "vllm engine"),
        ("resource_tracker", "resource tracker"), ("spawn_main", "learner or worker"), ("tests.letters", "controller"),
    ):  # fmt: skip
        if part in command:
            return name
    return command[:60] or process.name()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("transformers", "vllm"), default="vllm")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentgym-chaos-") as folder:
        print(torment(Path(folder), kills=given.kills, seed=given.seed, backend=given.backend))


if __name__ == "__main__":
    main()
