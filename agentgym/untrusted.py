"""Text that a model, a tool, a page or a user wrote, made safe to show inside somebody else's prompt.

It stays readable; what is hidden in it, or would mean something to a tokenizer or a reader of fences, does not work.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# What no reader sees, or what moves what they see: controls, formats, bidirectional marks, surrogates, private use,
# line separators other than \n, variation selectors, tag characters and letters that are blank. Not \n and \t.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0e\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U0010ffff]"
)
HIDDEN_RUN = re.compile(f"{HIDDEN.pattern}+")
SHOWN = 4  # of a run of hidden characters, how many are written out
BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")

# The beginnings of what chat templates use as marks. A space after the first character makes text of them.
_NAMES = (
    "s|bos|eos|pad|unk|mask|sep|cls|think|tools?|system|user|assistant|human|filename|reponame|unused\\d+|"
    "[a-z0-9]+(?:_[a-z0-9]+)+"
)
SPECIAL = re.compile(
    rf"<(?=[|｜])|<(?=/?(?:{_NAMES})>)|<(?=</?sys>)|\[(?=/?(?:inst|sys|img|[a-z]+(?:_[a-z]+)+)\])", re.IGNORECASE
)


class Clipped(NamedTuple):
    """The head and the tail of a text, and how many characters between them are left out."""

    head: str
    left_out: int
    tail: str


def head_and_tail(text: str, limit: int) -> Clipped:
    """At most `limit` characters of `text`, from both ends."""
    if len(text) <= limit:
        return Clipped(text, 0, "")
    head = limit - limit // 2
    return Clipped(text[:head], len(text) - limit, text[len(text) - limit // 2 :])


def visible(text: str) -> str:
    """`text` with what is hidden in it written out, such as \\u{200b}; its only line ends are \\n.

    Example:
        visible("a\\u200bb\\r\\nc")  # "a\\\\u{200b}b\\nc"
    """
    return HIDDEN_RUN.sub(_written_out, BREAKS.sub("\n", text))


def stripped(text: str) -> str:
    """`text` without what is hidden in it; its only line ends are \\n."""
    return HIDDEN.sub("", BREAKS.sub("\n", text))


def defused(text: str) -> str:
    """`text` in which nothing is a special token of a chat template: "<|im_end|>" becomes "< |im_end|>"."""
    return SPECIAL.sub(lambda found: f"{found[0]} ", text)


def _written_out(found: re.Match[str]) -> str:
    run = found[0]
    shown = "".join(f"\\u{{{ord(char):x}}}" for char in run[:SHOWN])
    return shown if len(run) <= SHOWN else f"{shown}(and {len(run) - SHOWN} more)"
