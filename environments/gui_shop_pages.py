"""The pages of the office as HTML; what they show comes from the state and is escaped."""

from __future__ import annotations

from html import escape
from typing import Any

from agentgym.environments.gui_shop_forms import CATEGORIES, FOLDERS, SHIPPING, STATUSES

State = dict[str, Any]
PER_PAGE = 8
STYLE = """body{font:14px sans-serif;margin:12px}nav a,form{margin-right:12px}table{border-collapse:collapse}
td,th{border:1px solid #ccc;padding:3px 8px;text-align:left}label{display:block;margin:6px 0}textarea{width:300px}"""
NAV = (("/shop", "Shop"), ("/basket", "Basket"), ("/mail/inbox", "Mail"), ("/admin", "Administration"))


def page(state: State, path: list[str], query: dict[str, str]) -> str | None:
    """The page at a path; None if there is none."""
    match path:
        case []:
            return _page("Office", f"<p>Signed in as {escape(state['user'])}.</p>")
        case ["shop"]:
            return _products(state, query)
        case ["shop", number] if _is(number, state["products"]):
            return _product(state, int(number))
        case ["basket"]:
            return _basket(state)
        case ["checkout"]:
            return _checkout()
        case ["ordered", number] if _is(number, state["orders"]):
            return _page("Thank you", f"<p>Your order has the number {int(number) + 1}.</p>")
        case ["mail", folder] if folder in FOLDERS:
            return _mails(state, folder, query)
        case ["mail", number] if _is(number, state["mails"]):
            return _mail(state, int(number))
        case ["sent"]:
            rows = [[escape(mail["to"]), escape(mail["subject"])] for mail in state["sent"]]
            return _page("Sent", _folders() + _table(["To", "Subject"], rows))
        case ["write"]:
            return _write()
        case ["admin", *rest]:
            return _admin(state, rest, query)
    return None


def refused(why: str, path: str) -> str:
    """The page of a form that was refused."""
    return _page("Not accepted", f'<p role="alert">{escape(why)}</p>')


def money(cents: int) -> str:
    """A price as it is shown."""
    return f"{cents // 100}.{cents % 100:02}"


def _is(number: str, things: list[Any]) -> bool:
    return number.isdecimal() and int(number) < len(things)


def _page(title: str, body: str) -> str:
    nav = " ".join(f'<a href="{href}">{name}</a>' for href, name in NAV)
    return (
        f"<!DOCTYPE html><html lang=en><title>{escape(title)}</title><style>{STYLE}</style>"
        f"<nav>{nav}</nav><h1>{escape(title)}</h1>{body}</html>"
    )


def _table(heads: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return "<p>Nothing here.</p>"
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _paged(rows: list[list[str]], heads: list[str], query: dict[str, str], **kept: str) -> str:
    number = int(query["page"]) if query.get("page", "").isdecimal() else 1
    pages = max((len(rows) + PER_PAGE - 1) // PER_PAGE, 1)
    number = min(max(number, 1), pages)
    more = "".join(f"&amp;{name}={escape(value)}" for name, value in kept.items() if value)
    links = [("Previous page", number - 1)] * (number > 1) + [("Next page", number + 1)] * (number < pages)
    nav = " ".join(f'<a href="?page={at}{more}">{name}</a>' for name, at in links)
    return _table(heads, rows[(number - 1) * PER_PAGE : number * PER_PAGE]) + f"<p>Page {number} of {pages}. {nav}</p>"


def _field(label: str, name: str, value: str = "", kind: str = "text") -> str:
    return f'<label>{label} <input type={kind} name={name} value="{escape(value)}"></label>'


def _area(label: str, name: str) -> str:
    return f"<label>{label} <textarea name={name} rows=4></textarea></label>"


def _choose(label: str, name: str, options: tuple[str, ...], chosen: str) -> str:
    listed = "".join(f"<option{' selected' * (option == chosen)}>{option}</option>" for option in options)
    return f"<label>{label} <select name={name}>{listed}</select></label>"


def _tick(label: str, name: str, on: bool) -> str:
    return f"<label><input type=checkbox name={name}{' checked' * on}> {label}</label>"


def _form(action: str, button: str, fields: str = "", sure: str = "", encoding: str = "") -> str:
    ask = f" onsubmit=\"return confirm('{sure}')\"" if sure else ""
    return f"<form method=post action={action}{ask}{encoding}>{fields}<button>{escape(button)}</button></form>"


def _products(state: State, query: dict[str, str]) -> str:
    word, category = query.get("q", ""), query.get("category", "")
    found = [
        (index, product) for index, product in enumerate(state["products"])
        if word.lower() in product["name"].lower() and category in ("", "Any", product["category"])
    ]  # fmt: skip
    rows = [
        [f'<a href="/shop/{index}">{escape(one["name"])}</a>', money(one["price"]), one["category"], str(one["stock"])]
        for index, one in found
    ]
    fields = _field("Search", "q", word) + _choose("Category", "category", ("Any", *CATEGORIES), category)
    search = f"<form action=/shop>{fields}<button>Search</button></form>"
    return _page(
        "Shop", search + _paged(rows, ["Product", "Price", "Category", "In stock"], query, q=word, category=category)
    )


def _product(state: State, index: int) -> str:
    one = state["products"][index]
    about = f"<p>{escape(one['about'])}</p><p>Price {money(one['price'])}, in stock: {one['stock']}</p>"
    return _page(one["name"], about + _form(f"/shop/{index}/add", "Add to basket", _field("Quantity", "quantity", "1")))


def _basket(state: State) -> str:
    rows = []
    for line in state["basket"]:
        one = state["products"][line["product"]]
        remove = _form(f"/basket/{line['product']}/remove", f"Remove {one['name']}")
        rows.append([escape(one["name"]), str(line["quantity"]), money(one["price"] * line["quantity"]), remove])
    go_on = "<p><a href=/checkout>Check out</a></p>" if rows else ""
    return _page("Basket", _table(["Product", "Quantity", "Price", ""], rows) + go_on)


def _checkout() -> str:
    ways = "".join(
        f"<label><input type=radio name=shipping value={way}> {way.capitalize()}</label>" for way in SHIPPING
    )
    fields = (
        _field("Name", "name") + _field("Address", "address") + f"<fieldset><legend>Shipping</legend>{ways}</fieldset>"
    )
    return _page("Check out", _form("/checkout", "Place order", fields))


def _folders() -> str:
    links = [(f"/mail/{folder}", folder.capitalize()) for folder in FOLDERS] + [("/sent", "Sent"), ("/write", "Write")]
    return "<p>" + " ".join(f'<a href="{href}">{name}</a>' for href, name in links) + "</p>"


def _mails(state: State, folder: str, query: dict[str, str]) -> str:
    rows = [
        [escape(mail["name"]), f'<a href="/mail/{index}">{escape(mail["subject"])}</a>', "★" * mail["starred"]]
        for index, mail in enumerate(state["mails"]) if mail["folder"] == folder
    ]  # fmt: skip
    return _page(folder.capitalize(), _folders() + _paged(rows, ["From", "Subject", ""], query))


def _mail(state: State, index: int) -> str:
    mail, at = state["mails"][index], f"/mail/{index}"
    body = f"<p>From {escape(mail['name'])} ({escape(mail['from'])})</p><p>{escape(mail['body'])}</p>"
    hidden = "<input type=hidden name=folder value={}>"
    forms = [
        _form(f"{at}/star", "Remove star" if mail["starred"] else "Add star"),
        _form(f"{at}/move", "Archive", hidden.format("archive")),
        _form(f"{at}/move", "Delete", hidden.format("trash"), sure="Delete this mail?"),
        _form(f"{at}/reply", "Send reply", _area("Reply", "text")),
        _form(f"{at}/forward", "Forward", _field("Forward to", "to")),
    ]
    return _page(mail["subject"], body + "".join(forms))


def _write() -> str:
    fields = _field("To", "to") + _field("Subject", "subject") + _area("Text", "text")
    return _page("Write", _folders() + _form("/write", "Send", fields))


def _admin(state: State, path: list[str], query: dict[str, str]) -> str | None:
    match path:
        case []:
            parts = ("products", "orders", "customers", "import")
            links = "".join(f'<li><a href="/admin/{part}">{part.capitalize()}</a></li>' for part in parts)
            return _page("Administration", f"<ul>{links}</ul>")
        case ["products"]:
            rows = [
                [f'<a href="/admin/products/{index}">{escape(one["name"])}</a>', money(one["price"]), str(one["stock"])]
                for index, one in enumerate(state["products"])
            ]
            return _page("Products", _paged(rows, ["Product", "Price", "Stock"], query))
        case ["products", number] if _is(number, state["products"]):
            one = state["products"][int(number)]
            fields = _field("Price", "price", money(one["price"])) + _field("Stock", "stock", str(one["stock"]))
            fields += _choose("Category", "category", CATEGORIES, one["category"])
            fields += _tick("On sale", "on_sale", one["on_sale"])
            return _page(f"Edit {one['name']}", _form(f"/admin/products/{number}", "Save", fields))
        case ["orders"]:
            rows = [
                [f'<a href="/admin/orders/{index}">Order {index + 1}</a>', escape(one["customer"]), one["status"]]
                for index, one in enumerate(state["orders"])
            ]
            return _page("Orders", _paged(rows, ["Order", "Customer", "Status"], query))
        case ["orders", number] if _is(number, state["orders"]):
            return _order(state, int(number))
        case ["customers"]:
            rows = [
                [f'<a href="/admin/customers/{index}">{escape(one["name"])}</a>', escape(one["email"])]
                for index, one in enumerate(state["customers"])
            ]
            return _page("Customers", _paged(rows, ["Name", "Mail"], query))
        case ["customers", number] if _is(number, state["customers"]):
            one = state["customers"][int(number)]
            fields = _field("Mail", "email", one["email"]) + _field("Phone", "phone", one["phone"])
            fields += _tick("Newsletter", "newsletter", one["newsletter"])
            return _page(f"Edit {one['name']}", _form(f"/admin/customers/{number}", "Save", fields))
        case ["import"]:
            file = "<label>Price list <input type=file name=file></label>"
            return _page("Import", _form("/admin/import", "Import", file, encoding=" enctype=multipart/form-data"))
    return None


def _order(state: State, index: int) -> str:
    one = state["orders"][index]
    lines = "".join(
        f"<li>{line['quantity']} of {escape(state['products'][line['product']]['name'])}</li>" for line in one["lines"]
    )
    about = f"<p>{escape(one['customer'])}, {escape(one['address'])}, {one['shipping']}</p><ul>{lines}</ul>"
    fields = _choose("Status", "status", STATUSES[:3], one["status"]) + _field(
        "Tracking number", "tracking", one["tracking"]
    )
    save = _form(f"/admin/orders/{index}", "Save", fields)
    cancel = _form(f"/admin/orders/{index}/cancel", "Cancel order", sure="Cancel this order?")
    return _page(f"Order {index + 1}", about + save + (cancel if one["status"] != "cancelled" else "<p>Cancelled.</p>"))
