"""Users with wishes that they do not tell at first: what each asks, what it has against a reply, and a reply it likes.

Each is a function of random numbers: the same numbers give the same instance. The rules by name are those of the
environment `conversation`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from agentgym.types import Struct


class Instance(Struct, frozen=True, kw_only=True):
    """What a user asks, how it judges, and replies that satisfy it."""

    asks: str
    name: str
    role: str
    persona: str  # for a language model that speaks for the user
    stages: list[dict[str, Any]]
    replies: list[str]
    thanks: str = "Thank you, that is what I wanted."


NAMES = (
    "Ada",
    "Ben",
    "Chen",
    "Dora",
    "Emil",
    "Fatma",
    "Goran",
    "Hana",
    "Ivo",
    "Jana",
    "Kofi",
    "Lena",
    "Marco",
    "Nia",
    "Olaf",
)
THINGS = ("pencils", "apples", "marbles", "stickers", "shells", "stamps", "coins", "cards", "beads", "books")
BOXES = ("boxes", "bags", "jars", "baskets", "drawers", "crates")


def student(draw: random.Random) -> Instance:
    """Wants an answer that reads as written by hand: no lists, no bold, no boxed result."""
    a, b, c = draw.randint(3, 19), draw.randint(3, 12), draw.randint(2, 9)
    who, thing, box = draw.choice(NAMES), draw.choice(THINGS), draw.choice(BOXES)
    result = a * b + c
    return Instance(
        asks=f"{who} has {a} {box} with {b} {thing} each, and {c} more {thing}. How many {thing} are there? Show how you get there.",
        name="Mina",
        role="a student who hands in homework",
        persona="You want answers that read as if you had written them by hand: no lists, no bold text, no boxed answers.",
        stages=[
            {
                "rules": [
                    {"rule": "number", "value": result},
                    {"rule": "no_markup", "what": ["list", "bold", "boxed"]},
                ]
            }
        ],
        replies=[
            f"First I multiply {a} by {b}, which gives {a * b}. Adding the other {c}, there are {result} {thing}."
        ],
        thanks="Thanks, I can hand that in.",
    )


TOPICS = (
    "attention", "dropout", "pruning", "retrieval", "distillation", "quantisation", "tokenisation", "calibration",
    "curriculum", "exploration", "memorisation", "alignment",
)  # fmt: skip
CLAIMS = (
    "halves the cost of training", "works without labels", "beats every baseline on one benchmark", "needs no tuning",
    "generalises to new domains", "removes a known bias", "scales to a billion examples", "is robust to noise",
)  # fmt: skip
FIELDS = ("vision", "speech", "translation", "robotics", "chemistry", "medicine", "finance", "games")


def reviewer(draw: random.Random) -> Instance:
    """Wants at least a hundred words."""
    topic, claim, field = draw.choice(TOPICS), draw.choice(CLAIMS), draw.choice(FIELDS)
    reply = (
        f"I would begin with the main statement, that their use of {topic} {claim}, and ask which experiment supports it "
        f"most directly. In {field} results often depend on how the data was split, so please let them describe the "
        "splits, report several seeds, and give intervals instead of single numbers. Next I would ask for an ablation: "
        "what happens if each part is left out, and does the simplest variant come close? A comparison with an older and "
        "well tuned method under the same budget is missing surprisingly often. Finally, the limits deserve a paragraph "
        "of their own: for which inputs does it fail, who checked that, and can somebody outside their group reproduce "
        "the tables from the released code alone?"
    )
    return Instance(
        asks=f"I review a paper on {topic} in {field}. Its claim: it {claim}. What should I ask the authors?",
        name="Dr. Osei",
        role="a reviewer for a conference",
        persona="You want detailed reviews: at least 100 words, about the topic of the paper.",
        stages=[
            {"rules": [{"rule": "mentions", "words": [topic]}, {"rule": "words", "at_least": 100, "distinct": 0.4}]}
        ],
        replies=[reply],
    )


WARM = ("well done", "great effort", "i am proud of you", "keep going", "nice work", "good job")


def teacher(draw: random.Random) -> Instance:
    """Wants a warm phrase in every comment, and the right result."""
    a, b, who = draw.randint(6, 19), draw.randint(6, 19), draw.choice(NAMES)
    wrong = a * b + draw.choice((-10, -2, -1, 1, 2, 10))
    return Instance(
        asks=f"{who} wrote in a test: {a} x {b} = {wrong}. Write a comment for {who} that says what is right.",
        name="Ms. Park",
        role="a primary school teacher",
        persona="You want comments for children to be warm: they hold an encouraging phrase such as 'great effort'.",
        stages=[
            {
                "rules": [
                    {"rule": "number", "value": a * b},
                    {"rule": "one_of", "phrases": list(WARM), "wish": "something warm and encouraging"},
                ]
            }
        ],
        replies=[f"Great effort, {who}! You are nearly there: {a} x {b} = {a * b}. Keep going."],
        thanks="Lovely, thank you.",
    )


FOODS = {  # English: German, French, Spanish
    "bread": ("Brot", "pain", "pan"), "milk": ("Milch", "lait", "leche"), "cheese": ("Käse", "fromage", "queso"),
    "rice": ("Reis", "riz", "arroz"), "salt": ("Salz", "sel", "sal"), "sugar": ("Zucker", "sucre", "azúcar"),
    "fish": ("Fisch", "poisson", "pescado"), "tea": ("Tee", "thé", "té"), "butter": ("Butter", "beurre", "mantequilla"),
    "honey": ("Honig", "miel", "miel"), "flour": ("Mehl", "farine", "harina"), "wine": ("Wein", "vin", "vino"),
}  # fmt: skip
GUESTS = (
    (
        "Jonas",
        "German",
        "Berlin",
        "{food} findet man in {city} auf dem Markt und in der Halle {n}, nicht weit von der Kasse.",
    ),
    (
        "Camille",
        "French",
        "Lyon",
        "On trouve du {food} dans le marché de {city}, dans la halle {n}, pas loin de la caisse.",
    ),
    (
        "Lucia",
        "Spanish",
        "Sevilla",
        "El {food} se encuentra en el mercado de {city}, en la nave {n}, no lejos de la caja.",
    ),
)


def abroad(draw: random.Random) -> Instance:
    """Asks in English and wants to be answered in a language of its own."""
    index, food, n = draw.randrange(len(GUESTS)), draw.choice(sorted(FOODS)), draw.randint(2, 40)
    name, language, city, reply = GUESTS[index]
    native = FOODS[food][index]
    return Instance(
        asks=f"Excuse my English. Where in the market of {city} do they sell {food}? My note says only: hall {n}.",
        name=name,
        role=f"a guest whose first language is {language}",
        persona=f"You understand little English and want answers in {language}.",
        stages=[
            {
                "rules": [
                    {"rule": "language", "language": language},
                    {"rule": "mentions", "words": [native, str(n)]},
                ]
            }
        ],
        replies=[reply.format(food=native, city=city, n=n)],
    )


UNITS = (
    ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
    ("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("dozens", "pieces", 12), ("years", "months", 12),
)  # fmt: skip


def engineer(draw: random.Random) -> Instance:
    """Wants one JSON object that a program can read."""
    (big, small, factor), n = draw.choice(UNITS), draw.randint(2, 60)
    keys = draw.choice((("value", "unit"), ("result", "unit"), ("amount", "unit")))
    return Instance(
        asks=f"How many {small} are {n} {big}? I pass on your answer as `{keys[0]}` and `{keys[1]}`.",
        name="Ravi",
        role="an engineer who feeds answers into a program",
        persona=f"Your program reads one JSON object with the keys {keys[0]} and {keys[1]}, and nothing around it.",
        stages=[{"rules": [{"rule": "json_object", "keys": list(keys), "numbers": {keys[0]: n * factor}}]}],
        replies=[json.dumps({keys[0]: n * factor, keys[1]: small})],
        thanks="Parsed. Thanks.",
    )


DISHES = ("porridge", "omelette", "pancakes", "lentil soup", "fried rice", "tomato salad", "potato mash", "apple crumble",
          "bean stew", "garlic bread", "carrot cake", "onion soup")  # fmt: skip


def editor(draw: random.Random) -> Instance:
    """Wants it short, and then changes its mind: as a numbered list."""
    dish, most, items, guests = draw.choice(DISHES), draw.choice((20, 25, 30)), draw.choice((3, 4)), draw.randint(2, 12)
    minutes = draw.choice((10, 15, 20, 30, 45, 60))
    steps = ["Gather what you need", f"Prepare the {dish} slowly", "Taste and season it", "Serve it warm"]
    chosen = steps if items == 4 else [steps[0], steps[1], steps[3]]
    return Instance(
        asks=f"I need a line for our food page: how does one make {dish} for {guests} in {minutes} minutes?",
        name="Nora",
        role="the editor of a food page",
        persona=f"At first you want at most {most} words; then you change your mind and want {items} numbered steps.",
        stages=[
            {"rules": [{"rule": "mentions", "words": [dish]}, {"rule": "words", "at_most": most}]},
            {
                "asks": f"Good. On second thought we print steps: give me the {dish} as a numbered list of {items} steps.",
                "rules": [{"rule": "numbered", "items": items}, {"rule": "mentions", "words": [dish]}],
            },
        ],
        replies=[
            f"For {dish}, gather what you need, prepare it slowly, taste, and serve it warm.",
            "\n".join(f"{number}. {step}." for number, step in enumerate(chosen, 1)),
        ],
    )


CITIES = ("Oslo", "Porto", "Turin", "Graz", "Ghent", "Lviv", "Malmo", "Bergen", "Nantes", "Krakow")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def manager(draw: random.Random) -> Instance:
    """Wants it very short, and addressed with the name."""
    city, day, hour, who = draw.choice(CITIES), draw.choice(DAYS), draw.randint(8, 17), draw.choice(NAMES)
    return Instance(
        asks=f"Write to {who}: the meeting in {city} is moved to {day}, {hour} o'clock.",
        name="Mr. Vance",
        role="a manager with no time",
        persona="You want messages of at most 25 words that begin politely with 'Dear' and the name.",
        stages=[
            {
                "rules": [
                    {"rule": "one_of", "phrases": [f"Dear {who}"], "wish": "a polite beginning"},
                    {"rule": "mentions", "words": [city, day, str(hour)]},
                    {"rule": "words", "at_most": 25},
                ]
            }
        ],
        replies=[f"Dear {who}, the meeting in {city} is moved to {day}, {hour} o'clock. Thank you."],
        thanks="Sent.",
    )


USERS: dict[str, Callable[[random.Random], Instance]] = {
    user.__name__: user for user in (student, reviewer, teacher, abroad, engineer, editor, manager)
}
