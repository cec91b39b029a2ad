"""A gateway on a socket before a real tiny model, and the official clients."""

from contextlib import AsyncExitStack, asynccontextmanager

import openai
import pytest

from agentgym.config import Config
from agentgym.gateway.serve import served
from agentgym.models import resolve_model
from agentgym.policies.http import HTTPPolicy
from agentgym.policies.mock import MockPolicyServer
from agentgym.policies.vllm import VLLMPolicy


def tiny_config(**gateway):
    config = Config()
    config.model.path, config.model.max_length = "tiny", 1024
    config.engine.dtype, config.engine.max_num_seqs, config.engine.kv_cache_gib = "float32", 64, 0.25
    config.gateway.port = 0
    for name, value in gateway.items():
        setattr(config.gateway, name, value)
    return config


class MockedPolicy(VLLMPolicy):
    """The vLLM policy in front of the mock server: its tokens and its pace to order."""

    def __init__(self, config, folder, server):
        super().__init__(config, model=resolve_model("tiny"), folder=folder)
        self.server = server


@asynccontextmanager
async def gateway_before(server, folder, **settings):
    """A gateway before a mock engine, with an `openai` client: (gateway, client, url)."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server)
        policy = MockedPolicy(tiny_config(**settings), folder, server)
        policy.client = HTTPPolicy(policy.config, url=server.url, template=policy.template)
        stack.push_async_callback(policy.client.close)
        gateway, url = await stack.enter_async_context(served(policy, policy.config, folder / "store.sqlite"))
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30)
        stack.push_async_callback(client.close)
        yield gateway, client, url


def saying(*texts):
    """A mock engine that says `texts` in turn, then the last one again: it answers with the tiny model's ids."""
    from agentgym.policies.template import ChatTemplate

    template = ChatTemplate(resolve_model("tiny"))
    answers = [[*template.tokenizer.encode(text, add_special_tokens=False).ids, template.turn_end] for text in texts]

    def answer(prompt, params, rng):
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return MockPolicyServer(answer=answer)


@pytest.fixture
def folder(tmp_path):
    return tmp_path
