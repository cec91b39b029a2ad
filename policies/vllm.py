"""The model behind a real vLLM server: token in, token out, its weights replaced while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from agentgym.config import Config
from agentgym.errors import EngineError
from agentgym.policies.serving import Sampled, TokenPolicy
from agentgym.policies.vllm_server import VLLMServer
from agentgym.policies.weights import check_fit, shapes, weight_files
from agentgym.types import FinishReason, Sampling

CONNECT_TRIES = 3
FINISH: dict[str, FinishReason] = {"length": "length", "abort": "abort"}
# The request did not reach the server, or the server hung up before it said a word: nobody has the answer.
UNANSWERED = (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError)


class VLLMPolicy(TokenPolicy):
    """Serves `model` by vLLM, on a CPU or on GPUs.

    Requests go through `/inference/v1/generate`, which takes and returns token ids and says which weight version
    sampled each. Log-probs are those of the distribution sampled from.
    """

    def __init__(self, config: Config, *, model: Path, folder: Path, version: int = 0) -> None:
        super().__init__(config, model=model, folder=folder, version=version)
        self.server = VLLMServer(config, model=model, folder=folder)
        self._shapes = shapes(model)
        self._http: aiohttp.ClientSession | None = None
        self._updating = asyncio.Lock()

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start vLLM and let it answer once.

        Raises:
            UsageError: the port is taken, or vLLM is not installed.
            EngineError: it failed or took too long; its last log lines follow the first line.
        """
        try:
            await self.server.start(progress)
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=self.server.headers)
            await self._post("/update_weight_version", {"new_version": str(self.version)})
            progress("vLLM: first tokens")
            await self.sample((0,), Sampling(max_tokens=2))
        except BaseException:
            await self.close()
            raise

    async def sample(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sampled:
        """Sample after `prompt_ids`; cancelling the task aborts the request in the engine."""
        body = {"token_ids": prompt_ids, "sampling_params": self._params(sampling)}
        answer = await self._post("/inference/v1/generate", body)
        choice = answer["choices"][0]
        versions: list[int] = []
        for span in choice["weight_versions"] or ():
            versions += [int(span["version"])] * (span["end"] - span["start"])
        logprobs = tuple(entry["logprob"] for entry in choice["logprobs"]["content"] or ())
        reason = FINISH.get(choice["finish_reason"], "stop")
        sampled = Sampled(tuple(choice["token_ids"]), logprobs, tuple(versions), reason)
        if not len(sampled.ids) == len(logprobs) == len(versions):
            raise EngineError(f"vLLM gave {len(sampled.ids)} ids, {len(logprobs)} log-probs, {len(versions)} versions")
        return sampled

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
        if self._http is not None:
            await self._http.close()
            self._http = None
        await self.server.stop()

    def _params(self, sampling: Sampling) -> dict[str, Any]:
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": self.template.stop_ids,
            "logprobs": 0,  # of the sampled token alone
        }
        if sampling.stop:
            params["stop"] = sampling.stop
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        return params

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """POST to the server; tries again only where nobody can have the answer."""
        limit = self.config.engine.request_timeout_s
        for attempt in range(CONNECT_TRIES):
            if self._http is None or not self.server.running:
                raise self.server.failure("vLLM is not running")
            try:
                async with self._http.post(
                    self.server.url + path, json=body, timeout=aiohttp.ClientTimeout(total=limit)
                ) as response:
                    if response.status != 200:
                        raise EngineError(f"vLLM: {path}: {response.status} {(await response.text())[:300]}")
                    return await response.json()
            except TimeoutError:
                raise EngineError(f"vLLM: {path} took longer than engine.request_timeout_s={limit:g} s") from None
            except UNANSWERED as error:
                if attempt == CONNECT_TRIES - 1:
                    raise EngineError(f"vLLM: {path}: {error}") from error
                await asyncio.sleep(0.2 * 2**attempt)
            except aiohttp.ClientError as error:
                raise EngineError(f"vLLM: {path}: {error}") from error
        raise AssertionError("unreachable")
