"""A fuzzer over the OpenAPI document: no request, lawful or not, gets an answer that the document does not know."""

import asyncio
import logging
import threading

import hypothesis
import pytest

from tests.gateway.conftest import gateway_before, saying

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A gateway in a thread of its own: the fuzzer blocks."""
    ready, done = threading.Event(), threading.Event()
    found = {}

    async def serve():
        settings = {"requests_per_minute": 0, "model_names": ["*"]}
        async with gateway_before(saying("word " * 3), tmp_path_factory.mktemp("fuzz"), **settings) as (
            gateway,
            _,
            url,
        ):
            found.update(url=url.removesuffix("/v1"), gateway=gateway)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield found
    done.set()
    thread.join()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(300)
def test_the_document_is_what_the_gateway_does(served):
    logging.getLogger("agentgym").setLevel(logging.CRITICAL)
    schema = schemathesis.openapi.from_url(f"{served['url']}/openapi.json")
    checks = schemathesis.checks
    unlawful = [
        checks.CHECKS.get_one(name)
        for name in (
            "not_a_server_error",
            "status_code_conformance",
            "content_type_conformance",
            "response_schema_conformance",
        )
    ]
    asked = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            @hypothesis.settings(
                max_examples=12, deadline=None, database=None, derandomize=True,
                suppress_health_check=list(hypothesis.HealthCheck),
            )  # fmt: skip
            def fuzz(case):
                nonlocal asked
                asked += 1
                case.call_and_validate(checks=unlawful, timeout=60)

            try:
                fuzz()
            except hypothesis.errors.Unsatisfiable:
                assert mode is schemathesis.GenerationMode.NEGATIVE  # nothing of it can be wrong
    assert asked > 150
    assert served["gateway"].unrecorded == 0
