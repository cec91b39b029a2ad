"""What the forms of the office do to its state; each answers where to go on, or says why it refuses."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

State = dict[str, Any]
Change = Callable[[State, list[int], dict[str, Any]], str]

STATUSES = ("open", "packed", "shipped", "cancelled")
SHIPPING = ("standard", "express")
CATEGORIES = ("Kitchen", "Office", "Garden", "Toys")
FOLDERS = ("inbox", "archive", "trash")
LONGEST = 2000  # characters of one field
MAIL = re.compile(r"[^@\s]+@[^@\s]+\.[a-z]+")


class Refused(Exception):
    """A form that was filled in wrongly."""


def _text(form: dict[str, Any], name: str) -> str:
    text = str(form.get(name, "")).replace("\r\n", "\n").strip()
    if not text:
        raise Refused(f"The field {name!r} is empty.")
    if len(text) > LONGEST:
        raise Refused(f"The field {name!r} is too long.")
    return text


def _number(form: dict[str, Any], name: str, low: int, high: int) -> int:
    text = _text(form, name)
    if not re.fullmatch(r"\d{1,6}", text) or not low <= int(text) <= high:
        raise Refused(f"The field {name!r} must be a number from {low} to {high}.")
    return int(text)


def cents(text: str) -> int:
    """A price such as 12.50 in cents. Raises Refused."""
    if not re.fullmatch(r"\d{1,5}(\.\d{2})?", text):
        raise Refused("A price is written like 12.50.")
    units, _, part = text.partition(".")
    return int(units) * 100 + int(part or 0)


def _choice(form: dict[str, Any], name: str, known: tuple[str, ...]) -> str:
    value = str(form.get(name, ""))
    if value not in known:
        raise Refused(f"Choose one of {', '.join(known)} for {name!r}.")
    return value


def _address(form: dict[str, Any], name: str) -> str:
    text = _text(form, name)
    if not MAIL.fullmatch(text):
        raise Refused(f"{text[:60]!r} is no mail address.")
    return text


def add_to_basket(state: State, ids: list[int], form: dict[str, Any]) -> str:
    product = state["products"][ids[0]]
    have = next((line for line in state["basket"] if line["product"] == ids[0]), None)
    count = _number(form, "quantity", 1, 99) + (have["quantity"] if have else 0)
    if count > product["stock"]:
        raise Refused(f"There are only {product['stock']} of {product['name']}.")
    if have:
        have["quantity"] = count
    else:
        state["basket"].append({"product": ids[0], "quantity": count})
    return "/basket"


def remove_from_basket(state: State, ids: list[int], form: dict[str, Any]) -> str:
    state["basket"] = [line for line in state["basket"] if line["product"] != ids[0]]
    return "/basket"


def check_out(state: State, ids: list[int], form: dict[str, Any]) -> str:
    if not state["basket"]:
        raise Refused("The basket is empty.")
    order = {
        "customer": _text(form, "name"), "address": _text(form, "address"), "status": "open", "tracking": "",
        "shipping": _choice(form, "shipping", SHIPPING), "lines": state["basket"],
    }  # fmt: skip
    for line in state["basket"]:
        state["products"][line["product"]]["stock"] -= line["quantity"]
    state["orders"].append(order)
    state["basket"] = []
    return f"/ordered/{len(state['orders']) - 1}"


def reply(state: State, ids: list[int], form: dict[str, Any]) -> str:
    mail = state["mails"][ids[0]]
    state["sent"].append({"to": mail["from"], "subject": f"Re: {mail['subject']}", "body": _text(form, "text")})
    return "/sent"


def forward(state: State, ids: list[int], form: dict[str, Any]) -> str:
    mail = state["mails"][ids[0]]
    state["sent"].append({"to": _address(form, "to"), "subject": f"Fwd: {mail['subject']}", "body": mail["body"]})
    return "/sent"


def write(state: State, ids: list[int], form: dict[str, Any]) -> str:
    mail = {"to": _address(form, "to"), "subject": _text(form, "subject"), "body": _text(form, "text")}
    state["sent"].append(mail)
    return "/sent"


def move(state: State, ids: list[int], form: dict[str, Any]) -> str:
    mail = state["mails"][ids[0]]
    was, mail["folder"] = mail["folder"], _choice(form, "folder", FOLDERS)
    return f"/mail/{was}"


def star(state: State, ids: list[int], form: dict[str, Any]) -> str:
    mail = state["mails"][ids[0]]
    mail["starred"] = not mail["starred"]
    return f"/mail/{ids[0]}"


def edit_product(state: State, ids: list[int], form: dict[str, Any]) -> str:
    changed = {
        "price": cents(_text(form, "price")), "stock": _number(form, "stock", 0, 9999),
        "category": _choice(form, "category", CATEGORIES), "on_sale": "on_sale" in form,
    }  # fmt: skip
    state["products"][ids[0]].update(changed)
    return "/admin/products"


def edit_order(state: State, ids: list[int], form: dict[str, Any]) -> str:
    status, tracking = _choice(form, "status", STATUSES[:3]), str(form.get("tracking", "")).strip()[:40]
    if status == "shipped" and not tracking:
        raise Refused("A shipped order needs its tracking number.")
    state["orders"][ids[0]].update(status=status, tracking=tracking)
    return "/admin/orders"


def cancel_order(state: State, ids: list[int], form: dict[str, Any]) -> str:
    state["orders"][ids[0]]["status"] = "cancelled"
    return "/admin/orders"


def edit_customer(state: State, ids: list[int], form: dict[str, Any]) -> str:
    changed = {"email": _address(form, "email"), "phone": _text(form, "phone"), "newsletter": "newsletter" in form}
    state["customers"][ids[0]].update(changed)
    return "/admin/customers"


def import_prices(state: State, ids: list[int], form: dict[str, Any]) -> str:
    file: Any = form.get("file")
    if not hasattr(file, "file"):
        raise Refused("Choose a file.")
    rows = list(csv.reader(io.StringIO(file.file.read().decode())))
    prices = {row[0]: cents(row[1]) for row in rows if len(row) == 2}
    unknown = [name for name in prices if name not in {product["name"] for product in state["products"]}]
    if not prices or unknown:
        raise Refused(f"There is no product {unknown[0][:40]!r}." if unknown else "The file holds no prices.")
    for product in state["products"]:
        product["price"] = prices.get(product["name"], product["price"])
    return "/admin/products"


FORMS: tuple[tuple[str, Change], ...] = (
    (r"shop/(\d+)/add", add_to_basket),
    (r"basket/(\d+)/remove", remove_from_basket),
    (r"checkout", check_out),
    (r"mail/(\d+)/reply", reply),
    (r"mail/(\d+)/forward", forward),
    (r"mail/(\d+)/move", move),
    (r"mail/(\d+)/star", star),
    (r"write", write),
    (r"admin/products/(\d+)", edit_product),
    (r"admin/orders/(\d+)", edit_order),
    (r"admin/orders/(\d+)/cancel", cancel_order),
    (r"admin/customers/(\d+)", edit_customer),
    (r"admin/import", import_prices),
)
