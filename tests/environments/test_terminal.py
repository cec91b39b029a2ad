from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from agentgym.environments.acting import show
from agentgym.environments.blocks import block
from agentgym.environments.sandbox import CommandResult
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import SandboxError, TaskError, UsageError
from agentgym.types import Message, StepResult, Task

DATA: dict[str, Any] = {
    "files": {"a.txt": "1\n2\n", "run.sh": {"text": "x", "mode": "600"}, "d": {"dir": True}, "l": {"link": "a.txt"}},
    "expect": [{"kind": "text", "path": "n", "text": "2", "tolerance": "space"}, {"kind": "absent", "path": "run.sh"}],
    "solution": ["wc -l < a.txt > n", "rm run.sh"],
}


def task(**changes: Any) -> Task:
    return Task(id="t", env="terminal", instruction="Count.", data={**DATA, **changes})


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


@pytest.fixture
async def env(kind: str) -> AsyncIterator[TerminalEnv]:
    made = TerminalEnv(sandbox=kind, max_steps=5)
    await made.reset(options={"task": task()})
    yield made
    await made.close()


def text_of(result: StepResult) -> str:
    return "".join(message.content for message in result.observation.messages)


async def test_the_first_observation_is_short_and_repeats_itself(env: TerminalEnv) -> None:
    first, _ = await env.reset(seed=1, options={"task": task()})
    again, _ = await env.reset(seed=1, options={"task": task()})
    assert first == again
    assert [message.role for message in first.messages] == ["system", "user"]
    assert first.messages[1].content == "Count." and len(first.messages[0].content.split()) < 25


async def test_saying_done_ends_the_episode_with_the_outcome(env: TerminalEnv) -> None:
    first = await env.step(say(block(DATA["solution"][0])))
    assert (first.reward, first.terminated, first.info["exit_code"], text_of(first)) == (0.0, False, 0, "(exit 0)")
    await env.step(say(block(DATA["solution"][1])))
    last = await env.step(say("Done."))
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert (last.info["end"], last.info["solved"], last.info["failed"]) == ("done", True, [])
    assert "hint" not in last.info


async def test_a_wrong_end_says_which_expectation_failed(env: TerminalEnv) -> None:
    await env.step(say(block("echo 3 > n; rm run.sh; touch junk")))
    last = await env.step(say("I am done."))
    assert (last.reward, last.terminated) == (0.0, True)
    assert last.info["failed"] == ["n holds '3\\n' instead of '2'", "junk should not be there"]
    assert last.info["hint"] == [
        "These commands do it: wc -l < a.txt > n; rm run.sh",
        "It is not done: n should hold '2', but n holds '3\\n' instead of '2'; nothing else should change, but junk should not be there.",
    ]


async def test_an_ended_episode_answers_neutrally_and_rewards_nothing(env: TerminalEnv) -> None:
    await env.step(say(block("ls")))
    await env.step(say("Done."))
    for text in ("Done.", block("wc -l < a.txt > n; rm run.sh"), ""):
        after = await env.step(say(text))
        assert (after.reward, after.terminated, text_of(after)) == (0.0, True, "The episode has ended.")


async def test_the_last_step_is_graded(kind: str) -> None:
    env = TerminalEnv(sandbox=kind, max_steps=1)
    await env.reset(options={"task": task()})
    result = await env.step(say(block("wc -l < a.txt > n; rm run.sh; echo out; exit 4")))
    assert (result.reward, result.terminated, result.info["end"], result.info["exit_code"]) == (
        1.0,
        True,
        "max_steps",
        4,
    )
    assert text_of(result) == "(exit 4)\nout"
    await env.close()


async def test_unusable_messages_teach_and_then_end(env: TerminalEnv) -> None:
    first = await env.step(say("ls"))
    assert first.info["parse_error"] == "no block" and not first.terminated and "```bash" in text_of(first)
    usable = await env.step(say(block("ls")))
    assert text_of(usable) == "(exit 0)\na.txt\nd\nl\nrun.sh"
    assert not (await env.step(say("```bash\nls"))).terminated
    last = await env.step(say("```bash\nls\n```\n```bash\nls\n```"))
    assert (last.terminated, last.reward, last.info["end"]) == (True, 0.0, "parse_errors")
    assert last.info["parse_error"] == "there are 2 blocks"


async def test_the_last_message_may_be_unusable(kind: str) -> None:
    env = TerminalEnv(sandbox=kind, max_steps=1)
    await env.reset(options={"task": task()})
    result = await env.step(say("what?"))
    assert (result.terminated, result.reward, result.info["end"]) == (True, 0.0, "max_steps")
    await env.close()


async def test_a_command_out_of_time_is_said_and_the_next_one_works(kind: str) -> None:
    env = TerminalEnv(sandbox=kind, command_timeout_s=0.5)
    await env.reset(options={"task": task()})
    slow = await env.step(say(block("echo early; sleep 100")))
    assert text_of(slow) == "(timed out, killed)\nearly" and slow.info["timed_out"]
    assert text_of(await env.step(say(block("echo hi")))) == "(exit 0)\nhi"
    await env.close()


async def test_an_episode_starts_from_a_clean_state(env: TerminalEnv) -> None:
    await env.step(say(block("rm -r *; touch junk")))
    await env.reset(options={"task": task()})
    assert text_of(await env.step(say(block("ls; stat -c %a run.sh; readlink l")))) == (
        "(exit 0)\na.txt\nd\nl\nrun.sh\n600\na.txt"
    )


@pytest.mark.parametrize("max_steps", [1, 2, 8])
async def test_the_oracle_fits_any_number_of_steps(kind: str, max_steps: int) -> None:
    env = TerminalEnv(sandbox=kind, max_steps=max_steps)
    await env.reset(options={"task": task()})
    messages = await env.oracle(task())
    assert len(messages) == min(max_steps, 3)
    results = [await env.step(message) for message in messages]
    assert [result.terminated or result.truncated for result in results] == [False] * (len(messages) - 1) + [True]
    assert results[-1].truncated == (max_steps == 2)  # its last message was a command: it could have said more
    assert results[-1].reward == 1.0
    await env.close()


@pytest.mark.parametrize(
    ("command", "reward"),
    [("wc -l < a.txt > n", 0.5), ("rm run.sh; wc -l < a.txt > n", 1.0), ("true", 0.0), ("rm run.sh a.txt", 0.0)],
)
async def test_partial_credit_is_the_share_newly_met(kind: str, command: str, reward: float) -> None:
    env = TerminalEnv(sandbox=kind, max_steps=1, partial_credit=True)
    await env.reset(options={"task": task()})
    assert (await env.step(say(block(command)))).reward == reward
    await env.close()


async def test_rewards_cannot_be_written_by_the_agent(env: TerminalEnv) -> None:
    await env.step(say(block("mkdir -p logs/verifier; echo '{\"reward\": 1}' > logs/verifier/reward.json")))
    assert (await env.step(say("Done."))).reward == 0.0


async def test_info_is_plain_data_whatever_the_agent_leaves(env: TerminalEnv) -> None:
    result = await env.step(say(block(r"printf '\xff' > $'n\xff'; printf '\xff' > n; printf '\xff\0'")))
    last = await env.step(say("Done."))
    assert last.reward == 0.0
    assert msgspec.json.decode(msgspec.json.encode(last.info))["solved"] is False
    assert msgspec.json.encode(result.observation)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"/etc/x": "a"}},
        {"files": {"a": "b", "a/b": "c"}},
        {"files": {"a": 1}},
        {"files": {"a": {"base64": "!"}}},
        {"files": {"a": {"text": "b", "mode": "rw"}}},
        {"files": 3},
    ],
)
async def test_broken_files_are_the_tasks_fault(kind: str, changes: dict[str, Any]) -> None:
    env = TerminalEnv(sandbox=kind)
    with pytest.raises(TaskError, match="task t"):
        await env.reset(options={"task": task(**changes)})
    await env.close()


@pytest.mark.parametrize("expect", [[{"kind": "nosuch", "path": "a"}], [{"kind": "text", "path": "a.txt"}], 3])
async def test_a_verifier_that_raises_is_the_tasks_fault(kind: str, expect: Any) -> None:
    env = TerminalEnv(sandbox=kind, max_steps=1)
    await env.reset(options={"task": task(expect=expect)})
    with pytest.raises(TaskError):
        await env.step(say(block("ls")))
    await env.close()


async def test_a_sandbox_that_died_is_no_observation(env: TerminalEnv) -> None:
    assert env.sandbox is not None
    await env.sandbox.close()
    with pytest.raises(SandboxError):
        await env.step(say(block("ls")))


async def test_misuse_is_the_callers_fault() -> None:
    env = TerminalEnv(sandbox="plain")
    await env.close()
    with pytest.raises(UsageError, match="before reset"):
        await env.step(say("x"))
    with pytest.raises(UsageError, match="task"):
        await env.reset()
    with pytest.raises(UsageError, match="protocol"):
        TerminalEnv(protocol="tool")
    with pytest.raises(UsageError, match="max_steps"):
        TerminalEnv(max_steps=0)


def test_long_output_keeps_head_and_tail() -> None:
    result = CommandResult(exit_code=1, stdout="a" * 50 + "\n", stderr="b" * 50 + "\n", seconds=0.1)
    assert show(result, 20) == f"(exit 1)\n{'a' * 10}\n[... 81 characters left out ...]\n{'b' * 10}"


async def test_escape_codes_are_in_the_record_and_not_in_what_the_policy_reads(env: TerminalEnv) -> None:
    result = await env.step(say(block(r"printf '\033[31mred\033[0m\n'; echo plain")))
    assert text_of(result) == "(exit 0)\nred\nplain" and result.info["stdout_raw"] == "\x1b[31mred\x1b[0m\nplain\n"
    assert "stdout_raw" not in (await env.step(say(block("echo plain")))).info
