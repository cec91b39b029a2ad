"""The families of desk tasks: what is asked for, in levels 1 (3 or 4 calls) to 3 (up to 8), and the calls that do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgym.tasks.desk_world import DAYS, Errand, World, clock, slot

Family = Callable[[World, int], Errand]
DONE = "Done."


def call(name: str, /, **arguments: Any) -> Any:
    """A message of one call."""
    return [{"name": name, "arguments": arguments}]


def mail(to: list[str], subject: str, says: list[str]) -> dict[str, Any]:
    """A mail that is wanted."""
    return {"to": sorted(to), "subject": subject, "says": says}


def send(wanted: dict[str, Any]) -> Any:
    """The message that sends it."""
    return call("send_mail", to=wanted["to"], subject=wanted["subject"], body=f"Hello, {', '.join(wanted['says'])}.")


def names(people: list[dict[str, str]]) -> str:
    """People in a sentence."""
    return " and ".join(one["name"] for one in people)


def meeting(world: World, level: int) -> Errand:
    """An event at a given time; at the first free one; with a room and a mail as well."""
    people = world.persons(1 if level == 1 else 2)
    addresses = sorted(one["mail"] for one in people)
    day, weekday = world.day()
    title, minutes = world.title(), world.pick((30, 60, 90))
    since = world.pick((10, 11, 12)) * 60
    start = world.free(day, minutes, since)
    when = slot(day, start, minutes)
    asked = f"Put a meeting of {minutes} minutes with {names(people)} into my calendar, called '{title}', on {weekday}, {day},"
    solution = [call("find_person", name=one["name"]) for one in people] + [call("list_events", day=day)]
    solution.append(call("add_event", title=title, when=when, attendees=addresses))
    if level == 1:
        return Errand(instruction=f"{asked} at {clock(start)}.", solution=[*solution, DONE])
    asked += f" as early as I am free from {clock(since)} on (meetings start on the hour or the half hour)."
    if level == 2:
        return Errand(instruction=asked, solution=[*solution, DONE])
    feature = world.pick(("projector", "whiteboard"))
    room = _room(world, when, 3, feature)
    wanted = mail(addresses, f"Invitation: {title}", [room, when["start"]])
    asked += (
        f" Book the smallest free room with a {feature} that seats the three of us for it (purpose: '{title}'), and "
        f"write one mail to both of them, subject '{wanted['subject']}', with the room and the time it starts."
    )
    solution.insert(-1, call("find_rooms", when=when, seats=3, feature=feature))
    solution += [call("book_room", room=room, when=when, purpose=title), send(wanted), DONE]
    return Errand(instruction=asked, solution=solution, mails=[wanted])


def forward(world: World, level: int) -> Errand:
    """A number out of a mail; out of a file that a mail names; the sum of two mails, written down as well."""
    sender, other, reader = world.persons(3)
    topic = world.topics.pop()
    amounts = [world.number(11, 99) * 10 + index for index in (1, 3, 7)]
    subject = f"{topic.capitalize()} figures"
    solution = [call("list_mails")]
    if level == 1:
        id = world.mail(
            sender, f"About the {topic}", f"I have checked it again: the {topic} comes to {amounts[0]} euros."
        )
        wanted = mail([reader["mail"]], subject, [str(amounts[0])])
        asked = f"{sender['name']} wrote to me about the {topic}. Send {reader['name']} the sum that it comes to"
        solution += [call("read_mail", mail_id=id)]
    elif level == 2:
        path = f"reports/{topic}-{world.number(100, 999)}.txt"
        parts = zip(world.sample(("rent", "travel", "print", "food", "tools"), 3), amounts, strict=True)
        world.files[path] = "\n".join(f"{part}: {amount}" for part, amount in parts)
        id = world.mail(sender, f"About the {topic}", f"What we spent is in {path}, in euros.")
        wanted = mail([reader["mail"]], subject, [str(sum(amounts))])
        asked = (
            f"{sender['name']} wrote to me about the {topic} and says where the figures are. Archive that mail, and send "
            f"{reader['name']} the total of them"
        )
        solution += [
            call("read_mail", mail_id=id),
            call("read_file", path=path),
            call("move_mail", mail_id=id, folder="archive"),
        ]
    else:
        ids = [
            world.mail(one, f"My part of the {topic}", f"For the {topic} I need {amount} euros.")
            for one, amount in zip((sender, other), amounts, strict=False)
        ]
        total, path = str(sum(amounts[:2])), f"reports/{topic}-total.txt"
        wanted = mail([reader["mail"]], subject, [total])
        asked = (
            f"{names([sender, other])} each wrote to me what they need for the {topic}. Archive both mails, write the sum "
            f"of the two, the bare number, into the file {path}, and send {reader['name']} that sum"
        )
        solution += [call("read_mail", mail_id=id) for id in ids]
        solution += [call("move_mail", mail_id=id, folder="archive") for id in ids]
        solution += [call("write_file", path=path, text=total)]
    asked += f" in a mail with the subject '{subject}'."
    solution += [call("find_person", name=reader["name"]), send(wanted), DONE]
    return Errand(instruction=asked, solution=solution, mails=[wanted])


def reschedule(world: World, level: int) -> Errand:
    """Move an event to a given time; to the first free one; with its room as well. Always tell who takes part."""
    people = world.persons(1 if level == 1 else 2)
    addresses = [one["mail"] for one in people]
    (old_day, old_name), (day, weekday) = _two_days(world)
    title, minutes = world.title(), world.pick((30, 60))
    old = slot(old_day, world.free(old_day, minutes), minutes)
    id = world.event(title, old, addresses)
    since = world.pick((9, 10, 11)) * 60
    when = slot(day, world.free(day, minutes, since), minutes)
    wanted = mail(addresses, f"Moved: {title}", [when["start"]])
    solution = [call("list_events", day=old_day)]
    solution += [call("list_events", day=day)] if level > 1 else []
    solution.append(call("move_event", event_id=id, when=when))
    to = (
        f"at {when['start']}"
        if level == 1
        else f"as early as I am free from {clock(since)} on (on the hour or half hour)"
    )
    asked = f"Move '{title}' from {old_name} ({old_day}) to {weekday} ({day}), {to}; it stays as long as it is."
    if level == 3:
        seats = world.pick((4, 5, 6))
        before = _room(world, old, seats)
        booking = world.booking(before, title, old)
        room = _room(world, when, seats)
        asked += (
            f" Its room, booked under the same name, has to move too: give the old one back and book the smallest one that "
            f"is free then and seats {seats}, under the same name."
        )
        solution += [
            call("list_bookings", day=old_day),
            call("cancel_booking", booking_id=booking),
            call("find_rooms", when=when, seats=seats),
            call("book_room", room=room, when=when, purpose=title),
        ]
    asked += f" Then write one mail to all who take part, subject '{wanted['subject']}', with the new time."
    return Errand(instruction=asked, solution=[*solution, send(wanted), DONE], mails=[wanted])


def tidy(world: World, level: int) -> Errand:
    """Move the files of a project; delete its drafts; write down a total."""
    project = world.projects.pop().lower()
    amounts = [world.number(11, 99) * 10 + index for index in (2, 6)]
    parts = world.sample(("offer", "invoice", "order", "receipt", "quote"), 4)
    kept = [f"{project}-{part}.txt" for part in parts[:2]]
    for name, amount in zip(kept, amounts, strict=True):
        world.files[f"inbox/{name}"] = f"Amount: {amount}"
    drafts = [f"{project}-{part}-draft.txt" for part in parts[2 : 2 + (level == 2) + (level > 1)]]
    for name in drafts:
        world.files[f"inbox/{name}"] = f"Amount: {world.number(11, 99) * 10}"
    for other in world.sample(world.projects, 2):
        world.files[f"inbox/{other.lower()}-{world.pick(parts)}.txt"] = f"Amount: {world.number(11, 99) * 10}"
    folder = f"projects/{project}"
    solution = [call("list_files", folder="inbox")]
    asked = f"Move all files of the project '{project}' from inbox to {folder}, under the names they have."
    if level == 3:
        solution += [call("read_file", path=f"inbox/{name}") for name in sorted(kept)]
    solution += [call("move_file", path=f"inbox/{name}", to=f"{folder}/{name}") for name in kept]
    if level > 1:
        asked += " Do not move its drafts (their names end in -draft.txt): delete them."
        solution += [call("delete_file", path=f"inbox/{name}") for name in drafts]
    if level == 3:
        asked += (
            f" Then write the sum of the amounts in the files that you moved, the bare number, into {folder}/total.txt."
        )
        solution.append(call("write_file", path=f"{folder}/total.txt", text=str(sum(amounts))))
    return Errand(instruction=asked, solution=[*solution, DONE])


def booking(world: World, level: int) -> Errand:
    """Book a room and tell somebody; swap a room for a better one; for an event, whose time has to be looked up."""
    day, weekday = world.day()
    feature, purpose = world.pick(("projector", "whiteboard", "screen")), world.title()
    minutes = world.pick((60, 90))
    if level == 1:
        reader = world.persons(1)[0]
        when, seats = slot(day, 60 * world.number(9, 15), minutes), world.number(2, 6)
        room = _room(world, when, seats, feature)
        wanted = mail([reader["mail"]], f"Room for {purpose}", [room])
        asked = (
            f"Book the smallest free room with a {feature} for {seats} people on {weekday}, {day}, from {when['start']} to "
            f"{when['end']}, purpose '{purpose}', and write to {reader['name']} which one it is, subject '{wanted['subject']}'."
        )
        solution = [call("find_rooms", when=when, seats=seats, feature=feature)]
        solution += [call("book_room", room=room, when=when, purpose=purpose)]
        solution += [call("find_person", name=reader["name"]), send(wanted), DONE]
        return Errand(instruction=asked, solution=solution, mails=[wanted])
    people = world.persons(2)
    when = slot(day, world.free(day, minutes), minutes)
    seats = 3 if level == 3 else world.number(4, 6)
    before = _room(world, when, 2)
    if any(one["room"] == before and one["seats"] >= seats and feature in one["features"] for one in world.rooms):
        raise ValueError("the room would do")
    id = world.booking(before, purpose, when)
    room = _room(world, when, seats, feature)
    swap = [call("cancel_booking", booking_id=id), call("find_rooms", when=when, seats=seats, feature=feature)]
    swap += [call("book_room", room=room, when=when, purpose=purpose)]
    if level == 2:
        asked = (
            f"The room that is booked for '{purpose}' on {weekday}, {day}, will not do: we are {seats} and need a {feature}. "
            "Give it back, book the smallest free one that suits for the same time and purpose, and tell me its name."
        )
        solution = [call("list_bookings", day=day), *swap, f"It is {room} now."]
        return Errand(instruction=asked, solution=solution, says=[room])
    addresses = [one["mail"] for one in people]
    world.event(purpose, when, addresses)
    wanted = mail(addresses, f"New room for {purpose}", [room])
    asked = (
        f"For the meeting '{purpose}' in my calendar on {weekday}, {day}, we need a {feature}. Give back the room that is "
        "booked under that name, book for the time of the meeting, under the same name, the smallest free one with a "
        f"{feature} that seats me and all who take part, and write them in one mail which it is, subject "
        f"'{wanted['subject']}'."
    )
    solution = [call("list_events", day=day), call("list_bookings", day=day), *swap, send(wanted), DONE]
    return Errand(instruction=asked, solution=solution, mails=[wanted])


def clarify(world: World, level: int) -> Errand:
    """Something is missing, and the user knows it: when and for how many; who; how long, when and under what name."""
    return (_ask_when, _ask_whom, _ask_meeting)[level - 1](world)


def _ask_when(world: World) -> Errand:
    day, weekday = world.day()
    reader, purpose, seats = world.persons(1)[0], world.title(), world.number(3, 8)
    when = slot(day, 60 * world.number(9, 15), world.pick((60, 120)))
    room = _room(world, when, seats)
    wanted = mail([reader["mail"]], f"Room for {purpose}", [room])
    asked = (
        f"Book the smallest room that will do for '{purpose}' (that is the purpose) and write to {reader['name']} which one "
        f"it is, subject '{wanted['subject']}'."
    )
    facts = [
        {"about": r"\b(when|day|date|time|start|end|long|duration)", "says": f"It is on {weekday}, {day}, from {when['start']} to {when['end']}."},
        {"about": r"\b(how many|people|seats?|persons?|attend|participants|size|capacity)", "says": f"We are {seats} people."},
    ]  # fmt: skip
    solution = ["When is it, and for how many people?", call("find_rooms", when=when, seats=seats)]
    solution += [call("book_room", room=room, when=when, purpose=purpose)]
    solution += [call("find_person", name=reader["name"]), send(wanted), DONE]
    return Errand(instruction=asked, solution=solution, mails=[wanted], facts=facts)


def _ask_whom(world: World) -> Errand:
    sender, reader, other = world.persons(3)
    first = reader["name"].split()[0]
    last = other["name"].split()[1]
    twin = {"name": f"{first} {last}", "mail": f"{first}.{last}@example.com".lower(), "team": other["team"]}
    world.people[world.people.index(other)] = twin
    topic, amount = world.topics.pop(), world.number(101, 989)
    id = world.mail(sender, f"About the {topic}", f"The {topic} will take {amount} hours.")
    wanted = mail([reader["mail"]], f"{topic.capitalize()} hours", [str(amount)])
    asked = (
        f"{sender['name']} wrote to me how many hours the {topic} will take. Send {first} a mail with that number, subject "
        f"'{wanted['subject']}'."
    )
    facts = [{"about": rf"\b(which|who|whom|{first}|last name|surname|full name)", "says": f"I mean {reader['name']}."}]
    solution = [call("list_mails"), call("read_mail", mail_id=id), call("find_person", name=first)]
    solution += [f"There are two people called {first}: which one do you mean?", send(wanted), DONE]
    return Errand(instruction=asked, solution=solution, mails=[wanted], facts=facts)


def _ask_meeting(world: World) -> Errand:
    people = world.persons(2)
    addresses = sorted(one["mail"] for one in people)
    day, weekday = world.day()
    title, minutes, since = world.title(), world.pick((30, 60)), world.pick((10, 11)) * 60
    when = slot(day, world.free(day, minutes, since), minutes)
    room = _room(world, when, 3)
    asked = (
        f"Set up a meeting with {names(people)} on {weekday}, {day}: put it into my calendar, book the smallest room that "
        "is free and seats the three of us under the meeting's name, and tell me the room."
    )
    facts = [
        {"about": r"\b(time|when|start|early|hour)", "says": f"As early as I am free from {clock(since)} on, on the hour or the half hour."},
        {"about": r"\b(long|duration|length|minutes|end)", "says": f"It takes {minutes} minutes."},
        {"about": r"\b(call|called|name|title|subject|topic|purpose|about)", "says": f"Call it '{title}'."},
    ]  # fmt: skip
    solution: list[Any] = ["At what time, for how long, and what shall I call it?"]
    solution += [call("find_person", name=one["name"]) for one in people]
    solution += [call("list_events", day=day), call("find_rooms", when=when, seats=3)]
    solution += [call("add_event", title=title, when=when, attendees=addresses)]
    solution += [call("book_room", room=room, when=when, purpose=title), f"It is in {room}."]
    return Errand(instruction=asked, solution=solution, says=[room], facts=facts)


def _two_days(world: World) -> tuple[tuple[str, str], tuple[str, str]]:
    one, other = world.sample(range(1, 5), 2)
    return (world.days[one], DAYS[one]), (world.days[other], DAYS[other])


def _room(world: World, when: dict[str, str], seats: int, feature: str = "") -> str:
    """The room that is right. Raises ValueError, and the world is drawn anew, if there is none."""
    room = world.room_for(when, seats, feature)
    if room is None:
        raise ValueError("no room")
    return str(room["room"])


FAMILIES: dict[str, Family] = {
    "meeting": meeting,
    "forward": forward,
    "reschedule": reschedule,
    "tidy": tidy,
    "booking": booking,
    "clarify": clarify,
}
