"""Writes the table of docs/sandboxes.md from attempts that are really made: python -m scripts.sandbox_docs"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentgym.environments.bubblewrap import why_not
from agentgym.environments.containers import no_docker

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "sandboxes.md"
START, END = "<!-- attempts: made by scripts/sandbox_docs.py -->", "<!-- end of attempts -->"
KINDS = ("docker", "bubblewrap", "plain")


async def table() -> str:
    """Make every attempt in every sandbox that works here. Raises SystemExit where one does not."""
    from tests.environments.attacks import ATTACKS, attempt

    for name, problem in (("docker", no_docker()), ("bubblewrap", why_not())):
        if problem:
            sys.exit(f"{name} does not work here, so its column cannot be made: {problem}")
    lines = [f"| attempt | {' | '.join(KINDS)} |", "| --- |" + " --- |" * len(KINDS)]
    for attack in ATTACKS:
        cells = []
        for kind in KINDS:
            if kind == "plain" and not attack.harmless:
                cells.append("not tried")
            else:
                cells.append("**open**" if await attempt(kind, attack) else "stopped")
        lines.append(f"| {attack.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Replace the table in the page."""
    sys.path.insert(0, str(ROOT))
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(START)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{START}\n{asyncio.run(table())}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
