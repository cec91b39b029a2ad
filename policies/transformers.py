"""The model in this process, by transformers: the fallback where vLLM is not installed. Slow, and exact."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from agentgym.config import Config
from agentgym.errors import EngineError
from agentgym.policies.serving import Sampled, TokenPolicy
from agentgym.policies.weights import check_fit, shapes, weight_files
from agentgym.policy import Piece
from agentgym.types import FinishReason, Sampling

ADMIT_EVERY = 16  # steps between admissions into a running batch: each one computes its prefixes anew


@dataclass(eq=False)
class Request:
    """One completion in the making."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    generator: torch.Generator
    done: Future[Sampled] = field(default_factory=Future)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    tell: Callable[[Piece], None] = lambda piece: None  # of each token, from the engine's thread

    def finish(self, reason: FinishReason) -> None:
        """Hand over what was sampled."""
        _settle(self.done, Sampled(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), reason))


class TransformersPolicy(TokenPolicy):
    """Serves `model` in a thread of this process, concurrent requests as one left-padded batch.

    consumes: requests and weight updates; produces: completions; waits for: the first request; is unblocked by: any
    request, update or close. Weights change between two decoding steps; what is in flight goes on with the new ones,
    its cache made anew.
    """

    def __init__(self, config: Config, *, model: Path, folder: Path, version: int = 0) -> None:
        super().__init__(config, model=model, folder=folder, version=version)
        self._shapes = shapes(model)
        self._wake = threading.Condition()
        self._waiting: list[Request] = []
        self._updates: list[tuple[Path, int, Future[None]]] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._network: Any = None

    async def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Load the model.

        Raises:
            EngineError: it cannot be loaded.
        """
        progress(f"loading {self.model.name}")
        try:
            self._network = await asyncio.to_thread(self._load)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise EngineError(f"transformers cannot load {self.model}: {reason}") from error
        self.batch = Batch(self._network, self.template.stop_ids, self._ends_by_text)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="transformers-policy", daemon=True)
        self._thread.start()

    async def sample(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sampled:
        """Sample after `prompt_ids`; cancelling the task takes the request out of the batch."""
        request = self._request(prompt_ids, sampling)
        self._put(self._waiting, request)
        try:
            async with asyncio.timeout(self.config.engine.request_timeout_s):
                return await asyncio.wrap_future(request.done)
        except TimeoutError:
            limit = self.config.engine.request_timeout_s
            raise EngineError(f"a completion took longer than engine.request_timeout_s={limit:g} s") from None

    async def stream(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """The same, token by token; closing the iterator takes the request out of the batch."""
        request = self._request(prompt_ids, sampling)
        loop, limit = asyncio.get_running_loop(), self.config.engine.request_timeout_s
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        request.tell = lambda piece: _call_soon(loop, pieces.put_nowait, piece)
        done = asyncio.wrap_future(request.done)
        done.add_done_callback(lambda _: pieces.put_nowait(None))
        deadline = loop.time() + limit
        try:
            self._put(self._waiting, request)
            while True:
                async with asyncio.timeout_at(deadline):
                    piece = await pieces.get()
                if piece is None:
                    break
                yield piece
            sampled = done.result()
            yield Piece(finish_reason=sampled.finish_reason, versions=sampled.versions)
        except TimeoutError:
            raise EngineError(f"a completion took longer than engine.request_timeout_s={limit:g} s") from None
        finally:
            if not done.cancel() and not done.cancelled():
                done.exception()  # seen, whoever hung up

    async def update_weights(self, directory: Path, version: int) -> None:
        """Serve the weights in `directory` as `version`, from the next decoding step on.

        Raises:
            UsageError: the folder's weights do not fit; the old ones go on serving.
            EngineError: the policy is not running.
        """
        check_fit(directory, self._shapes)
        done: Future[None] = Future()
        self._put(self._updates, (directory, version, done))
        await asyncio.wrap_future(done)

    async def close(self) -> None:
        """Stop the thread and free the model; safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._wake:
                self._closing = True
                self._wake.notify()
            await asyncio.to_thread(thread.join)
            self._network = None

    def _request(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Request:
        if (largest := max(prompt_ids)) >= self._network_vocabulary():
            raise EngineError(f"token id {largest} is not in the model's vocabulary")
        if sampling.json_schema is not None:
            raise EngineError("engine.backend=transformers cannot hold an answer to a JSON schema")
        return Request(prompt_ids, sampling, _generator(sampling.seed))

    def _put(self, queue: list[Any], item: Any) -> None:
        with self._wake:
            if self._thread is None or not self._thread.is_alive():
                raise EngineError("the transformers policy is not running")
            queue.append(item)
            self._wake.notify()

    def _network_vocabulary(self) -> int:
        return self._network.config.vocab_size if self._network is not None else 1 << 62

    def _load(self) -> Any:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = getattr(torch, self.config.engine.dtype)
        logging.disable_progress_bar()
        network: Any = AutoModelForCausalLM.from_pretrained(self.model, dtype=dtype)
        return network.to(device).eval()

    def _serve(self) -> None:
        batch = self.batch
        error: Exception = EngineError("the transformers policy was closed")
        try:
            while not self._closing:
                self._admit(batch)
                if batch.requests:
                    batch.step(self.version)
        except Exception as failure:  # told to everybody who waits, and to who asks later
            error = EngineError(f"transformers failed: {(str(failure) or type(failure).__name__).splitlines()[0]}")
        with self._wake:
            self._closing = True
            left = [request.done for request in batch.requests + self._waiting] + [done for *_, done in self._updates]
            self._waiting.clear()
            self._updates.clear()
        for done in left:
            _settle(done, error)

    def _admit(self, batch: Batch) -> None:
        """Take in what waits: updates at once, requests when the batch may be made anew."""
        with self._wake:
            while not (self._closing or self._waiting or self._updates or batch.requests):
                self._wake.wait()
            updates = self._updates[:]
            self._updates.clear()  # in place, here and below: whoever is about to put something holds the list itself
            if not batch.requests or batch.steps >= ADMIT_EVERY:
                room = self.config.engine.max_num_seqs - len(batch.requests)
                batch.add(self._waiting[:room])
                del self._waiting[:room]
        for directory, version, done in updates:
            try:
                state = {name: tensor for path in weight_files(directory) for name, tensor in load_file(path).items()}
            except Exception as error:  # the old weights go on serving
                _settle(done, EngineError(f"cannot read the weights in {directory}: {error}"))
                continue
            self._network.load_state_dict(state, strict=False)  # a tied head is not in the files
            self.version = version
            batch.forget_cache()
            _settle(done, None)

    def _ends_by_text(self, request: Request) -> bool:
        if not request.sampling.stop:
            return False
        text = self.template.decode_response(tuple(request.ids)).content
        return any(stop in text for stop in request.sampling.stop)


class Batch:
    """Requests decoded together, left-padded, with a KV cache that is made anew whenever the batch changes."""

    def __init__(self, network: Any, stop_ids: tuple[int, ...], ends_by_text: Callable[[Request], bool]) -> None:
        self.network = network
        self.stop_ids = set(stop_ids)
        self.ends_by_text = ends_by_text
        self.requests: list[Request] = []
        self.steps = 0  # since the cache was made
        self._cache: Any = None
        self._mask: torch.Tensor | None = None

    def add(self, requests: list[Request]) -> None:
        """Take `requests` in."""
        if requests:
            self.requests += requests
            self.forget_cache()

    def forget_cache(self) -> None:
        """The next step computes all prefixes anew."""
        self._cache, self.steps = None, 0

    def step(self, version: int) -> None:
        """Sample one token for each request; those that end are handed over and leave."""
        self._drop([request for request in self.requests if request.done.done()])  # cancelled
        if not self.requests:
            return
        logits_BV = self._forward()
        for request, logits_V in zip(self.requests, logits_BV.float().cpu(), strict=True):
            logits_V = _penalised(logits_V, request)
            token, logprob = sample_token(logits_V, request.sampling, request.generator)
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(version)
            top = likeliest(logits_V, request.sampling) if request.sampling.top_logprobs else ()
            request.tell(Piece(ids=(token,), logprobs=(logprob,), top=(top,) if top else ()))
        self.steps += 1
        self._drop([request for request in self.requests if self._ended(request)])

    def _ended(self, request: Request) -> bool:
        if request.ids[-1] in self.stop_ids or self.ends_by_text(request):
            request.finish("stop")
        elif len(request.ids) >= request.sampling.max_tokens:
            request.finish("length")
        return request.done.done()

    def _drop(self, ended: list[Request]) -> None:
        if ended:
            keep = [row for row, request in enumerate(self.requests) if request not in ended]
            self.requests = [self.requests[row] for row in keep]
            if self._cache is not None and self._mask is not None:
                rows = torch.tensor(keep, device=self._mask.device, dtype=torch.long)
                self._mask = self._mask[rows]
                self._cache.batch_select_indices(rows)

    @torch.inference_mode()
    def _forward(self) -> torch.Tensor:
        device = self.network.device
        if self._cache is None:
            rows = [[*request.prompt_ids, *request.ids] for request in self.requests]
            width = max(map(len, rows))
            ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
            self._mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
            positions = (self._mask.cumsum(-1) - 1).clamp(min=0)
        else:
            assert self._mask is not None
            ids = torch.tensor([[request.ids[-1]] for request in self.requests], device=device)
            self._mask = torch.cat([self._mask, torch.ones_like(ids)], dim=-1)
            positions = self._mask.sum(-1, keepdim=True) - 1
        output = self.network(
            input_ids=ids, attention_mask=self._mask, position_ids=positions,
            past_key_values=self._cache, use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        self._cache = output.past_key_values
        return output.logits[:, -1]


def sample_token(logits_V: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[int, float]:
    """A token and its log-prob under the distribution sampled from: temperature, top-k and top-p included.

    Greedy (temperature 0) gives the log-prob at temperature 1.
    """
    if sampling.temperature == 0:
        logprobs_V = logits_V.log_softmax(-1)
        token = int(logprobs_V.argmax())
    else:
        logprobs_V = _truncate(logits_V / sampling.temperature, sampling).log_softmax(-1)
        token = int(torch.multinomial(logprobs_V.exp(), 1, generator=generator))
    return token, float(logprobs_V[token])


def likeliest(logits_V: torch.Tensor, sampling: Sampling) -> tuple[tuple[int, float], ...]:
    """The `top_logprobs` likeliest tokens of the distribution sampled from, with their log-probs."""
    scaled_V = _truncate(logits_V / sampling.temperature, sampling) if sampling.temperature else logits_V
    found = scaled_V.log_softmax(-1).topk(min(sampling.top_logprobs, len(scaled_V)))
    pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return tuple((id, logprob) for id, logprob in pairs if logprob > -torch.inf)


def _penalised(logits_V: torch.Tensor, request: Request) -> torch.Tensor:
    frequency, presence = request.sampling.frequency_penalty, request.sampling.presence_penalty
    if not (frequency or presence) or not request.ids:
        return logits_V
    counts_V = torch.bincount(torch.tensor(request.ids), minlength=len(logits_V))[: len(logits_V)]
    return logits_V - frequency * counts_V - presence * (counts_V > 0)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody listens
        loop.call_soon_threadsafe(call, *args)


def _truncate(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    if 0 < sampling.top_k < len(logits_V):
        logits_V = logits_V.masked_fill(logits_V < logits_V.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        sorted_V, order = logits_V.sort(descending=True)
        above = sorted_V.softmax(-1).cumsum(-1) - sorted_V.softmax(-1)  # mass of what is likelier
        logits_V = logits_V.index_fill(0, order[above >= sampling.top_p], -torch.inf)
    return logits_V


def _settle(future: Future[Any], outcome: Any) -> None:
    """Give a future its result or exception, unless who waits for it has cancelled it."""
    if future.set_running_or_notify_cancel():
        future.set_exception(outcome) if isinstance(outcome, Exception) else future.set_result(outcome)


def _generator(seed: int | None) -> torch.Generator:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator
