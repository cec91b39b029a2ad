"""Families about text: count, grep, sort, head, append, replace, dedupe."""

from __future__ import annotations

from shlex import quote

from agentgym.tasks.terminal_draw import Draw, Files, Instance, joined, lines, text


def count(draw: Draw, level: int) -> Instance:
    """Count lines, words or files into a file."""
    target = draw.file()
    if level == 1:
        name, n = draw.file(), draw.number(3, 9)
        return Instance(
            instruction=f"Write the number of lines of {name} into {target}.",
            files={name: draw.text(n), **draw.noise(1)},
            expect=[text(target, str(n), "space")],
            solution=[f"wc -l < {name} > {target}"],
        )
    if level == 2:
        name, word = draw.file(), draw.word()
        hits, others = draw.number(2, 6), without(draw.lines(6), word)
        mixed = shuffled(draw, [f"{word} {draw.line(1)} {i}" for i in range(hits)] + others)
        return Instance(
            instruction=f"Write the number of lines of {name} that contain {word} into {target}.",
            files={name: joined(mixed), **draw.noise(2)},
            expect=[text(target, str(hits), "space")],
            solution=[f"grep -c {word} {name} > {target}"],
        )
    root = draw.word()
    folders = draw.tree(root, 4 if level == 3 else 8, odd=level == 4)
    n = draw.number(4, 9) if level == 3 else draw.number(8, 16)
    counted, others = draw.scatter(folders, n, "log", odd=level == 4), draw.scatter(folders, 7, "txt")
    if level == 3:
        return Instance(
            instruction=f"Write the number of files ending in .log in {root} and below it into {target}.",
            files={path: draw.text(1) for path in counted + others},
            expect=[text(target, str(n), "space")],
            solution=[f"find {root} -type f -name '*.log' | wc -l > {target}"],
        )
    sizes = [draw.number(1, 9) for _ in counted]
    made = {path: "\n".join([*draw.lines(size), "", "", ""]) for path, size in zip(counted, sizes, strict=True)}
    return Instance(
        instruction=f"Write the total number of lines that are not empty, over all files ending in .log in {root} and "
        f"below it, into {target}.",
        files={**made, **{path: draw.text(3) for path in others}},
        expect=[text(target, str(sum(sizes)), "space")],
        solution=[f"find {root} -type f -name '*.log' -exec cat {{}} + | grep -c . > {target}"],
    )


def grep(draw: Draw, level: int) -> Instance:
    """Write the lines that match into a file."""
    name, target, word = draw.file(), draw.file(), draw.word()
    others = without(draw.lines(5), word)
    if level == 1:
        mixed = shuffled(draw, [f"{word} {one}" for one in draw.lines(draw.number(1, 3), 1)] + others)
        return Instance(
            instruction=f"Write the lines of {name} that contain {word} into {target}.",
            files={name: joined(mixed), **draw.noise(1)},
            expect=[lines(target, [line for line in mixed if word in line])],
            solution=[f"grep {word} {name} > {target}"],
        )
    if level == 2:
        upper = [f"{draw.pick((word, word.upper(), word.title()))} {one}" for one in draw.lines(4, 1)]
        mixed = shuffled(draw, upper + others)
        return Instance(
            instruction=f"Write the lines of {name} that do not contain {word}, in upper or lower case, into {target}.",
            files={name: joined(mixed), **draw.noise(2)},
            expect=[lines(target, [line for line in mixed if word not in line.lower()])],
            solution=[f"grep -iv {word} {name} > {target}"],
        )
    if level == 3:
        log = [
            f"2024-{draw.number(1, 12):02}-{draw.number(1, 28):02} {draw.pick(LOG_LEVELS)} {draw.line()}"
            for _ in range(30)
        ]
        month, log_level = log[0].split()[0][:7], log[0].split()[1]
        return Instance(
            instruction=f"Write the lines of {name} dated {month} with level {log_level} into {target}.",
            files={name: joined(log), **draw.noise(2)},
            expect=[lines(target, [line for line in log if line.startswith(month) and line.split()[1] == log_level])],
            solution=[f"grep -E '^{month}-[0-9]+ {log_level} ' {name} > {target}"],
        )
    root = draw.word()
    paths = draw.scatter(draw.tree(root, 8, odd=True), 36, "txt", odd=True)
    hits = set(draw.sample(paths, draw.number(3, 7)))
    files = {path: joined(without(draw.lines(3), word)) for path in paths}
    files |= {path: f"{files[path]}the {word} {draw.number(10, 99)}\n" for path in hits}
    return Instance(
        instruction=f"Write the paths of all files in {root} and below it that contain the word {word} into {target}, "
        "one a line, sorted.",
        files=files,
        expect=[lines(target, sorted(hits), any_order=True, prefix="./")],
        solution=[f"grep -rlw {word} {root} | LC_ALL=C sort > {target}"],
    )


def sort(draw: Draw, level: int) -> Instance:
    """Sort lines into a file."""
    name, target = draw.file(), draw.file()
    if level == 1:
        made = jumbled(draw, draw.words(draw.number(4, 7)))
        return Instance(
            instruction=f"Sort the lines of {name} into {target}.",
            files={name: joined(made), **draw.noise(1)},
            expect=[lines(target, sorted(made))],
            solution=[f"sort {name} > {target}"],
        )
    numbers = draw.sample(range(1, 3000), 8)
    if level == 2:
        return Instance(
            instruction=f"Sort the numbers in {name} from the largest to the smallest into {target}.",
            files={name: joined([str(number) for number in numbers]), **draw.noise(1)},
            expect=[lines(target, [str(number) for number in sorted(numbers, reverse=True)])],
            solution=[f"sort -nr {name} > {target}"],
        )
    if level == 3:
        rows = [f"{word} {number} {draw.line(1)}" for word, number in zip(draw.words(8), numbers, strict=True)]
        return Instance(
            instruction=f"Sort the lines of {name} by the number in the second column, smallest first, into {target}.",
            files={name: joined(rows), **draw.noise(2)},
            expect=[lines(target, sorted(rows, key=lambda row: int(row.split()[1])))],
            solution=[f"sort -k2,2n {name} > {target}"],
        )
    name, heads = draw.odd("csv"), draw.words(3)
    groups = draw.words(4)
    table = [(draw.pick(groups), number, draw.word()) for number in draw.sample(range(1, 9000), 60)]
    ordered = sorted(table, key=lambda row: (row[0], -row[1]))
    return Instance(
        instruction=f"Write the table `{name}` into {target} with its header line first and the rows sorted by "
        f"{heads[0]}, within the same {heads[0]} by {heads[1]} from the largest to the smallest.",
        files={name: joined([",".join(heads)] + [f"{a},{b},{c}" for a, b, c in table]), **draw.noise(5)},
        expect=[lines(target, [",".join(heads)] + [f"{a},{b},{c}" for a, b, c in ordered])],
        solution=[
            f"head -n 1 {quote(name)} > {target}",
            f"tail -n +2 {quote(name)} | LC_ALL=C sort -t, -k1,1 -k2,2nr >> {target}",
        ],
    )


def head(draw: Draw, level: int) -> Instance:
    """Write the first, last or middle lines into a file."""
    name, target, n = draw.file(), draw.file(), draw.number(2, 5)
    made = draw.lines(9 if level < 3 else 30)
    if level <= 2:
        which = "first" if level == 1 else "last"
        command = f"head -n {n} {name}" if level == 1 else f"tail -n {n} {name}"
        return Instance(
            instruction=f"Write the {which} {n} lines of {name} into {target}.",
            files={name: joined(made), **draw.noise(level)},
            expect=[lines(target, made[:n] if level == 1 else made[-n:])],
            solution=[f"{command} > {target}"],
        )
    if level == 3:
        first, last = draw.number(4, 10), draw.number(14, 26)
        return Instance(
            instruction=f"Write lines {first} to {last} of {name} into {target}.",
            files={name: joined(made), **draw.noise(2)},
            expect=[lines(target, made[first - 1 : last])],
            solution=[f"sed -n '{first},{last}p' {name} > {target}"],
        )
    root = draw.word()
    folders = draw.tree(root, 6, odd=True)
    logs = draw.scatter(folders, 12, "log", odd=True)
    files: Files = {path: draw.text(draw.number(n + 1, 9)) for path in logs}
    wanted = [line for path in sorted(logs) for line in [f"== {path}", *files[path].splitlines()[-n:]]]
    return Instance(
        instruction=f"For every file ending in .log in {root} and below it, in the byte order of the paths, write into "
        f'{target} the line "== " followed by its path, such as {root}/NAME.log, and then its last {n} lines.',
        files={**files, **{path: draw.text(3) for path in draw.scatter(folders, 10, "txt")}},
        expect=[lines(target, wanted)],
        solution=[
            f"find {root} -type f -name '*.log' -print0 | LC_ALL=C sort -z | while IFS= read -r -d '' f; do "
            f'echo "== $f"; tail -n {n} "$f"; done > {target}'
        ],
    )


def append(draw: Draw, level: int) -> Instance:
    """Append lines to files."""
    name, line = draw.file(), draw.line()
    content = draw.text(2)
    if level == 1:
        return Instance(
            instruction=f'Append the line "{line}" to {name}.',
            files={name: content, **draw.noise(1)},
            expect=[text(name, f"{content}{line}\n")],
            solution=[f'echo "{line}" >> {name}'],
        )
    if level == 2:
        other, more = draw.file(), draw.text(3)
        return Instance(
            instruction=f"Append the content of {other} to {name}.",
            files={name: content, other: more, **draw.noise(1)},
            expect=[text(name, content + more)],
            solution=[f"cat {other} >> {name}"],
        )
    root, word = draw.words(2)
    if level == 3:
        changed = {f"{root}/{draw.file('md')}": draw.text(2) for _ in range(5)}
        return Instance(
            instruction=f'Append the line "{line}" to every file ending in .md in the directory {root}.',
            files={**changed, **draw.noise(3, "txt", f"{root}/")},
            expect=[text(path, f"{held}{line}\n") for path, held in changed.items()],
            solution=[f'for f in {root}/*.md; do echo "{line}" >> "$f"; done'],
        )
    paths = draw.scatter(draw.tree(root, 8, odd=True), 30, "md", odd=True)
    hits = set(draw.sample(paths, 8))
    files = {
        path: joined([*without(draw.lines(2), word), *([f"see {word}"] if path in hits else [])]) for path in paths
    }
    return Instance(
        instruction=f'Append the line "{line}" to every file ending in .md in {root} and below it that contains the word '
        f"{word}.",
        files=files,
        expect=[text(path, f"{files[path]}{line}\n") for path in sorted(hits)],
        solution=[
            f"grep -rlwZ --include='*.md' {word} {root} | while IFS= read -r -d '' f; do "
            f'echo "{line}" >> "$f"; done'
        ],
    )


def replace(draw: Draw, level: int) -> Instance:
    """Replace text in place."""
    name, old, new = draw.file(), *draw.words(2)
    if level == 1:
        made = shuffled(draw, [f"{draw.line(1)} {old}", f"{old} {draw.line(1)} {old}", *without(draw.lines(3), old)])
        return Instance(
            instruction=f"Replace every {old} with {new} in the file {name}.",
            files={name: joined(made), **draw.noise(1)},
            expect=[text(name, joined(made).replace(old, new))],
            solution=[f"sed -i 's/{old}/{new}/g' {name}"],
        )
    mark = draw.word()
    if level == 2:
        made = [f"{draw.pick((mark, 'else'))}: {old} {draw.line(1)} {old}" for _ in range(8)] + [f"{mark}: {old}"]
        after = [line.replace(old, new) if line.startswith(f"{mark}:") else line for line in made]
        return Instance(
            instruction=f"In the file {name} replace every {old} with {new}, but only on lines that begin with {mark}.",
            files={name: joined(made), **draw.noise(1)},
            expect=[text(name, joined(after))],
            solution=[f"sed -i '/^{mark}/s/{old}/{new}/g' {name}"],
        )
    root = draw.word()
    folders = draw.tree(root, 4 if level == 3 else 8, odd=level == 4)
    n = 5 if level == 3 else 20
    paths, others = draw.scatter(folders, n, "txt", odd=level == 4), draw.scatter(folders, n, "md")
    if level == 4:
        old, new = f"http://{old}.org/a.b/{mark}", f"https://{new}.net/c&d/{draw.word()}"
    files = {path: joined([*draw.lines(2), f"{old} and {old}"]) for path in paths + others}
    decoy = {f"{root}/{draw.file('txt')}": old.replace(".", "x") + "\n"} if level == 4 else {}
    where = f"every file ending in .txt in {root} and below it"
    shown = (f"`{old}`", f"`{new}`") if level == 4 else (old, new)
    script = f"s|{old.replace('.', chr(92) + '.')}|{new.replace('&', chr(92) + '&')}|g"
    return Instance(
        instruction=f"Replace every {shown[0]} with {shown[1]} in {where}.",
        files={**files, **decoy},
        expect=[text(path, files[path].replace(old, new)) for path in paths],
        solution=[f"find {root} -type f -name '*.txt' -exec sed -i {quote(script)} {{}} +"],
    )


def dedupe(draw: Draw, level: int) -> Instance:
    """Duplicate lines: drop, find and count them."""
    name, target, pool = draw.file(), draw.file(), draw.words(5)
    if level == 1:
        made = jumbled(draw, pool + draw.sample(pool, 3))
        return Instance(
            instruction=f"Write the lines of {name} sorted and without duplicates into {target}.",
            files={name: joined(made), **draw.noise(1)},
            expect=[lines(target, sorted(pool))],
            solution=[f"sort -u {name} > {target}"],
        )
    made = jumbled(draw, pool + [draw.pick(pool) for _ in range(9)])
    if level == 2:
        return Instance(
            instruction=f"Write the lines of {name} without duplicates into {target}, keeping the order in which they "
            "first appear.",
            files={name: joined(made), **draw.noise(2)},
            expect=[lines(target, list(dict.fromkeys(made)))],
            solution=[f"awk '!seen[$0]++' {name} > {target}"],
        )
    if level == 3:
        counts = dict(zip(pool, draw.sample(range(1, 12), 5), strict=True))
        many = jumbled(draw, [word for word, times in counts.items() for _ in range(times)])
        ranked = sorted(counts, key=lambda word: -counts[word])
        return Instance(
            instruction=f"Write the different lines of {name}, the most frequent first, each once, into {target}.",
            files={name: joined(many), **draw.noise(2)},
            expect=[lines(target, ranked)],
            solution=[f"sort {name} | uniq -c | sort -nr | awk '{{print $2}}' > {target}"],
        )
    one, two, shared = draw.odd("txt"), draw.odd("txt"), draw.words(12)
    first = jumbled(draw, shared + draw.words(30) + shared[:4])
    second = jumbled(draw, shared + draw.words(30) + shared[2:7])
    return Instance(
        instruction=f"Write the lines that `{one}` and `{two}` have in common into {target}, sorted, each once.",
        files={one: joined(first), two: joined(second), **draw.noise(6)},
        expect=[lines(target, sorted(shared))],
        solution=[f"LC_ALL=C comm -12 <(LC_ALL=C sort -u {quote(one)}) <(LC_ALL=C sort -u {quote(two)}) > {target}"],
    )


LOG_LEVELS = ("INFO", "WARN", "ERROR")

FAMILIES = {
    "count": count, "grep": grep, "sort": sort, "head": head, "append": append, "replace": replace, "dedupe": dedupe,
}  # fmt: skip


def without(made: list[str], word: str) -> list[str]:
    """The lines that do not contain `word`, and at least one."""
    return [line for line in made if word not in line] or ["nothing here"]


def shuffled(draw: Draw, made: list[str]) -> list[str]:
    """The lines in another order."""
    return draw.sample(made, len(made))


def jumbled(draw: Draw, made: list[str]) -> list[str]:
    """The lines in an order that is not the sorted one."""
    while (mixed := shuffled(draw, made)) == sorted(made):
        pass
    return mixed
