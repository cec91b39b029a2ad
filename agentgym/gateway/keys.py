"""API keys and what each may ask for. A key is known by its SHA-256 alone: keys are 32 random bytes, made here."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from agentgym.config import GatewayConfig
from agentgym.errors import UsageError
from agentgym.gateway.problems import Problem, limited, unauthorised
from agentgym.types import Struct

PREFIX = "sk-agentgym-"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOCAL = "local"  # the user where there are no keys


class Key(Struct, frozen=True, kw_only=True):
    """A key at rest."""

    user: str
    hash: str  # SHA-256 of the key, hexadecimal
    created: float = 0.0


class Keys:
    """The keys in a file of JSON lines; read again when it changes. Without a file everybody is let in, as one user."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read_at = (-1, -1)
        self._keys: tuple[Key, ...] = ()
        if path is not None:
            self._reread()
            if not self._keys:
                raise UsageError(f"{path} holds no keys: add one with `agentgym serve CONFIG --new-key USER`")

    def user_of(self, authorization: str | None, named: str | None = None) -> str:
        """The user whose key a request carries; without keys, whom the request names.

        Raises:
            Problem: 401, no key or a wrong one.
        """
        if self.path is None:
            return named or LOCAL
        self._reread()
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise unauthorised("You didn't provide an API key: send it as 'Authorization: Bearer KEY'.")
        digest = hash_of(given.strip())
        found = None
        for key in self._keys:  # all of them, so that the time tells nothing
            if hmac.compare_digest(key.hash, digest):
                found = key.user
        if found is None:
            raise unauthorised("Incorrect API key provided.")
        return found

    def _reread(self) -> None:
        assert self.path is not None
        try:
            stat = self.path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._read_at:
                lines = self.path.read_bytes().splitlines()
                self._keys = tuple(msgspec.json.decode(line, type=Key) for line in lines if line.strip())
                self._read_at = (stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            if self._keys:
                return  # those known so far go on
            raise UsageError(
                f"gateway.keys={self.path}: {error.strerror}: `agentgym serve CONFIG --new-key USER` makes a key"
            ) from error
        except msgspec.MsgspecError as error:
            raise UsageError(f"gateway.keys={self.path}: a line is no key: {error}") from error


def new_key(path: Path, user: str) -> str:
    """Make a key for `user`, add its hash to the file, and return it: it is told once."""
    key = PREFIX + secrets.token_urlsafe(32)
    line = msgspec.json.encode(Key(user=user, hash=hash_of(key), created=time.time())) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        file.write(line)
    return key


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def keys_file(settings: GatewayConfig) -> Path | None:
    return Path(settings.keys).expanduser() if settings.keys else None


def check_binding(settings: GatewayConfig) -> None:
    """Raise UsageError if anybody on the network could ask without a key."""
    if settings.host not in LOOPBACK and not settings.keys:
        raise UsageError(
            f"gateway.host={settings.host} is open to other machines: set gateway.keys (`agentgym serve CONFIG "
            "--new-key USER` makes one), or listen on 127.0.0.1"
        )


def check_origin(host: str | None, origin: str | None) -> None:
    """Without keys the gateway answers programs of this machine, not web pages that a browser on it shows.

    Raises:
        Problem: 403, a page of another site asks, or a name of another site stands for this machine.
    """
    for given in (host and f"//{host}", origin):
        name = urlsplit(given).hostname if given else None
        if name and name not in LOOPBACK and not name.startswith("127."):
            raise Problem(
                "Without API keys this server answers requests of its own machine alone.", status=403,
                kind="permission_error", code="forbidden_origin",
            )  # fmt: skip


class Limits:
    """How much a user may ask for: a bucket of requests that fills with time, and so many at once."""

    def __init__(self, per_minute: float, concurrency: int) -> None:
        self.per_minute, self.concurrency = per_minute, concurrency
        self._left: dict[str, tuple[float, float]] = {}  # user: requests left, when
        self._busy: dict[str, int] = defaultdict(int)

    @asynccontextmanager
    async def one(self, user: str) -> AsyncIterator[None]:
        """Room for one request while it is answered.

        Raises:
            Problem: 429, with when to ask again.
        """
        self.begin(user)
        try:
            yield
        finally:
            self.end(user)

    def begin(self, user: str) -> None:
        """Take a place; raises Problem (429)."""
        if self.concurrency and self._busy[user] >= self.concurrency:
            raise limited(f"{self.concurrency} requests at once are all that this key may make.", 1.0)
        if self.per_minute:
            now = asyncio.get_running_loop().time()
            left, when = self._left.get(user, (self.per_minute, now))
            left = min(self.per_minute, left + (now - when) * self.per_minute / 60)
            if left < 1:
                raise limited(
                    f"{self.per_minute:g} requests per minute are all that this key may make.",
                    (1 - left) * 60 / self.per_minute,
                )
            self._left[user] = (left - 1, now)
        self._busy[user] += 1

    def end(self, user: str) -> None:
        """Give the place back."""
        self._busy[user] -= 1
        if not self._busy[user]:
            del self._busy[user]
