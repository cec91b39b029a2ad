"""`images`: what the Docker sandbox runs from, made from this machine's packages, a Dockerfile or a tar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from agentgym.cli.console import out, print_json

Json = Annotated[bool, typer.Option("--json", help="print as JSON")]


def add_to(app: typer.Typer) -> None:
    images = typer.Typer(no_args_is_help=True, help="Sandbox images: build, import, list.")
    images.command("build")(build)
    images.command("import")(import_tar)
    images.command("list")(list_images)
    app.add_typer(images, name="images")


def build(
    name: Annotated[str, typer.Argument(help="base, python, interpreter, or a folder with a Dockerfile")],
    tag: Annotated[str, typer.Option(help="name of an image from a folder")] = "",
    as_json: Json = False,
) -> None:
    """Make an image: `base`, `python` and `interpreter` from this machine's own packages, without a registry."""
    from agentgym.environments import images

    folder = Path(name)
    if name not in images.RECIPES and folder.is_dir():
        made = images.from_dockerfile(folder, tag or f"{images.REPOSITORY}/local:{images.folder_key(folder)}")
    else:
        made = images.build(name)
    _show([made], as_json)


def import_tar(path: Path, tag: str, as_json: Json = False) -> None:
    """Make an image from a tar: a root file system, or what `docker save` wrote."""
    from agentgym.environments import images

    _show([images.from_tar(path, tag)], as_json)


def list_images(as_json: Json = False) -> None:
    """The images that were made here."""
    from agentgym.environments import images

    _show(images.listed(), as_json)


def _show(found: list[Any], as_json: bool) -> None:
    if as_json:
        print_json([msgspec.to_builtins(image) for image in found])
        return
    table = Table()
    for column in ("image", "MB", "digest"):
        table.add_column(column)
    for image in found:
        table.add_row(image.name, f"{image.size / 1e6:.0f}", image.id.removeprefix("sha256:")[:12])
    out.print(table)
