"""The short form of `make chaos`."""

import pytest

from tests.chaos import torment

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("backend", "kills"), [("transformers", 5), pytest.param("vllm", 3, marks=pytest.mark.vllm)])
def test_a_run_survives_random_kills_and_its_books_balance(tmp_path, backend, kills):
    found = torment(tmp_path, kills=kills, seed=7, backend=backend)
    assert found["steps"] >= 3
    assert found["staleness_max"] <= 1
    assert sum(found["kills"].values()) >= kills
