"""The official JavaScript client: whole, streamed, with tools, cancelled in the middle."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from agentgym.policies.mock import MockPolicyServer
from tests.gateway.conftest import gateway_before, saying

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym" / "node"
PROGRAM = """
import OpenAI from 'openai';
const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: 'Hello' }];
const tools = [{ type: 'function', function: { name: 'bash', parameters: { type: 'object', properties: {} } } }];
const whole = await client.chat.completions.create({ model: 'tiny', messages, tools });
const runner = client.chat.completions.stream({ model: 'tiny', messages, tools, stream_options: { include_usage: true } });
const final = await runner.finalChatCompletion();
const response = await client.responses.create({ model: 'tiny', input: 'Hello', tools: [{ type: 'function', name: 'bash', parameters: {} }] });
let refused = null;
try { await client.chat.completions.create({ model: 'other', messages }); } catch (error) { refused = [error.status, error.code]; }
const stream = await client.chat.completions.create({ model: 'tiny', messages: [{ role: 'user', content: 'Long' }], stream: true });
for await (const chunk of stream) { if (chunk.choices[0].delta.content) break; }
console.log(JSON.stringify({ whole: whole.choices[0].message, final: final.choices[0].message, usage: final.usage, output: response.output.map((item) => item.type), refused }));
"""


@pytest.fixture(scope="module")
def node_modules():
    """The npm package, installed once into the cache."""
    if not shutil.which("npm") or not shutil.which("node"):
        pytest.skip("no node here")
    import subprocess

    if not (PLACE / "node_modules" / "openai").is_dir():
        PLACE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(PLACE), "openai@7"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        if done.returncode:
            pytest.skip(f"npm cannot install openai: {done.stderr[:200]}")
    return PLACE


@pytest.mark.timeout(240)
async def test_the_javascript_client(folder, node_modules):
    said = 'Look: <tool_call>\n{"name": "bash", "arguments": {"command": "echo \\"é\\""}}\n</tool_call>'
    server: MockPolicyServer = saying(said)
    server.token_s = 0.002
    program = node_modules / f"program-{os.getpid()}.mjs"
    program.write_text(PROGRAM)
    try:
        async with gateway_before(server, folder) as (gateway, _, url):
            process = await asyncio.create_subprocess_exec(
                "node", str(program), url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            out, err = await asyncio.wait_for(process.communicate(), 100)
            assert process.returncode == 0, err.decode()
            found = json.loads(out)
            call = {"name": "bash", "arguments": '{"command": "echo \\"é\\""}'}
            for message in (found["whole"], found["final"]):
                assert message["content"] == "Look: " and message["tool_calls"][0]["function"] == call
            assert found["usage"]["completion_tokens"] > 10 and found["refused"] == [404, "model_not_found"]
            assert found["output"] == ["message", "function_call"]
            for _ in range(100):
                await asyncio.sleep(0.02)
                if sum(gateway.ledger.fates().values()) == 4:
                    break
            assert gateway.ledger.fates().get("rejected: aborted") == 1
    finally:
        program.unlink()
