from collections.abc import AsyncIterator

import pytest

from agentgym.environments.bubblewrap import why_not
from agentgym.environments.containers import no_docker
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox

KINDS = ["plain", "bubblewrap", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and why_not():
        pytest.skip(f"bubblewrap does not work here: {why_not()}")
    if request.param == "docker" and no_docker():
        pytest.skip(f"docker does not work here: {no_docker()}")
    return str(request.param)


@pytest.fixture
async def sandbox(kind: str) -> AsyncIterator[Sandbox]:
    made = open_sandbox(kind, Limits(output_bytes=4096))
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def walled() -> AsyncIterator[Sandbox]:
    if why_not():
        pytest.skip(f"bubblewrap does not work here: {why_not()}")
    made = open_sandbox("bubblewrap", Limits(processes=40, memory_mb=512, file_mb=1))
    await made.start()
    yield made
    await made.close()
