"""A judge's answer: strict JSON first, then a score beside the code of this call.

Only what the judge itself says counts. It quotes what it judges, so a score without the code, which no text that is
judged can know, is never a verdict; verdicts that contradict one another are none. Time is linear in the answer.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, NamedTuple

from agentgym.judge import Vote

MAX_CHARS = 100_000  # of an answer; a longer one says nothing that could be meant
MAX_VERDICTS = 8  # in one answer
THOUGHTS, THOUGHT = "<think>", "</think>"
BLOCK = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
TWICE = "\0twice"  # the mark of an object that has a key twice
PAIR = r'"code"\s*:\s*"{code}"\s*,\s*"score"\s*:\s*(?P<score>-1|0|1)\s*(?:\}}|,\s*(?:"hint"\s*:\s*(?P<hint>"(?:[^"\\]|\\.)*"))?)'
SCORES = {1: 1, 0: 0, -1: -1, "1": 1, "+1": 1, "0": 0, "-1": -1}

CUT_OFF = "cut off"
NO_CODE = "no verdict with the code of its call (set judge.bind=false for an endpoint that cannot repeat it)"
CONTRADICTORY = "contradictory verdicts"
NO_SCORE = "no score of 1, 0 or -1"


class Parsed(NamedTuple):
    """A vote and a hint, or the reason why there is no vote."""

    vote: Vote = None
    hint: str = ""
    reason: str = ""


def parse(answer: str, code: str, *, bind: bool = True, cut_off: bool = False) -> Parsed:
    """The vote in `answer`, which was asked to repeat `code`.

    Args:
        bind: an answer without the code is no vote; otherwise one that is nothing but a verdict is taken as it is.
        cut_off: the answer ended at its limit; only a whole object counts then.

    Example:
        parse('{"code": "c0de", "score": -1}', "c0de").vote  # -1
    """
    if not code or len(answer) > MAX_CHARS:
        return Parsed(reason=NO_CODE if not code else "far too long")
    answer = answer.strip()
    said = _after_thoughts(answer, bind)
    whole = _object(answer) or _object(said) or _object(_block(said))
    if whole is not None and (bind or not cut_off):
        return _verdict(whole, code, bind)
    if cut_off or (said == answer and said.startswith(THOUGHTS)):
        return Parsed(reason=CUT_OFF)
    return _embedded(said, code)


def _after_thoughts(answer: str, bind: bool) -> str:
    """What follows a model's thoughts. They may quote their own end: only a code tells what comes after which."""
    if bind or (answer.startswith(THOUGHTS) and answer.count(THOUGHT) == 1):
        return answer.rpartition(THOUGHT)[2].strip()
    return answer


def _block(said: str) -> str:
    """What is in the one code block that `said` is."""
    found = BLOCK.fullmatch(said)
    return found[1] if found else ""


def _embedded(said: str, code: str) -> Parsed:
    """The verdict where code and score stand side by side, as the form has them; several must agree.

    A text that is quoted without being escaped can end the object that quotes it, and put a score of its own after it;
    between code and score nothing is quoted.
    """
    found = list(islice(re.finditer(PAIR.format(code=re.escape(code)), said), MAX_VERDICTS + 1))
    if not found:
        return Parsed(reason=NO_CODE)
    if len(found) > MAX_VERDICTS or len({one["score"] for one in found}) > 1:
        return Parsed(reason=CONTRADICTORY)
    return Parsed(int(found[-1]["score"]), _text(found[-1]["hint"]))


def _text(literal: str | None) -> str:
    """What a string of JSON says; nothing if it is malformed."""
    try:
        return str(_DECODER.decode(literal)) if literal else ""
    except ValueError:
        return ""


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, and nothing else."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _verdict(value: dict[str, Any], code: str, bind: bool) -> Parsed:
    if value.get("code", None if bind else code) != code:
        return Parsed(reason=NO_CODE)
    if TWICE in value:
        return Parsed(reason=CONTRADICTORY)
    score, hint = value.get("score"), value.get("hint")
    if isinstance(score, bool) or not isinstance(score, int | float | str) or score not in SCORES:
        return Parsed(reason=NO_SCORE)
    return Parsed(SCORES[score], hint if isinstance(hint, str) else "")


def _made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, marked if it says anything twice."""
    made = dict(pairs)
    return made if len(made) == len(pairs) else {**made, TWICE: True}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_made, parse_constant=_refuse)
