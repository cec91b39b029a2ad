"""The real small model as it is trained on: served in bfloat16, compared with a float32 forward pass."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentgym.config import Config
from agentgym.models import resolve_model
from agentgym.policies.vllm import VLLMPolicy
from agentgym.policy import Session
from agentgym.types import Message, Prompt, Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.model, pytest.mark.timeout(400)]

QUESTIONS = (
    "List the files in the current directory.",
    "What is the capital of France?",
    "Write a shell command that counts the lines of notes.txt.",
    "Explain in one sentence why the sky is blue.",
    "Rename a.txt to b.txt with a bash command.",
    "Tell me a short story about a robot.",
)
# Measured over 6 x 64 tokens at temperature 1: mean and max |float32 - served| are set by bfloat16's 8 bits of
# mantissa, over 30 layers; a stale head or a wrong temperature moves the mean beyond 0.3.
MEAN, MAX = 0.08, 1.0


async def test_bfloat16_gap_is_small_before_and_after_an_update(tmp_path, capsys):
    model = resolve_model("smollm2-135m-instruct")
    policy = VLLMPolicy(Config(), model=model, folder=tmp_path)
    await policy.start()
    try:
        before = await answers(policy)
        await policy.update_weights(model, 1)
        after = await answers(policy)
    finally:
        await policy.close()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for completions, version in ((before, 0), (after, 1)):
        gaps = torch.cat([gap_T(network, completion) for completion in completions])
        with capsys.disabled():
            print(f"\nbf16 gap, version {version}: mean {gaps.mean():.4f}, max {gaps.max():.4f}, {len(gaps)} tokens")
        assert gaps.mean() < MEAN
        assert gaps.max() < MAX
        assert all(set(completion.versions) == {version} for completion in completions)
    assert any("Paris" in completion.message.content for completion in before + after)


async def answers(policy):
    prompts = [Prompt(messages=(Message(role="user", content=question),)) for question in QUESTIONS]
    asked = [
        policy(prompt, session=Session(str(seed)), sampling=Sampling(max_tokens=64, seed=seed))
        for seed, prompt in enumerate(prompts)
    ]
    return await asyncio.gather(*asked)


def gap_T(network, completion):
    """|float32 - served| of each of the T sampled tokens."""
    ids = torch.tensor([completion.prompt_ids + completion.ids])
    with torch.no_grad():
        logprobs_TV = network(ids).logits[0, len(completion.prompt_ids) - 1 : -1].log_softmax(-1)
    expected_T = logprobs_TV.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
    return (expected_T - torch.tensor(completion.logprobs)).abs()
