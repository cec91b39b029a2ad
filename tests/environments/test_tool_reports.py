"""Faults that users of other systems reported of tool calls and of vectors, each kind with an input of our own."""

import asyncio
import json

import gymnasium
import numpy as np
import pytest

from agentgym.config import RolloutConfig
from agentgym.environments.adapter import FromGymnasium, GymEnv
from agentgym.environments.toolcall import ToolCallEnv
from agentgym.policies.formats import make_format
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.rollout import EpisodeRequest, run_episode
from agentgym.types import Message, Sampling, Task, ToolCall

CALL = '<tool_call>{"name": "run", "arguments": {"command": "mkdir -p test/{one,two"}}</tool_call>'


@pytest.mark.parametrize("name", ["hermes", "json", "llama3", "mistral", "qwen_xml", "openai"])
def test_no_beginning_of_a_message_holds_another_call_than_the_whole(name):
    """A stream is read as it grows: what is a call once stays that call."""
    given = {"command": "mkdir -p test/{one,two", "n": 12}
    call = ToolCall(id="c", name="run", arguments=json.dumps(given))
    text = make_format(name).render(Message(role="assistant", tool_calls=(call,)))
    for length in range(len(text) + 1):
        for parsed in make_format(name).parse(text[:length]).calls:
            assert (parsed.name, json.loads(parsed.arguments)) == ("run", given)
    assert len(make_format(name).parse(text).calls) == 1


def test_an_unclosed_brace_inside_a_text_is_text():
    calls = make_format("hermes").parse(CALL).calls
    assert [json.loads(one.arguments) for one in calls] == [{"command": "mkdir -p test/{one,two"}]


@pytest.mark.parametrize("arguments", ['{"thing": "pen" "x": 1}', '{"thing": "pe', "", "null", "[", "pen"])
async def test_broken_arguments_are_answered_under_their_id_and_the_episode_goes_on(arguments):
    task = Task(
        id="t",
        env="toolcall",
        instruction="Put a pen in.",
        data={
            "tools": [{"class": "tests.environments.office:Box"}],
            "expect": [{"kind": "state", "value": {"things": ["pen"]}}],
        },
    )

    def put(id, given):
        return Message(role="assistant", tool_calls=(ToolCall(id=id, name="put", arguments=given),))

    policy = ScriptedPolicy([put("first", arguments), put("second", '{"thing": "pen"}'), "Done."])
    request = EpisodeRequest(id="e", group_id="g", task=task, seed=0, sampling=Sampling())
    trajectory = await run_episode(request, policy, lambda task: ToolCallEnv(), RolloutConfig())
    answer = trajectory.turns[0].next_state[0]
    assert (answer.role, answer.tool_call_id) == ("tool", "first") and answer.content.startswith("error: ")
    assert trajectory.turns[0].info["parse_error"]
    assert (trajectory.status, trajectory.outcome) == ("completed", 1.0)


async def test_one_of_eight_episodes_whose_tool_loses_its_connection_is_told_apart():
    """It is an exception of the tool, and so an answer; the others know nothing of it."""
    task = Task(
        id="t",
        env="toolcall",
        instruction="Add.",
        data={
            "tools": [{"function": "tests.environments.test_tool_reports:third"}],
            "expect": [{"kind": "answer", "value": 1}],
        },
    )

    async def episode(n):
        said = Message(role="assistant", tool_calls=(ToolCall(id="c", name="third", arguments=f'{{"n": {n}}}'),))
        request = EpisodeRequest(id=f"e{n}", group_id="g", task=task, seed=n, sampling=Sampling())
        return await run_episode(request, ScriptedPolicy([said, "1"]), lambda task: ToolCallEnv(), RolloutConfig())

    played = await asyncio.gather(*map(episode, range(8)))
    assert [trajectory.outcome for trajectory in played] == [1.0] * 8
    assert [trajectory.turns[0].info["exit_code"] for trajectory in played] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert "ConnectionError" in played[3].turns[0].next_state[0].content


def third(n: int) -> str:
    """Breaks for three."""
    if n == 3:
        raise ConnectionError("reset by peer")
    return "fine"


class Reusing(gymnasium.Env):
    """Gives the same buffer each time, and its reward as an array of one."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.int64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.buffer = np.zeros(1, np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer[0] = 0
        return self.buffer, {}

    def step(self, action):
        self.buffer[0] += 1
        return self.buffer, np.array([1.0]), bool(self.buffer[0] == 2), False, {}


async def test_a_buffer_that_is_used_again_changes_nothing_that_was_seen():
    env = FromGymnasium(Reusing)
    task = Task(id="t", env="x", instruction="Count:")
    seen = [(await env.reset(options={"task": task}))[0]]
    results = [await env.step(Message(role="assistant", content="1")) for _ in range(2)]
    await env.reset(options={"task": task})
    seen += [result.observation for result in results]
    assert [observation.messages[0].content for observation in seen] == ["Count:\n[0]", "[1]", "[2]"]
    assert [(result.reward, result.terminated) for result in results] == [(1.0, False), (1.0, True)]
    assert all(type(result.reward) is float for result in results)
    await env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_vector_keeps_the_last_observation_and_the_reward_of_each(mode):
    def make():
        return GymEnv(FromGymnasium(Reusing), task=Task(id="t", env="x", instruction="Count:"))

    options = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    if mode == "async":
        vector = gymnasium.vector.AsyncVectorEnv([make] * 2, shared_memory=False, **options)
    else:
        vector = gymnasium.vector.SyncVectorEnv([make] * 2, **options)
    vector.reset(seed=0)
    vector.step(("1", "1"))
    observations, rewards, terminated, _, infos = vector.step(("1", "1"))
    vector.close()
    assert list(observations) == ["Count:\n[0]"] * 2
    assert list(rewards) == [1.0, 1.0] and all(terminated)
    assert list(infos["final_obs"]) == ["[2]", "[2]"]
