"""Does the actions: one function for each name of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentgym.environments.gui_actions import Action
from agentgym.environments.gui_aim import Target, aim, aim_again
from agentgym.environments.gui_network import problem_of
from agentgym.environments.gui_outcomes import ActionError
from agentgym.environments.gui_pages import Pages
from agentgym.environments.gui_snapshot import SCALE

Does = Callable[..., Awaitable[None]]

TYPED = 200  # characters that are typed key by key; more goes in at once
WAIT_S = 1.0
PAINTED_S = 0.05  # what scrolls is drawn, and told to the page, with the next frame
DRAG_STEPS = 8
WHEEL = 500  # thousandths of the view
TEXTLESS = ("checkbox", "radio", "button", "submit", "reset", "image", "file", "range", "color", "hidden")
OPTIONS = """list => list.tagName !== 'SELECT' ? null :
[list.multiple, [...list.options].map(o => [o.label, o.value, o.disabled, o.selected])]"""
SCROLL = """(start, [dx, dy]) => {
  const moves = n => { const x = n.scrollLeft, y = n.scrollTop;
    n.scrollBy({left: dx * n.clientWidth * .8, top: dy * n.clientHeight * .8, behavior: 'instant'});
    return n.scrollLeft !== x || n.scrollTop !== y };
  for (let n = start; n; n = n.parentNode || n.host) if (n.scrollBy && n.clientHeight && moves(n)) return true;
  return moves(document.scrollingElement || document.documentElement) }"""
COPY = ("control+c", "control+x", "control+insert")
PASTE = ("control+v", "control+shift+v", "shift+insert")
SELECTED = """() => { let n = document.activeElement;
  while (n && n.shadowRoot && n.shadowRoot.activeElement) n = n.shadowRoot.activeElement;
  if (n && n.contentDocument) return String(n.contentDocument.getSelection());
  const field = n && typeof n.selectionStart === 'number';
  return field ? n.value.slice(n.selectionStart, n.selectionEnd) : String(getSelection()) }"""
WAYS = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}


async def perform(pages: Pages, action: Action) -> None:
    """Do one action.

    Raises:
        ActionError: it cannot be done, and why.
        DialogOpen, PageCrashed, Unresponsive, InfrastructureError: see `Pages.call`.
    """
    if pages.dialog is not None and action.name != "dialog":
        raise ActionError("a dialog is open: answer it first")
    await DOES[action.name](pages, **action.arguments)


async def _click(pages: Pages, ref: str, button: Any = "left") -> None:
    if at := await aim_again(pages, ref):
        await pages.call(pages.page.mouse.click(*at, button=button))
        return
    target = await aim(pages, ref)
    if target.about["tag"] == "select":
        raise ActionError(f"{ref} is a list: use select")
    await pages.call(pages.page.mouse.click(target.x, target.y, button=button))
    if target.about["type"] == "file":
        await pages.asked_for_file()


async def _double_click(pages: Pages, ref: str) -> None:
    target = await aim(pages, ref)
    await pages.call(pages.page.mouse.dblclick(target.x, target.y))


async def _fill(pages: Pages, ref: str, text: str) -> None:
    target = await aim(pages, ref)
    about = target.about
    if about["readonly"]:
        raise ActionError(f"{ref} cannot be written to: it is read-only")
    textual = about["tag"] == "textarea" or (about["tag"] == "input" and about["type"] not in TEXTLESS)
    if not textual and not about["editable"]:
        raise ActionError(f"{ref} is no field for text ({about['tag']} {about['type']})".replace(" )", ")"))
    try:
        await pages.call(target.locator.fill(text))
    except ActionError as error:
        raise ActionError(f"{ref} does not take {text[:60]!r}: {error}") from error


async def _select(pages: Pages, ref: str, option: str) -> None:
    target = await aim(pages, ref)
    listed = await pages.call(target.locator.evaluate(OPTIONS))
    if listed is None:
        raise ActionError(f"{ref} is no list of options: click it")
    several, options = listed
    wanted = option.strip()
    found = next((i for i, (label, value, *_) in enumerate(options) if wanted in (label.strip(), value)), None)
    if found is None:
        labels = ", ".join(repr(label) for label, *_ in options)[:400]
        raise ActionError(f"{ref} has no option {option[:60]!r}; it has {labels}")
    if options[found][2]:
        raise ActionError(f"the option {option[:60]!r} of {ref} is disabled")
    chosen = {found} ^ {i for i, (*_, selected) in enumerate(options) if selected} if several else {found}
    await pages.call(target.locator.select_option(index=sorted(chosen)))


async def _hover(pages: Pages, ref: str) -> None:
    target = await aim(pages, ref, enabled=False)
    await pages.call(pages.page.mouse.move(target.x, target.y, steps=2))


async def _drag(pages: Pages, ref: str, to: str) -> None:
    start: Target = await aim(pages, ref)
    end = await aim(pages, to, enabled=False)
    start = await aim(pages, ref)  # the view may have been scrolled for the other one
    await _drag_from(pages, (start.x, start.y), (end.x, end.y))


async def _scroll(pages: Pages, direction: str, ref: str | None = None) -> None:
    way = list(WAYS[direction])
    if ref is None:
        moved = await pages.call(pages.page.evaluate(f"way => ({SCROLL})(null, way)", way))
    else:
        target = await aim(pages, ref, enabled=False)
        moved = await pages.call(target.locator.evaluate(SCROLL, way))
    if not moved:
        raise ActionError(f"there is nothing more to scroll {direction}")
    await asyncio.sleep(PAINTED_S)  # the page hears of it with the next frame


async def _click_at(pages: Pages, x: int, y: int, button: Any = "left", count: int = 1) -> None:
    await pages.call(pages.page.mouse.click(*_pixel(pages, x, y), button=button, click_count=count))


async def _double_click_at(pages: Pages, x: int, y: int) -> None:
    await pages.call(pages.page.mouse.dblclick(*_pixel(pages, x, y)))


async def _triple_click_at(pages: Pages, x: int, y: int) -> None:
    await _click_at(pages, x, y, count=3)


async def _move_to(pages: Pages, x: int, y: int) -> None:
    await pages.call(pages.page.mouse.move(*_pixel(pages, x, y), steps=2))


async def _drag_to(pages: Pages, x: int, y: int, to_x: int, to_y: int) -> None:
    await _drag_from(pages, _pixel(pages, x, y), _pixel(pages, to_x, to_y))


async def _scroll_at(pages: Pages, x: int, y: int, direction: str, amount: int = WHEEL) -> None:
    (across, along), (width, height) = WAYS[direction], pages.site.viewport
    await pages.call(pages.page.mouse.move(*_pixel(pages, x, y)))
    await pages.call(pages.page.mouse.wheel(across * width * amount / SCALE, along * height * amount / SCALE))
    await asyncio.sleep(PAINTED_S)


async def _type(pages: Pages, text: str) -> None:
    keyboard = pages.page.keyboard
    await pages.call(keyboard.type(text) if len(text) <= TYPED else keyboard.insert_text(text))


async def _press(pages: Pages, keys: str) -> None:
    chord = keys.strip().replace("Ctrl+", "Control+")
    if chord.lower() in PASTE:  # the browser has one clipboard for all of its contexts
        await pages.call(pages.page.keyboard.insert_text(pages.clipboard))
        return
    if chord.lower() in COPY and (selected := await pages.call(pages.page.evaluate(SELECTED))):
        pages.clipboard = selected
    try:
        await pages.call(pages.page.keyboard.press(chord))
    except ActionError as error:
        if "Unknown key" not in str(error):
            raise
        raise ActionError(
            f"there is no key {keys[:40]!r}: write a name such as Enter, ArrowDown or Control+a"
        ) from error


async def _back(pages: Pages) -> None:
    history = await pages.call((await pages.session()).send("Page.getNavigationHistory"))
    before = history["entries"][: history["currentIndex"]]
    if not before or before[-1]["url"] == "about:blank":
        raise ActionError("there is no page before this one")
    await pages.call(pages.page.go_back(timeout=pages.timeout_s * 1e3), pages.timeout_s + 1)


async def _goto(pages: Pages, url: str) -> None:
    url = url.strip()
    if url.startswith("/"):
        url = pages.site.start.rstrip("/") + url
    elif ":" not in url.split("/")[0]:
        url = f"http://{url}"
    if problem := problem_of(url, pages.site.hosts):
        raise ActionError(problem)
    await pages.goto(url)


async def _tab(pages: Pages, number: int) -> None:
    if number > len(pages.tabs):
        raise ActionError(f"there is no tab {number}: there are {len(pages.tabs)}")
    page = pages.tabs[number - 1]
    pages.show(page)
    await pages.call(page.bring_to_front())


async def _close_tab(pages: Pages) -> None:
    if len(pages.tabs) == 1:
        raise ActionError("it is the only tab")
    await pages.call(pages.page.close())


async def _wait(pages: Pages) -> None:
    if not pages.site.frozen_clock:
        await asyncio.sleep(WAIT_S)


async def _upload(pages: Pages, file: str) -> None:
    chooser = await pages.asked_for_file()
    if chooser is None:
        raise ActionError("no field has asked for a file: click it first")
    content = pages.site.uploads.get(file.strip())
    if content is None:
        known = ", ".join(pages.site.uploads) or "none"
        raise ActionError(f"there is no file {file[:60]!r}; there are: {known}")
    pages.chooser = None
    payload: Any = {"name": file.strip(), "mimeType": "application/octet-stream", "buffer": content}
    await pages.call(chooser.set_files(payload))


async def _dialog(pages: Pages, answer: str, text: str | None = None) -> None:
    await pages.answer(answer == "accept", text)


async def _answer(pages: Pages, text: str) -> None:
    """The environment ends the episode."""


async def _drag_from(pages: Pages, start: tuple[float, float], end: tuple[float, float]) -> None:
    mouse = pages.page.mouse
    await pages.call(mouse.move(*start))
    await pages.call(mouse.down())
    try:
        await pages.call(mouse.move(*end, steps=DRAG_STEPS))
    finally:
        await pages.call(mouse.up())


def _pixel(pages: Pages, x: int, y: int) -> tuple[float, float]:
    """A point from 0 to SCALE as one of the viewport."""
    width, height = pages.site.viewport
    return min(x * width / SCALE, width - 1), min(y * height / SCALE, height - 1)


DOES: dict[str, Does] = {
    "click": _click,
    "double_click": _double_click,
    "fill": _fill,
    "select": _select,
    "hover": _hover,
    "drag": _drag,
    "scroll": _scroll,
    "click_at": _click_at,
    "double_click_at": _double_click_at,
    "triple_click_at": _triple_click_at,
    "move_to": _move_to,
    "drag_to": _drag_to,
    "scroll_at": _scroll_at,
    "type": _type,
    "press": _press,
    "back": _back,
    "goto": _goto,
    "tab": _tab,
    "close_tab": _close_tab,
    "wait": _wait,
    "upload": _upload,
    "dialog": _dialog,
    "answer": _answer,
}
