"""The worlds of desk tasks: people, rooms, a week of events and bookings, mails and files, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

FIRST = "Ada Ben Cleo Dario Elif Femi Greta Hugo Ines Jonas Kira Liam Mona Nils Olga Pavel Rosa Sami Tara Umar".split()  # noqa: SIM905
LAST = "Abbott Berger Costa Duval Ekman Fischer Garcia Haas Ito Jensen Kovac Lindt Moreau Novak Okafor Petit Rossi Silva".split()  # noqa: SIM905
ROOMS = "Oak Birch Maple Cedar Willow Aspen".split()  # noqa: SIM905
FEATURES = ("projector", "whiteboard", "phone", "screen")
TEAMS = ("sales", "design", "finance", "research", "support")
TOPICS = "budget roadmap launch hiring contract survey audit website training newsletter prototype warehouse".split()  # noqa: SIM905
PROJECTS = "Falcon Harbour Lantern Meadow Orchid Pioneer Quartz Saffron Tundra Velvet".split()  # noqa: SIM905
KINDS = "review sync planning workshop interview demo retrospective briefing".split()  # noqa: SIM905
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def clock(minutes: int) -> str:
    """Minutes since midnight as HH:MM."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def slot(day: str, start: int, minutes: int) -> dict[str, str]:
    """A time as the tools take it."""
    return {"day": day, "start": clock(start), "end": clock(start + minutes)}


@dataclass(kw_only=True)
class Errand:
    """One drawn task."""

    instruction: str
    solution: list[Any]
    mails: list[dict[str, Any]] = field(default_factory=list)
    says: list[str] = field(default_factory=list)  # words of the final answer
    facts: list[dict[str, str]] = field(default_factory=list)  # what the simulated user tells if asked


class World:
    """A drawn world, and the drawing of what a task says about it."""

    def __init__(self, key: str) -> None:
        self.random = random.Random(key)
        self.pick, self.number, self.sample = self.random.choice, self.random.randint, self.random.sample
        monday = date(2026, 1, 5) + timedelta(weeks=self.number(0, 90))
        self.days = [(monday + timedelta(days=index)).isoformat() for index in range(5)]
        self.topics, self.projects = self.sample(TOPICS, len(TOPICS)), self.sample(PROJECTS, len(PROJECTS))
        self.kinds = self.sample(KINDS, len(KINDS))
        lasts = self.sample(LAST, 8)
        self.people = [self._person(first, last) for first, last in zip(self.sample(FIRST, 8), lasts, strict=True)]
        self.rooms: list[dict[str, Any]] = [
            {"room": name, "seats": seats, "features": sorted(self.sample(FEATURES, self.number(1, 3)))}
            for name, seats in zip(self.sample(ROOMS, 5), self.sample((3, 4, 6, 8, 10, 12, 16), 5), strict=True)
        ]
        self.events: dict[str, dict[str, Any]] = {}
        self.bookings: dict[str, dict[str, Any]] = {}
        self.mails: dict[str, dict[str, Any]] = {}
        self.files: dict[str, str] = {}
        for day in self.days[1:]:
            self._fill(day)
        for _ in range(4):
            self.mail(self.pick(self.people), f"The {self.topics.pop()}", "Nothing to do for you; just so you know.")
        for _ in range(3):
            self.files[f"notes/{self.topics.pop()}.txt"] = f"Ask {self.pick(self.people)['name']} about it."

    def plain(self) -> dict[str, Any]:
        """The world as `Desk` takes it."""
        return {
            "people": self.people, "rooms": self.rooms, "events": self.events, "bookings": self.bookings,
            "mails": self.mails, "files": self.files,
        }  # fmt: skip

    def today(self) -> str:
        """What a task says of the date."""
        return f"Today is Monday, {self.days[0]}."

    def persons(self, n: int) -> list[dict[str, str]]:
        """Different people."""
        return self.sample(self.people, n)

    def day(self) -> tuple[str, str]:
        """A day after today: its date, and how somebody would call it."""
        index = self.number(1, 4)
        return self.days[index], DAYS[index]

    def title(self) -> str:
        """A title for an event that no other one has."""
        return f"{self.projects.pop()} {self.pick(self.kinds)}"

    def mail(self, sender: dict[str, str], subject: str, body: str) -> str:
        """Put a mail into the inbox; returns its id."""
        id = f"M{len(self.mails) + 1}"
        self.mails[id] = {"sender": sender["mail"], "subject": subject, "body": body, "folder": "inbox"}
        return id

    def event(self, title: str, when: dict[str, str], attendees: list[str]) -> str:
        """Put an event into the calendar; returns its id."""
        id = f"E{len(self.events) + 1}"
        self.events[id] = {"title": title, "attendees": sorted(attendees), **when}
        return id

    def booking(self, room: str, purpose: str, when: dict[str, str]) -> str:
        """Book a room; returns the booking's id."""
        id = f"B{len(self.bookings) + 1}"
        self.bookings[id] = {"room": room, "purpose": purpose, **when}
        return id

    def free(self, day: str, minutes: int, since: int = 9 * 60) -> int:
        """The earliest time that is free in the calendar, in half hours."""
        taken = [(event["start"], event["end"]) for event in self.events.values() if event["day"] == day]
        for start in range(since, 18 * 60 - minutes + 1, 30):
            if not any(clock(start) < end and begin < clock(start + minutes) for begin, end in taken):
                return start
        raise ValueError("the day is full")

    def room_for(self, when: dict[str, str], seats: int, feature: str = "") -> dict[str, Any] | None:
        """The smallest room that is free and suits."""
        fitting = [
            room
            for room in self.rooms
            if room["seats"] >= seats and (not feature or feature in room["features"]) and self._room_free(room["room"], when)
        ]  # fmt: skip
        return min(fitting, key=lambda room: room["seats"], default=None)

    def _room_free(self, room: str, when: dict[str, str]) -> bool:
        return not any(
            one["room"] == room
            and one["day"] == when["day"]
            and one["start"] < when["end"]
            and when["start"] < one["end"]
            for one in self.bookings.values()
        )

    def _person(self, first: str, last: str) -> dict[str, str]:
        mail = f"{first}.{last}@example.com".lower()
        return {"name": f"{first} {last}", "mail": mail, "team": self.pick(TEAMS)}

    def _fill(self, day: str) -> None:
        """A few events and bookings on a day."""
        at = 9 * 60 + 30 * self.number(0, 2)
        for _ in range(self.number(2, 3)):
            minutes = self.pick((30, 60, 90))
            with_whom = [one["mail"] for one in self.persons(self.number(1, 2))]
            self.event(
                f"{self.pick(self.topics).capitalize()} {self.pick(self.kinds)}", slot(day, at, minutes), with_whom
            )
            at += minutes + 30 * self.number(0, 3)
        for room in self.sample(self.rooms, 3):
            when = slot(day, 9 * 60 + 60 * self.number(0, 6), 60 * self.number(1, 2))
            self.booking(room["room"], f"{self.pick(self.topics)} team", when)
