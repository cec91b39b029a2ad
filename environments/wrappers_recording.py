"""Recordings of episodes: what was said as an asciinema cast, pictures beside it, and a film where the environment makes one.

An environment with a method `record(folder: Path)` is told before each reset where the film of the coming episode may
go (the folder is not made yet); whoever wraps it need not know how it films.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentgym.env import Env, Info
from agentgym.environments.wrappers import Wrapper, over, positive
from agentgym.types import Image, Message, Observation, StepResult, Task, new_id
from agentgym.untrusted import stripped

log = logging.getLogger(__name__)

MAX_CHARS = 20_000  # of one message
HEAD = {"assistant": "\x1b[1;32mpolicy\x1b[0m", "user": "\x1b[1;34muser\x1b[0m", "tool": "\x1b[1;34mtool\x1b[0m"}


class Recording(Wrapper):
    """Writes `<folder>/<task>-<random>.cast` (asciicast v2: `asciinema play`), line by line as the episode goes.

    Pictures of the observations go into `<folder>/<task>-<random>/0001.jpeg` and so on, and so does the environment's
    own film, if it makes one. A recording that cannot be written is given up, with a warning; the episode goes on.

    Args:
        folder: where; made if need be. Relative to the working directory.
        every: records each `every`-th episode of this environment, beginning with the first.
    """

    def __init__(
        self, env: Env, *, folder: str = "recordings", every: int = 1, width: int = 100, height: int = 30
    ) -> None:
        super().__init__(env)
        self.folder, self.every = Path(folder), int(positive("recording", every=every))
        self.width, self.height = positive("recording", width=width), positive("recording", height=height)
        self.episodes = 0
        self.cast: Cast | None = None

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        self.cast = None
        task = (options or {}).get("task")
        wanted = self.episodes % self.every == 0
        self.episodes += 1
        stem = self.folder / name_of(task)
        film: Callable[[Path], None] | None = getattr(self.unwrapped, "record", None)
        if wanted and callable(film):
            film(stem)
        observation, info = await super().reset(seed=seed, options=options)
        if wanted:
            self.cast = Cast(stem)
            title = task.id if isinstance(task, Task) else ""
            await self._write(Cast.begin, self.width, self.height, title)
            await self._write(Cast.say, observation.messages)
            info = {**info, "recording": f"{stem}.cast"}
        return observation, info

    async def step(self, action: Message) -> StepResult:
        await self._write(Cast.say, (action,))
        result = await super().step(action)
        await self._write(Cast.say, result.observation.messages)
        if over(result):
            how = "terminated" if result.terminated else "truncated"
            await self._write(Cast.line, f"\x1b[1m{how}, reward {result.reward:g}\x1b[0m")
        return result

    async def _write(self, what: Callable[..., None], *args: object) -> None:
        if self.cast is None:
            return
        try:
            await asyncio.to_thread(what, self.cast, *args)
        except OSError as error:
            log.warning("%s.cast cannot be written, and is given up: %s", self.cast.stem, error)
            self.cast = None


class Cast:
    """One asciicast v2 file, and the pictures that belong to it."""

    def __init__(self, stem: Path) -> None:
        self.stem = stem
        self.path = stem.with_name(f"{stem.name}.cast")
        self.began = time.monotonic()
        self.pictures = 0

    def begin(self, width: int, height: int, title: str) -> None:
        """Write the header."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        header = {"version": 2, "width": width, "height": height, "timestamp": int(time.time()), "title": title}
        self.path.write_text(json.dumps(header) + "\n", encoding="utf-8")

    def say(self, messages: Sequence[Message]) -> None:
        """Write messages, each under who said it, and their pictures."""
        for message in messages:
            calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
            text = "\n".join(filter(None, [message.content, *calls]))
            if len(text) > MAX_CHARS:
                text = f"{text[:MAX_CHARS]}\n[... {len(text) - MAX_CHARS} characters more ...]"
            self.line(f"{HEAD.get(message.role, message.role)}\n{stripped(text)}\n")
            for image in message.images:
                self.line(f"[picture {self._picture(image)}]\n")

    def line(self, text: str) -> None:
        """Write some output, at the time that it is."""
        event = [round(time.monotonic() - self.began, 3), "o", text.replace("\n", "\r\n") + "\r\n"]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def _picture(self, image: Image) -> str:
        self.pictures += 1
        self.stem.mkdir(exist_ok=True)
        path = self.stem / f"{self.pictures:04}.{re.sub(r'[^a-z]', '', image.mime.rpartition('/')[2]) or 'bin'}"
        path.write_bytes(image.data)
        return f"{self.stem.name}/{path.name}"


def name_of(task: object) -> str:
    """A file name for an episode of `task`: its id as far as it goes, and something that no other has."""
    id = task.id if isinstance(task, Task) else "episode"
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', id)[:80].lstrip('.')}-{new_id()}"
