"""Families about structured data: json, csv, archive."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from shlex import quote
from typing import Any

from agentgym.tasks.terminal_draw import Draw, Instance, absent, joined, lines, text


def json_edit(draw: Draw, level: int) -> Instance:
    """Edit a JSON file."""
    name, keys = draw.file("json"), draw.words(4)
    old, new = draw.sample(range(10, 10_000), 2)
    value: dict[str, Any] = {keys[0]: old, keys[1]: draw.word(), keys[2]: draw.chance() < 0.5}
    if level == 1:
        return Instance(
            instruction=f'In {name} change the value of "{keys[0]}" from {old} to {new}.',
            files={name: dumped(value), **draw.noise(1)},
            expect=[holds(name, {**value, keys[0]: new})],
            solution=[f"sed -i 's/{old}/{new}/' {name}"],
        )
    if level == 2:
        return Instance(
            instruction=f'In {name} remove the key "{keys[1]}" and add the key "{keys[3]}" with the number {new}.',
            files={name: dumped(value), **draw.noise(2)},
            expect=[holds(name, {keys[0]: old, keys[2]: value[keys[2]], keys[3]: new})],
            solution=[f"""sed -i 's/"{keys[1]}": .*/"{keys[3]}": {new},/' {name}"""],
        )
    names = draw.words(5 if level == 3 else 24)
    items = [{"name": one, "size": draw.number(1, 99), "tags": draw.words(2)} for one in names]
    chosen = draw.number(1, len(items) - 2)
    if level == 3:
        after = [{**item, "size": new} if index == chosen else item for index, item in enumerate(items)]
        return Instance(
            instruction=f'In {name} set the "size" of the item named "{names[chosen]}" to {new}.',
            files={name: dumped({keys[0]: items}), **draw.noise(2)},
            expect=[holds(name, {keys[0]: after})],
            solution=[f"""sed -i '/"name": "{names[chosen]}"/,/"size"/s/"size": [0-9]*/"size": {new}/' {name}"""],
        )
    name, target = draw.odd("json"), draw.file("json")
    limit = sorted(int(str(item["size"])) for item in items)[12]
    large = [item["name"] for item in items if int(str(item["size"])) > limit]
    return Instance(
        instruction=f'From the list "{keys[0]}" in `{name}`, write a JSON list of the names of the items with a size '
        f"greater than {limit} into {target}, in their order.",
        files={name: dumped({keys[0]: items}), **draw.noise(6)},
        expect=[holds(target, large)],
        solution=[
            f"""awk -F'"' '/"name"/ {{n=$4}} /"size"/ {{split($3, a, /[^0-9]+/); if (a[2] > {limit}) """
            f"""printf "%s\\"%s\\"", (c++ ? "," : "["), n}} END {{print c ? "]" : "[]"}}' {quote(name)} > {target}"""
        ],
    )


def csv(draw: Draw, level: int) -> Instance:
    """Columns, rows and sums of a comma-separated table."""
    name, target, heads = draw.file("csv"), draw.file(), draw.words(4)
    groups = draw.words(4)
    n = 6 if level < 4 else 80
    rows = [
        [draw.line(1), str(number), draw.line(1), groups[index % 4]]
        for index, number in enumerate(draw.sample(range(1, 999), n))
    ]
    table = [heads, *rows]
    files = {name: joined([",".join(row) for row in table]), **draw.noise(level)}
    if level == 1:
        at = draw.number(1, 3)
        return Instance(
            instruction=f"Write column {at} of {name} into {target}.",
            files=files,
            expect=[lines(target, [row[at - 1] for row in table])],
            solution=[f"cut -d, -f{at} {name} > {target}"],
        )
    if level == 2:
        at = draw.number(0, 3)
        return Instance(
            instruction=f"Write the column {heads[at]} of {name} without its header into {target}.",
            files=files,
            expect=[lines(target, [row[at] for row in rows])],
            solution=[f"tail -n +2 {name} | cut -d, -f{at + 1} > {target}"],
        )
    limit = sorted(int(row[1]) for row in rows)[n // 2]
    if level == 3:
        return Instance(
            instruction=f"Write the rows of {name} whose {heads[1]} is greater than {limit} into {target}, without the "
            "header.",
            files=files,
            expect=[lines(target, [",".join(row) for row in rows if int(row[1]) > limit])],
            solution=[f"awk -F, 'NR > 1 && $2 > {limit}' {name} > {target}"],
        )
    sums = [f"{group},{sum(int(row[1]) for row in rows if row[3] == group)}" for group in sorted(groups)]
    return Instance(
        instruction=f"For each {heads[3]} in {name}, write a line with its name, a comma and the sum of {heads[1]} into "
        f"{target}, sorted by name and without a header.",
        files=files,
        expect=[lines(target, sums)],
        solution=[
            f"""awk -F, 'NR > 1 {{s[$4] += $2}} END {{for (g in s) print g "," s[g]}}' {name} | LC_ALL=C sort > {target}"""
        ],
    )


def archive(draw: Draw, level: int) -> Instance:
    """Pack and unpack archives."""
    folder, stem = draw.words(2)
    made = {f"{folder}/{draw.file()}": draw.text(2) for _ in range(3)}
    if level == 1:
        return Instance(
            instruction=f"Pack the directory {folder} into the archive {stem}.tar.",
            files={**made, **draw.noise(1)},
            expect=[packed(f"{stem}.tar", made)],
            solution=[f"tar -cf {stem}.tar {folder}"],
        )
    if level == 2:
        target = draw.word()
        return Instance(
            instruction=f"Unpack the archive {stem}.tar.gz into a new directory {target}.",
            files={f"{stem}.tar.gz": tar(made), **draw.noise(2)},
            expect=[text(f"{target}/{path}", held) for path, held in made.items()],
            solution=[f"mkdir {target} && tar -xzf {stem}.tar.gz -C {target}"],
        )
    if level == 3:
        logs = {f"{folder}/{draw.file('log')}": draw.text(1) for _ in range(4)}
        return Instance(
            instruction=f"Pack only the files ending in .log of the directory {folder} into the compressed archive "
            f"{stem}.tar.gz, with paths such as {folder}/NAME.log, and delete them.",
            files={**made, **logs},
            expect=[packed(f"{stem}.tar.gz", logs), *map(absent, logs)],
            solution=[f"tar -czf {stem}.tar.gz {folder}/*.log && rm {folder}/*.log"],
        )
    name, target = draw.odd("tar.gz"), draw.odd()
    folders = draw.tree(folder, 5, odd=True)
    wanted = {path: draw.text(1) for path in draw.scatter(folders, 8, "txt", odd=True)}
    others = {path: draw.text(1) for path in draw.scatter(folders, 12, "log", odd=True)}
    return Instance(
        instruction=f"Unpack only the files ending in .txt from the archive `{name}` into a new directory `{target}`, "
        "keeping their paths, and delete the archive.",
        files={name: tar({**wanted, **others}), **draw.noise(5)},
        expect=[absent(name), *(text(f"{target}/{path}", held) for path, held in wanted.items())],
        solution=[
            f"mkdir {quote(target)}",
            f"tar -xzf {quote(name)} -C {quote(target)} --wildcards '*.txt' && rm {quote(name)}",
        ],
    )


FAMILIES = {"json": json_edit, "csv": csv, "archive": archive}


def dumped(value: Any) -> str:
    """JSON text, one key a line."""
    return json.dumps(value, indent=2) + "\n"


def holds(path: str, value: Any) -> dict[str, Any]:
    """The expectation that a file holds a JSON value."""
    return {"kind": "json", "path": path, "value": value}


def packed(path: str, members: dict[str, str]) -> dict[str, Any]:
    """The expectation that an archive has these members."""
    return {"kind": "archive", "path": path, "members": members}


def tar(members: dict[str, str]) -> dict[str, str]:
    """An initial file: a compressed tar, the same bytes each time."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as made:
        for name, held in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(held.encode())
            made.addfile(info, io.BytesIO(held.encode()))
    return {"base64": base64.b64encode(gzip.compress(raw.getvalue(), mtime=0)).decode()}
