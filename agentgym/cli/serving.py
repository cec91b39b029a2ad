"""`serve` and `turns`: the gateway, and how it took what it was asked."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agentgym.cli.console import ProgressView, err, out, print_json, run
from agentgym.cli.options import program
from agentgym.config import Config, load_config
from agentgym.errors import UsageError
from agentgym.run import Run

Overrides = Annotated[list[str] | None, typer.Argument(help="config overrides, key=value")]
SAY_EVERY_S = 60.0


def add_to(app: typer.Typer) -> None:
    app.command()(serve)
    app.command()(turns)


def serve(
    config: Annotated[str, typer.Argument(help="a config file, or the name of one that ships (`live`)")],
    overrides: Overrides = None,
    new_key: Annotated[
        str, typer.Option("--new-key", metavar="USER", help="make an API key for USER, print it once, and stop")
    ] = "",
) -> None:
    """Serve a model as an OpenAI-compatible endpoint that keeps what is said; called again, it goes on in its folder."""
    settings = load_config(config, overrides or [])
    if new_key:
        _new_key(settings, new_key)
        return
    from agentgym.gateway.keys import Keys, check_binding, keys_file
    from agentgym.live import check_live
    from agentgym.models import resolve_model

    check_live(settings)
    check_binding(settings.gateway)
    Keys(keys_file(settings.gateway))
    folder = Path(settings.dir) / f"{settings.name}-s{settings.seed}"
    with ProgressView(lambda what: "") as progress:
        model = resolve_model(settings.model.path, progress=lambda remark: progress("model", 0, 0, remark))
        opened = (
            Run.open(folder, overrides or []) if (folder / "config.yaml").exists() else Run.create(settings, folder)
        )
        opened.save_config()
        try:
            run(
                _serve(opened, model, progress),
                when_stopped=f"what was said is in {folder}: {program()} status {folder}",
            )
        finally:
            opened.close()


def turns(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a gateway's run")],
    n: Annotated[int, typer.Option(help="how many of the last turns")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """How the last requests were taken, and why: main or side, of which session, and what became of them."""
    from agentgym.gateway.ledger import Ledger

    ledger = Ledger(folder / "store.sqlite", read_only=True)
    try:
        rows = ledger.overview(n)
    finally:
        ledger.close()
    if as_json:
        print_json(rows)
        return
    table = Table("time", "user", "session", "taken", "why", "fate")
    for row in rows:
        when = datetime.fromtimestamp(row["created"], UTC).astimezone().strftime("%H:%M:%S")
        kind = f"{row['kind']}: {row['label'] or row['relation']}"
        table.add_row(when, row["user"], row["session"], kind, row["why"], row["fate"])
    out.print(table)


async def _serve(opened: Run, model: Path, progress: ProgressView) -> None:
    from agentgym.gateway.serve import listen
    from agentgym.live import live

    listening = listen(opened.config.gateway)
    logging.basicConfig(filename=opened.folder / "log.txt", format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("agentgym").setLevel(logging.INFO)
    async with live(opened, model, listening, lambda what, remark: progress(what, 0, 0, remark)) as running:
        gateway = running.gateway
        err.print(f"serving {gateway.model} at {running.url}", highlight=False, markup=False, soft_wrap=True)
        began, learning = time.monotonic(), running.learning
        while True:
            if learning is None:
                await asyncio.sleep(SAY_EVERY_S)
            elif (await asyncio.wait([learning], timeout=SAY_EVERY_S))[0]:
                error = learning.exception()
                opened.log(f"learning stopped: {error!r}" if error else "learning stopped by a guard rail")
                why = f"{error.exceptions[0]}" if isinstance(error, BaseExceptionGroup) else f"{error or 'an alarm'}"
                err.print(f"learning stopped, serving goes on: {why} (see {opened.folder / 'log.txt'})", markup=False)
                learning = None
            fates = await gateway.stored(gateway.ledger.fates)
            progress("serving", sum(fates.values()), 0, f"{(time.monotonic() - began) / 60:.0f} min, {fates}")


def _new_key(settings: Config, user: str) -> None:
    from agentgym.gateway.keys import keys_file, new_key

    path = keys_file(settings.gateway)
    if path is None:
        raise UsageError("say where keys are kept: set gateway.keys=FILE in the config, or as an argument")
    key = new_key(path, user)
    err.print(f"a key for {user}, kept in {path} as a hash: it is shown this once", highlight=False, markup=False)
    print(key)
