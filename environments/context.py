"""How much an episode may say: each observation within bounds, and all of it within the model's context.

What is left out is left out before the policy sees it, and never afterwards: what was seen is what is trained on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from agentgym.errors import UsageError

SMALLEST = 48  # tokens an observation may have however little is left
OVERHEAD = 8  # tokens of a chat template around a message
PIECES = re.compile(r" ?[A-Za-z]{1,5}|\d|[ \t]+|\n+|[^\x00-\x7f]|.", re.DOTALL)

Count = Callable[[str], int]


class Budget:
    """The tokens that are left of an episode.

    Args:
        tokens: of everything that the environment and the policy say; 0: no budget.
        count: tokens of a text.
    """

    def __init__(self, tokens: int, count: Count) -> None:
        self.tokens, self.count = tokens, count
        self.left = tokens

    @property
    def spent(self) -> bool:
        """Whether there is room for no further exchange."""
        return bool(self.tokens) and self.left < 2 * SMALLEST

    def take(self, text: str) -> None:
        """Something was said."""
        if self.tokens:
            self.left -= self.count(text) + OVERHEAD

    def fit(self, text: str) -> str:
        """`text`, cut to half of what is left so that the policy can always answer; head and tail are kept."""
        if self.tokens:
            text = cut_tokens(text, max(SMALLEST, self.left // 2), self.count)
            self.take(text)
        return text


def cut(text: str, limit: int) -> str:
    """Head and tail of `text`, `limit` characters of it, with a note of how many are left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[len(text) - half :]}"


def cut_tokens(text: str, limit: int, count: Count) -> str:
    """Head and tail of `text` within `limit` tokens, the note of how many are left out included."""
    total = count(text)
    if total <= limit:
        return text
    low, high = 0, len(text)  # characters kept: the most that fit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(_halves(text, middle, total)) <= limit else (low, middle - 1)
    kept = low - low % 2
    left_out = total - count(text[: kept // 2]) - count(text[len(text) - kept // 2 :])
    return _halves(text, kept, left_out)


def counter(tokenizer: str) -> Count:
    """What counts tokens: the tokenizer in a folder or file, or an estimate of what byte-pair encodings make of it.

    Raises UsageError: there is none, or the package `tokenizers` is missing.
    """
    if not tokenizer:
        return estimate
    path = Path(tokenizer).expanduser()
    return _exact(str(path / "tokenizer.json" if path.is_dir() else path))


def estimate(text: str) -> int:
    """About how many tokens a text has, rather too many than too few: five letters, one digit, one sign each."""
    return sum(2 if ord(piece[0]) > 0x7F else 1 for piece in PIECES.findall(text))


@functools.lru_cache(maxsize=4)
def _exact(path: str) -> Count:
    try:
        from tokenizers import Tokenizer  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise UsageError(
            "counting with a tokenizer needs the package tokenizers: pip install 'agentgym[train]'"
        ) from error
    try:
        made = Tokenizer.from_file(path)
    except Exception as error:  # tokenizers raises nothing more special
        raise UsageError(f"tokenizer: cannot read {path}: {error}") from error
    return lambda text: len(made.encode(text, add_special_tokens=False).ids)


def _halves(text: str, kept: int, left_out: int) -> str:
    half = kept // 2
    return f"{text[:half]}\n[... {left_out} tokens left out ...]\n{text[len(text) - half :]}"
