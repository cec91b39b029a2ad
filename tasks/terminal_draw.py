"""What an instance of a shell task is, and the seeded drawing of ordinary names and texts for it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

WORDS = """
apple arrow autumn badge bamboo basket beach bird blanket boat bottle branch bread bridge brush bucket button
cabin camel camera candle canyon carpet castle cat cave chain chair cheese cherry church circle city cloud coast
coffee comet coral corn cotton cow crown crystal cup dance desert diamond dog dragon dream drum duck dust eagle
earth egg engine falcon farm feather fern field fire fish flag flower flute fog forest fountain fox frog fruit
garden gate ghost glass goat gold grape grass guitar hammer harbor hat hawk heart hill honey horse hotel house ice
island ivory jacket jar jewel jungle kettle key king kite knife ladder lake lamp leaf lemon letter light lily lion
lock lunch magnet mango map maple market mask meadow melon metal milk mint mirror moon mountain mouse museum music
nail needle nest night north oak ocean olive onion orange orchid owl paint palace palm panda paper park parrot
peach pearl pencil pepper piano pilot pine pirate planet plate plum pond potato prince pump puzzle queen rabbit
radio rain raven ribbon rice ring river road robot rocket roof room root rope rose salad salt sand school sea
seed shadow sheep shell ship shirt shoe silk silver sky snake snow soap sofa song soup spider spoon spring square
star station steel stone storm street sugar summer sun swan table tea temple tent thunder tiger tower town trail
train tree truck tulip tunnel turtle valley velvet violin wagon water wave whale wheat wheel window wine winter
wolf wood yard zebra
""".split()  # noqa: SIM905

Files = dict[str, Any]


@dataclass(kw_only=True)
class Instance:
    """One drawn task: what the policy reads, the initial files, what must become of them, and commands that do it."""

    instruction: str
    files: Files = field(default_factory=dict)
    expect: list[dict[str, Any]]
    solution: list[str]


class Draw:
    """Random choices for one instance. Names are never given twice."""

    def __init__(self, key: str) -> None:
        self.random = random.Random(key)
        self.pick, self.chance, self.number = self.random.choice, self.random.random, self.random.randint
        self.sample = self.random.sample
        self._names = iter(self.random.sample(WORDS, len(WORDS)))

    def word(self) -> str:
        """A word, another one each time."""
        return next(self._names)

    def words(self, n: int) -> list[str]:
        """`n` different words."""
        return [self.word() for _ in range(n)]

    def file(self, extension: str = "txt") -> str:
        """A file name such as "river.txt"."""
        return f"{self.word()}.{extension}"

    def folder(self) -> str:
        """A directory such as "river", or one inside another such as "park/river"."""
        return "/".join(self.words(self.number(1, 2)))

    def odd(self, extension: str = "") -> str:
        """A name with spaces and worse, such as "Red river (2).txt"."""
        name = self.pick(("{0} {1}", "{0} & {1}", "{0} ({2})", "{0}'s {1}", "{0} {1} {2}", "{0}  {1}"))
        name = name.format(self.word().capitalize(), self.word(), self.number(2, 9))
        return f"{name}.{extension}" if extension else name

    def line(self, n: int = 2) -> str:
        """`n` words as one line; may hold words that are names too."""
        return " ".join(self.random.choices(WORDS, k=n))

    def lines(self, n: int, words: int = 2) -> list[str]:
        """`n` different lines."""
        found: dict[str, None] = {}
        while len(found) < n:
            found[self.line(words)] = None
        return list(found)

    def text(self, n: int = 3) -> str:
        """The text of a file of `n` lines."""
        return joined(self.lines(n))

    def noise(self, n: int, extension: str = "txt", folder: str = "") -> Files:
        """`n` files that have nothing to do with the task."""
        return {folder + self.file(extension): self.text(self.number(1, 4)) for _ in range(n)}

    def tree(self, root: str, n: int, *, odd: bool = False, depth: int = 2) -> list[str]:
        """`n` different directories below `root`, itself included."""
        found = [root]
        while len(found) < n:
            parent = self.pick(found)
            if parent.count("/") - root.count("/") < depth:
                found.append(f"{parent}/{self.odd() if odd and self.chance() < 0.5 else self.word()}")
        return found

    def scatter(self, folders: list[str], n: int, extension: str, *, odd: bool = False) -> list[str]:
        """`n` paths of files with `extension`, over the folders."""
        names = [self.odd(extension) if odd and self.chance() < 0.5 else self.file(extension) for _ in range(n)]
        return [f"{folders[index % len(folders)]}/{name}" for index, name in enumerate(names)]


def joined(lines: list[str]) -> str:
    """Lines as the text of a file."""
    return "".join(f"{line}\n" for line in lines)


def text(path: str, content: str, tolerance: str = "newline") -> dict[str, Any]:
    """The expectation that a file holds a text."""
    return {"kind": "text", "path": path, "text": content, "tolerance": tolerance}


def lines(path: str, content: list[str], *, any_order: bool = False, prefix: str = "") -> dict[str, Any]:
    """The expectation that a file holds these lines."""
    return {"kind": "lines", "path": path, "lines": content, "order": "any" if any_order else "exact", "prefix": prefix}


def absent(path: str) -> dict[str, Any]:
    """The expectation that a path is gone."""
    return {"kind": "absent", "path": path}


def directory(path: str) -> dict[str, Any]:
    """The expectation that a path is a directory."""
    return {"kind": "dir", "path": path}


def mode(path: str, bits: str) -> dict[str, Any]:
    """The expectation that a path has these permissions."""
    return {"kind": "mode", "path": path, "mode": bits}
