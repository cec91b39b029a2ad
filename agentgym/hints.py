"""Hints: which candidates are kept for a turn, and why the others are not.

A hint comes from an environment or from a judge that read hostile text: it is data. What is kept is one line of plain
text, with nothing hidden in it and no special token, long enough to say something, short enough to cost little, unlike
the others, and without a secret of the task.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from agentgym.schema import HintsConfig
from agentgym.untrusted import defused, head_and_tail, stripped

MAX_READ = 20_000  # characters of a candidate that are looked at
SHORT_SECRET = 4  # letters and digits; a shorter one is looked for as a word of its own

# Letters that look like Latin ones, with those: Cyrillic and Greek.
LOOK_ALIKES = str.maketrans("авеёіјкмнорсѕтухԁԛԝαβεικνορτυχ", "abeeijkmhopcstyxdqwabeikvoptux")


class Accepted(NamedTuple):
    """The hints that are kept, in order, and one reason for each candidate that is not."""

    hints: tuple[str, ...]
    refused: tuple[str, ...]


def candidates(source: str, info: dict[str, Any], judged: Sequence[str] = ()) -> list[Any]:
    """The candidates of a turn in order: the environment's own (info["hint"], a text or a list), then the judge's.

    Args:
        source: `hints.source` of the config: "environment", "judge" or "both".
    """
    found: list[Any] = []
    if source in ("environment", "both"):
        offered = info.get("hint")
        found += offered if isinstance(offered, list | tuple) else [] if offered is None else [offered]
    if source in ("judge", "both"):
        found += judged
    return [one for one in found if one != ""]  # an empty text is how a judge says that it has none


def accept(found: Sequence[Any], settings: HintsConfig, secrets: Sequence[str] = ()) -> Accepted:
    """Keep the first `max_hints` distinct candidates that may be told to a teacher.

    Example:
        accept(["Use mkdir -p.", "Use  mkdir -p"], HintsConfig()).hints  # ("Use mkdir -p.",)
    """
    hints: list[str] = []
    refused: list[str] = []
    seen: set[str] = set()
    for candidate in found:
        hint = normalised(candidate, settings.max_chars) if isinstance(candidate, str) else ""
        if reason := _refusal(candidate, hint, settings, secrets, seen, len(hints)):
            refused.append(reason)
        else:
            seen.add(folded(hint) or hint)
            hints.append(hint)
    return Accepted(tuple(hints), tuple(refused))


def normalised(text: str, max_chars: int) -> str:
    """One line of plain text without special tokens; of a longer one the beginning, and an ellipsis."""
    line = " ".join(defused(stripped(unicodedata.normalize("NFC", text[:MAX_READ]))).split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1].rstrip()}…"


def _refusal(
    candidate: Any, hint: str, settings: HintsConfig, secrets: Sequence[str], seen: set[str], kept: int
) -> str:
    if not isinstance(candidate, str):
        return "not text"
    if leaks(candidate, secrets) or leaks(hint, secrets):
        return "leaks the answer"
    if len(hint) < settings.min_chars:
        return "too short"
    if (folded(hint) or hint) in seen:
        return "a duplicate"
    return "one too many" if kept >= settings.max_hints else ""


def leaks(text: str, secrets: Sequence[str]) -> bool:
    """Whether `text` holds one of the secrets, also in other case, spaced out, in look-alike letters, reversed,
    in base64 or in hexadecimal; of a secret of several lines, whether it holds one of the longer ones.

    A secret of fewer than four letters and digits is looked for as a word of its own. What is told in other words is not
    found.
    """
    read = text if len(text) <= 2 * MAX_READ else " ".join(head_and_tail(text, 2 * MAX_READ)[::2])
    return any(_holds(read, part) for secret in secrets for part in _parts(secret))


def folded(text: str) -> str:
    """The letters and digits of `text` alone, without case, accents and look-alikes."""
    return "".join(char for char in _plain(text) if char.isalnum())


def _plain(text: str) -> str:
    loose = unicodedata.normalize("NFKD", stripped(text)).casefold().translate(LOOK_ALIKES)
    return "".join(char for char in loose if not unicodedata.combining(char))


def _parts(secret: str) -> list[str]:
    lines = [line for line in secret.splitlines() if len(folded(line)) >= 2 * SHORT_SECRET]
    return [part for part in dict.fromkeys([secret, *lines]) if part.strip()]


def _holds(text: str, secret: str) -> bool:
    core = folded(secret)
    if not core:  # nothing but signs
        return "".join(secret.split()) in "".join(text.split())
    if len(core) < SHORT_SECRET:
        words = re.findall(r"\w+", _plain(text))
        spaced = re.sub(r"\b(\w)\b\W+(?=\w\b)", r"\1", _plain(text))  # "4 2" is 42
        return core in words or core in re.findall(r"\w+", spaced)
    whole = folded(text)
    raw = secret.strip().encode("utf-8", "replace")
    coded = (base64.b64encode(raw).decode().rstrip("="), raw.hex())
    return core in whole or core[::-1] in whole or any(folded(code) in whole for code in coded)
