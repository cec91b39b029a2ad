"""Scripted solutions of MiniWoB pages: each reads the page as a policy does, and acts by refs."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentgym.environments.gui_oracle import Actions, act, click, elements, every, fill, find, select
from agentgym.environments.gui_pages import Pages
from agentgym.errors import TaskError

ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")


def _asked(pages: Pages) -> str:
    return str(getattr(pages.site, "asked", ""))


def _match(pages: Pages, pattern: str) -> tuple[str, ...]:
    """What the page asks for. Raises TaskError if it asks otherwise."""
    found = re.search(pattern, _asked(pages))
    if not found:
        raise TaskError(f"the oracle does not understand {_asked(pages)!r}")
    return found.groups()


def _listed(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",| and ", text) if part.strip()]


def button(name: str) -> Callable[[Pages], Actions]:
    """Click the one button of this name."""

    async def solve(pages: Pages) -> Actions:
        yield click(find(pages, "button", name))

    return solve


async def buttons_in_order(pages: Pages) -> Actions:
    for name in ("ONE", "TWO"):
        yield click(find(pages, "button", name))


async def named_button(pages: Pages) -> Actions:
    yield click(find(pages, "button", _match(pages, r'"(.+)"')[0]))


async def said_button(pages: Pages) -> Actions:
    yield click(find(pages, "button", _match(pages, r"button (\w+)")[0]))


async def named_link(pages: Pages) -> Actions:
    yield click(find(pages, "link", _match(pages, r'"(.+)"')[0]))


async def delayed(pages: Pages) -> Actions:
    yield click(find(pages, "button", "ONE"))
    for _ in range(int(_match(pages, r"wait (\d+)")[0])):
        yield act("wait")
    yield click(find(pages, "button", "TWO"))


async def tab(pages: Pages) -> Actions:
    yield click(find(pages, "link", "Tab #" + _match(pages, r"Tab #(\d+)")[0]))


def through(role: str) -> Callable[[Pages], Actions]:
    """Open one part after another until the link is there."""

    async def solve(pages: Pages) -> Actions:
        wanted = _match(pages, r'"(.+)"')[0]
        parts = [one.name for one in every(pages, role) if re.fullmatch(r"(\w+ #)?\d+", one.name)]
        for part in parts:
            if every(pages, "link", wanted):
                break
            yield click(find(pages, role, part))
        yield click(find(pages, "link", wanted))

    return solve


async def section(pages: Pages) -> Actions:
    yield click(next(one for one in every(pages, "tab") if one.name.startswith("Section")))
    yield click(find(pages, "button", "Submit"))


def text(change: Callable[[str], str], pattern: str = r'"(.+?)"') -> Callable[[Pages], Actions]:
    """Write what is asked for into the one field."""

    async def solve(pages: Pages) -> Actions:
        yield fill(find(pages, "textbox"), change(_match(pages, pattern)[0]))
        yield click(find(pages, "button", "Submit"))

    return solve


async def letters(pages: Pages) -> Actions:
    wanted = _asked(pages)
    plain = _match(pages, r'"(.+?)"')[0]
    yield fill(find(pages, "textbox"), plain.lower() if "lower case" in wanted else plain.upper())
    yield click(find(pages, "button", "Submit"))


async def password(pages: Pages) -> Actions:
    for nth in range(2):
        yield fill(find(pages, "textbox", nth=nth), _match(pages, r'"(.+?)"')[0])
    yield click(find(pages, "button", "Submit"))


async def login(pages: Pages) -> Actions:
    for nth, said in enumerate(_match(pages, r'"(.+?)".*"(.+?)"')):
        yield fill(find(pages, "textbox", nth=nth), said)
    yield click(find(pages, "button", "Login"))


def boxes(role: str) -> Callable[[Pages], Actions]:
    """Click the boxes that are named."""

    async def solve(pages: Pages) -> Actions:
        wanted = _match(pages, r"Select (.+) and click Submit")[0]
        for name in [] if wanted == "nothing" else _listed(wanted):
            yield click(find(pages, role, name))
        yield click(find(pages, "button", "Submit"))

    return solve


async def choice(pages: Pages) -> Actions:
    yield select(find(pages, "combobox"), _match(pages, r"Select (.+) from the list")[0])
    yield click(find(pages, "button", "Submit"))


async def focus(pages: Pages) -> Actions:
    ordinal = ORDINAL.search(_asked(pages))
    yield click(find(pages, "textbox", nth=int(ordinal[1]) - 1 if ordinal else 0))


async def arithmetic(pages: Pages) -> Actions:
    left, sign, right = _shown(pages, r"(\d+) ([+x-]) (\d+) =")
    total = {"+": int(left) + int(right), "-": int(left) - int(right), "x": int(left) * int(right)}[sign]
    yield fill(find(pages, "textbox"), str(total))
    yield click(find(pages, "button", "Submit"))


async def algebra(pages: Pages) -> Actions:
    left, sign, right, total = _shown(pages, r"(-?\d+|x) ([+-]) (-?\d+|x) = (-?\d+)")
    if left == "x":
        x = int(total) - int(right) if sign == "+" else int(total) + int(right)
    else:
        x = int(total) - int(left) if sign == "+" else int(left) - int(total)
    yield fill(find(pages, "textbox"), str(x))
    yield click(find(pages, "button", "Submit"))


def _shown(pages: Pages, pattern: str) -> tuple[str, ...]:
    """What stands on the page. Raises TaskError."""
    for one in elements(pages):
        if found := re.search(pattern, one.text or one.name):
            return found.groups()
    raise TaskError(f"the oracle sees no {pattern!r}")


async def dialog_button(pages: Pages) -> Actions:
    label = _match(pages, r'"(.+?)"')[0]
    yield click(find(pages, "button", "Close" if label == "x" else label))


def _date(said: str) -> str:
    month, day, year = said.split("/")
    return f"{year}-{month}-{day}"


def _time(said: str) -> str:
    clock, half = said.split(" ")
    hours, minutes = map(int, clock.split(":"))
    return f"{hours % 12 + 12 * (half == 'PM'):02}:{minutes:02}"


async def copied(pages: Pages) -> Actions:
    fields = every(pages, "textbox")
    ordinal = ORDINAL.search(_asked(pages))
    source = fields[int(ordinal[1]) - 1] if ordinal else next(one for one in fields if one.text)
    yield click(source)
    yield act("press", keys="Control+a")
    yield act("press", keys="Control+c")
    yield click(next(one for one in fields if not one.text))
    yield act("press", keys="Control+v")
    yield click(find(pages, "button", "Submit"))


async def spelt(pages: Pages) -> Actions:
    line = elements(pages)
    end = next(one.at for one in line if one.role == "textbox")
    signs = [one.text for one in line if one.role == "generic" and len(one.text) == 1 and one.at < end]
    yield fill(find(pages, "textbox"), "".join(signs))
    yield click(find(pages, "button", "Submit"))


async def nth_word(pages: Pages) -> Actions:
    words = find(pages, "paragraph").text.split()
    word = words[int(_match(pages, r"(\d+)")[0]) - 1]
    yield fill(find(pages, "textbox"), word.strip(".,"))
    yield click(find(pages, "button", "Submit"))


async def last_word(pages: Pages) -> Actions:
    long = await pages.page.evaluate("() => document.querySelector('textarea').value")
    yield fill(find(pages, "textbox", nth=1), long.split()[-1].strip(".,"))
    yield click(find(pages, "button", "Submit"))


async def table(pages: Pages) -> Actions:
    row = find(pages, "cell", _match(pages, r"value of (.+) into")[0])
    yield fill(find(pages, "textbox"), find(pages, "cell", after=row).name)
    yield click(find(pages, "button", "Submit"))


async def table_form(pages: Pages) -> Actions:
    for label in [one for one in elements(pages) if one.role == "generic" and one.text.endswith(":")]:
        row = find(pages, "cell", label.text[:-1])
        yield fill(find(pages, "textbox", after=label), find(pages, "cell", after=row).name)
    yield click(find(pages, "button", "Submit"))


async def widget(pages: Pages) -> Actions:
    kind = _match(pages, r'"(.+?)"')[0]
    if not kind.startswith("text"):
        yield click(find(pages, kind))
        return
    fields = await pages.page.evaluate(
        "() => [...document.querySelectorAll('[data-type^=text]')].map(e => e.dataset.type)"
    )
    yield click(find(pages, "textbox", nth=fields.index(kind)))


async def spinner(pages: Pages) -> Actions:
    yield fill(find(pages, "spinbutton"), _match(pages, r"Select (-?\d+)")[0])
    yield click(find(pages, "button", "Submit"))


async def guess(pages: Pages) -> Actions:
    low, high = 0, 9
    while True:
        middle = (low + high) // 2
        yield fill(find(pages, "spinbutton"), str(middle))
        yield click(find(pages, "button", "Submit"))
        said = " ".join(one.text for one in elements(pages))
        low, high = (middle + 1, high) if "higher" in said else (low, middle - 1)


async def parity(pages: Pages) -> Actions:
    numbers = [one for one in elements(pages) if re.fullmatch(r"-?\d+", one.text)]
    for index, number in enumerate(numbers):
        yield click(find(pages, "button", "Odd" if int(number.text) % 2 else "Even", nth=index))
    yield click(find(pages, "button", "Submit"))


async def autocomplete(pages: Pages) -> Actions:
    start = _match(pages, r'starts with "(.+?)"')[0]
    end = re.search(r'ends with "(.+?)"', _asked(pages))
    words = await pages.page.evaluate("() => ITEMS")
    word = next(w for w in words if w.startswith(start) and w.endswith(end[1] if end else ""))
    yield fill(find(pages, "textbox"), word)
    yield act("press", keys="Tab")  # closes the list
    yield click(find(pages, "button", "Submit"))


async def choices(pages: Pages) -> Actions:
    for name in _listed(_match(pages, r"Select (.+) from the scroll list")[0]):
        yield select(find(pages, "listbox"), name)
    yield click(find(pages, "button", "Submit"))


async def sequence(pages: Pages) -> Actions:
    nth, role, number, field = _match(pages, r'Check the (\d)\w+ (checkbox|radio).*"(-?\d+)" into the (\d)')
    yield click(find(pages, role, nth=int(nth) - 1))
    yield fill(find(pages, "textbox", nth=int(field) - 1), number)
    yield click(find(pages, "button", "Submit"))


async def search(pages: Pages) -> Actions:
    word, nth = _match(pages, r'enter "(.+?)".* the (\d+)')
    yield fill(find(pages, "textbox"), word)
    yield click(find(pages, "button", "Search"))
    for _ in range((int(nth) - 1) // 3):
        yield click(find(pages, "link", ">"))
    results = [one for one in every(pages, "link") if not re.fullmatch(r"\d+|[<>]", one.name)]
    yield click(results[(int(nth) - 1) % 3])


async def ascending(pages: Pages) -> Actions:
    places = {}
    for number in "12345":
        places[number] = find(pages, "generic", number)
    yield click(places.pop("1"))
    for _ in places:
        yield click(next(one for one in every(pages, "generic", after=find(pages, "img"))))


def icon(name: str) -> Callable[[Pages], Actions]:
    """Click the icon of the mail that is named."""

    async def solve(pages: Pages) -> Actions:
        mail = find(pages, "generic", _match(pages, r"email by (\S+) and")[0])
        yield click(find(pages, "link", name, after=mail))

    return solve


ORACLES: dict[str, Callable[[Pages], Actions]] = {
    "click-test": button("Click Me!"),
    "click-test-2": said_button,
    "click-test-transfer": said_button,
    "click-button-sequence": buttons_in_order,
    "click-button": named_button,
    "unicode-test": named_button,
    "click-link": named_link,
    "button-delay": delayed,
    "click-tab": tab,
    "click-tab-2": through("link"),
    "click-tab-2-easy": through("link"),
    "click-tab-2-medium": through("link"),
    "click-tab-2-hard": through("link"),
    "click-scroll-list": choices,
    "form-sequence-2": sequence,
    "search-engine": search,
    "ascending-numbers": ascending,
    "email-inbox-delete": icon("trash"),
    "email-inbox-important": icon("star"),
    "click-collapsible": section,
    "click-collapsible-nodelay": section,
    "click-collapsible-2": through("tab"),
    "click-collapsible-2-nodelay": through("tab"),
    "enter-text": text(str),
    "enter-text-dynamic": text(str),
    "enter-text-2": letters,
    "enter-password": password,
    "login-user": login,
    "click-checkboxes": boxes("checkbox"),
    "click-checkboxes-large": boxes("checkbox"),
    "click-checkboxes-transfer": boxes("checkbox"),
    "click-option": boxes("radio"),
    "choose-list": choice,
    "focus-text": focus,
    "focus-text-2": focus,
    "simple-arithmetic": arithmetic,
    "simple-algebra": algebra,
    "click-dialog": button("Close"),
    "click-dialog-2": dialog_button,
    "enter-date": text(_date, r"Enter (\S+) as"),
    "enter-time": text(_time, r"Enter (.+) as"),
    "copy-paste": copied,
    "copy-paste-2": copied,
    "text-transform": spelt,
    "find-word": nth_word,
    "scroll-text": last_word,
    "read-table": table,
    "read-table-2": table_form,
    "click-widget": widget,
    "use-spinner": spinner,
    "guess-number": guess,
    "odd-or-even": parity,
    "use-autocomplete": autocomplete,
    "use-autocomplete-nodelay": autocomplete,
}
