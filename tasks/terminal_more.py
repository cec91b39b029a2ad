"""Families about finding files, permissions and links: find, permissions, link."""

from __future__ import annotations

from shlex import quote

from agentgym.tasks.terminal_draw import Draw, Instance, absent, lines, mode


def find(draw: Draw, level: int) -> Instance:
    """Write the paths of certain files into a file."""
    root, target = draw.word(), draw.file()
    folders = draw.tree(root, 4 if level < 4 else 8, odd=level == 4)
    extension = draw.pick(("md", "log", "csv", "cfg"))
    n = 4 if level < 4 else 14
    found, others = draw.scatter(folders, n, extension, odd=level == 4), draw.scatter(folders, n, "txt", odd=level == 4)
    files = {path: draw.text(1) for path in found + others}
    if level == 1:
        return Instance(
            instruction=f"Write the paths of all .{extension} files in {root} and below it into {target}.",
            files=files,
            expect=[lines(target, found, any_order=True, prefix="./")],
            solution=[f'find {root} -name "*.{extension}" > {target}'],
        )
    if level == 2:
        bare = [path.rsplit("/", 1)[1] for path in found]
        return Instance(
            instruction=f"Write the names, without directories, of all .{extension} files in {root} and below it into "
            f"{target}, sorted.",
            files=files,
            expect=[lines(target, sorted(bare))],
            solution=[f"find {root} -name '*.{extension}' -printf '%f\\n' | LC_ALL=C sort > {target}"],
        )
    limit = draw.number(200, 900)
    sizes = {
        path: limit + draw.number(1, 300) if index % 2 else draw.number(1, limit) for index, path in enumerate(files)
    }
    files = {path: (files[path] * size)[:size] for path, size in sizes.items()}
    if level == 3:
        return Instance(
            instruction=f"Write the paths of all files in {root} and below it that are larger than {limit} bytes into "
            f"{target}, sorted.",
            files=files,
            expect=[lines(target, sorted(path for path in files if sizes[path] > limit), any_order=True, prefix="./")],
            solution=[f"find {root} -type f -size +{limit}c | LC_ALL=C sort > {target}"],
        )
    skipped = draw.word()
    hidden = {f"{root}/{skipped}/{draw.odd(extension)}": "x" * (limit + 5) for _ in range(3)}
    wanted = [path for path in found if sizes[path] > limit]
    return Instance(
        instruction=f"Write the paths of all .{extension} files larger than {limit} bytes in {root} and below it, except "
        f"those in {root}/{skipped}, into {target}, sorted.",
        files={**files, **hidden},
        expect=[lines(target, sorted(wanted), any_order=True, prefix="./")],
        solution=[
            f"find {root} -path {root}/{skipped} -prune -o -type f -name '*.{extension}' -size +{limit}c -print "
            f"| LC_ALL=C sort > {target}"
        ],
    )


def permissions(draw: Draw, level: int) -> Instance:
    """Change permissions."""
    name = draw.file(draw.pick(("sh", "py", "txt", "cfg")))
    if level == 1:
        bits = draw.pick(("600", "640", "700", "750", "755", "444", "400", "775"))
        return Instance(
            instruction=f"Set the permissions of {name} to {bits}.",
            files={name: "echo hi\n", **draw.noise(1)},
            expect=[mode(name, bits)],
            solution=[f"chmod {bits} {name}"],
        )
    if level == 2:
        who, bits, change = draw.pick(
            (
                ("make it executable for its owner only", "744", "u+x"),
                ("make it executable for everybody", "755", "a+x"),
                ("take all rights away from others", "640", "o-rwx"),
                ("let its group write to it too", "664", "g+w"),
            )
        )
        return Instance(
            instruction=f"Change the permissions of {name}, now 644: {who}, and leave the rest.",
            files={name: "echo hi\n", **draw.noise(2)},
            expect=[mode(name, bits)],
            solution=[f"chmod {change} {name}"],
        )
    root = draw.folder()
    folders = draw.tree(root, 4 if level == 3 else 7, odd=level == 4)
    n = 5 if level == 3 else 12
    scripts, others = draw.scatter(folders, n, "sh", odd=level == 4), draw.scatter(folders, n, "txt", odd=level == 4)
    files = {path: draw.text(1) for path in scripts + others}
    run, read = draw.sample(("700", "750", "755", "500"), 1)[0], draw.pick(("600", "640", "440"))
    if level == 3:
        return Instance(
            instruction=f"Set the permissions of every .sh file in {root} and below it to {run}.",
            files=files,
            expect=[mode(path, run) for path in scripts],
            solution=[f"find {root} -type f -name '*.sh' -exec chmod {run} {{}} +"],
        )
    return Instance(
        instruction=f"In {root} and below it, set the permissions of every .sh file to {run}, of every other file to "
        f"{read}, and of every directory ({root} included) to 711.",
        files={**files, **{folder: {"dir": True} for folder in folders}},
        expect=[mode(path, run) for path in scripts]
        + [mode(path, read) for path in others]
        + [mode(folder, "711") for folder in folders],
        solution=[
            f"find {root} -type f -name '*.sh' -exec chmod {run} {{}} +",
            f"find {root} -type f ! -name '*.sh' -exec chmod {read} {{}} +",
            f"find {root} -type d -exec chmod 711 {{}} +",
        ],
    )


def link(draw: Draw, level: int) -> Instance:
    """Make and mend symbolic links."""
    name, target = draw.word(), draw.file()
    if level == 1:
        return Instance(
            instruction=f"Create the symbolic link {name} pointing to {target}.",
            files={target: draw.text(1), **draw.noise(1)},
            expect=[points(name, target)],
            solution=[f"ln -s {target} {name}"],
        )
    if level == 2:
        old = draw.file()
        return Instance(
            instruction=f"Change the symbolic link {name}, which points to {old}, so that it points to {target}.",
            files={old: draw.text(1), target: draw.text(1), name: {"link": old}},
            expect=[points(name, target)],
            solution=[f"ln -sfn {target} {name}"],
        )
    root, folder = draw.words(2)
    if level == 3:
        files = draw.noise(5, "txt", f"{root}/")
        names = [path.split("/")[1] for path in files]
        return Instance(
            instruction=f"In a new directory {folder} create, for every file in {root}, a symbolic link of the same name "
            f"with a relative target, such as ../{root}/NAME.",
            files=files,
            expect=[points(f"{folder}/{one}", f"../{root}/{one}") for one in names],
            solution=[f"mkdir {folder} && cd {folder} && ln -s ../{root}/* ."],
        )
    folders = draw.tree(root, 6, odd=True)
    real = {path: draw.text(1) for path in draw.scatter(folders, 12, "txt", odd=True)}
    good = {f"{path}.ln": {"link": path.rsplit("/", 1)[1]} for path in list(real)[:6]}
    broken = {path: {"link": draw.file()} for path in draw.scatter(folders, 7, "ln", odd=True)}
    extra = f"{root}/{draw.odd()}"
    return Instance(
        instruction=f"In {root} and below it, delete every symbolic link whose target does not exist, and then create "
        f"the symbolic link `{extra}` pointing to `{target}`.",
        files={**real, **good, **broken},
        expect=[*map(absent, broken), points(extra, target)],
        solution=[f"find {root} -xtype l -delete", f"ln -s {target} {quote(extra)}"],
    )


FAMILIES = {"find": find, "permissions": permissions, "link": link}


def points(path: str, target: str) -> dict[str, str]:
    """The expectation that a path is a symbolic link to `target`."""
    return {"kind": "link", "path": path, "target": target}
