"""The families of `gui/shop`: each adds one wish to a draft, what it changes in the state, and how it is done."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentgym.tasks.shop_data import REPLIES, State, address, mail, names, office

PER_PAGE = 8  # rows of a list in the office
Step = list[Any]


class Draft:
    """A task in the making; what one wish touches, no other one does."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.state: State = office(draw)
        self.wishes: list[str] = []
        self.changes: list[list[Any]] = []
        self.steps: list[Step] = []
        self.uploads: dict[str, str] = {}
        self.answer: str | None = None
        self._taken: set[tuple[str, int]] = set()

    def pick(self, kind: str) -> tuple[int, Any]:
        """One of the things of a kind that no wish has touched."""
        free = [index for index in range(len(self.state[kind])) if (kind, index) not in self._taken]
        index = self.draw.choice(free)
        self._taken.add((kind, index))
        return index, self.state[kind][index]

    def once(self, what: str) -> None:
        """Raise LookupError if another wish has taken `what` already."""
        if (what, 0) in self._taken:
            raise LookupError(what)
        self._taken.add((what, 0))

    def apart(self, what: str, other: str) -> None:
        """Raise LookupError if a wish has taken `other`, which `what` would change the meaning of."""
        if (other, 0) in self._taken:
            raise LookupError(other)
        self._taken.add((what, 0))

    def set(self, *path_and_value: Any) -> None:
        """The state must have this value there."""
        self.changes.append(["set", *path_and_value])

    def go(self, *steps: Step) -> None:
        """Steps of the solution."""
        self.steps += steps

    def open(self, *links: str) -> None:
        """Click through links."""
        self.go(*(["click", "link", link] for link in links))

    def row(self, index: int, name: str) -> None:
        """Open the thing at a place in a list of pages."""
        self.open(*["Next page"] * (index // PER_PAGE), name)


Family = Callable[[Draft], None]


def buy(d: Draft) -> None:
    d.once("basket")
    index, product = d.pick("products")
    count, way, name, where = (
        d.draw.randint(1, 5),
        d.draw.choice(("standard", "express")),
        names(d.draw, 1)[0],
        address(d.draw),
    )
    d.wishes.append(f"Order {count} of the product {product['name']} for {name}, {where}, with {way} shipping.")
    order = {
        "customer": name, "address": where, "status": "open", "tracking": "", "shipping": way,
        "lines": [{"product": index, "quantity": count}],
    }  # fmt: skip
    d.changes.append(["add", "orders", order])
    d.set("products", index, "stock", product["stock"] - count)
    _find(d, product["name"])
    d.go(
        ["fill", "textbox", "Quantity", str(count)],
        ["click", "button", "Add to basket"],
        ["click", "link", "Check out"],
    )
    d.go(["fill", "textbox", "Name", name], ["fill", "textbox", "Address", where], ["click", "radio", way.capitalize()])
    d.go(["click", "button", "Place order"])


def cheapest(d: Draft) -> None:
    d.once("basket")
    kind = d.draw.choice(d.state["products"])["category"]
    count, nth = d.draw.randint(1, 6), d.draw.randrange(3)
    ordered = sorted((one["price"], i) for i, one in enumerate(d.state["products"]) if one["category"] == kind)
    index = ordered[min(nth, len(ordered) - 1)][1]
    product = d.state["products"][index]
    d.apart("cheapest", "repricing")
    which = ("cheapest", "second cheapest", "third cheapest")[min(nth, len(ordered) - 1)]
    d.wishes.append(f"Put {count} of the {which} product of the category {kind} into the basket.")
    d.changes.append(["add", "basket", {"product": index, "quantity": count}])
    _find(d, product["name"])
    d.go(["fill", "textbox", "Quantity", str(count)], ["click", "button", "Add to basket"])


def _find(d: Draft, name: str) -> None:
    d.open("Shop")
    d.go(["fill", "textbox", "Search", name], ["click", "button", "Search"], ["click", "link", name])


def _open_mail(d: Draft) -> tuple[int, Any]:
    index, found = d.pick("mails")
    place = sum(one["folder"] == "inbox" for one in d.state["mails"][:index])
    gone = sum(change[1:2] == ["mails"] and change[3] == "folder" and change[2] < index for change in d.changes)
    d.open("Mail")
    d.row(place - gone, found["subject"])
    return index, found


def reply(d: Draft) -> None:
    _, found = _open_mail(d)
    text = d.draw.choice(REPLIES.split("|"))
    d.wishes.append(f"Reply to the mail “{found['subject']}” from {found['name']} with the text: {text}")
    d.changes.append(["add", "sent", {"to": found["from"], "subject": f"Re: {found['subject']}", "body": text}])
    d.go(["fill", "textbox", "Reply", text], ["click", "button", "Send reply"])


def forward(d: Draft) -> None:
    _, found = _open_mail(d)
    to = d.draw.choice([one for one in d.state["customers"] if one["name"] != found["name"]])
    d.wishes.append(f"Forward the mail “{found['subject']}” from {found['name']} to {to['name']}.")
    sent = {"to": to["email"], "subject": f"Fwd: {found['subject']}", "body": found["body"]}
    d.changes.append(["add", "sent", sent])
    d.go(["fill", "textbox", "Forward to", to["email"]], ["click", "button", "Forward"])


def file_away(d: Draft) -> None:
    index, found = _open_mail(d)
    folder, button = d.draw.choice((("archive", "Archive"), ("trash", "Delete")))
    d.wishes.append(f"{button} the mail “{found['subject']}” from {found['name']}.")
    d.set("mails", index, "folder", folder)
    d.go(["click", "button", button], *([["dialog", "accept"]] if folder == "trash" else []))


def star(d: Draft) -> None:
    index, found = _open_mail(d)
    d.wishes.append(f"Mark the mail from {found['name']} with a star.")
    d.set("mails", index, "starred", True)
    d.go(["click", "button", "Add star"])


def price(d: Draft) -> None:
    index, product = d.pick("products")
    d.apart("repricing", "cheapest")
    new, sale = d.draw.randrange(100, 9900, 5), d.draw.random() < 0.5
    d.wishes.append(f"Set the price of the {product['name']} to {_money(new)}{' and put it on sale' if sale else ''}.")
    d.set("products", index, "price", new)
    d.open("Administration", "Products")
    d.row(index, product["name"])
    d.go(["fill", "textbox", "Price", _money(new)])
    if sale:
        d.set("products", index, "on_sale", True)
        d.go(["click", "checkbox", "On sale"])
    d.go(["click", "button", "Save"])


def restock(d: Draft) -> None:
    index, product = d.pick("products")
    more = d.draw.randint(10, 200)
    d.wishes.append(f"{more} more of the {product['name']} have come in: add them to its stock.")
    d.set("products", index, "stock", product["stock"] + more)
    d.open("Administration", "Products")
    d.row(index, product["name"])
    d.go(["fill", "textbox", "Stock", str(product["stock"] + more)], ["click", "button", "Save"])


def ship(d: Draft) -> None:
    d.once("parcels")
    index, order = d.pick("orders")
    code = "".join(d.draw.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=2)) + str(d.draw.randint(10**8, 10**9 - 1))
    d.state["mails"].append(
        mail("Parcel Service", f"Parcel for {order['customer']}", f"Its tracking number is {code}.")
    )
    d.wishes.append(
        f"The parcel for {order['customer']} is on its way: mark the order as shipped, with the tracking number that the "
        "Parcel Service wrote in a mail."
    )
    d.set("orders", index, "status", "shipped")
    d.set("orders", index, "tracking", code)
    d.open("Administration", "Orders")
    d.row(index, f"Order {index + 1}")
    d.go(
        ["select", "combobox", "Status", "shipped"],
        ["fill", "textbox", "Tracking number", code],
        ["click", "button", "Save"],
    )


def cancel(d: Draft) -> None:
    index, order = d.pick("orders")
    d.wishes.append(f"Cancel the order of {order['customer']}.")
    d.set("orders", index, "status", "cancelled")
    d.open("Administration", "Orders")
    d.row(index, f"Order {index + 1}")
    d.go(["click", "button", "Cancel order"], ["dialog", "accept"])


def customer(d: Draft) -> None:
    index, found = d.pick("customers")
    phone = f"0{d.draw.randint(100, 999)} {d.draw.randint(100000, 999999)}"
    d.set("customers", index, "phone", phone)
    d.set("customers", index, "newsletter", not found["newsletter"])
    wish = "no longer wants the newsletter" if found["newsletter"] else "wants the newsletter from now on"
    d.wishes.append(f"The customer {found['name']} has the new phone number {phone} and {wish}: change both.")
    d.open("Administration", "Customers")
    d.row(index, found["name"])
    d.go(["fill", "textbox", "Phone", phone], ["click", "checkbox", "Newsletter"], ["click", "button", "Save"])


def prices(d: Draft) -> None:
    d.once("import")
    d.apart("repricing", "cheapest")
    lines = []
    for index, product in (d.pick("products") for _ in range(3)):
        new = d.draw.randrange(100, 9900, 5)
        d.set("products", index, "price", new)
        lines.append(f"{product['name']},{_money(new)}")
    file = f"prices-{d.draw.randint(1000, 9999)}.csv"
    d.uploads[file] = "\n".join(lines)
    d.wishes.append(f"Import the new prices from the file {file}.")
    d.open("Administration", "Import")
    d.go(["click", "button", "Price list"], ["upload", file], ["click", "button", "Import"])


def question(d: Draft) -> None:
    d.once("question")
    if d.draw.random() < 0.5:
        index, product = d.pick("products")
        d.answer = str(product["stock"])
        d.wishes.append(f"How many of the {product['name']} are in stock? Answer with the number alone.")
        d.open("Administration", "Products")
        d.row(index, product["name"])
    else:
        index, found = d.pick("customers")
        d.answer = found["phone"]
        d.wishes.append(f"What is the phone number of {found['name']}? Answer with the number alone.")
        d.open("Administration", "Customers")
        d.row(index, found["name"])


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


FAMILIES: dict[str, Family] = {
    "buy": buy, "cheapest": cheapest, "reply": reply, "forward": forward, "file": file_away, "star": star,
    "price": price, "restock": restock, "ship": ship, "cancel": cancel, "customer": customer, "prices": prices,
    "question": question,
}  # fmt: skip
ONCE = ("buy", "cheapest", "ship", "prices", "question")  # cannot be wished for twice
