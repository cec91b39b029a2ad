import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import agentgym
from agentgym.check import check_env, check_tasks
from agentgym.config import RolloutConfig, load_config
from agentgym.env import Env
from agentgym.environments import wrappers_faults
from agentgym.environments.blocks import block
from agentgym.environments.context import estimate
from agentgym.environments.toolcall import ToolCallEnv
from agentgym.environments.wrappers import (
    ShapeReward,
    StepLimit,
    TimeLimit,
    TokenBudget,
    TruncateObservation,
    Wrapper,
)
from agentgym.environments.wrappers_faults import Faults
from agentgym.environments.wrappers_recording import Recording
from agentgym.environments.wrappers_tools import ToolFormat
from agentgym.errors import UsageError
from agentgym.policies.scripted import OraclePolicy, ScriptedPolicy
from agentgym.pool import RolloutPool
from agentgym.registry import WRAPPERS
from agentgym.rollout import EpisodeRequest, run_episode
from agentgym.types import Image, Message, Observation, Sampling, StepResult, Task, Trajectory
from agentgym.wrapping import make_env, named, wrap
from tests.fakes import EchoEnv, Parrot, word_task

TASK = word_task("yes")


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


async def play(env: Env, *said: str, task: Task = TASK, seed: int | None = 0) -> tuple[Observation, list[StepResult]]:
    """The first observation, and the steps up to the end of the episode."""
    first, _ = await env.reset(seed=seed, options={"task": task})
    results: list[StepResult] = []
    for text in said:
        results.append(await env.step(say(text)))
        if results[-1].terminated or results[-1].truncated:
            break
    await env.close()
    return first, results


class Talker(EchoEnv):
    """Answers with 1000 characters, takes a while, and calls an empty message unusable."""

    def __init__(self, turns: int = 20, wait_s: float = 0.0) -> None:
        super().__init__(turns)
        self.wait_s = wait_s

    async def step(self, action: Message) -> StepResult:
        await asyncio.sleep(self.wait_s)
        result = await super().step(action)
        shown = Observation(messages=(Message(role="user", content="a" * 500 + "b" * 500),))
        info = {} if action.content else {"parse_error": "empty"}
        return result._replace(observation=shown, info=result.info | info)


async def test_a_wrapper_passes_everything_on():
    inner = EchoEnv(turns=2)
    env = Wrapper(Wrapper(inner))
    assert env.unwrapped is inner and await env.oracle(TASK) == await inner.oracle(TASK)
    first, results = await play(env, "yes", "yes")
    assert first.messages[0].content == "Say yes." and [result.reward for result in results] == [0.0, 1.0]
    assert inner.closed == 1


async def test_a_step_limit_truncates_and_counts_anew_after_a_reset():
    env = StepLimit(EchoEnv(turns=9), max_steps=2)
    for _ in range(2):
        _, results = await play(env, *["no"] * 9)
        assert [(result.terminated, result.truncated) for result in results] == [(False, False), (False, True)]
        assert results[-1].info["end"] == "step_limit" and results[-1].info["reason"] == "step_limit"


async def test_an_episode_that_ends_by_itself_at_the_limit_was_not_truncated():
    _, results = await play(StepLimit(EchoEnv(turns=2), max_steps=2), "yes", "yes")
    assert results[-1][1:4] == (1.0, True, False) and "end" not in results[-1].info


async def test_a_time_limit_truncates_after_the_step_that_took_too_long():
    env = TimeLimit(Talker(wait_s=0.06), seconds=0.1)
    began = time.monotonic()
    _, results = await play(env, *["no"] * 20)
    assert results[-1].truncated and results[-1].info["end"] == "time_limit"
    assert len(results) == 2 or time.monotonic() - began > 0.2  # on a machine that is very slow one step will do
    _, results = await play(env, "no")
    assert not results[-1].truncated, "the time begins with the reset"


async def test_a_token_budget_cuts_and_then_ends():
    tools = Observation(messages=(Message(role="user", content="x " * 50),))
    env = TokenBudget(Talker(), tokens=600)
    first, results = await play(env, *["no"] * 20)
    assert results[-1].truncated and results[-1].info["end"] == "token_budget"
    said = [message.content for result in results for message in result.observation.messages]
    assert "tokens left out" in said[-1]
    spent = sum(map(estimate, [first.messages[0].content, *said])) + 10 * len(results)
    assert 400 < spent <= 600
    assert len(tools.messages) == 1


async def test_observations_are_truncated_and_system_messages_are_not():
    class Long(EchoEnv):
        async def reset(self, **given: Any) -> Any:
            observation, info = await super().reset(**given)
            return Observation(messages=(Message(role="system", content="s" * 300), *observation.messages)), info

    env = TruncateObservation(Long(turns=2), max_chars=100)
    first, _ = await play(env, "yes")
    assert [len(message.content) for message in first.messages] == [300, 8]
    _, (result,) = await play(TruncateObservation(Talker(), max_chars=100), "no")
    text = result.observation.messages[0].content
    assert text == "a" * 50 + "\n[... 900 characters left out ...]\n" + "b" * 50


async def test_rewards_are_shaped_and_the_environments_own_are_kept():
    env = ShapeReward(EchoEnv(turns=2), scale=2.0, step_cost=0.1, bonus=0.5)
    _, results = await play(env, "yes", "yes")
    assert [result.reward for result in results] == pytest.approx([-0.1, 2 - 0.1 + 0.5])
    assert [result.info["unshaped_reward"] for result in results] == [0.0, 1.0]
    _, results = await play(env, "no", "no")
    assert [result.reward for result in results] == pytest.approx([-0.1, -0.1]), "no bonus for what is not solved"
    env = ShapeReward(Talker(), parse_error_cost=1.0, low=-0.5)
    _, results = await play(env, "", "no")
    assert [result.reward for result in results] == [-0.5, 0.0]


async def test_a_function_shapes_the_reward():
    _, results = await play(ShapeReward(EchoEnv(), function=f"{__name__}:twice"), "yes")
    assert results[0].reward == 2.0
    for bad in ("nowhere:f", f"{__name__}:none", "f"):
        with pytest.raises(UsageError, match="function"):
            ShapeReward(EchoEnv(), function=bad)


def twice(reward: float, result: StepResult) -> float:
    return 2 * reward if result.terminated else 0.0


@pytest.mark.parametrize(
    "entry",
    [
        {"step_limit": {"max_steps": 0}}, {"step_limit": {"max_steps": True}}, {"time_limit": {"seconds": -1}},
        {"token_budget": {"tokens": "many"}}, {"shape_reward": {"low": 1, "high": 0}}, {"faults": {"error": 1.5}},
        {"shape_reward": {"scale": float("nan")}}, {"faults": {"error": 0.6, "lost": 0.6}}, {"faults": {"delay_s": 1000}},
        {"tool_format": {"format": "hermez"}}, {"step_limit": {"max_stepz": 3}}, {"step_limitt": {}}, 3, {"a": {}, "b": {}},
        {"step_limit": 4}, {"step_limit": {"env": 1}},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(entry):
    with pytest.raises(UsageError, match=r"wrapper|step_limit|time_limit|token_budget|shape_reward|faults|tool format"):
        wrap(EchoEnv(), [entry])


async def test_the_order_is_that_of_the_list_and_it_matters():
    """A limit inside the faults counts what was carried out; outside, what the policy said."""
    always = {"faults": {"error": 1.0, "lost": 0.0, "most_in_a_row": 2}}
    limit = {"step_limit": {"max_steps": 3}}
    inside = wrap(EchoEnv(turns=99), [limit, always])
    assert isinstance(inside, Faults) and isinstance(inside.env, StepLimit) and isinstance(inside.unwrapped, EchoEnv)
    _, results = await play(inside, *["no"] * 99)
    assert len(results) == 9  # two errors before each step
    _, results = await play(wrap(EchoEnv(turns=99), [always, limit]), *["no"] * 99)
    assert len(results) == 3
    costs = {"shape_reward": {"step_cost": 1.0}}
    halves = {"shape_reward": {"scale": 0.5}}
    _, (result,) = await play(wrap(EchoEnv(), [costs, halves]), "yes")
    assert result.reward == 0.0
    _, (result,) = await play(wrap(EchoEnv(), [halves, costs]), "yes")
    assert result.reward == -0.5


def test_names_and_options():
    assert named("recording") == ("recording", {})
    assert named({"faults": {"seed": 3}}) == ("faults", {"seed": 3})
    config = load_config(None, ["env.wrappers=[recording,{faults: {seed: 3}}]"])
    assert [named(entry) for entry in config.env.wrappers] == [("recording", {}), ("faults", {"seed": 3})]


# faults


async def test_faults_are_those_of_their_seed():
    def drawn(seed: int, episode: int, task: Task = TASK) -> list[Any]:
        env = Faults(EchoEnv(), error=0.3, lost=0.3, delay=0.3, seed=seed)
        env.episode = wrappers_faults.episode_of(seed, episode, task)
        return [env.drawn(step) for step in range(60)]

    state = random.getstate()
    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(2, 2) and drawn(1, 2) != drawn(1, 3) and drawn(1, 2) != drawn(1, 2, word_task("no", 5))
    assert random.getstate() == state
    many = [fault for episode in range(40) for fault, _ in drawn(0, episode)]
    assert 0.2 < many.count("error") / len(many) < 0.31 and 0.25 < many.count("lost") / len(many) < 0.35
    late = [late for episode in range(40) for _, late in drawn(0, episode)]
    assert 0.25 < sum(late) / len(late) < 0.35


async def test_errors_in_a_row_are_bounded():
    for share in (0.7, 1.0):
        env = Faults(EchoEnv(), error=share, lost=0.0, most_in_a_row=3)
        env.episode = "x"
        kinds = [env.drawn(step)[0] for step in range(200)]
        assert "error" in kinds and "error,error,error,error" not in ",".join(kinds)
        assert "error,error,error" in ",".join(kinds)


async def test_what_an_error_says_was_not_carried_out_and_what_was_lost_was():
    inner = EchoEnv(turns=9)
    _, results = await play(Faults(inner, error=1.0, lost=0.0, most_in_a_row=1), "a", "b", "c", "d")
    assert [result.info.get("fault") for result in results] == ["error", None, "error", None]
    assert results[0].observation.messages == (Message(role="user", content=wrappers_faults.ERROR),)
    assert [result.info.get("turn") for result in results] == [None, 1, None, 2]
    _, results = await play(Faults(EchoEnv(turns=3), error=0.0, lost=1.0), "yes", "yes", "yes")
    assert [result.info["turn"] for result in results] == [1, 2, 3]
    assert [result.info.get("fault") for result in results] == ["lost", "lost", None]
    assert results[0].observation.messages[0].content == wrappers_faults.LOST
    assert results[-1][1:3] == (1.0, True), "the end and its reward are never lost"


async def test_a_delay_takes_its_time_and_is_told():
    began = time.monotonic()
    _, (result,) = await play(Faults(EchoEnv(), error=0.0, lost=0.0, delay=1.0, delay_s=0.1), "yes")
    assert time.monotonic() - began >= 0.1 and result.info["delayed_s"] == 0.1 and result.reward == 1.0


async def test_faults_are_never_an_infrastructure_failure():
    settings = RolloutConfig(max_turns=40)
    for index in range(10):
        task = word_task("yes", index)
        request = EpisodeRequest(id="e", group_id="g", task=task, seed=index, sampling=Sampling())
        trajectory = await run_episode(
            request,
            ScriptedPolicy(["yes"]),
            lambda task: Faults(EchoEnv(turns=3), error=0.4, lost=0.4, seed=1),
            settings,
        )
        assert (trajectory.status, trajectory.outcome) == ("completed", 1.0)


async def test_the_oracle_says_again_what_was_not_carried_out():
    settings = RolloutConfig(max_turns=99)
    lengths = set()
    for index in range(12):
        task = word_task("yes", index)
        request = EpisodeRequest(id="e", group_id="g", task=task, seed=index, sampling=Sampling())
        make = lambda task: Faults(EchoEnv(turns=3), error=0.4, lost=0.2)  # noqa: E731
        trajectory = await run_episode(request, OraclePolicy(), make, settings)
        assert trajectory.outcome == 1.0
        lengths.add(len(trajectory.turns))
    assert len(lengths) > 1


async def test_each_call_is_answered_by_its_own_error():
    calls = tuple(agentgym.types.ToolCall(id=f"c{index}", name="put", arguments="{}") for index in range(2))
    env = Faults(EchoEnv(), error=1.0, lost=0.0)
    await env.reset(seed=0, options={"task": TASK})
    result = await env.step(Message(role="assistant", tool_calls=calls))
    assert [(m.role, m.tool_call_id) for m in result.observation.messages] == [("tool", "c0"), ("tool", "c1")]


# recording


def events(path: Path) -> tuple[dict[str, Any], list[Any]]:
    header, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return header, lines


async def test_an_episode_is_recorded_as_an_asciicast(tmp_path):
    env = Recording(EchoEnv(turns=2), folder=str(tmp_path / "casts"))
    for _ in range(2):
        await play(env, "yes\x1b[2Jé", "yes")
    casts = sorted((tmp_path / "casts").glob("*.cast"))
    assert len(casts) == 2 and casts[0].name.startswith("words_train_0-")
    header, lines = events(casts[0])
    assert header["version"] == 2 and header["title"] == TASK.id and header["width"] > 0 and header["height"] > 0
    assert all(kind == "o" and at >= 0 for at, kind, _ in lines)
    assert [at for at, _, _ in lines] == sorted(at for at, _, _ in lines)
    text = "".join(line for _, _, line in lines)
    assert "Say yes." in text and "Again: yes." in text and "yes[2Jé" in text and "terminated, reward 1" in text
    assert "\n" not in text.replace("\r\n", "")


async def test_every_other_episode_and_pictures(tmp_path):
    class Pictures(EchoEnv):
        filmed: list[Path] = []

        async def step(self, action: Message) -> StepResult:
            result = await super().step(action)
            picture = Message(role="user", images=(Image(data=b"\xff\xd8", mime="image/jpeg"),))
            return result._replace(observation=Observation(messages=(picture,)))

        def record(self, folder: Path) -> None:
            self.filmed.append(folder)

    inner = Pictures()
    env = Recording(inner, folder=str(tmp_path), every=2)
    for _ in range(3):
        await play(env, "yes")
    assert len(list(tmp_path.glob("*.cast"))) == 2 == len(inner.filmed)
    pictures = list(tmp_path.glob("*/0001.jpeg"))
    assert len(pictures) == 2 and pictures[0].read_bytes() == b"\xff\xd8"
    assert {folder.name for folder in inner.filmed} == {path.parent.name for path in pictures}


async def test_a_recording_that_cannot_be_written_is_given_up(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    _, results = await play(Recording(EchoEnv(), folder=str(tmp_path / "file" / "casts")), "yes")
    assert results[-1].reward == 1.0 and "is given up" in caplog.text


# tools in text

DESK = Task(
    id="d",
    env="toolcall",
    instruction="Put a pen in.",
    data={
        "tools": [{"class": f"{__name__}:Drawer"}],
        "expect": [{"kind": "state", "value": {"things": ["pen"]}}],
        "solution": [[{"name": "put", "arguments": {"thing": "pen"}}], "Done."],
    },
)


class Drawer:
    def __init__(self) -> None:
        self.things: list[str] = []

    def put(self, thing: str) -> int:
        """Put a thing in."""
        self.things.append(thing)
        return len(self.things)


@pytest.mark.parametrize("format", ["hermes", "json", "openai", "qwen_xml", "llama3", "mistral"])
async def test_tools_are_told_and_called_in_text(format):
    env = ToolFormat(agentgym.make("toolcall", text_format=""), format=format)
    first, _ = await env.reset(options={"task": DESK})
    assert first.tools == () and first.messages[0].role == "system" and "Put a thing in." in first.messages[0].content
    oracle = await env.oracle(DESK)
    assert all(not message.tool_calls for message in oracle)
    result = await env.step(oracle[0])
    assert result.observation == Observation(messages=(Message(role="user", content="Result of put:\n1"),))
    result = await env.step(oracle[1])
    assert (result.reward, result.terminated) == (1.0, True)
    await env.close()


async def test_without_tools_text_is_text():
    heard: list[Message] = []

    class Listening(EchoEnv):
        async def step(self, action: Message) -> StepResult:
            heard.append(action)
            return await super().step(action)

    text = '<tool_call>{"name": "put", "arguments": {}}</tool_call>'
    await play(ToolFormat(Listening()), text)
    assert heard == [say(text)]


async def test_malformed_calls_in_text_are_told():
    env = ToolFormat(agentgym.make("toolcall", text_format=""), format="hermes")
    await env.reset(options={"task": DESK})
    result = await env.step(say("<tool_call>{'name': 'put'}</tool_call>"))
    (message,) = result.observation.messages
    assert message.role == "user" and "malformed" in message.content and result.info["parse_error"]
    two = '<tool_call>{"name": "put", "arguments": {"thing": "a"}}</tool_call>'
    result = await env.step(say(two + two))
    assert [message.content for message in result.observation.messages] == ["Result of put:\n1\n\nResult of put:\n2"]
    await env.close()


# everything together, from a config

SHELL = [{"time_limit": {"seconds": 60}}, {"token_budget": {"tokens": 4000}}, {"truncate": {"max_chars": 300}}]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_oracle_scores_in_all_of_them(reverse, tmp_path):
    faults = {"faults": {"error": 0.3, "lost": 0.3, "delay": 0.1, "delay_s": 0.01, "most_in_a_row": 1}}
    wrappers = [*SHELL, faults, {"step_limit": {"max_steps": 30}}, {"shape_reward": {"scale": 1.0}}]
    wrappers.append({"recording": {"folder": str(tmp_path)}})
    if reverse:
        wrappers.reverse()
    options = {"sandbox": "plain", "max_steps": 20}
    report = check_tasks("terminal/basics", limit=2, env_options=options, wrappers=wrappers)
    assert report.ok, str(report)
    assert check_env(EchoEnv, [word_task("yes", index) for index in range(16)], turns=4, wrappers=wrappers).ok
    assert len(list(tmp_path.glob("*.cast"))) == 2 * (4 + 16)  # each task is played in silence and by the oracle


def test_the_oracle_scores_with_tools_in_text_and_faults():
    wrappers = [{"tool_format": {"format": "json"}}, {"faults": {"error": 0.5}}, {"token_budget": {"tokens": 3000}}]
    tasks = [structs.replace(DESK, id=f"d{index}") for index in range(10)]
    report = check_env(ToolCallEnv, tasks, limit=None, text_format="", wrappers=wrappers)
    assert report.ok, str(report)


def test_a_wrapper_that_takes_the_reward_away_is_found():
    report = check_env(EchoEnv, [TASK], wrappers=[{"shape_reward": {"step_cost": 0.5}}])
    assert [failure.check for failure in report.failures] == ["oracle"]
    assert check_env(EchoEnv(), [TASK], wrappers=["shape_reward"]).ok


@agentgym.register_wrapper("loud")
class Loud(Wrapper):
    """Whatever it says, it says it loudly."""

    async def step(self, action: Message) -> StepResult:
        return await super().step(say(action.content.upper()))


async def episodes(overrides: list[str]) -> list[Trajectory]:
    config = load_config(None, ["rollout.max_turns=8", "rollout.close_timeout_s=5", *overrides])
    requests = [
        EpisodeRequest(id=f"e{index}", group_id="g", task=word_task("YES", index), seed=0, sampling=Sampling())
        for index in range(2)
    ]
    async with RolloutPool(Parrot(), config) as pool:
        return [trajectory async for trajectory in pool.episodes(requests)]


@pytest.mark.parametrize("workers", [0, 1])
async def test_a_config_names_them_and_workers_know_those_of_ones_own(workers):
    agentgym.register("echo", EchoEnv)
    wrapped = "env.wrappers=[loud,{shape_reward: {scale: 3}}]"
    ended = await episodes([f"rollout.workers={workers}", "env.options={turns: 2}", wrapped])
    assert [(t.status, t.outcome) for t in ended] == [("completed", 3.0)] * 2
    assert ended[0].turns[-1].info["unshaped_reward"] == 1.0


async def test_a_shell_is_wrapped_by_name():
    env = make_env("terminal", {"sandbox": "plain", "max_steps": 4}, [{"truncate": {"max_chars": 20}}])
    task = Task(id="t", env="terminal", instruction="Make f.", data={"expect": [{"kind": "exists", "path": "f"}]})
    _, (result,) = await play(env, block("seq 100"), task=task)
    assert "characters left out" in result.observation.messages[0].content


def test_the_page_knows_every_wrapper_that_ships():
    page = (Path(__file__).parents[2] / "docs" / "wrappers.md").read_text(encoding="utf-8")
    shipped = [name for name, made in WRAPPERS.factories.items() if str(made).startswith("agentgym.")]
    assert len(shipped) >= 8 and all(f"| `{name}` |" in page for name in shipped)
