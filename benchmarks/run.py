"""`make bench`: every benchmark, as ratios against a baseline of the same run; absolute figures are information.

python -m benchmarks.run [pool] [staleness] [rollout] [sandbox] [gui] [trainer]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from benchmarks import gui, pool, rollout, sandbox, staleness, trainer

BENCHMARKS = {
    "pool": pool.measure,
    "staleness": staleness.measure,
    "rollout": rollout.measure,
    "sandbox": sandbox.measure,
    "gui": gui.measure,
    "trainer": trainer.measure,
}


def main(names: list[str]) -> None:
    unknown = set(names) - BENCHMARKS.keys()
    if unknown:
        sys.exit(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix="agentgym-bench-") as folder:
            print(json.dumps({"benchmark": name, **asyncio.run(BENCHMARKS[name](Path(folder)))}, indent=1), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
