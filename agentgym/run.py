"""A run folder: config, store, metrics, checkpoints and log of one training run, owned by one process at a time."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from agentgym.config import Config, check_resumable, load_config, to_yaml
from agentgym.errors import UsageError
from agentgym.metrics import MetricsWriter
from agentgym.store import Store

T = TypeVar("T")
SHOW_EVERY_S = 0.5
LOCK_S = 0.5


class Run:
    """An open run folder.

    `progress` holds what has been done, stage by stage (`progress.json`, replaced atomically), so that a stopped run
    goes on where it was.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config
        self._lock = lock(folder)
        self.store = Store(folder / "store.sqlite")
        self.metrics = MetricsWriter(folder)
        self.life = self.store.new_life()
        self.doing: dict[str, Any] = {}
        self.progress: dict[str, Any] = read_json(folder / "progress.json") or {}
        self._store_thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._shown = 0.0
        self.began = time.monotonic()
        self.earlier_seconds = float(self.progress.get("seconds", 0.0))

    @classmethod
    def create(cls, config: Config, folder: Path | None = None) -> Run:
        """Make the folder of a new run; one that exists already is refused."""
        folder = folder or Path(config.dir) / f"{config.name}-s{config.seed}"
        if (folder / "config.yaml").exists():
            raise UsageError(
                f"{folder} exists: go on with `agentgym train --resume {folder}`, or choose another name=..."
            )
        make_folder(folder)
        write_text(folder / "config.yaml", to_yaml(config))
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path, overrides: list[str] | None = None) -> Run:
        """Open an existing run to go on with it, under its own config; overrides become part of it.

        Raises:
            ConfigError: an override changes what the run's data depend on.
        """
        config = read_config(folder, overrides)
        check_resumable(read_config(folder), config)
        return cls(folder, config)

    def save_config(self) -> None:
        """Make the config, overrides included, that of the run from now on."""
        write_text(self.folder / "config.yaml", to_yaml(self.config))

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def seconds(self) -> float:
        """Wall seconds spent on this run, over all its lives."""
        return self.earlier_seconds + time.monotonic() - self.began

    def save_progress(self, **values: Any) -> None:
        """Remember that something is done."""
        self.progress.update(values, seconds=self.seconds)
        write_text(self.folder / "progress.json", json.dumps(self.progress, indent=1))

    async def stored(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the store in its own thread, in the order of the calls, so that the event loop never waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._store_thread, partial(work, *args, **kwargs))

    def show(self, doing: dict[str, Any], *, now: bool = False) -> None:
        """Tell `agentgym status --watch` what is going on (`live.json`), at most twice a second."""
        self.doing.update(doing)
        if now or time.monotonic() - self._shown > SHOW_EVERY_S:
            self._shown = time.monotonic()
            write_text(self.folder / "live.json", json.dumps({**self.doing, "time": time.time()}))

    def log(self, text: str) -> None:
        """A line for `log.txt`, with the time."""
        with (self.folder / "log.txt").open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def close(self) -> None:
        """Let go of the folder; safe to call after any failure."""
        self._store_thread.shutdown()
        with suppress(OSError):  # on a full disk the first error tells more, and what counts is in the store
            self.save_progress()
            (self.folder / "live.json").unlink(missing_ok=True)
        with suppress(OSError):
            self.metrics.close()
        self.store.close()
        self._lock.close()


def read_config(folder: Path, overrides: list[str] | None = None) -> Config:
    """The config of an existing run folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UsageError(f"{folder} is no run folder: it has no config.yaml")
    return load_config(path, overrides or [])


def lock(folder: Path) -> IO[str]:
    """Own the folder until the file is closed or the process ends; refused, with the pid, if another one does."""
    try:
        file = (folder / "lock").open("a+")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < deadline:  # `agentgym status` holds it for a moment, to see who has it
                time.sleep(0.02)
                continue
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise UsageError(
                f"{folder} is in use by the process with pid {owner}: wait for it, or stop it first"
            ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def owner_of(folder: Path) -> int | None:
    """The pid of the process that works on the folder, if any."""
    path = folder / "lock"
    if not path.is_file():
        return None
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read().strip() or 0) or None
    return None


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """The JSON in `path`, or None if there is no such file."""
    try:
        return json.loads(path.read_text()) if path.is_file() else None
    except ValueError as error:
        raise UsageError(f"{path} is damaged ({error}): delete it, or restore it from a copy") from error


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
