"""An OpenAI-compatible endpoint that a config names: its URL and key checked, and a connection to it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from agentgym.errors import ConfigError


@dataclass(frozen=True)
class Endpoint:
    """Where it is, down to `/v1`, and the key that it wants."""

    base: str
    key: str = field(repr=False)

    @classmethod
    def of(cls, section: str, *, url: str, model: str, key_env: str) -> Endpoint:
        """The endpoint of a section of the config ("judge", "teacher").

        Raises:
            ConfigError: no URL of http, no model, or the variable that should hold the key is empty.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{section}.url={url!r}: expected http://HOST/v1 or https://HOST/v1")
        if parts.username or parts.password:
            raise ConfigError(
                f"{section}.url holds a user or a password: put the key into the variable {section}.key_env names"
            )
        if not model:
            raise ConfigError(f"{section}.url needs {section}.model: the name of a model there")
        key = os.environ.get(key_env, "") if key_env else ""
        if key_env and not key.strip():
            raise ConfigError(f"{section}.key_env={key_env}: that environment variable is not set, or is empty")
        base = url.rstrip("/")
        return cls(base if parts.path.strip("/") else f"{base}/v1", key)

    def connect(self) -> aiohttp.ClientSession:
        """A session without a limit of connections, and without a deadline: callers have their own."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(), headers=headers)
