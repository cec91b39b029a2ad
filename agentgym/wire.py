"""What an executor and its worker processes say to one another: msgpack frames over a pipe, each with its length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from agentgym.rollout import EpisodeRequest
from agentgym.types import Struct

LIMIT = 1 << 20  # bytes read ahead


class Start(Struct, frozen=True, kw_only=True, tag="start"):
    """To a worker, once: run this episode; it is called `key` from now on."""

    key: int
    request: EpisodeRequest


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    """To a worker: nobody waits for this episode any more."""

    key: int


class Stop(Struct, frozen=True, kw_only=True, tag="stop"):
    """To a worker: cancel what runs, free everything and end."""


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """From a worker, once: its policy is made."""

    pid: int


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    """From a worker: it cannot work. `kind` is a class of agentgym.errors."""

    kind: str
    reason: str


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """From a worker, once for each episode that was not cancelled; `trajectory` is a Trajectory."""

    key: int
    trajectory: msgspec.Raw


class Cancelled(Struct, frozen=True, kw_only=True, tag="cancelled"):
    """From a worker, once for each other episode: it is gone."""

    key: int


class Stuck(Struct, frozen=True, kw_only=True, tag="stuck"):
    """From a worker: one of its episodes cannot be ended but by ending the worker."""

    reason: str


class Beat(Struct, frozen=True, kw_only=True, tag="beat"):
    """From a worker, again and again: its event loop runs."""

    lag_s: float  # the longest that the loop kept a timer waiting since the last beat
    running: int  # episodes


ToWorker = Start | Cancel | Stop
FromWorker = Ready | Refused | Ended | Cancelled | Stuck | Beat

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


def send(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Send one frame; one to a peer that is gone is dropped."""
    if not writer.is_closing():
        writer.write(len(body).to_bytes(8, "big") + body)


async def receive(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None once the peer is gone."""
    try:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Frames until the peer is gone."""
    while (frame := await receive(reader)) is not None:
        yield frame
