"""The command line with the letter and the cipher environment registered: `python -m tests.letters train ...`."""

from __future__ import annotations

import agentgym
from agentgym.cli import main
from benchmarks.cipher import Cipher, CipherEnv
from tests.fakes import LetterEnv, Letters

SMALL = [
    "model.path=tiny", "model.max_length=128", "engine.dtype=float32", "trainer.precision=fp32", "guard.gap_mean=1e-3",
    "tasks.name=letters", "rollout.max_tokens=8", "algorithm.truncation=penalise", "algorithm.repetition_share=1.0",
    "rollout.groups_per_step=4", "rollout.group_size=8", "trainer.learning_rate=3e-3", "evaluation.n_tasks=16",
]  # fmt: skip


def register() -> None:
    """Make the environment and its tasks known by name."""
    agentgym.register("letters", LetterEnv)
    agentgym.register_tasks("letters", Letters)
    agentgym.register("cipher", CipherEnv)
    agentgym.register_tasks("cipher", Cipher)


if __name__ == "__main__":
    register()
    main()
