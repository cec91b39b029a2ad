"""MiniWoB++ (Farama, MIT): 130 web tasks on small pages, each with instances made from seeds.

The pages come with the `miniwob` wheel (`pip install --no-deps miniwob==1.1.0`); see `environments/gui_miniwob.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.errors import UsageError
from agentgym.registry import nearest
from agentgym.task import TaskSet
from agentgym.types import Task

_PAGES = """
    ascending-numbers bisect-angle book-flight book-flight-nodelay button-delay buy-ticket choose-date
    choose-date-easy choose-date-medium choose-date-nodelay choose-list circle-center click-button
    click-button-sequence click-checkboxes click-checkboxes-large click-checkboxes-soft
    click-checkboxes-transfer click-collapsible click-collapsible-2 click-collapsible-2-nodelay
    click-collapsible-nodelay click-color click-dialog click-dialog-2 click-link click-menu click-menu-2
    click-option click-pie click-pie-nodelay click-scroll-list click-shades click-shape click-tab click-tab-2
    click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test click-test-2 click-test-transfer
    click-widget copy-paste copy-paste-2 count-shape count-sides daily-calendar drag-box drag-circle drag-cube
    drag-items drag-items-grid drag-shapes drag-shapes-2 drag-single-shape drag-sort-numbers draw-circle
    draw-line email-inbox email-inbox-delete email-inbox-forward email-inbox-forward-nl
    email-inbox-forward-nl-turk email-inbox-important email-inbox-nl-turk email-inbox-noscroll email-inbox-reply
    email-inbox-star-reply enter-date enter-password enter-text enter-text-2 enter-text-dynamic enter-time
    find-greatest find-midpoint find-word flight.AA flight.Alaska flight.Alaska-auto flight.Alaska-auto-medium
    focus-text focus-text-2 form-sequence form-sequence-2 form-sequence-3 generate-number grid-coordinate
    guess-number highlight-text highlight-text-2 hot-cold identify-shape login-user login-user-popup
    multi-layouts multi-orderings navigate-tree number-checkboxes odd-or-even order-food phone-book read-table
    read-table-2 resize-textarea right-angle scroll-text scroll-text-2 search-engine sign-agreement
    simple-algebra simple-arithmetic social-media social-media-all social-media-some stock-market terminal
    text-editor text-transform tic-tac-toe unicode-test use-autocomplete use-autocomplete-nodelay use-colorwheel
    use-colorwheel-2 use-slider use-slider-2 use-spinner visual-addition
"""
_SOLVED = """
    ascending-numbers button-delay choose-list click-button click-button-sequence click-checkboxes
    click-checkboxes-large click-checkboxes-transfer click-collapsible click-collapsible-2
    click-collapsible-2-nodelay click-collapsible-nodelay click-dialog click-dialog-2 click-link click-option
    click-scroll-list click-tab click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test
    click-test-2 click-test-transfer click-widget copy-paste copy-paste-2 email-inbox-delete
    email-inbox-important enter-date enter-password enter-text enter-text-2 enter-text-dynamic enter-time
    find-word focus-text focus-text-2 form-sequence-2 guess-number login-user odd-or-even read-table
    read-table-2 scroll-text search-engine simple-algebra simple-arithmetic text-transform unicode-test
    use-autocomplete use-autocomplete-nodelay use-spinner
"""
PAGES = tuple(_PAGES.split())
SOLVED = tuple(_SOLVED.split())  # those with an oracle
LEFT_OUT = {
    "chase-circle": "the pointer has to follow a circle that never stands still: there are no steps to it",
    "hover-shape": "the pointer has to follow a square all the time, and the page never ends the episode",
    "moving-items": "circles fly by while the policy thinks; with the clock stopped it is another task",
    "simon-says": "the buttons flash for a quarter of a second: no observation between two actions shows it",
}
TEST_SEEDS = 1_000_000  # from here on they belong to the test split


class MiniWoB(TaskSet):
    """Instances of pages, page after page; what an instance is depends on its page and seed.

    The splits have different seeds, and where a page has sentences of its own for testing, those. On the few pages
    with little to vary two seeds may show the same.

    Args:
        pages: names of pages, `all` (PAGES), or `solved` (those that have an oracle).
        n_train, n_test: instances of each page.
        seed: another one makes other instances.
    """

    name = "gui/miniwob"
    env = "gui"

    def __init__(self, pages: list[str] | str = "all", n_train: int = 16, n_test: int = 4, seed: int = 0) -> None:
        chosen = {"all": PAGES, "solved": SOLVED}.get(pages) if isinstance(pages, str) else tuple(pages)
        if chosen is None:
            raise UsageError(f"{self.name}: pages is all, solved or a list of names, not {pages!r}")
        for page in chosen:
            if page in LEFT_OUT:
                raise UsageError(f"{self.name}: {page} is left out: {LEFT_OUT[page]}")
            if page not in PAGES:
                raise UsageError(f"{self.name}: there is no page {page!r}{nearest(page, PAGES)}")
        if n_train < 0 or n_test < 0:
            raise UsageError(f"{self.name}: n_train and n_test must not be negative")
        self.pages, self.seed = chosen, seed
        self.sizes = {"train": n_train, "test": n_test}

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self.sizes:
            raise UsageError(f"{self.name}: unknown split {split!r}; known: train, test")
        return [self._task(split, page, index) for index in range(self.sizes[split]) for page in self.pages]

    def _task(self, split: str, page: str, index: int) -> Task:
        seed = self.seed * 10_007 + index + TEST_SEEDS * (split == "test")
        return Task(
            id=f"{self.name}/{split}/{page}-{seed}",
            env=self.env,
            instruction="Do what the page asks.",
            family=page,
            split=split,
            seed=seed,
            data={"site": "miniwob", "page": page, "mode": split, "instance": seed},
        )
