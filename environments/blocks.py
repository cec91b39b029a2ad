"""The block protocol: an action is the one fenced ```bash block of a message."""

from __future__ import annotations

import re

TAGS = ("bash", "sh", "shell", "")
NO_BLOCK = "no block"

_FENCE = re.compile(r"^ {0,3}(`{3,})([^`]*)$")


def parse_block(text: str) -> tuple[str, str]:
    """The command in the one block of `text`, and what is wrong with the message (empty: nothing).

    A fence closes with at least as many backticks as it opened with, so a block may hold shorter fences.

    Example:
        parse_block("I list them.\\n```bash\\nls\\n```") == ("ls", "")
        parse_block("ls") == ("", NO_BLOCK)
    """
    blocks: list[tuple[str, list[str]]] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line.rstrip())
        if fence and match and not match[2].strip() and len(match[1]) >= len(fence):
            fence = ""
        elif fence:
            blocks[-1][1].append(line)
        elif match:
            fence = match[1]
            blocks.append((match[2].strip().lower(), []))
    return _judge(blocks, bool(fence), text)


def _judge(blocks: list[tuple[str, list[str]]], unclosed: bool, text: str) -> tuple[str, str]:
    if unclosed:
        return "", "the block is not closed"
    if not blocks:
        return "", "the block must stand on lines of its own" if "```" in text else NO_BLOCK
    if len(blocks) > 1:
        return "", f"there are {len(blocks)} blocks"
    tag, lines = blocks[0]
    command = "\n".join(lines).strip("\n")
    if tag not in TAGS:
        return "", f"the block is {tag.split()[0]}, not bash"
    return (command, "") if command.strip() else ("", "the block is empty")


def block(command: str) -> str:
    """The message that holds `command` in one block."""
    longest = max((len(run) for run in re.findall(r"`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}bash\n{command}\n{fence}"
