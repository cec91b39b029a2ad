"""What a verifier found, as hints: commands that do the task, and what each check expected and found.

Nothing is told that holds one of the task's `secrets`: commands are left out, a finding is told without its contents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import zip_longest

from agentgym.environments.verify import Expectation, Verdict, printable
from agentgym.hints import leaks
from agentgym.types import Task

TOLD = 3  # findings in one hint


def hints_of(task: Task, verdicts: Sequence[Verdict]) -> list[str]:
    """What to tell in hindsight about a task that was not solved: commands that do it, and what is not as it should be.

    Example: ["These commands do it: wc -l < a > n.txt", "It is not done: n.txt should hold '2', but n.txt is missing."]
    """
    secrets = [str(secret) for secret in task.data.get("secrets", ())]
    commands = "; ".join(task.data.get("solution", ()))
    told = [f"These commands do it: {commands}"] if commands and not leaks(commands, secrets) else []
    pairs = zip_longest(task.data["expect"], verdicts)  # the last verdict is on all that no expectation names
    found = [_finding(expectation, verdict, secrets) for expectation, verdict in pairs if not verdict.ok]
    more = f"; and {len(found) - TOLD} more" if len(found) > TOLD else ""
    return [*told, f"It is not done: {'; '.join(found[:TOLD])}{more}."] if found else []


def _finding(expectation: Expectation | None, verdict: Verdict, secrets: Sequence[str]) -> str:
    wanted = WANTED[verdict.kind](expectation) if expectation and verdict.kind in WANTED else ""
    said = (
        f"{verdict.path} should {wanted}, but {verdict.why}"
        if wanted
        else f"nothing else should change, but {verdict.why}"
    )
    for told in (said, f"{verdict.path} is not what the task asks for"):
        if not leaks(told, secrets):
            return told
    return "a file is not what the task asks for"


WANTED: dict[str, Callable[[Expectation], str]] = {
    "text": lambda wanted: f"hold {printable(wanted['text'])!r}",
    "lines": lambda wanted: f"hold the lines {printable(chr(10).join(wanted['lines']))!r}",
    "json": lambda wanted: f"hold the JSON value {printable(json.dumps(wanted['value']))}",
    "archive": lambda wanted: f"be an archive of {printable(', '.join(sorted(wanted['members'])))}",
    "dir": lambda wanted: "be a directory",
    "absent": lambda wanted: "be gone",
    "mode": lambda wanted: f"have mode {wanted['mode']}",
    "link": lambda wanted: f"be a symbolic link to {printable(wanted['target'])}",
    "like": lambda wanted: f"have the content that {wanted['source']} had",
}
