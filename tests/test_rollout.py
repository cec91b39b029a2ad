import asyncio
import contextlib
import itertools
import time
from typing import Any

import msgspec
import pytest

from agentgym.config import RolloutConfig
from agentgym.errors import SandboxError, TaskError
from agentgym.policy import ContextOverflow
from agentgym.rollout import EpisodeRequest, run_episode
from agentgym.types import Message, Observation, Sampling, StepResult, Trajectory
from tests.fakes import EchoEnv, TokenPolicy, word_task

SHORT = RolloutConfig(reset_timeout_s=0.1, step_timeout_s=0.1, close_timeout_s=0.1)


async def play(
    env: Any, policy: Any = None, settings: RolloutConfig = SHORT, policy_timeout_s: float = 0.1
) -> Trajectory:
    request = EpisodeRequest(id="e", group_id="g", task=word_task("yes"), seed=3, sampling=Sampling())
    return await run_episode(request, policy or TokenPolicy(), lambda task: env, settings, policy_timeout_s)


async def test_an_episode_keeps_every_turn_and_its_next_state():
    env = EchoEnv(turns=2)
    trajectory = await play(env)
    assert (trajectory.status, trajectory.outcome) == ("completed", 1.0)
    assert [turn.completion.message.content for turn in trajectory.turns] == ["yes", "yes"]
    assert [message.content for message in trajectory.turns[0].next_state] == ["Again: yes."]
    assert trajectory.turns[1].next_state == ()
    assert trajectory.turns[1].completion.prompt_ids[: len(trajectory.turns[0].completion.prompt_ids) + 3] == (
        trajectory.turns[0].completion.prompt_ids + trajectory.turns[0].completion.ids
    )
    assert env.closed == 1


async def test_running_out_of_turns_is_truncated_and_the_policys_to_pay_for():
    trajectory = await play(EchoEnv(turns=5), settings=RolloutConfig(max_turns=2))
    assert (trajectory.status, trajectory.outcome, len(trajectory.turns)) == ("truncated", 0.0, 2)


async def test_turns_have_seeds_of_their_own_and_an_episode_repeats_them():
    first, second = TokenPolicy(), TokenPolicy()
    await play(EchoEnv(turns=3), first)
    await play(EchoEnv(turns=3), second)
    seeds = [sampling.seed for sampling in first.samplings]
    assert len(set(seeds)) == 3
    assert seeds == [sampling.seed for sampling in second.samplings]


@pytest.mark.parametrize("where", ["reset", "step"])
async def test_a_fault_of_the_environment_is_infrastructure_and_never_a_reward(where):
    def fault(at: str) -> None:
        if at == where:
            raise ValueError("boom")

    env = EchoEnv(fault=fault)
    trajectory = await play(env)
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)
    assert trajectory.reason == "ValueError: boom"
    assert env.closed == 1


@pytest.mark.parametrize("where", ["reset", "step"])
async def test_a_hang_ends_at_its_deadline(where):
    env = EchoEnv(fault=lambda at: asyncio.sleep(60) if at == where else None)
    trajectory = await play(env)
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)
    assert trajectory.reason == f"{where} took longer than 0.1 s"
    assert env.closed == 1


async def test_a_close_that_fails_or_hangs_leaves_the_result_and_is_told():
    trajectory = await play(EchoEnv(fault=lambda at: asyncio.sleep(60) if at == "close" else None))
    assert (trajectory.status, trajectory.outcome) == ("completed", 1.0)
    assert trajectory.info["close_error"] == "close took longer than 0.1 s"


async def test_a_broken_verifier_is_the_tasks_fault():
    def fault(at: str) -> None:
        if at == "step":
            raise TaskError("the verifier wants a file that never was")

    trajectory = await play(EchoEnv(fault=fault))
    assert (trajectory.status, trajectory.outcome) == ("task", None)
    assert trajectory.reason == "the verifier wants a file that never was"


async def test_a_policy_that_hangs_or_fails_is_infrastructure():
    class Hanging(TokenPolicy):
        async def __call__(self, prompt, *, session, sampling):
            await asyncio.sleep(60)

    class Failing(TokenPolicy):
        async def __call__(self, prompt, *, session, sampling):
            raise SandboxError("gone")

    hanging, failing = await play(EchoEnv(), Hanging()), await play(EchoEnv(), Failing())
    assert (hanging.status, hanging.reason) == ("infrastructure", "policy call took longer than 0.1 s")
    assert (failing.status, failing.reason) == ("infrastructure", "gone")


async def test_a_full_context_is_truncated_with_what_was_earned():
    class Full(TokenPolicy):
        async def __call__(self, prompt, *, session, sampling):
            if len(prompt.messages) > 1:
                raise ContextOverflow
            return await super().__call__(prompt, session=session, sampling=sampling)

    trajectory = await play(EchoEnv(turns=2), Full())
    assert (trajectory.status, trajectory.reason, trajectory.outcome) == ("truncated", "the context is full", 0.0)
    assert len(trajectory.turns) == 1


async def test_nonsense_from_step_is_infrastructure():
    class Nonsense(EchoEnv):
        async def step(self, action):
            return "nonsense"

    trajectory = await play(Nonsense())
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)


async def test_info_that_is_no_plain_data_is_kept_as_text():
    class Odd(EchoEnv):
        async def step(self, action):
            observation, reward, terminated, truncated, _ = await super().step(action)
            return StepResult(observation, reward, terminated, truncated, {"odd": object})

    trajectory = await play(Odd())
    assert trajectory.turns[0].info["odd"] == repr(object)


async def test_cancelling_an_episode_closes_its_environment():
    env = EchoEnv(fault=lambda at: asyncio.sleep(60) if at == "step" else None)
    task = asyncio.create_task(play(env, settings=RolloutConfig()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert env.closed == 1


class Hanging(TokenPolicy):
    """Hangs where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    async def begin(self, session, env, task):
        await asyncio.sleep(60 if self.where == "begin" else 0)

    async def __call__(self, prompt, *, session, sampling):
        await asyncio.sleep(60 if self.where == "policy" else 0)
        return await super().__call__(prompt, session=session, sampling=sampling)


HANGS = {"reset": "reset", "begin": "reset", "policy": "policy call", "step": "step", "close": "close"}


@pytest.mark.parametrize("where", HANGS)
async def test_a_hang_at_any_await_ends_at_its_deadline_and_leaves_no_trace(where):
    env = EchoEnv(fault=lambda at: asyncio.sleep(60 if at == where else 0))
    task = asyncio.current_task()
    trajectory = await play(env, Hanging(where))
    said = trajectory.info.get("close_error") if where == "close" else trajectory.reason
    assert said == f"{HANGS[where]} took longer than 0.1 s"
    assert trajectory.status == ("completed" if where == "close" else "infrastructure")
    assert 0.1 <= trajectory.seconds < 2
    assert task.cancelling() == 0
    await asyncio.sleep(0.15)  # no timer is left that would cancel us


async def test_what_comes_after_the_deadline_does_not_count_even_if_the_cancellation_was_swallowed():
    async def deaf(seconds: float) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(seconds)

    trajectory = await play(EchoEnv(fault=lambda at: deaf(60) if at == "step" else None))
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)
    assert trajectory.reason == "step took longer than 0.1 s"
    trajectory = await play(EchoEnv(turns=3, fault=lambda at: deaf(60) if at == "reset" else None))
    assert (trajectory.reason, trajectory.turns) == ("reset took longer than 0.1 s", ())


async def test_what_cleans_up_after_its_deadline_has_time_to():
    cleaned: list[bool] = []

    async def careful() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            cleaned.append(True)

    settings = RolloutConfig(step_timeout_s=0.1, close_timeout_s=5)
    trajectory = await play(EchoEnv(fault=lambda at: careful() if at == "step" else None), settings=settings)
    assert (trajectory.reason, cleaned) == ("step took longer than 0.1 s", [True])


async def test_what_cannot_be_cancelled_is_told_once():
    request = EpisodeRequest(id="e", group_id="g", task=word_task("yes"), seed=3, sampling=Sampling())
    told: list[str] = []

    class Deaf(EchoEnv):
        async def step(self, action):
            while not told:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
            return await super().step(action)

    trajectory = await run_episode(request, TokenPolicy(), lambda task: Deaf(), SHORT, 0.1, told.append)
    assert told == ["step took longer than 0.1 s and cannot be cancelled"]
    assert trajectory.status == "infrastructure"


async def test_a_deadline_and_a_cancellation_at_once_are_a_cancellation():
    env = EchoEnv(fault=lambda at: asyncio.sleep(60) if at == "step" else None)
    task = asyncio.create_task(play(env))
    await asyncio.sleep(0.05)
    time.sleep(0.1)  # noqa: ASYNC251 (both are due now)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert env.closed == 1


async def test_the_wall_clock_may_jump(monkeypatch):
    jumps = itertools.cycle([1e9, 0.0, 2e9, -5e8])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    trajectory = await play(EchoEnv(turns=4, fault=lambda at: asyncio.sleep(0.01)))
    assert (trajectory.status, len(trajectory.turns)) == ("completed", 4)
    assert 0.05 < trajectory.seconds < 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [(7, "TypeError: an observation holds"), ("\ud800", "UnicodeEncodeError"), (None, "TypeError")],
)
@pytest.mark.parametrize("where", ["reset", "step"])
async def test_an_observation_that_cannot_be_stored_is_infrastructure(where, content, reason):
    bad = Observation(messages=(Message(role="user", content=content),))

    class Nonsense(EchoEnv):
        async def reset(self, *, seed=None, options=None):
            observation, info = await super().reset(seed=seed, options=options)
            return (bad if where == "reset" else observation), info

        async def step(self, action):
            return StepResult(bad, 0.0, False, False, {})

    trajectory = await play(Nonsense())
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)
    assert trajectory.reason.startswith(reason)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(trajectory), type=Trajectory) == trajectory


@pytest.mark.parametrize("info", [{"n": 1 << 70}, {"text": "\udfff"}])
async def test_info_that_cannot_be_stored_is_infrastructure(info):
    class Odd(EchoEnv):
        async def step(self, action):
            return StepResult(Observation(messages=()), 1.0, True, False, info)

    trajectory = await play(Odd())
    assert (trajectory.status, trajectory.outcome) == ("infrastructure", None)
    msgspec.msgpack.encode(trajectory)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
async def test_a_reward_that_is_no_number_is_the_tasks_fault(reward):
    class Odd(EchoEnv):
        async def step(self, action):
            return StepResult(Observation(messages=()), reward, True, False, {})

    trajectory = await play(Odd())
    assert (trajectory.status, trajectory.outcome, trajectory.reason) == (
        "task",
        None,
        f"the reward of a step is {reward}",
    )


@pytest.mark.parametrize("error", [SystemExit("bye"), asyncio.CancelledError()])
async def test_an_environment_that_quits_or_cancels_itself_ends_its_episode_only(error):
    def fault(at: str) -> None:
        if at == "step":
            raise error

    env = EchoEnv(fault=fault)
    trajectory = await play(env)
    assert (trajectory.status, trajectory.outcome, env.closed) == ("infrastructure", None, 1)
    assert trajectory.reason.startswith(type(error).__name__)
