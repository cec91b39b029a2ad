"""Where to click for a ref: the point at which the element is hit, or why there is none, told within milliseconds.

Playwright waits for an element to come, to be uncovered and to hold still; here the policy is told at once how it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agentgym.environments.gui_outcomes import ActionError
from agentgym.environments.gui_pages import Pages

if TYPE_CHECKING:
    from playwright.async_api import Locator

# Scrolls the element into view and looks which of some points in it really hit it, through shadow roots; a label
# counts as its field. Answers a point of the frame, or what is wrong.
AIM = """element => {
  const inView = r => r.right > 0 && r.bottom > 0 && r.left < innerWidth && r.top < innerHeight;
  const rects = () => [...element.getClientRects()].filter(r => r.width > 0 && r.height > 0);
  const about = {tag: element.tagName.toLowerCase(), type: element.type || '', disabled: element.matches(':disabled'),
    readonly: !!element.readOnly, editable: element.isContentEditable, nested: window !== window.top};
  if (element.tagName === 'OPTION') return {...about, problem: 'option'};
  let boxes = rects();
  if (!boxes.length) return {...about, problem: 'hidden'};
  const middle = r => ({x: r.left + r.width / 2, y: r.top + r.height / 2});
  const inside = p => p.x >= 0 && p.y >= 0 && p.x < innerWidth && p.y < innerHeight;
  const top = p => {
    let hit = document.elementFromPoint(p.x, p.y);
    while (hit && hit.shadowRoot) {
      const deeper = hit.shadowRoot.elementFromPoint(p.x, p.y);
      if (!deeper || deeper === hit) break;
      hit = deeper;
    }
    return hit;
  };
  const up = n => n.assignedSlot || n.parentNode || n.host || null;
  const holds = (outer, n) => { for (; n; n = up(n)) if (n === outer) return true; return false; };
  const hits = p => {
    const hit = top(p);
    if (!hit) return false;
    if (holds(element, hit) || [...(element.labels || [])].some(label => holds(label, hit))) return true;
    return element.tagName === 'LABEL' && element.control === hit;
  };
  const points = boxes => boxes.flatMap(r => {
    const m = middle(r), c = {left: Math.max(r.left, 0), right: Math.min(r.right, innerWidth),
      top: Math.max(r.top, 0), bottom: Math.min(r.bottom, innerHeight)};
    const w = c.right - c.left, h = c.bottom - c.top;
    if (w <= 0 || h <= 0) return [m];
    return [m, ...[[.5, .5], [.2, .3], [.8, .3], [.2, .7], [.8, .7]].map(([a, b]) =>
      ({x: c.left + w * a, y: c.top + h * b}))];
  }).filter(inside);
  let found = points(boxes).find(hits);
  if (!found) {
    element.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
    boxes = rects();
    found = points(boxes).find(hits);
  }
  if (found) {
    const r = element.getBoundingClientRect();
    return {...about, x: found.x, y: found.y, left: r.left, top: r.top};
  }
  const first = points(boxes)[0];
  if (!first) return {...about, problem: 'unreachable'};
  const over = top(first);
  const said = over ? (over.innerText || over.getAttribute('aria-label') || '').trim().slice(0, 40) : '';
  return {...about, problem: 'covered', over: over ? over.tagName.toLowerCase() : 'nothing', said};
}"""
FRAME_HIT = """([x, y]) => { let e = document.elementFromPoint(x, y);
  while (e && e.shadowRoot && e.shadowRoot.elementFromPoint(x, y) !== e) e = e.shadowRoot.elementFromPoint(x, y);
  return e ? e.tagName : '' }"""
ROLES = {
    "button": ["BUTTON"], "link": ["A"], "checkbox": ["INPUT"], "radio": ["INPUT"], "textbox": ["INPUT", "TEXTAREA"],
    "tab": [], "menuitem": [],
}  # fmt: skip
# Whether something of this role, in this place, is hit in the middle of it.
HITS = """([[x, y, width, height], role, tags]) => {
  const at = [x + width / 2, y + height / 2], near = (a, b) => Math.abs(a - b) <= 1;
  let hit = document.elementFromPoint(...at);
  while (hit && hit.shadowRoot && hit.shadowRoot.elementFromPoint(...at) !== hit) hit = hit.shadowRoot.elementFromPoint(...at);
  for (let n = hit; n; n = n.assignedSlot || n.parentNode || n.host) {
    if (n.nodeType !== 1) continue;
    const r = n.getBoundingClientRect(), said = n.getAttribute('role');
    if (near(r.x, x) && near(r.y, y) && near(r.width, width) && near(r.height, height))
      if (said ? said === role : tags.includes(n.tagName)) return !n.matches(':disabled, [type=file]');
  }
  return false }"""
THERE_MS = 50  # that an element of the last observation may take to be found
GONE = "{ref} is not on the page (any more): take a ref from the last observation"
PROBLEMS = {
    "hidden": "{ref} is hidden",
    "option": "{ref} is an option of a list: use select with the list's ref",
    "unreachable": "{ref} cannot be scrolled into view",
    "covered": "{ref} is covered by <{over}> {said!r}",
}


class Target(NamedTuple):
    """An element that can be acted on now."""

    locator: Locator
    x: float  # in the viewport, pixels
    y: float
    about: dict[str, Any]  # tag, type, disabled, readonly, editable, nested


async def aim(pages: Pages, ref: str, *, enabled: bool = True) -> Target:
    """The element of `ref` and where to hit it. Raises ActionError if it is gone or cannot be hit."""
    if ref not in pages.refs:
        raise ActionError(GONE.format(ref=ref))
    locator = pages.page.get_by_ref(ref)
    try:
        found = await pages.call(locator.evaluate(AIM, timeout=THERE_MS))
    except ActionError:  # it is gone, or the machine is busy
        if await pages.call(locator.count()) != 1:
            raise ActionError(GONE.format(ref=ref)) from None
        found = await pages.call(locator.evaluate(AIM))
    if problem := found.get("problem"):
        said = {"ref": ref, "over": found.get("over"), "said": found.get("said")}
        raise ActionError(PROBLEMS[problem].format(**said))
    if enabled and found["disabled"]:
        raise ActionError(f"{ref} is disabled")
    x, y = found["x"], found["y"]
    if found["nested"]:
        x, y = await _through_frames(pages, ref, locator, found)
    return Target(locator, x, y, found)


async def aim_again(pages: Pages, ref: str) -> tuple[float, float] | None:
    """Where to click an element that is where it was when the page was looked at; None if that takes a closer look.

    A third of the time of `aim`: the element is still there, and what is hit has its place and its role.
    """
    node = pages.refs.get(ref)
    role = node.text.split(" ")[1].rstrip(":") if node else ""
    if node is None or node.box is None or role not in ROLES:
        return None
    x, y, width, height = node.box
    try:
        hits = await pages.call(pages.page.evaluate(HITS, [list(node.box), role, ROLES[role]]))
        there = hits and await pages.call(pages.page.get_by_ref(ref).count()) == 1
    except ActionError:
        return None
    return (x + width / 2, y + height / 2) if there else None


async def _through_frames(pages: Pages, ref: str, locator: Locator, found: dict[str, Any]) -> tuple[float, float]:
    """A point of a frame as one of the page, where the frame itself must be what is hit."""
    box = await pages.call(locator.bounding_box())
    if box is None:
        raise ActionError(PROBLEMS["hidden"].format(ref=ref))
    x, y = box["x"] + found["x"] - found["left"], box["y"] + found["y"] - found["top"]
    width, height = pages.site.viewport
    if not (0 <= x < width and 0 <= y < height):
        raise ActionError(f"{ref} is in a frame that is outside the view: scroll to it first")
    over = await pages.call(pages.page.evaluate(FRAME_HIT, [x, y]))
    if over not in ("IFRAME", "FRAME", "OBJECT"):
        raise ActionError(PROBLEMS["covered"].format(ref=ref, over=over.lower() or "nothing", said=""))
    return x, y
