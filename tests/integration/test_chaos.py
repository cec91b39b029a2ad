"""The short form of `make chaos`."""

import os
import signal
import time

import pytest

from tests.chaos import Chaos, torment

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("backend", "kills"), [("transformers", 5), pytest.param("vllm", 3, marks=[pytest.mark.vllm, pytest.mark.slow])]
)
def test_a_run_survives_random_kills_and_its_books_balance(tmp_path, backend, kills):
    found = torment(tmp_path, kills=kills, seed=7, backend=backend)
    assert found["steps"] >= 3
    assert found["staleness_max"] <= 1
    assert sum(found["kills"].values()) >= kills


@pytest.mark.parametrize(
    ("number", "whole_group", "after_s"),
    [
        (signal.SIGINT, True, 2.0),
        (signal.SIGTERM, False, 7.0),
        (signal.SIGINT, True, 14.0),
        (signal.SIGHUP, False, 11.0),
    ],
)
def test_stopped_at_any_moment_it_says_how_to_go_on_and_leaves_nothing_running(tmp_path, number, whole_group, after_s):
    """Ctrl-C reaches the whole foreground group, TERM the command alone."""
    chaos = Chaos(tmp_path, seed=0, backend="transformers")
    life = chaos.start(steps=1000)
    time.sleep(after_s)
    (os.killpg if whole_group else os.kill)(life.pid, number)
    assert life.wait(timeout=60) == 128 + number
    chaos.check_gone()
    if after_s > 5:
        said = chaos.log.read_text()
        assert "stopped. go on with: " in said and f" train --resume {chaos.run}" in said
        assert "Traceback" not in chaos.log.read_text()
