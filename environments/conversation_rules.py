"""What a user wants of a reply, as pure functions: reply in, complaint out; an empty complaint means that it is as wanted.

A complaint is what the user says: it tells what was wrong, so that whoever reads it knows how to do better. A rule in a
task's data is its name and its options: {"rule": "words", "at_least": 100}. A rule of one's own is named as
"module:function".
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym.errors import TaskError
from agentgym.registry import nearest

MARKUP = {
    "list": (re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+\S.*$", re.MULTILINE), "a list", "plain sentences"),
    "bold": (re.compile(r"\*\*\S[^*\n]*\*\*|__\S[^_\n]*__|<b>|<strong>"), "bold text", "no emphasis"),
    "boxed": (re.compile(r"\\(?:boxed|fbox)\b"), "a boxed answer", "the answer in a sentence"),
    "heading": (re.compile(r"^[ \t]*#{1,6}[ \t]+\S.*$", re.MULTILINE), "a heading", "no headings"),
}
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
NUMBER = re.compile(r"-?\d+(?:[.,]\d{3})*(?:\.\d+)?")
ITEM = re.compile(r"^[ \t]*(\d{1,3})[.)][ \t]+\S", re.MULTILINE)
LANGUAGES = {
    "English": "the a an is are of to and in it you for on with that this be at not from have",
    "German": "der die das ein eine ist sind und in im zu es du sie für auf mit dass nicht von den dem man finden",
    "French": "le la les un une est sont et à au aux du des il vous pour sur avec que ne pas dans on de trouve",
    "Spanish": "el la los las un una es son y en al de del que lo para con por no se hay está puede encuentra",
    "Italian": "il lo la gli un una è sono e in al di del che per con non si nel trova anche su",
}
STOPWORDS = {language: frozenset(words.split()) for language, words in LANGUAGES.items()}
LEAST_WORDS = 4  # of a reply whose language can be told
QUOTED = 40  # characters of a reply that a complaint repeats

Rule = Callable[..., str]


def complaints(text: str, rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a user who wants all of `rules` has against a reply. Raises TaskError for rules that do not work."""
    if not text.strip():
        return ["You did not say anything."]
    found = []
    for rule in rules:
        options = {key: value for key, value in rule.items() if key != "rule"}
        try:
            said = rule_named(str(rule.get("rule", "")))(text, **options)
        except TypeError as error:
            raise TaskError(f"the rule {rule!r:.200} does not work: {error}") from error
        found += [said] if said else []
    return found


def rule_named(name: str) -> Rule:
    """The rule called `name`, or "module:function". Raises TaskError."""
    if name in RULES:
        return RULES[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise TaskError(f"unknown rule {name!r}{nearest(name, RULES)}; known: {', '.join(RULES)}")
    try:
        found: Rule = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise TaskError(f"rule {name!r}: {error}") from error
    return found


def no_markup(text: str, what: Sequence[str] = ("list", "bold", "boxed")) -> str:
    """None of the markup named by `what`: "list", "bold", "boxed", "heading"."""
    for kind in what:
        pattern, called, instead = MARKUP[kind]
        if found := pattern.search(text):
            return f"There is {called} in it ({_quoted(found[0])}), and I do not like that: {instead}, please."
    return ""


def words(text: str, at_least: int = 0, at_most: int = 0, distinct: float = 0.3) -> str:
    """Between `at_least` and `at_most` words (0: no bound), of which a share of `distinct` are different ones."""
    said = [word.lower() for word in WORD.findall(text)]
    if len(said) < at_least:
        return f"That is too short for me: {len(said)} words, and I want at least {at_least}."
    if at_most and len(said) > at_most:
        return f"That is too long for me: {len(said)} words, and I want at most {at_most}."
    if at_least and len(set(said)) < distinct * len(said):
        return "You repeat yourself: please fill it with something to say."
    return ""


def mentions(text: str, words: Sequence[str], at_least: int = 0) -> str:
    """At least so many of `words` (0: all of them), as words of their own, in whatever case."""
    missing = [word for word in words if not _has(text, word)]
    wanted = at_least or len(words)
    if len(words) - len(missing) >= wanted:
        return ""
    return f"It does not say anything about {' or '.join(map(repr, missing[:3]))}, and I asked about that."


def one_of(text: str, phrases: Sequence[str], wish: str) -> str:
    """One of `phrases`; `wish` says what for: "something warm"."""
    if any(_has(text, phrase) for phrase in phrases):
        return ""
    return f"I miss {wish} in it, such as {' or '.join(repr(phrase) for phrase in phrases[:3])}."


def number(text: str, value: float) -> str:
    """The number `value`, written in digits."""
    found = [float(one.replace(",", "")) for one in NUMBER.findall(text)]
    if any(math.isclose(one, value, rel_tol=1e-9) for one in found):
        return ""
    return "I cannot find the right result in it: please calculate again, and write it in digits."


def language(text: str, language: str) -> str:
    """Written in `language`, as far as its small words tell."""
    said = [word.lower() for word in WORD.findall(text)]
    counts = {name: sum(word in known for word in said) for name, known in STOPWORDS.items()}
    best = max(count for name, count in counts.items() if name != language)
    if len(said) >= LEAST_WORDS and counts[language] >= 2 and counts[language] > best:
        return ""
    return f"Please answer in {language}, in a whole sentence: I understand that better."


def json_object(text: str, keys: Sequence[str], numbers: Mapping[str, float] | None = None) -> str:
    """One JSON object and nothing else, with exactly `keys`; `numbers` are values that some must have."""
    try:
        made = json.loads(text)
    except (ValueError, RecursionError):
        made = None
    wanted = ", ".join(f'"{key}"' for key in keys)
    if not isinstance(made, dict):
        return (
            f"My program cannot read that: answer with one JSON object with the keys {wanted}, and nothing around it."
        )
    if set(made) != set(keys):
        return f"The JSON object has the wrong keys: I need exactly {wanted}."
    wrong = [key for key, value in (numbers or {}).items() if not _is_number(made[key], value)]
    return f'"{wrong[0]}" is not the right number.' if wrong else ""


def numbered(text: str, items: int) -> str:
    """A numbered list of so many items, from 1."""
    found = [int(one) for one in ITEM.findall(text)]
    if found == list(range(1, items + 1)):
        return ""
    return f"I want a numbered list of exactly {items} steps (1., 2., ...), each on a line of its own."


RULES: dict[str, Rule] = {
    one.__name__: one for one in (no_markup, words, mentions, one_of, number, language, json_object, numbered)
}


def _has(text: str, phrase: str) -> bool:
    """Whether `phrase` stands in `text` as words of their own."""
    pattern = r"\s+".join(map(re.escape, phrase.split()))
    return re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) is not None


def _is_number(value: Any, wanted: float) -> bool:
    right = isinstance(value, int | float) and not isinstance(value, bool)
    return right and math.isclose(value, wanted, rel_tol=1e-9)


def _quoted(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}...")
