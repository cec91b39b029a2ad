import asyncio
import json
import sys
from pathlib import Path

import gymnasium
import msgspec
import pytest

import agentgym
from agentgym.config import RolloutConfig
from agentgym.environments.toolcall import EMPTY, NOTHING_TO_ADD, ToolCallEnv, answer_in
from agentgym.environments.toolcall_verify import Evidence, number_in, verify
from agentgym.errors import TaskError, UsageError
from agentgym.models import resolve_model
from agentgym.policies.scripted import NoopPolicy, OraclePolicy, ScriptedPolicy
from agentgym.policies.template import ChatTemplate
from agentgym.rollout import EpisodeRequest, run_episode
from agentgym.types import Message, Sampling, Task, ToolCall, ToolSpec

BOX = {"class": "tests.environments.office:Box"}
ADD = {"function": "tests.environments.office:add"}
PUT = {"name": "put", "arguments": {"thing": "pen"}}


def task(**data):
    data = {
        "tools": [BOX],
        "expect": [{"kind": "state", "value": {"things": ["pen"]}}],
        "solution": [[PUT], "Done."],
    } | data
    return Task(id="t", env="toolcall", instruction="Put a pen in.", data=data)


def say(*calls, content="", errors=()):
    made = tuple(
        ToolCall(id=f"c{index}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for index, (name, given) in enumerate(calls)
    )
    return Message(role="assistant", content=content, tool_calls=made, call_errors=errors)


async def play(given, *messages, **options):
    """The results of an episode, step by step."""
    env = ToolCallEnv(**options)
    await env.reset(options={"task": given})
    results = []
    for message in messages:
        results.append(
            await env.step(message if isinstance(message, Message) else Message(role="assistant", content=message))
        )
        if results[-1].terminated:
            break
    await env.close()
    return results


def texts(result):
    return [message.content for message in result.observation.messages]


async def test_an_episode():
    env = agentgym.make("toolcall")
    observation, info = await env.reset(seed=1, options={"task": task()})
    assert [message.role for message in observation.messages] == ["system", "user"]
    assert [spec.name for spec in observation.tools] == ["put", "empty", "snooze", "fail"]
    assert info == {"task": "t"}
    result = await env.step(say(("put", {"thing": "pen"}), content="I put it in."))
    assert result.observation.messages == (Message(role="tool", content="1", tool_call_id="c0", name="put"),)
    assert (result.reward, result.terminated) == (0.0, False)
    assert result.info["calls"][0]["name"] == "put" and result.info["exit_code"] == 0
    result = await env.step(Message(role="assistant", content="Done."))
    assert (result.reward, result.terminated, texts(result)) == (1.0, True, [])
    assert result.info["solved"] and result.info["end"] == "answer" and result.info["n_calls"] == 1
    again = await env.step(Message(role="assistant", content="Done."))
    assert (again.reward, again.terminated) == (0.0, True)
    await env.close()
    await env.close()
    with pytest.raises(UsageError, match="step before reset"):
        await env.step(Message(role="assistant"))


async def test_episodes_share_no_state():
    env = ToolCallEnv()
    for _ in range(2):
        await env.reset(options={"task": task()})
        assert texts(await env.step(say(("put", {"thing": "pen"})))) == ["1"]
    await env.close()


async def test_what_is_wrong_in_the_end_is_said():
    *_, last = await play(task(), say(("put", {"thing": "pencil"})), "Done.")
    assert last.reward == 0.0
    assert last.info["failed"] == ['things[0] is "pencil" instead of "pen"']


async def test_wrong_calls_are_answered_counted_and_end_nothing():
    messages = [
        say(("putt", {})),
        say(("put", '{"thing": "pen"')),
        say(("put", {"thing": 3})),
        say(("fail", {})),
        say(content="<tool_call>{", errors=("a tool call is malformed: it is cut off",)),
        "",
        "<tool_call>{'name': 'put'}</tool_call>",
        say(("put", {"thing": "pen"})),
        "Done.",
    ]
    results = await play(task(), *messages)
    said = [texts(result)[0] for result in results[:-1]]
    assert said[0].startswith("error: there is no tool 'putt' (did you mean 'put'?)")
    assert "not valid JSON" in said[1] and said[2] == "error: put: thing must be a string, not 3"
    assert said[3] == "error: ValueError: no <luck>"
    assert said[4] == "Not understood: a tool call is malformed: it is cut off."
    assert said[5] == f"Not understood: {EMPTY}."
    assert "double quotes" in said[6]
    roles = [result.observation.messages[0].role for result in results[:-1]]
    assert roles == ["tool", "tool", "tool", "tool", "user", "user", "user", "tool"]
    assert [bool(result.info.get("parse_error")) for result in results] == [True, True, True, False, True, True, True, False, False]  # fmt: skip
    assert [result.info.get("exit_code") for result in results[:4]] == [1, 1, 1, 1]
    assert results[-1].reward == 1.0
    assert results[-1].info["parse_errors"] == 6 and results[-1].info["tool_errors"] == 4


async def test_good_calls_beside_a_malformed_one_are_made():
    first, last = await play(task(), say(("put", {"thing": "pen"}), errors=("a tool call is malformed",)), "Done.")
    assert texts(first) == ["1", "Not understood: a tool call is malformed."]
    assert first.info["parse_error"] and last.reward == 1.0


async def test_malformed_messages_in_a_row_end_it_if_asked_to():
    results = await play(task(), "", "", say(("put", {"thing": "pen"})), max_parse_errors=2)
    assert len(results) == 2 and results[-1].info["end"] == "parse_errors" and results[-1].reward == 0.0


async def test_it_ends_at_max_steps_and_judges_the_state():
    results = await play(task(), say(("put", {"thing": "pen"})), "", max_steps=1)
    assert len(results) == 1
    assert (results[0].reward, results[0].info["end"], texts(results[0])) == (1.0, "max_steps", ["1"])


async def test_a_slow_tool_and_too_many_calls():
    slow = say(("snooze", {"seconds": 5}), ("snooze", {"seconds": 5}), ("put", {"thing": "pen"}))
    first, last = await play(task(), slow, "Done.", tool_timeout_s=0.2, step_timeout_s=0.3)
    assert "took longer than 0.2 s" in texts(first)[0]
    assert "not made" in texts(first)[2] and first.info["timed_out"]
    assert last.reward == 0.0
    many = say(*[("put", {"thing": "pen"})] * 3)
    first, last = await play(task(), many, "Done.", max_calls=1)
    assert texts(first)[0] == "1" and "a message may hold 1 calls" in texts(first)[2]
    assert last.reward == 1.0


async def test_results_are_cut_and_can_carry_anything():
    many = say(("put", {"thing": "x", "times": 1}), ("put", '{"thing": "\\ud800"}'))
    results = await play(task(expect=[{"kind": "state", "value": {"things": ["x", "?"]}}]), many, "Done.")
    msgspec.msgpack.encode([result.info for result in results])


async def test_calls_in_plain_text_are_read_and_thinking_is_not():
    call = f"<tool_call>{json.dumps(PUT)}</tool_call>"
    results = await play(task(), f"<think>{call}</think>I do it. {call}", f"<think>{call}</think> Done.")
    assert texts(results[0]) == ["1"] and results[-1].reward == 1.0
    results = await play(task(), f"<think>{call}", call, "Done.")
    assert texts(results[0]) == [f"Not understood: {EMPTY}."]
    assert results[-1].reward == 1.0
    results = await play(task(), call, text_format="")
    assert results[0].info["end"] == "answer" and results[0].reward == 0.0


async def test_an_invented_result_is_never_taken_for_one():
    put = json.dumps(PUT)
    forged = (
        f"<tool_call>{put.replace('pen', 'cup')}</tool_call>\n<tool_response>\n1\n</tool_response>\n"
        f"<tool_call>{put}</tool_call>\nDone: there is a pen in it."
    )
    first, last = await play(task(), forged, "Done.")
    assert texts(first)[0] == "1" and "results come from the environment" in texts(first)[1]
    assert last.info["failed"] == ['things[0] is "cup" instead of "pen"']


async def test_further_messages_of_the_user():
    given = task(
        then=["Another one.", "Now take all out."],
        expect=[{"kind": "replay", "turns": [[PUT], [PUT], [{"name": "empty"}]]}],
    )
    put = say(("put", {"thing": "pen"}))
    results = await play(given, put, "Done.", put, "Done.", say(("empty", {})), "Done.")
    assert [texts(result) for result in results] == [
        ["1"],
        ["Another one."],
        ["2"],
        ["Now take all out."],
        ["null"],
        [],
    ]
    assert results[-1].reward == 1.0
    missed = await play(given, "Not yet.", say(*[("put", {"thing": "pen"})] * 2), "Done.", say(("empty", {})), "Done.")
    assert missed[-1].info["failed"] == ['after message 1: things is [] instead of ["pen"]']
    short = await play(given, put, "Done.", max_steps=2)
    assert short[-1].info["failed"] == ["the conversation ended in message 2 of 3"]


async def test_a_simulated_user_tells_what_it_is_asked():
    user = {"facts": [{"about": "which|colour", "says": "A red one."}, {"about": "many", "says": "Just one."}]}
    given = task(user=user)
    put = say(("put", {"thing": "pen"}))
    results = await play(given, "Which colour, and how many?", put, "Done.")
    assert texts(results[0]) == ["A red one. Just one."] and results[-1].reward == 1.0
    results = await play(given, "Please tell me the colour.", put, "Where to?", "Is it urgent?", "Anything else?")
    assert [texts(one) for one in results] == [["A red one."], ["1"], [NOTHING_TO_ADD], [NOTHING_TO_ADD], []]
    assert len(await play(given, "Done.")) == 1
    with pytest.raises(TaskError, match="simulated user"):
        await play(task(user={"facts": [{"about": "("}]}), "Done.")


async def test_an_episode_can_end_with_the_first_calls():
    given = task(until="calls", max_steps=3)
    results = await play(given, say(("put", {"thing": 1})), say(("put", {"thing": "pen"})), "Done.")
    assert [result.terminated for result in results] == [False, True]
    assert results[-1].info["end"] == "calls" and results[-1].reward == 1.0
    assert len(await play(given, "", "", "", "")) == 3


async def test_what_the_right_calls_return_can_be_asked_for():
    look = {"name": "snooze", "arguments": {"seconds": 0}}
    given = task(then=["Again."], expect=[{"kind": "replay", "turns": [[PUT], [look]], "results": True}])
    put, peek = say(("put", {"thing": "pen"})), say(("snooze", {"seconds": 0}))
    assert (await play(given, put, "Done.", peek, "One."))[-1].reward == 1.0
    lazy = (await play(given, put, "Done.", "Still one."))[-1]
    assert lazy.info["failed"] == ["after message 2: no tool was called"]
    other = (await play(given, put, "Done.", say(("fail", {})), "One."))[-1]
    assert other.info["failed"] == ['after message 2: no call returned "awake"']


class Shop:
    """A provider of tools."""

    checked = True

    def __init__(self, price):
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        self.specs = [ToolSpec(name="shop.buy", parameters=parameters)]
        self.price, self.paid = price, 0

    def call(self, name, arguments):
        self.paid += arguments["n"] * self.price
        return {"paid": self.paid}

    def state(self):
        return {"paid": self.paid}


async def test_a_provider_brings_tools_with_schemas_of_its_own():
    given = task(
        tools=[{"provider": "tests.environments.test_toolcall:Shop", "options": {"price": 3}}],
        expect=[{"kind": "state", "value": {"paid": 6}}],
    )
    wrong, right, last = await play(given, say(("shop.buy", {"n": "2"})), say(("shop.buy", {"n": 2})), "Done.")
    assert wrong.info["parse_error"] and texts(right) == ['{"paid": 6}'] and last.reward == 1.0


@pytest.mark.parametrize(
    ("expect", "said", "why"),
    [
        ({"kind": "answer", "value": 1234}, "So it is $1,234.00.", ""),
        ({"kind": "answer", "value": 18}, "18 or 20?\n#### 18\n", ""),
        ({"kind": "answer", "value": 18}, "\\boxed{18} since 3 + 15", ""),
        ({"kind": "answer", "value": 18}, "<think>18</think>It is 17.", "the answer is 17 instead of 18"),
        ({"kind": "answer", "value": 18}, "I do not know.", "the answer is no number instead of 18"),
        ({"kind": "answer", "value": 0.3333, "tolerance": 1e-3}, "1/3 = .3333333", ""),
        ({"kind": "answer", "value": "Ann Lee"}, "  ann  lee", ""),
        ({"kind": "answer", "value": "Ann"}, "It is Ann.", 'the answer is "It is Ann." instead of "Ann"'),
        ({"kind": "answer", "value": "Ann", "compare": "contains"}, "It is Ann.", ""),
        ({"kind": "answer", "value": "Ann", "compare": "contains"}, "It is Anna.", 'the answer does not say "Ann"'),
        ({"kind": "no_calls"}, "I cannot do that.", ""),
        ({"kind": "function", "function": "tests.environments.office:judge", "n": 0}, "x", ""),
        ({"kind": "function", "function": "tests.environments.office:judge", "n": 1}, "x", "0 calls"),
    ],
)
async def test_verdicts_on_an_answer(expect, said, why):
    *_, last = await play(task(tools=[ADD], expect=[expect]), said)
    assert last.info["failed"] == ([why] if why else []) and last.reward == float(not why)


async def test_no_calls_means_no_attempt_either():
    for action in (say(("add", {"a": 1, "b": 2})), say(("sub", {})), say(errors=("a tool call is malformed",))):
        *_, last = await play(task(tools=[ADD], expect=[{"kind": "no_calls"}]), action, "I cannot.")
        assert last.info["failed"] == ["a tool was called"]


@pytest.mark.parametrize(
    "changes",
    [
        {"expect": []},
        {"expect": [{"kind": "vibes"}]},
        {"expect": [{"kind": "state"}]},
        {"expect": [{"kind": "state", "value": {}, "source": 1}]},
        {"expect": [{"kind": "answer", "value": 1, "compare": "feeling"}]},
        {"expect": [{"kind": "function", "function": "tests.environments.office:broken"}]},
        {"expect": [{"kind": "function", "function": "tests.environments.office:nothing"}]},
        {"expect": [{"kind": "function", "function": "tests.environments.office:add"}]},
        {"expect": [{"kind": "replay", "turns": [[{"name": "putt"}]]}]},
        {"tools": [{"class": "tests.environments.office:Nothing"}]},
    ],
)
async def test_a_broken_task_is_told_from_a_wrong_answer(changes):
    trajectory = await episode(task(**changes), ScriptedPolicy(["Done."]))
    assert (trajectory.status, trajectory.outcome) == ("task", None), trajectory.reason


def test_numbers():
    assert [number_in(text) for text in ("-5", "a 3-4 b", "1e3", "x", "−2.5", "12,345,678", "#### none: 7", "3.")] == [
        -5, -4, 1000, None, -2.5, 12345678, 7, 3,
    ]  # fmt: skip
    assert answer_in("a</think> b ") == "b" and answer_in("<think>a") == ""


async def test_verify_on_its_own():
    verdicts = await verify([{"kind": "answer", "value": 2}], Evidence(answer="2"))
    assert [verdict.ok for verdict in verdicts] == [True]


async def episode(given, policy, settings=None, **options):
    request = EpisodeRequest(id="e", group_id="g", task=given, seed=0, sampling=Sampling(max_tokens=64))
    return await run_episode(request, policy, lambda task: ToolCallEnv(**options), settings or RolloutConfig())


async def test_episodes_with_scripted_policies_and_a_template():
    template = ChatTemplate(resolve_model("tiny"))
    for policy, outcome in ((OraclePolicy(template), 1.0), (NoopPolicy(template), 0.0)):
        trajectory = await episode(task(), policy)
        assert (trajectory.status, trajectory.outcome) == ("completed", outcome)
        assert [spec.name for spec in trajectory.tools][:1] == ["put"]
    assert "".join(map(str, trajectory.turns[0].completion.prompt_ids))
    trajectory = await episode(task(), OraclePolicy(template))
    ids = trajectory.turns[-1].completion.prompt_ids
    text = template.tokenizer.decode(ids, skip_special_tokens=False)
    assert "<tools>" in text and '<tool_call>\n{"name": "put", "arguments": {"thing": "pen"}}\n</tool_call>' in text


async def test_what_a_model_writes_goes_the_whole_way():
    """Text, parsed by the template of a model as its engine would."""
    template = ChatTemplate(resolve_model("tiny"))

    class Written(ScriptedPolicy):
        async def __call__(self, prompt, *, session, sampling):
            made = await super().__call__(prompt, session=session, sampling=sampling)
            ids = template.tokenizer.encode(made.message.content, add_special_tokens=False).ids
            return msgspec.structs.replace(made, message=template.decode_response(tuple(ids), prompt.tools))

    script = ["<tool_call>{'name': 'put'}</tool_call>", f"<tool_call>{json.dumps(PUT)}</tool_call>", "Done."]
    trajectory = await episode(task(), Written(script))
    assert trajectory.outcome == 1.0
    assert "double quotes" in trajectory.turns[0].info["parse_error"]
    assert trajectory.turns[1].next_state[0].role == "tool"


async def test_a_model_plays(tmp_path):
    """A tiny one that babbles: each message is an answer, a call or an error, and the episode ends in order."""
    from agentgym.config import Config
    from agentgym.policies.transformers import TransformersPolicy

    config = Config()
    config.engine.dtype, config.model.max_length = "float32", 2048
    policy = TransformersPolicy(config, model=resolve_model("tiny"), folder=tmp_path)
    await policy.start()
    try:
        played = await asyncio.gather(*(episode(task(), policy, max_steps=2) for _ in range(2)))
    finally:
        await policy.close()
    for trajectory in played:
        assert (trajectory.status, trajectory.outcome) == ("completed", 0.0), trajectory.reason
        assert all(turn.completion.ids for turn in trajectory.turns)


async def test_an_mcp_server_lives_as_long_as_its_episode():
    pytest.importorskip("mcp")
    server = str(Path(__file__).parent / "servers" / "mcp_server.py")
    given = task(
        tools=[{"mcp": {"command": [sys.executable, server], "only": ["add", "die"]}}],
        expect=[{"kind": "answer", "value": 5}],
        solution=[[{"name": "add", "arguments": {"a": 2, "b": 3}}], "5"],
    )
    trajectory = await episode(given, OraclePolicy())
    assert (trajectory.status, trajectory.outcome) == ("completed", 1.0)
    trajectory = await episode(given, ScriptedPolicy([say(("die", {})), "5"]))
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)
    assert "is gone" in trajectory.reason


async def test_a_deadline_of_an_episode_passes_through_a_tool():
    given = task()
    settings = RolloutConfig(step_timeout_s=0.3)
    trajectory = await asyncio.wait_for(episode(given, ScriptedPolicy([say(("snooze", {"seconds": 3}))]), settings), 10)
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)


def test_conformance():
    report = agentgym.check_env("toolcall", [task(), task(tools=[BOX, ADD])])
    assert report.ok, report


def test_gymnasium():
    env = gymnasium.make("agentgym/Terminal-v0", env="toolcall", task=task())
    observation, _ = env.reset(seed=0)
    assert observation.endswith("Put a pen in.")
    observation, reward, terminated, _, _ = env.step(f"<tool_call>{json.dumps(PUT)}</tool_call>")
    assert (observation, reward, terminated) == ("1", 0.0, False)
    *_, reward, terminated, _, _ = env.step("Done.")
    assert (reward, terminated) == (1.0, True)
    env.close()


@pytest.mark.parametrize(
    "options", [{"max_steps": -1}, {"tool_timeout_s": 0}, {"max_parse_errors": -1}, {"text_format": "x"}]
)
def test_impossible_options(options):
    with pytest.raises(UsageError):
        ToolCallEnv(**options)
