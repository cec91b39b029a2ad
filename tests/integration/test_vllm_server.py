"""Starting and ending the real vLLM server, whatever happens to it or to its owner."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agentgym.config import Config
from agentgym.errors import EngineError, UsageError
from agentgym.models import resolve_model
from agentgym.policies.vllm import VLLMPolicy
from agentgym.policies.vllm_server import VLLMServer
from agentgym.policy import Session
from agentgym.types import Prompt, Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

OWNER = """
import asyncio, sys, time
from pathlib import Path
from agentgym.config import Config
from agentgym.models import resolve_model
from agentgym.policies.vllm_server import VLLMServer
config = Config()
config.engine.dtype, config.engine.kv_cache_gib = "float32", 0.25
server = VLLMServer(config, model=resolve_model("tiny"), folder=Path(sys.argv[1]))
asyncio.run(server.start())
print("ready", server._process.pid, flush=True)
time.sleep(1000)
"""


def tiny_config():
    config = Config()
    config.engine.dtype, config.engine.kv_cache_gib = "float32", 0.25
    return config


def descendants(pid):
    """The processes that `pid` started, and theirs, itself included."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def gone(processes, seconds):
    """Whether all `processes` have ended within `seconds`; zombies have."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    """A process that owns a server; started while the tests before it run."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path_factory.mktemp("owner"))], stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_server_that_fails_to_start_shows_its_last_words(tmp_path):
    config = tiny_config()
    config.engine.args = ["--no-such-flag"]
    policy = VLLMPolicy(config, model=resolve_model("tiny"), folder=tmp_path)
    with pytest.raises(EngineError, match="no-such-flag") as caught:
        await policy.start()
    first = str(caught.value).splitlines()[0]
    assert "vLLM stopped" in first
    assert str(tmp_path / "vllm.log") in first
    assert not policy.server.running


async def test_a_server_that_takes_too_long_is_ended(tmp_path, owner):
    config = tiny_config()
    config.engine.start_timeout_s = 3
    server = VLLMServer(config, model=resolve_model("tiny"), folder=tmp_path)
    told, started = [], []

    def progress(text):
        told.append(text)
        started[:] = descendants(server._process.pid)

    with pytest.raises(EngineError, match=r"engine\.start_timeout_s=3 s"):
        await server.start(progress)
    assert told[0].startswith("starting vLLM: 0 s")
    assert len(started) > 1
    assert gone(started, 1)
    await server.stop()


async def test_a_dead_engine_is_an_engine_error_and_leaves_nothing(tmp_path, owner):
    policy = VLLMPolicy(tiny_config(), model=resolve_model("tiny"), folder=tmp_path)
    await policy.start()
    everything = descendants(policy.server._process.pid)
    engine = next(process for process in everything if process.name().startswith("VLLM::Eng"))
    sampling = Sampling(max_tokens=900, temperature=0.0)
    requests = [
        asyncio.create_task(policy(Prompt(ids=(1, 50 + n)), session=Session("s"), sampling=sampling)) for n in range(8)
    ]
    await asyncio.sleep(0.3)
    engine.kill()
    ends = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 20)
    assert any(isinstance(end, EngineError) for end in ends)
    assert not [end for end in ends if isinstance(end, Exception) and not isinstance(end, EngineError)]
    with pytest.raises(EngineError):
        await policy(Prompt(ids=(1, 50)), session=Session("s"), sampling=sampling)
    await policy.close()
    await policy.close()
    assert gone(everything, 10)


def test_an_owner_killed_leaves_nothing(owner):
    ready, pid = owner.stdout.readline().split()
    assert ready == "ready"
    everything = descendants(int(pid))
    assert len(everything) >= 3  # supervisor, API server, engine
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert gone(everything, 10)


async def test_a_taken_port_is_a_one_line_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = tiny_config()
        config.engine.port = taken.getsockname()[1]
        policy = VLLMPolicy(config, model=resolve_model("tiny"), folder=tmp_path)
        with pytest.raises(UsageError, match=f"port {config.engine.port} is taken") as caught:
            await policy.start()
    assert "\n" not in str(caught.value)


def test_the_plugin_is_found_light_and_silent():
    code = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "(found,) = [point for point in entry_points(group='vllm.general_plugins') if point.name == 'agentgym']\n"
        "register = found.load()\n"
        "assert 'vllm' not in sys.modules and 'torch' not in sys.modules\n"
        "register(); register()\n"
        "from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as factory\n"
        "assert 'agentgym' in factory._registry\n"
        "assert 'agentgym.policies.vllm_worker' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path("/"))
    assert done.returncode == 0, done.stderr
    assert "agentgym" not in done.stdout + done.stderr
