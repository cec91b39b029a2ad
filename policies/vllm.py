"""The model behind a real vLLM server: token in, token out, its weights replaced while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from agentgym.config import Config
from agentgym.policies.http import HTTPPolicy
from agentgym.policies.serving import Sampled, TokenPolicy
from agentgym.policies.vllm_server import VLLMServer
from agentgym.policies.weights import check_fit, shapes, weight_files
from agentgym.policy import Piece, PolicyAddress
from agentgym.types import Sampling


class VLLMPolicy(TokenPolicy):
    """Serves `model` by vLLM, on a CPU or on GPUs.

    `client` asks it, here and from the address in other processes: token ids in, token ids out, with the weight version
    that sampled each. Log-probs are those of the distribution sampled from.
    """

    structured = True

    def __init__(self, config: Config, *, model: Path, folder: Path, version: int = 0) -> None:
        super().__init__(config, model=model, folder=folder, version=version)
        self.server = VLLMServer(config, model=model, folder=folder)
        self._shapes = shapes(model)
        self.client: HTTPPolicy | None = None
        self._updating = asyncio.Lock()

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start vLLM and let it answer once.

        Raises:
            UsageError: the port is taken, or vLLM is not installed.
            EngineError: it failed or took too long; its last log lines follow the first line.
        """
        try:
            await self.server.start(progress)
            self.client = HTTPPolicy(self.config, url=self.server.url, key=self.server.key, template=self.template)
            await self._post("/update_weight_version", {"new_version": str(self.version)})
            progress("vLLM: first tokens")
            await self.sample((0,), Sampling(max_tokens=2))
        except BaseException:
            await self.close()
            raise

    @property
    def address(self) -> PolicyAddress | None:
        """How workers ask it while it serves."""
        return self.client.address if self.client is not None else None

    async def sample(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sampled:
        """Sample after `prompt_ids`; cancelling the task aborts the request in the engine."""
        return await self._reachable().sample(prompt_ids, sampling)

    async def stream(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """The same, piece by piece; closing the iterator aborts the request in the engine."""
        async with aclosing(self._reachable().stream(prompt_ids, sampling)) as pieces:
            async for piece in pieces:
                yield piece

    async def update_weights(self, directory: Path, version: int) -> None:
        """Serve the weights in `directory` as `version`.

        Requests in flight are frozen meanwhile; then they go on with the new weights, their cache made anew, so that
        each token's log-prob is that of its own version given all before it. New requests wait; none is refused.

        Raises:
            UsageError: the folder's weights do not fit; the old ones go on serving.
            EngineError: the engine failed.
        """
        check_fit(directory, self._shapes)
        update = asyncio.create_task(self._update(directory, version))
        try:
            await asyncio.shield(update)
        except asyncio.CancelledError:  # half an update would leave tokens with the wrong version
            await asyncio.wait([update])
            raise

    async def _update(self, directory: Path, version: int) -> None:
        async with self._updating:
            await self._post("/pause?mode=keep&clear_cache=false")
            try:
                await self._load(directory, version)
            finally:
                await self._post("/resume")

    async def _load(self, directory: Path, version: int, *, refresh_head: bool = True) -> None:
        files = [str(path.resolve()) for path in weight_files(directory)]
        await self._post("/start_weight_update")
        await self._post("/update_weights", {"update_info": {"files": files, "refresh_head": refresh_head}})
        await self._post("/finish_weight_update", {"weight_version": str(version)})
        await self._post("/reset_prefix_cache?reset_running_requests=true")
        self.version = version

    async def close(self) -> None:
        """Stop vLLM and everything that it started; safe to call twice."""
        if self.client is not None:
            await self.client.close()
            self.client = None
        await self.server.stop()

    async def _post(self, path: str, body: Any = None) -> bytes:
        return await self._reachable().post(path, body)

    def _reachable(self) -> HTTPPolicy:
        if self.client is None or not self.server.running:
            raise self.server.failure("vLLM is not running")
        return self.client
