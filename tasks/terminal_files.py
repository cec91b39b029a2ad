"""Families about files and directories: create, nested, delete, rename, copy."""

from __future__ import annotations

from shlex import quote

from agentgym.tasks.terminal_draw import Draw, Instance, absent, directory, joined, text


def create(draw: Draw, level: int) -> Instance:
    """Create files that hold a given text."""
    if level == 1:
        name, line = draw.file(), draw.line()
        return Instance(
            instruction=f'Create the file {name} holding the text "{line}".',
            files=draw.noise(1),
            expect=[text(name, line)],
            solution=[f'echo "{line}" > {name}'],
        )
    if level == 2:
        folder, name, line = draw.word(), draw.file(), draw.line(3)
        return Instance(
            instruction=f'Create the file {folder}/{name} holding the text "{line}"; its directory does not exist yet.',
            files=draw.noise(2),
            expect=[text(f"{folder}/{name}", line)],
            solution=[f'mkdir -p {folder} && echo "{line}" > {folder}/{name}'],
        )
    if level == 3:
        name, first, n = draw.file(), draw.number(1, 40), draw.number(5, 12)
        word = draw.word()
        made = [f"{word} {number}" for number in range(first, first + n)]
        return Instance(
            instruction=f'Create the file {name} with {n} lines: "{made[0]}", "{made[1]}" and so on to "{made[-1]}".',
            files=draw.noise(2),
            expect=[text(name, joined(made))],
            solution=[f'for i in $(seq {first} {first + n - 1}); do echo "{word} $i"; done > {name}'],
        )
    folder, names = draw.odd(), [draw.odd("txt") for _ in range(3)]
    line = f'{draw.word()} $HOME "{draw.word()}" \\n *'
    listed = ", ".join(f"`{name}`" for name in names)
    return Instance(
        instruction=f"In a new directory `{folder}` create the files {listed}, each holding exactly the line `{line}`.",
        files=draw.noise(6),
        expect=[text(f"{folder}/{name}", line) for name in names],
        solution=[f"mkdir {quote(folder)}"]
        + [f"printf '%s\\n' {quote(line)} > {quote(f'{folder}/{n}')}" for n in names],
    )


def nested(draw: Draw, level: int) -> Instance:
    """Make nested directories."""
    if level == 1:
        path = "/".join(draw.words(3))
        return Instance(
            instruction=f"Create the nested directories {path}.",
            files=draw.noise(1),
            expect=[directory(path)],
            solution=[f"mkdir -p {path}"],
        )
    if level == 2:
        paths = ["/".join(draw.words(2)), "/".join(draw.words(3))]
        return Instance(
            instruction=f"Create the nested directories {paths[0]} and {paths[1]}.",
            files=draw.noise(2),
            expect=[directory(path) for path in paths],
            solution=[f"mkdir -p {paths[0]} {paths[1]}"],
        )
    if level == 3:
        root, stem, last, n = draw.word(), draw.word(), draw.word(), draw.number(4, 12)
        return Instance(
            instruction=f"In a new directory {root} create the directories {stem}-01 to {stem}-{n:02}, each with a "
            f"directory {last} inside.",
            files=draw.noise(2),
            expect=[directory(f"{root}/{stem}-{number:02}/{last}") for number in range(1, n + 1)],
            solution=[f'for i in $(seq -w 01 {n:02}); do mkdir -p "{root}/{stem}-$i/{last}"; done'],
        )
    root, outer, inner, word = draw.odd(), [draw.odd() for _ in range(3)], draw.words(3), draw.word()
    paths = [f"{root}/{one}/{two}" for one in outer for two in inner]
    outers, inners = ", ".join(f"`{name}`" for name in outer), ", ".join(inner)
    return Instance(
        instruction=f"Create a directory `{root}` with the directories {outers} in it, in each of these the directories "
        f"{inners}, and in each of those a file .keep holding the word {word}.",
        files=draw.noise(5),
        expect=[text(f"{path}/.keep", word) for path in paths],
        solution=[
            f"for a in {' '.join(map(quote, outer))}; do for b in {' '.join(inner)}; do "
            f'd={quote(root)}/"$a/$b"; mkdir -p "$d"; echo {word} > "$d/.keep"; done; done'
        ],
    )


def delete(draw: Draw, level: int) -> Instance:
    """Delete files and directories."""
    if level == 1:
        name = draw.file(draw.pick(("txt", "md", "log", "csv", "cfg", "dat")))
        if draw.chance() < 0.5:
            name = f"{draw.word()}/{name}"
        return Instance(
            instruction=f"Delete the file {name}.",
            files={name: draw.text(2), **draw.noise(2)},
            expect=[absent(name)],
            solution=[f"rm {name}"],
        )
    if level == 2:
        folder = draw.folder()
        return Instance(
            instruction=f"Delete the directory {folder} and everything in it.",
            files={
                **draw.noise(2, folder=f"{folder}/"),
                **draw.noise(1, folder=f"{folder}/{draw.word()}/"),
                **draw.noise(2),
            },
            expect=[absent(folder)],
            solution=[f"rm -r {folder}"],
        )
    root = draw.folder()
    if level == 3:
        folders = draw.tree(root, 4)
        doomed, kept = draw.scatter(folders, 5, "tmp"), draw.scatter(folders, 5, "txt")
        return Instance(
            instruction=f"Delete all files ending in .tmp in the directory {root} and below it.",
            files={path: draw.text(1) for path in doomed + kept},
            expect=[absent(path) for path in doomed],
            solution=[f"find {root} -type f -name '*.tmp' -delete"],
        )
    folders = draw.tree(root, 8, odd=True)
    logs, others = draw.scatter(folders, 16, "log", odd=True), draw.scatter(folders, 16, "txt", odd=True)
    limit = draw.number(4, 8)
    sizes = {
        path: limit + draw.number(1, 4) if index % 3 == 0 else draw.number(1, limit) for index, path in enumerate(logs)
    }
    return Instance(
        instruction=f"In the directory {root} and below it, delete every file ending in .log that has more than {limit} "
        "lines.",
        files={**{path: draw.text(sizes[path]) for path in logs}, **{path: draw.text(limit + 2) for path in others}},
        expect=[absent(path) for path in logs if sizes[path] > limit],
        solution=[
            f"find {root} -type f -name '*.log' -print0 | while IFS= read -r -d '' f; do "
            f'[ "$(wc -l < "$f")" -gt {limit} ] && rm "$f"; done'
        ],
    )


def rename(draw: Draw, level: int) -> Instance:
    """Rename and move files."""
    content = draw.text(2)
    if level == 1:
        old, new = draw.file(), draw.file()
        return Instance(
            instruction=f"Rename the file {old} to {new}.",
            files={old: content, **draw.noise(1)},
            expect=[absent(old), text(new, content)],
            solution=[f"mv {old} {new}"],
        )
    if level == 2:
        old, folder, new = draw.file(), draw.word(), draw.file()
        return Instance(
            instruction=f"Move the file {old} into a new directory {folder} and name it {new}.",
            files={old: content, **draw.noise(2)},
            expect=[absent(old), text(f"{folder}/{new}", content)],
            solution=[f"mkdir {folder} && mv {old} {folder}/{new}"],
        )
    if level == 3:
        folder, (old, new) = draw.word(), draw.sample(("txt", "md", "log", "dat", "bak"), 2)
        stems, other = draw.words(4), draw.noise(2, "cfg", f"{folder}/")
        made = {f"{folder}/{stem}": draw.text(2) for stem in stems}
        return Instance(
            instruction=f"In the directory {folder}, change the ending of every .{old} file to .{new}.",
            files={**{f"{path}.{old}": held for path, held in made.items()}, **other},
            expect=[absent(f"{path}.{old}") for path in made] + [text(f"{path}.{new}", made[path]) for path in made],
            solution=[f'cd {folder} && for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done'],
        )
    root = draw.folder()
    folders = draw.tree(root, 6)
    odd = [f"{folder}/{draw.word().capitalize()} {draw.word()} {draw.number(2, 9)}.txt" for folder in folders * 2]
    plain = draw.scatter(folders, 8, "txt")
    held = {path: draw.text(1) for path in odd}
    new_names = {path: path.lower().replace(" ", "_") for path in odd}
    return Instance(
        instruction=f"In the directory {root} and below it, rename every file whose name holds a space: lower case, and "
        "an underscore for each space.",
        files={**held, **{path: draw.text(1) for path in plain}},
        expect=[absent(path) for path in odd] + [text(new_names[path], held[path]) for path in odd],
        solution=[
            f"find {root} -type f -name '* *' -print0 | while IFS= read -r -d '' f; do "
            """b=$(basename "$f" | tr 'A-Z ' 'a-z_'); mv "$f" "$(dirname "$f")/$b"; done"""
        ],
    )


def copy(draw: Draw, level: int) -> Instance:
    """Copy files and trees."""
    if level == 1:
        old, new, content = draw.file(), draw.file(), draw.text(2)
        return Instance(
            instruction=f"Copy the file {old} to {new}.",
            files={old: content, **draw.noise(1)},
            expect=[text(new, content)],
            solution=[f"cp {old} {new}"],
        )
    root, target = draw.words(2)
    if level == 2:
        made = {f"/{draw.file()}": draw.text(2), f"/{draw.word()}/{draw.file()}": draw.text(2)}
        return Instance(
            instruction=f"Copy the directory {root} with everything in it to {target}.",
            files={root + path: held for path, held in made.items()},
            expect=[text(target + path, held) for path, held in made.items()],
            solution=[f"cp -r {root} {target}"],
        )
    folders = draw.tree(root, 4 if level == 3 else 8, odd=level == 4)
    wanted = draw.scatter(folders, 5 if level == 3 else 14, "csv", odd=level == 4)
    others = draw.scatter(folders, 5 if level == 3 else 20, "txt", odd=level == 4)
    files = {path: draw.text(2) for path in wanted + others}
    if level == 3:
        return Instance(
            instruction=f"Copy all files ending in .csv in {root} and below it into a new directory {target}, without "
            "their directories.",
            files=files,
            expect=[text(f"{target}/{path.rsplit('/', 1)[1]}", files[path]) for path in wanted],
            solution=[f"mkdir {target} && find {root} -name '*.csv' -exec cp {{}} {target}/ \\;"],
        )
    return Instance(
        instruction=f"Copy all files ending in .csv in {root} and below it into a new directory {target}, keeping their "
        f"paths relative to {root}, with .old added to each name.",
        files=files,
        expect=[text(f"{target}{path.removeprefix(root)}.old", files[path]) for path in wanted],
        solution=[
            f"cd {root} && find . -type f -name '*.csv' -print0 | while IFS= read -r -d '' f; do "
            f'mkdir -p "../{target}/$(dirname "$f")" && cp "$f" "../{target}/$f.old"; done'
        ],
    )


FAMILIES = {"create": create, "nested": nested, "delete": delete, "rename": rename, "copy": copy}
