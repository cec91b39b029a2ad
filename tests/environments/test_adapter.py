import asyncio
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.utils.env_checker import check_env

import agentgym
from agentgym.env import Env
from agentgym.environments.adapter import AnyText, FromGymnasium, GymEnv, parse_action
from agentgym.environments.blocks import block
from agentgym.errors import UsageError
from agentgym.types import Message, Observation, StepResult, Task

ROOT = Path(__file__).parents[2]
TASK = Task(
    id="t",
    env="terminal",
    instruction="Make f.",
    data={"expect": [{"kind": "text", "path": "f", "text": "é"}], "solution": ["echo é > f"]},
)


def test_gymnasiums_own_check_is_clean() -> None:
    env = gymnasium.make("agentgym/Terminal-v0", task=TASK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()
    env.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "agentgym-env"]


def test_the_registered_env_is_played_with_text() -> None:
    env = gymnasium.make("agentgym/Terminal-v0", task=TASK, max_steps=1)
    observation, info = env.reset(seed=1)
    assert observation.endswith("\n\nMake f.") and info["task"] == "t"
    observation, reward, terminated, truncated, _ = env.step(block("echo é > f; cat f"))
    assert (observation, reward, terminated, truncated) == ("(exit 0)\né", 1.0, True, False)
    env.close()


class Slate(Env):
    """Shows its task's instruction; one step."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, Any]:
        return Observation(messages=(Message(role="user", content=options["task"].instruction),)), {}

    async def step(self, action: Message) -> StepResult:
        return StepResult(Observation(messages=()), 1.0, True, False, {})

    async def close(self) -> None:
        pass


SLATES = [Task(id=str(number), env="slate", instruction=f"task {number}") for number in range(5)]


def test_the_seed_says_which_task_and_without_one_it_is_drawn() -> None:
    env = GymEnv(Slate(), tasks=SLATES)
    assert [env.reset(seed=seed)[0] for seed in (0, 1, 7, 1)] == ["task 0", "task 1", "task 2", "task 1"]
    env.reset(seed=3)
    drawn = [env.reset()[0] for _ in range(20)]
    env.reset(seed=3)
    assert [env.reset()[0] for _ in range(20)] == drawn and len(set(drawn)) == 5
    assert env.reset(seed=0, options={"task": 4})[0] == "task 4"
    assert env.reset(options={"task": TASK})[0] == "Make f."
    env.close()


def test_a_given_task_stays() -> None:
    env = GymEnv(Slate(), tasks=SLATES, task=2)
    assert {env.reset(seed=seed)[0] for seed in (None, 0, 1)} == {"task 2"}
    env.close()
    tasks = agentgym.make_tasks("terminal/basics").tasks("train")
    assert GymEnv(task=2).task == tasks[2]
    with pytest.raises(UsageError, match="2048 training tasks"):
        GymEnv(task=2048)
    with pytest.raises(UsageError, match="no tasks"):
        GymEnv(Slate()).reset()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_environments_of_a_vector_get_different_tasks(mode: str) -> None:
    kwargs = {"shared_memory": False} if mode == "async" else {}
    env = gymnasium.make_vec("agentgym/Terminal-v0", num_envs=3, vectorization_mode=mode, vector_kwargs=kwargs)
    _, infos = env.reset(seed=5)
    env.close()
    tasks = agentgym.make_tasks("terminal/basics").tasks("train")
    assert list(infos["task"]) == [task.id for task in tasks[5:8]]


def test_importing_agentgym_registers_it_and_stays_light() -> None:
    script = (
        "import sys, gymnasium, agentgym\n"
        "env = gymnasium.make('agentgym/Terminal-v0')\n"
        "env.reset(seed=0); env.close()\n"
        "print(sorted({'torch', 'vllm', 'transformers', 'deepspeed', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.replace("plain sandbox", "")) == (0, "[]\n", done.stderr)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments(mode: str) -> None:
    kwargs = {"shared_memory": False} if mode == "async" else {}
    env = gymnasium.make_vec(
        "agentgym/Terminal-v0", num_envs=2, vectorization_mode=mode, vector_kwargs=kwargs, task=TASK, max_steps=1
    )
    env.reset(seed=1)
    observations, rewards, terminated, _, _ = env.step([block("echo é > f; cat f"), "no"])
    env.close()
    assert observations[0] == "(exit 0)\né" and rewards.tolist() == [1.0, 0.0] and terminated.tolist() == [True, True]


def test_shared_memory_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.make_vec("agentgym/Terminal-v0", num_envs=1, vectorization_mode="async", task=TASK)


def test_any_text_is_in_the_space_and_samples_are_too() -> None:
    space = AnyText(100, seed=1)
    assert "a\n\t€😀\0" in space and "" in space and "a" * 101 not in space and 3 not in space
    samples = [space.sample() for _ in range(20)]
    assert len(set(samples)) > 10 and all(sample in space for sample in samples)
    assert space == AnyText(100) and space != AnyText(99)


class Counter(gymnasium.Env[Any, Any]):
    """Counts up by the action in one buffer that it reuses; rewards with an array of shape (1,)."""

    observation_space = Box(0, 100, (1,), np.int64)
    action_space = Discrete(3)

    def __init__(self) -> None:
        self.buffer = np.zeros(1, np.int64)
        self.threads: set[str] = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.buffer[:] = 0
        return self.buffer, {"array": np.arange(2), "odd": object}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.threads.add(threading.current_thread().name)
        self.buffer += action
        return self.buffer, np.array([1.5]), bool(self.buffer[0] > 2), False, {"value": np.float32(2)}


async def test_a_plain_gymnasium_env_is_played_with_messages() -> None:
    counter = Counter()
    env = FromGymnasium(counter)
    observation, info = await env.reset(seed=1, options={"task": TASK})
    assert observation.messages[0].content == "Make f.\n[0]"
    assert info == {"array": [0, 1], "odd": "<class 'object'>"}
    bad = await env.step(Message(role="assistant", content="up"))
    assert (bad.reward, bad.terminated) == (0.0, False) and "Discrete(3)" in bad.info["parse_error"]
    first = await env.step(Message(role="assistant", content=" 1 "))
    second = await env.step(Message(role="assistant", content="2"))
    assert [one.observation.messages[0].content for one in (first, second)] == ["[1]", "[3]"]
    assert (first.reward, first.terminated, second.terminated, first.info) == (1.5, False, True, {"value": 2.0})
    assert len(counter.threads) == 1 and threading.current_thread().name not in counter.threads
    await env.close()
    await env.close()


async def test_messages_that_are_never_understood_end_the_episode() -> None:
    env = FromGymnasium(Counter(), max_parse_errors=2)
    for _ in range(2):
        await env.reset(seed=0)
        ends = [(await env.step(Message(role="assistant", content=text))).truncated for text in ("", "1", "", "x")]
        assert ends == [False, False, False, True]
    await env.close()


async def test_an_id_of_gymnasium_will_do() -> None:
    env = FromGymnasium("CartPole-v1")
    first, _ = await env.reset(seed=3)
    again, _ = await env.reset(seed=3)
    assert first == again and first.messages[0].content.startswith("[")
    assert (await env.step(Message(role="assistant", content="1"))).reward == 1.0
    await env.close()


def test_actions_are_parsed_by_their_space() -> None:
    assert parse_action(AnyText(10), "hi") == "hi"
    assert parse_action(Discrete(3), "2") == 2
    assert parse_action(MultiDiscrete([2, 3]), "[1, 2]").tolist() == [1, 2]
    for space, text in ((Discrete(3), "3"), (Discrete(3), "1.5"), (Discrete(3), "[" * 99999), (Discrete(3), "true"), (Discrete(3), "[1]"), (Box(0, 1, (2,)), "[0.5]"),
                        (Box(0, 1, (2,)), '["a", 1]'), (Discrete(3), '{"a": 1}')):  # fmt: skip
        with pytest.raises(ValueError, match="action"):
            parse_action(space, text)


class Stuck(Counter):
    """Never answers a step."""

    def step(self, action: Any) -> Any:
        threading.Event().wait()


async def test_an_environment_that_never_comes_back_is_left_behind() -> None:
    env = FromGymnasium(Stuck())
    await env.reset(seed=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await env.step(Message(role="assistant", content="1"))
    async with asyncio.timeout(5):
        await env.close()
        await env.close()


def test_it_does_not_keep_the_process_alive() -> None:
    script = (
        "import asyncio, threading\n"
        "from agentgym.types import Message\n"
        "from tests.environments.test_adapter import Stuck, FromGymnasium\n"
        "async def main():\n"
        "    env = FromGymnasium(Stuck())\n"
        "    await env.reset(seed=0)\n"
        "    try:\n"
        "        await asyncio.wait_for(env.step(Message(role='assistant', content='1')), 0.1)\n"
        "    except TimeoutError:\n"
        "        print('left')\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


async def test_what_it_raises_is_raised_and_its_options_come_from_the_task() -> None:
    class Choosy(Counter):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.options = options
            return super().reset(seed=seed)

        def step(self, action: Any) -> Any:
            raise KeyError(action)

    choosy = Choosy()
    env = FromGymnasium(choosy)
    task = Task(id="t", env="x", instruction="", data={"options": {"map": 3}})
    await env.reset(seed=0, options={"task": task})
    assert choosy.options == {"map": 3}
    with pytest.raises(KeyError):
        await env.step(Message(role="assistant", content="1"))
    await env.reset(seed=0, options={"task": TASK})
    assert choosy.options is None
    await env.close()
