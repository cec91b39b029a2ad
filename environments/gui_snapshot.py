"""What the policy sees of a page: its accessibility tree as text within a budget, or a picture.

The tree is Playwright's, with a ref for each element that can be acted on. Lines outside the viewport go first where
there is not enough room.
"""

from __future__ import annotations

import base64
import re

from agentgym.environments.gui_outcomes import ActionError, Box, Node
from agentgym.environments.gui_pages import LOOK_S, Pages
from agentgym.types import Image

LINE = 240  # characters of one line
TRIES = 4
SCALE = 1000  # coordinates run from 0 to this
# - role "name" [attribute] [attribute]: text. What stands in the name or the text is the page's, whatever it looks like.
ELEMENT = re.compile(r'(- [\w-]+(?: "(?:\\.|[^"\\])*"| /(?:\\.|[^/\\])+/)?)((?: \[[^\]]*\])*)(:.*)?', re.DOTALL)
BOX = re.compile(r" \[box=(-?\d+),(-?\d+),(\d+),(\d+)\]")
REF = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")
NOISE = re.compile(r" \[cursor=[a-z-]+\]")
QUOTED = re.compile(r"- '((?:[^']|'')*)'(.*)", re.DOTALL)  # how YAML quotes a key that holds a colon
MIMES = {"jpeg": "image/jpeg", "png": "image/png"}


async def look(pages: Pages, limit: int, *, points: bool = False) -> str:
    """The shown page as text of at most `limit` characters.

    Args:
        points: tell the middle of each element, in coordinates from 0 to SCALE.
    """
    raw = await _tree(pages)
    width, height = pages.site.viewport
    pages.nodes = parse(raw)
    pages.refs = {node.ref: node for node in pages.nodes if node.ref}
    return render(pages.nodes, limit, (width, height), points=points)


async def _tree(pages: Pages) -> str:
    """The tree of the page that is there once nothing is on its way any more."""
    why = ""
    for _ in range(TRIES):
        await pages.settle()
        try:
            raw = await pages.call(pages.page.aria_snapshot(mode="ai", boxes=True, timeout=LOOK_S * 2e3), LOOK_S)
        except ActionError as error:  # the page changed, or a frame went away, while it was read
            why = str(error)
            continue
        if not pages.busy:
            return raw
    return raw if not why else "- text: (the page changes too fast to be read)"


async def photograph(pages: Pages, kind: str) -> Image:
    """A picture of the shown page: `jpeg` or `png`."""
    options = {"format": kind, "optimizeForSpeed": True} | ({"quality": 80} if kind == "jpeg" else {})
    taken = await pages.call((await pages.session()).send("Page.captureScreenshot", options))
    return Image(data=base64.b64decode(taken["data"]), mime=MIMES[kind])


def parse(raw: str) -> list[Node]:
    """The lines of a tree, with boxes in the viewport; addresses of links are left out."""
    nodes: list[Node] = []
    frames: list[tuple[int, int, int]] = []  # depth, x, y of the frames around
    for line in clean(raw).split("\n"):
        text = line.lstrip(" ")
        depth = (len(line) - len(text)) // 2
        if text.startswith("- /") or not text:
            continue
        while frames and frames[-1][0] >= depth:
            frames.pop()
        text, box, ref = _element(text)
        if box and frames:
            box = (box[0] + frames[-1][1], box[1] + frames[-1][2], *box[2:])
        if text.startswith("- iframe") and box:
            frames.append((depth, box[0], box[1]))
        if nodes and nodes[-1].depth >= depth and nodes[-1].text.endswith("]:"):  # what was in it is left out
            nodes[-1] = nodes[-1]._replace(text=nodes[-1].text[:-1])
        nodes.append(Node(depth, text if len(text) <= LINE else text[: LINE - 1] + "…", box, ref))
    return nodes


def _element(text: str) -> tuple[str, Box | None, str]:
    """A line without its box and noise, the box, and the ref; an empty box says nothing."""
    if quoted := QUOTED.fullmatch(text):
        text = "- " + quoted[1].replace("''", "'") + quoted[2]
    match = ELEMENT.fullmatch(text)
    if not match:
        return text, None, ""
    head, attributes, tail = match[1], match[2], match[3] or ""
    found = BOX.search(attributes)
    box = (int(found[1]), int(found[2]), int(found[3]), int(found[4])) if found else None
    ref = REF.search(attributes)
    shown = head + NOISE.sub("", BOX.sub("", attributes)) + tail
    return shown, box if box and any(box[2:]) else None, ref[1] if ref else ""


def render(nodes: list[Node], limit: int, viewport: tuple[int, int], *, points: bool = False) -> str:
    """The tree as text: all of it if there is room, else what is in the viewport, else the beginning of that."""
    lines = [_line(node, viewport, points) for node in nodes]
    text = "\n".join(lines)
    if len(text) <= limit:
        return text
    seen = in_view(nodes, viewport)
    shown = [line for line, visible in zip(lines, seen, strict=True) if visible]
    left_out = len(lines) - len(shown)
    note = f"({left_out} lines outside the view are left out: scroll to see them)" if left_out else ""
    text = "\n".join(filter(None, [*shown, note]))
    if len(text) <= limit:
        return text
    cut = "(the rest of the page is left out)"
    room = limit - len(cut) - len(note) - 2
    kept: list[str] = []
    for line in shown:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(filter(None, [*kept, cut, note]))


def in_view(nodes: list[Node], viewport: tuple[int, int]) -> list[bool]:
    """Whether each node, or one inside it, is in the viewport."""
    seen = [False] * len(nodes)
    path: list[int] = []  # the nodes around
    for index, node in enumerate(nodes):
        while path and nodes[path[-1]].depth >= node.depth:
            path.pop()
        box = node.box or next((nodes[outer].box for outer in reversed(path) if nodes[outer].box), None)
        path.append(index)
        if box is None or _meets(box, viewport):
            for outer in path:
                seen[outer] = True
    return seen


def clean(text: str) -> str:
    """Valid text: pages may hold halves of surrogate pairs, and anything else."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _meets(box: Box, viewport: tuple[int, int]) -> bool:
    x, y, width, height = box
    return x < viewport[0] and y < viewport[1] and x + width > 0 and y + height > 0


def _line(node: Node, viewport: tuple[int, int], points: bool) -> str:
    text = "  " * node.depth + node.text
    if not points or node.box is None:
        return text
    x, y, width, height = node.box
    at = f" @{round((x + width / 2) * SCALE / viewport[0])},{round((y + height / 2) * SCALE / viewport[1])}"
    return text[:-1] + at + ":" if text.endswith(":") else text + at
