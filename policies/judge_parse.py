"""A judge's answer: strict JSON first, then the one object in it that carries this call's code.

Only what the judge itself says counts. It quotes what it judges, so an object without the code, which no text that is
judged can know, is never a verdict; verdicts that contradict one another are none. Time is linear in the answer.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from agentgym.judge import Vote
from agentgym.policies.judge_prompt import answer_form

MAX_CHARS = 100_000  # of an answer; a longer one says nothing that could be meant
MAX_OBJECTS = 8  # with the code, in one answer
THOUGHTS, THOUGHT = "<think>", "</think>"
BLOCK = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
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


class _Duplicate(ValueError):
    """A key that occurs twice."""


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
    said = answer.rpartition(THOUGHT)[2].strip()  # what a model thinks before it answers is no answer
    try:
        whole = _object(answer) or _object(said) or _object(_block(said))
        if whole is not None:
            return _verdict(whole, code, bind)
        if cut_off or (said == answer and said.startswith(THOUGHTS)):
            return Parsed(reason=CUT_OFF)
        return _embedded(said, code)
    except _Duplicate:
        return Parsed(reason=CONTRADICTORY)


def _block(said: str) -> str:
    """What is in the one code block that `said` is."""
    found = BLOCK.fullmatch(said)
    return found[1] if found else ""


def _embedded(said: str, code: str) -> Parsed:
    """The verdict of the objects in `said` that begin with the code; they must agree."""
    for hints in (True, False):
        said = said.replace(answer_form(code, hints), "")  # the form repeated before it is filled in
    opening = re.compile(r'\{\s*"code"\s*:\s*"' + re.escape(code) + '"')
    found: set[Vote] = set()
    last = Parsed(reason=NO_CODE)
    end = count = 0
    for match in opening.finditer(said):
        if match.start() < end:
            continue  # inside one that was read
        if (count := count + 1) > MAX_OBJECTS:
            return Parsed(reason=CONTRADICTORY)
        try:
            value, end = _DECODER.raw_decode(said, match.start())
        except _Duplicate:
            raise
        except (ValueError, RecursionError):
            return Parsed(reason="malformed JSON")
        last = _verdict(value, code, bind=True)
        found.add(last.vote)
    return last if len(found) <= 1 else Parsed(reason=CONTRADICTORY)


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, and nothing else."""
    try:
        value = _DECODER.decode(text)
    except _Duplicate:
        raise
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _verdict(value: dict[str, Any], code: str, bind: bool) -> Parsed:
    if value.get("code", None if bind else code) != code:
        return Parsed(reason=NO_CODE)
    score, hint = value.get("score"), value.get("hint")
    if isinstance(score, bool) or not isinstance(score, int | float | str) or score not in SCORES:
        return Parsed(reason=NO_SCORE)
    return Parsed(SCORES[score], hint if isinstance(hint, str) else "")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Duplicate
    return made


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
