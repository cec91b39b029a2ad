"""What the office of `gui/shop` is filled with: names, products and mails, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

State = dict[str, Any]

FIRST = (
    "Ada Bruno Carla Dmitri Elena Farid Greta Hugo Ines Jonas Kira Lars Mina Noor Oskar Petra Quinn Rosa Samir Tilda"
)
LAST = "Abel Berg Castro Dorn Evans Fischer Gruber Haas Ivanov Jansen Keller Lopez Moreau Novak Olsen Price Rossi Sato"
COLOURS = "Blue Red Green Yellow Black White Grey Purple Orange Brown"
THINGS = {
    "Kitchen": "mug kettle bowl spoon pan toaster teapot plate",
    "Office": "stapler notebook folder lamp pen calendar desk chair",
    "Garden": "shovel hose bench rake lantern pot gloves basket",
    "Toys": "puzzle kite robot train ball drum doll rocket",
}
STREETS = "Elm Oak Mill Church Station Park River Hill Market School"
SUBJECTS = """Question about an invoice|Lunch on Friday|Delivery times|New catalogue|A broken lid|Opening hours
Holiday plans|Thank you|Wrong colour|Parking space|Meeting notes|Gift wrapping|A missing spoon|Spare parts|Birthday
Summer party|Bulk order|Newsletter|Warranty|Photos of the fair""".replace("\n", "|")
SENTENCES = """Could you have a look at this?|I hope that you are well.|Please let me know by Monday.|It is not urgent.
Thank you for your help.|I could not find it on your page.|My colleague will call you.|We talked about it last week.
There is a picture of it in the shop.|I am looking forward to your answer.""".replace("\n", "|")
REPLIES = """Thank you, I will look into it.|We are closed on that day.|The parts are on their way.|Please call us tomorrow.
Yes, that works for me.|No, I am sorry.|It will arrive next week.|I have sent you the invoice.|We have it in stock.
Your order is ready.|Let us talk about it on Tuesday.|The price is the same.""".replace("\n", "|")


def names(draw: random.Random, count: int) -> list[str]:
    """Different people."""
    pairs = [f"{first} {last}" for first in FIRST.split() for last in LAST.split()]
    return draw.sample(pairs, count)


def address(draw: random.Random) -> str:
    """A street and a number."""
    return f"{draw.choice(STREETS.split())} Street {draw.randint(1, 99)}"


def mail_of(name: str) -> str:
    """A person's mail address."""
    return name.lower().replace(" ", ".") + "@mail.example"


def office(draw: random.Random) -> State:
    """A state: 22 products, 14 customers, 10 orders, 14 mails."""
    people = names(draw, 14)
    goods = [
        (colour, thing, kind)
        for kind, things in THINGS.items()
        for thing in things.split()
        for colour in COLOURS.split()
    ]
    products = [
        {
            "name": f"{colour} {thing}", "price": draw.randrange(100, 9900, 5), "stock": draw.randint(6, 60),
            "category": kind, "on_sale": False, "about": draw.choice(SENTENCES.split("|")),
        }
        for colour, thing, kind in draw.sample(goods, 22)
    ]  # fmt: skip
    prices = draw.sample(range(100, 9900, 5), len(products))
    for product, price in zip(products, prices, strict=True):
        product["price"] = price
    customers = [
        {"name": name, "email": mail_of(name), "phone": _phone(draw), "newsletter": draw.random() < 0.5}
        for name in people
    ]
    orders = [
        {
            "customer": name, "address": address(draw), "status": "open", "tracking": "",
            "shipping": draw.choice(("standard", "express")),
            "lines": [{"product": draw.randrange(len(products)), "quantity": draw.randint(1, 4)}],
        }
        for name in draw.sample(people, 10)
    ]  # fmt: skip
    mails = [
        mail(name, subject, " ".join(draw.sample(SENTENCES.split("|"), 2)))
        for name, subject in zip(people, draw.sample(SUBJECTS.split("|"), 14), strict=True)
    ]
    return {
        "user": "Office", "products": products, "customers": customers, "orders": orders, "mails": mails, "sent": [],
        "basket": [],
    }  # fmt: skip


def mail(name: str, subject: str, body: str) -> dict[str, Any]:
    """A mail in the inbox."""
    return {
        "name": name, "from": mail_of(name), "subject": subject, "body": body, "folder": "inbox", "starred": False,
        "read": False,
    }  # fmt: skip


def _phone(draw: random.Random) -> str:
    return f"0{draw.randint(100, 999)} {draw.randint(100000, 999999)}"
