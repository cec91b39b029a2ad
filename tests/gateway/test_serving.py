"""`agentgym serve` before a real engine: a process of its own, the official client, and what is left in the run folder."""

import json
import re
import signal
import subprocess
import sys

import openai
import pytest

from agentgym.gateway.ledger import Ledger

AGENTGYM = [sys.executable, "-m", "agentgym"]
HELLO = [{"role": "user", "content": "Hello"}]


def command(*args, **options):
    return subprocess.run([*AGENTGYM, *map(str, args)], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture
def settings(tmp_path):
    return [
        "live", f"dir={tmp_path}", "model.path=tiny", "model.max_length=512", "engine.backend=transformers",
        "engine.dtype=float32", "gateway.port=0", "trainer.micro_batch_tokens=512",
    ]  # fmt: skip


class Served:
    """The command, running; `url` is where it serves."""

    def __init__(self, settings):
        self.process = subprocess.Popen([*AGENTGYM, "serve", *settings], stderr=subprocess.PIPE, text=True)
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"serving \S+ at (\S+)", line):
                self.url = found[1]
                return
        raise AssertionError(self.said)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self.process.stderr.close()
        return code


def test_it_serves_and_a_restart_goes_on_where_it_was(settings, tmp_path):
    served = Served(settings)
    client = openai.OpenAI(base_url=served.url, api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    first = client.chat.completions.create(model="anything", messages=HELLO, max_tokens=8, seed=1)
    stream = client.chat.completions.create(model="anything", messages=HELLO, max_tokens=8, seed=1, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == first.choices[0].message.content  # the seed decides
    client.close()
    assert served.end(signal.SIGKILL) == -signal.SIGKILL

    served = Served(settings)
    client = openai.OpenAI(base_url=served.url, api_key="none", max_retries=0)
    on = [*HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": "More"}]
    again = client.chat.completions.with_raw_response.create(model="anything", messages=on, max_tokens=8)
    assert "relation=continued" in again.headers["x-agentgym-turn"]
    folder = tmp_path / "live-s0"
    status = json.loads(command("status", folder, "--json").stdout)
    assert sum(status["gateway"]["fates"].values()) == sum(status["gateway"]["taken"].values()) == 3
    assert "regenerated" in command("turns", folder).stdout
    ledger = Ledger(folder / "store.sqlite", read_only=True)
    rows = ledger.overview(10)
    ledger.close()
    assert [row["relation"] for row in rows] == ["new", "regenerated", "continued"]
    assert rows[2]["parent"] == rows[1]["id"] and rows[2]["why"]
    client.close()
    assert served.end() == 128 + signal.SIGTERM
    assert "Hello" not in (folder / "log.txt").read_text()


def test_it_is_open_to_others_only_with_keys(settings, tmp_path):
    refused = command("serve", *settings, "gateway.host=0.0.0.0")
    assert refused.returncode == 2 and "set gateway.keys" in refused.stderr
    keys = tmp_path / "keys"
    missing = command("serve", *settings, f"gateway.keys={keys}")
    assert missing.returncode == 2 and "--new-key" in missing.stderr + missing.stdout
    made = command("serve", *settings, f"gateway.keys={keys}", "--new-key", "ann")
    key = made.stdout.strip()
    assert key.startswith("sk-") and key not in keys.read_text() and oct(keys.stat().st_mode)[-3:] == "600"
    served = Served([*settings, f"gateway.keys={keys}", "gateway.host=0.0.0.0"])
    try:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url, api_key="sk-wrong", max_retries=0).models.list()
        assert openai.OpenAI(base_url=url, api_key=key).models.list().data
    finally:
        served.end()


def test_a_port_that_is_taken(settings):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = command("serve", *[item for item in settings if item != "gateway.port=0"], f"gateway.port={port}")
    assert refused.returncode == 2 and "Address already in use" in refused.stderr
