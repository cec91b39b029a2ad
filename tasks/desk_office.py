"""A small office as tools: a calendar, mail, files, rooms and people, all in memory, one for each episode."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

Folder = Literal["inbox", "archive", "trash"]
Feature = Literal["projector", "whiteboard", "phone", "screen"]
OPENS, CLOSES = "08:00", "18:00"


@dataclass
class Slot:
    """A time on one day.

    Attributes:
        day: as YYYY-MM-DD.
        start: as HH:MM, 24 hours.
        end: as HH:MM, later than start.
    """

    day: str
    start: str
    end: str


class Desk:
    """The desk of one person. What it is given is plain data; `state` is what a verifier compares."""

    def __init__(self, world: dict[str, Any]) -> None:
        world = copy.deepcopy(world)
        self._people: list[dict[str, Any]] = world["people"]
        self._rooms: list[dict[str, Any]] = world["rooms"]
        self._events: dict[str, dict[str, Any]] = world["events"]
        self._bookings: dict[str, dict[str, Any]] = world["bookings"]
        self._mails: dict[str, dict[str, Any]] = world["mails"]
        self._files: dict[str, str] = world["files"]
        self._sent: list[dict[str, Any]] = []
        self._made = 0

    def state(self) -> dict[str, Any]:
        """What there is, without the ids of what was made: the order of independent calls does not matter."""
        return {
            "events": sorted(self._events.values(), key=lambda event: (event["day"], event["start"], event["title"])),
            "bookings": sorted(self._bookings.values(), key=lambda one: (one["room"], one["day"], one["start"])),
            "folders": {id: mail["folder"] for id, mail in self._mails.items()},
            "files": dict(sorted(self._files.items())),
            "sent": self._sent,
        }

    def find_person(self, name: str) -> list[dict[str, Any]]:
        """Find people by a part of their name.

        Args:
            name: first name, last name or both.
        """
        words = name.casefold().split()
        return [one for one in self._people if words and all(word in one["name"].casefold() for word in words)]

    def list_events(self, day: str) -> list[dict[str, Any]]:
        """The events of a day in the calendar, in order.

        Args:
            day: as YYYY-MM-DD.
        """
        _day(day)
        found = [{"event_id": id, **event} for id, event in self._events.items() if event["day"] == day]
        return sorted(found, key=lambda event: event["start"])

    def add_event(self, title: str, when: Slot, attendees: list[str]) -> str:
        """Put an event into the calendar; it must not overlap another one.

        Args:
            attendees: mail addresses of the others who take part.
        """
        self._check_slot(when)
        self._check_addresses(attendees)
        self._check_free(when, "")
        id = self._new("E")
        self._events[id] = {"title": title.strip(), "attendees": sorted(set(attendees)), **vars(when)}
        return f"{id} added"

    def move_event(self, event_id: str, when: Slot) -> str:
        """Move an event to another time; it must not overlap another one."""
        event = _get(self._events, event_id, "event")
        self._check_slot(when)
        self._check_free(when, event_id)
        event.update(vars(when))
        return f"{event_id} moved"

    def cancel_event(self, event_id: str) -> str:
        """Take an event out of the calendar."""
        _get(self._events, event_id, "event")
        del self._events[event_id]
        return f"{event_id} cancelled"

    def find_rooms(self, when: Slot, seats: int = 1, feature: Feature | None = None) -> list[dict[str, Any]]:
        """The rooms that are free at a time.

        Args:
            seats: how many there must be at least.
            feature: what the room must have.
        """
        self._check_slot(when)
        return [
            room
            for room in self._rooms
            if room["seats"] >= seats and (feature is None or feature in room["features"]) and self._room_free(room["room"], when)
        ]  # fmt: skip

    def list_bookings(self, day: str) -> list[dict[str, Any]]:
        """The bookings of rooms on a day.

        Args:
            day: as YYYY-MM-DD.
        """
        _day(day)
        return [{"booking_id": id, **booking} for id, booking in self._bookings.items() if booking["day"] == day]

    def book_room(self, room: str, when: Slot, purpose: str) -> str:
        """Book a room.

        Args:
            purpose: what it is for, in a few words.
        """
        self._check_slot(when)
        if room not in [one["room"] for one in self._rooms]:
            raise ValueError(f"there is no room {room!r}")
        if not self._room_free(room, when):
            raise ValueError(f"{room} is taken at that time")
        id = self._new("B")
        self._bookings[id] = {"room": room, "purpose": purpose.strip(), **vars(when)}
        return f"{id} booked"

    def cancel_booking(self, booking_id: str) -> str:
        """Give a room back."""
        _get(self._bookings, booking_id, "booking")
        del self._bookings[booking_id]
        return f"{booking_id} cancelled"

    def list_mails(self, folder: Folder = "inbox") -> list[dict[str, Any]]:
        """The mails of a folder, without their text."""
        return [
            {"mail_id": id, "sender": mail["sender"], "subject": mail["subject"]}
            for id, mail in self._mails.items()
            if mail["folder"] == folder
        ]

    def read_mail(self, mail_id: str) -> dict[str, Any]:
        """One mail with its text."""
        return {"mail_id": mail_id, **_get(self._mails, mail_id, "mail")}

    def move_mail(self, mail_id: str, folder: Folder) -> str:
        """Put a mail into another folder."""
        _get(self._mails, mail_id, "mail")["folder"] = folder
        return f"{mail_id} moved to {folder}"

    def send_mail(self, to: list[str], subject: str, body: str) -> str:
        """Send a mail.

        Args:
            to: mail addresses.
        """
        self._check_addresses(to)
        if not to:
            raise ValueError("a mail needs somebody to go to")
        self._sent.append({"to": sorted(set(to)), "subject": subject.strip(), "body": body})
        return "sent"

    def list_files(self, folder: str = "") -> list[str]:
        """The paths of the files below a folder.

        Args:
            folder: such as "reports"; empty for all.
        """
        start = f"{folder.strip('/')}/" if folder.strip("/") else ""
        return sorted(path for path in self._files if path.startswith(start))

    def read_file(self, path: str) -> str:
        """The text of a file."""
        return _get(self._files, path, "file")

    def write_file(self, path: str, text: str) -> str:
        """Write a file; one that is there already is replaced."""
        if not path.strip("/") or path.startswith("/"):
            raise ValueError("a path is such as reports/march.txt")
        self._files[path] = text.strip()
        return f"{path} written"

    def move_file(self, path: str, to: str) -> str:
        """Move a file.

        Args:
            to: its new path, the name included.
        """
        text = _get(self._files, path, "file")
        if to in self._files:
            raise ValueError(f"there is a file {to!r} already")
        if not to.strip("/") or to.startswith("/") or to.endswith("/"):
            raise ValueError("a path is such as reports/march.txt")
        del self._files[path]
        self._files[to] = text
        return f"{path} is now {to}"

    def delete_file(self, path: str) -> str:
        """Delete a file."""
        _get(self._files, path, "file")
        del self._files[path]
        return f"{path} deleted"

    def _new(self, letter: str) -> str:
        self._made += 1
        return f"{letter}{100 + self._made}"

    def _check_slot(self, when: Slot) -> None:
        _day(when.day)
        for time in (when.start, when.end):
            hours, _, minutes = time.partition(":")
            if len(time) != 5 or not (hours + minutes).isdecimal() or int(hours) > 23 or int(minutes) > 59:
                raise ValueError(f"{time!r} is no time such as 09:30")
        if not OPENS <= when.start < when.end <= CLOSES:
            raise ValueError(f"a time is within {OPENS} and {CLOSES}, and ends after it starts")

    def _check_free(self, when: Slot, but: str) -> None:
        for id, event in self._events.items():
            if id != but and overlap(event, vars(when)):
                raise ValueError(f"it overlaps {event['title']!r}, {event['start']} to {event['end']}")

    def _check_addresses(self, addresses: list[str]) -> None:
        known = {one["mail"] for one in self._people}
        if unknown := [one for one in addresses if one not in known]:
            raise ValueError(f"{unknown[0]!r} is nobody's mail address: find_person tells them")

    def _room_free(self, room: str, when: Slot) -> bool:
        return not any(one["room"] == room and overlap(one, vars(when)) for one in self._bookings.values())


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two times share a minute."""
    return bool(one["day"] == other["day"] and one["start"] < other["end"] and other["start"] < one["end"])


def judge_mails(evidence: Any, expectation: dict[str, Any]) -> str:
    """What is wrong with the mails that were sent: each wanted one has its readers, its subject, and says some words."""
    sent = list(evidence.states[-1][0]["sent"])
    wanted = expectation["mails"]
    if len(sent) != len(wanted):
        return f"{len(sent)} mails were sent instead of {len(wanted)}"
    for mail in wanted:
        found = [one for one in sent if set(one["to"]) == set(mail["to"]) and _same(one["subject"], mail["subject"])]
        if not found:
            return f"no mail {mail['subject']!r} went to {', '.join(mail['to'])}"
        missing = [word for word in mail["says"] if not any(_says(one["body"], word) for one in found)]
        if missing:
            return f"the mail {mail['subject']!r} does not say {missing[0]!r}"
    return ""


def _same(one: str, other: str) -> bool:
    return " ".join(one.casefold().split()) == " ".join(other.casefold().split())


def _says(body: str, word: str) -> bool:
    """Whether a text says a word, not as a part of a longer word or number; 4310 may be 4,310, and 09:00 may be 9:00."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", body.casefold())
    wanted = re.escape(word.casefold())
    wanted = re.sub(r"^0(?=\d:)", "0?", wanted)
    return re.search(rf"(?<![\w.:]){wanted}(?!\w|[.,:]\d)", text) is not None


def _get(things: dict[str, Any], id: str, what: str) -> Any:
    if id not in things:
        raise ValueError(f"there is no {what} {id!r}")
    return things[id]


def _day(text: str) -> None:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no day such as 2026-03-02") from None
