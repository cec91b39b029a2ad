"""The chat tests in the official client's source distribution, against the gateway.

Deviations: updating the metadata of a kept completion is not served; retrieving and deleting use an id that no server has
unless it was given out, which `test_endpoints` covers with real ids.
"""

import asyncio
import os
import sys
import tarfile
from importlib.metadata import version

import pytest

from tests.gateway.conftest import gateway_before, saying

SERVED = "create or path_params or (test_completions and list)"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_clients_own_chat_tests(folder):
    async def run(*command, **env):
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env={**os.environ, **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode, said.decode()

    name = f"openai-{version('openai')}"
    pip = (
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(folder),
    )
    code, said = await run(*pip, name.replace("-", "==", 1))
    if code:
        pytest.skip(f"no source distribution to be had: {said[-200:]}")
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    settings = {"model_names": ["*"], "requests_per_minute": 0}
    async with gateway_before(saying("word word"), folder, **settings) as (gateway, _, url):
        tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-k", SERVED)
        code, said = await run(*tests, "--rootdir", name, f"{name}/tests/api_resources/chat", TEST_API_BASE_URL=url)
        assert code == 0, said[-3000:]
        assert sum(gateway.ledger.fates().values()) >= 16
