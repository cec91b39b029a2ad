"""Tools for tests."""

import time


class Box:
    """Holds things."""

    def __init__(self, things: list[str] | None = None) -> None:
        self.things = list(things or [])

    def put(self, thing: str, times: int = 1) -> int:
        """Put something in.

        Args:
            thing: what.
            times: how often.
        """
        self.things += [thing] * times
        return len(self.things)

    def empty(self) -> None:
        """Take everything out."""
        self.things.clear()

    def snooze(self, seconds: float) -> str:
        """Sleep."""
        time.sleep(seconds)
        return "awake"

    def fail(self) -> None:
        """Go wrong."""
        raise ValueError("no <luck>")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def judge(evidence, expectation):
    """Wants so many calls."""
    return "" if len(evidence.calls) == expectation["n"] else f"{len(evidence.calls)} calls"


def broken(evidence, expectation):
    """A verifier that breaks."""
    return evidence.nothing
