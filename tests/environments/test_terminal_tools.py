"""The tools of a terminal, on all sandboxes that work here."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import agentgym
from agentgym.environments.pty import COLUMNS, ROWS, Terminal
from agentgym.environments.screen import Screen, encode
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import SandboxError
from agentgym.types import Message, StepResult, Task, ToolCall

TASK = Task(
    id="t",
    env="terminal",
    instruction="Write.",
    data={
        "files": {"a.txt": "one\ntwo\nthree\n"},
        "expect": [{"kind": "text", "path": "out/b.txt", "text": "né", "tolerance": "none"}],
        "solution": ["mkdir out", "printf né > out/b.txt"],
    },
)


def call(name: str, id: str = "c1", **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id=id, name=name, arguments=json.dumps(arguments)),))


def text_of(result: StepResult) -> str:
    (message,) = result.observation.messages
    assert message.role == "tool" and message.tool_call_id == "c1"
    return message.content


@pytest.fixture
async def env(kind: str) -> AsyncIterator[TerminalEnv]:
    made = TerminalEnv(sandbox=kind, protocol="tools", max_steps=40, max_output_chars=4000)
    await made.reset(options={"task": TASK})
    yield made
    await made.close()


async def test_the_tools_are_on_offer(env: TerminalEnv) -> None:
    observation, _ = await env.reset(options={"task": TASK})
    assert [tool.name for tool in observation.tools] == ["shell", "read_file", "write_file", "send_keys", "screen"]
    assert observation.tools[0].parameters["required"] == ["command"]
    assert (await env.step(call("shell", command="true"))).observation.tools == observation.tools


async def test_commands_and_files(env: TerminalEnv) -> None:
    first = await env.step(call("shell", command="mkdir d; cd d; X=5; echo out; echo err >&2; (exit 3)"))
    assert text_of(first) == "(exit 3)\nout\nerr"
    assert (first.info["tool"], first.info["exit_code"], first.reward, first.terminated) == ("shell", 3, 0.0, False)
    assert text_of(await env.step(call("shell", command="pwd | grep -o 'd$'; echo $X"))) == "(exit 0)\nd\n5"
    assert text_of(await env.step(call("read_file", path="../a.txt"))) == "one\ntwo\nthree\n"
    assert text_of(await env.step(call("read_file", path="../a.txt", start=2, lines=1))) == "two\n"
    assert "No such file" in text_of(await env.step(call("read_file", path="it's not there")))
    odd = "né 'quoted' $X `id`\n\ttab\\ no newline at the end"
    assert (
        text_of(await env.step(call("write_file", path="new dir/it's.txt", content=odd)))
        == f"wrote {len(odd.encode())} bytes"
    )
    assert text_of(await env.step(call("read_file", path="new dir/it's.txt"))) == odd
    assert text_of(await env.step(call("write_file", path="e", content=""))) == "wrote 0 bytes"
    assert "error" in text_of(await env.step(call("write_file", path="new dir", content="x")))
    assert text_of(await env.step(call("shell", command="echo $X"))) == "(exit 0)\n5"


async def test_an_episode_is_judged_when_the_policy_says_that_it_is_done(env: TerminalEnv) -> None:
    await env.step(call("write_file", path="out/b.txt", content="né"))
    last = await env.step(Message(role="assistant", content="Done."))
    assert (last.reward, last.info["end"], last.info["solved"]) == (1.0, "done", True)


async def test_what_cannot_be_carried_out_is_answered_under_its_id(env: TerminalEnv) -> None:
    teach = await env.step(Message(role="assistant", content="ls"))
    assert teach.info["parse_error"] == "no tool call" and "read_file" in teach.observation.messages[0].content
    assert "did you mean 'shell'" in text_of(await env.step(call("shel", command="ls"))) and env.parse_errors == 2
    env.ended = False
    await env.reset(options={"task": TASK})
    await env.step(call("shell", command="ls"))
    broken = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="shell", arguments='{"command": "ls" "x"'),))
    result = await env.step(broken)
    assert "not valid JSON" in text_of(result) and result.info["parse_errors"] == 1 and not result.terminated
    half = await env.step(Message(role="assistant", content='<tool_call>{"name": "shell", "argum'))
    assert (half.terminated, half.info["end"], half.info["parse_error"]) == (
        True,
        "parse_errors",
        "the tool call cannot be read",
    )


async def test_several_calls_in_one_message_are_carried_out_in_order(env: TerminalEnv) -> None:
    calls = [
        ToolCall(id=f"c{n}", name="shell", arguments=json.dumps({"command": f"echo {n} >> log; cat log"}))
        for n in range(10)
    ]
    result = await env.step(Message(role="assistant", tool_calls=tuple(calls)))
    said = result.observation.messages
    assert [message.tool_call_id for message in said] == [f"c{n}" for n in range(10)]
    assert said[7].content == "(exit 0)\n" + "\n".join(map(str, range(8))) and "at most 8" in said[8].content
    assert len(result.info["calls"]) == 8


async def test_a_time_out_keeps_output_and_ends_the_terminal_too(env: TerminalEnv) -> None:
    env.settings = env.protocol.settings = env.protocol.terminal.settings = type(env.settings)(command_timeout_s=0.5)  # type: ignore[attr-defined]
    assert "$" in text_of(await env.step(call("send_keys", keys=["export Y=1", "Enter"])))
    slow = await env.step(call("shell", command="echo early; sleep 60"))
    assert text_of(slow) == "(timed out, killed)\nearly" and slow.info["timed_out"]
    again = text_of(await env.step(call("send_keys", keys=["echo [$Y]", "Enter"])))
    assert "[]" in again.splitlines()


async def test_an_interactive_program_on_a_real_terminal(env: TerminalEnv) -> None:
    await env.step(call("shell", command="cd /tmp; export WORD=hello"))
    shown = text_of(await env.step(call("send_keys", keys=["tty; pwd; echo $WORD; stty size", "Enter"])))
    assert {"/tmp", "hello", f"{ROWS} {COLUMNS}"} <= set(shown.splitlines()) and "/dev/pts/" in shown
    pager = text_of(await env.step(call("send_keys", keys=["seq 500 | less", "Enter"])))
    assert pager.splitlines()[0] == "1" and "23" in pager.splitlines()
    down = text_of(await env.step(call("send_keys", keys=["PageDown"])))
    assert "1" not in down.splitlines() and "40" in down.splitlines()
    found = text_of(await env.step(call("send_keys", keys=["/", "^321", "Enter"])))
    assert found.splitlines()[0] == "321"
    await env.step(call("send_keys", keys=["q"]))
    back = text_of(await env.step(call("screen")))
    assert back.splitlines()[-2].endswith("$") and back.splitlines()[-1].startswith("[cursor: line ")


async def test_interrupts_floods_and_the_end_of_a_terminal(env: TerminalEnv) -> None:
    begun = time.process_time()
    await env.step(call("send_keys", keys=["yes", "Enter"], wait_s=1))
    stopped = text_of(await env.step(call("send_keys", keys=["C-c"], wait_s=10)))
    for _ in range(5):  # on a busy machine what was printed before may take a while to arrive
        if "^C" not in stopped:
            await asyncio.sleep(1)
            stopped = text_of(await env.step(call("screen")))
    assert "^C" in stopped and stopped.splitlines()[-2].endswith("$") and time.process_time() - begun < 10
    read = text_of(await env.step(call("send_keys", keys=["read -p 'name? ' n; echo hi $n", "Enter"])))
    assert read.splitlines()[-2].endswith("name?")
    assert "hi Ann" in text_of(await env.step(call("send_keys", keys=["Ann", "Enter"])))
    assert "[the terminal has ended]" in text_of(await env.step(call("send_keys", keys=["exit", "Enter"])))
    new = text_of(await env.step(call("send_keys", keys=["echo again", "Enter"])))
    assert "again" in new.splitlines() and "Ann" not in new
    assert ".bash_history" not in await env.sandbox.snapshot()  # type: ignore[union-attr]


@pytest.mark.slow
async def test_a_shell_that_was_bent_is_no_failure_of_the_machine(env: TerminalEnv) -> None:
    bent = "command() { false; }; builtin() { false; }; env() { echo; }; base64() { seq 99; }; setsid() { :; }; disown() { false; }; PATH=/nowhere"
    await env.step(call("shell", command=bent))
    for name, more in (
        ("send_keys", {"keys": ["echo hi", "Enter"], "wait_s": 0.3}),
        ("screen", {}),
        ("read_file", {"path": "a.txt"}),
        ("write_file", {"path": "b", "content": "x"}),
    ):
        assert text_of(await env.step(call(name, **more)))
    last = await env.step(Message(role="assistant", content="Done."))
    assert (last.reward, last.info["end"]) == (0.0, "done")


async def test_the_terminal_sees_the_processes_of_the_shell(env: TerminalEnv) -> None:
    await env.step(call("shell", command="sleep 7531 & echo $! > pid; disown"))
    shown = text_of(await env.step(call("send_keys", keys=["kill $(cat pid) && echo killed", "Enter"])))
    assert "killed" in shown.splitlines()


async def test_a_dead_sandbox_is_no_tool_result(env: TerminalEnv) -> None:
    assert env.sandbox is not None
    await env.sandbox.close()
    with pytest.raises(SandboxError):
        await env.step(call("shell", command="ls"))


def test_the_contract_holds_with_tools() -> None:
    agentgym.check_env("terminal", "terminal/basics", limit=6, protocol="tools").raise_for_failures()
    agentgym.check_env("terminal", "terminal/basics", limit=3, protocol="tools", max_steps=1).raise_for_failures()


def test_keys() -> None:
    assert (
        encode(["ls -l", "Enter", "C-c", "C-d", "Up", "M-x", "C-[", "Tab", "F5"])
        == b"ls -l\r\x03\x04\x1b[A\x1bx\x1b\t\x1b[15~"
    )
    assert encode(["enter", "C-", "two\nlines", "é"]) == "enterC-two\rlinesé".encode()


def test_a_screen_survives_what_programs_print() -> None:
    screen = Screen()
    screen.feed(b"\x1b[2J\x1b[H\x1b[31mred\x1b[0m\r\nb\xff\xfe\x00c\x1b]0;title\x07\x1b[5;10Hthere")
    assert screen.text() == "red\nb\ufffd\ufffdc\n\n\n         there\n[cursor: line 5, column 15]"
    assert screen.feed(b"\x1b[6n\x1b[c") == b"\x1b[5;15R\x1b[?6c"
    for odd in (
        b"\x1b[?1;2;3$p",
        b"\x1b[999999999C",
        b"\x1b[38;2mx",
        b"\x1bP+q\x1b\\",
        b"\x1b[>4;2m",
        b"\x1b[?6n",
        b"\x9b1;1H",
    ):
        screen.feed(odd)
    begun = time.process_time()
    screen.feed(("a" + "\u0301" * 30_000).encode() + b"\xe2\x82")
    screen.feed(b"\xac")  # a character in two parts
    assert "\u20ac" in screen.text() and time.process_time() - begun < 2
    screen.feed(b"\x1b[2J\x1b[Hfine")
    assert screen.text().startswith("fine") and max(map(len, screen.text().splitlines())) < 200
    screen.feed(b"new", lost=10)
    assert screen.text() == "new\n[cursor: line 1, column 4]"


async def test_output_that_nobody_looks_at_is_bounded() -> None:
    ours, theirs = socket.socketpair()
    terminal = Terminal(ours)
    try:
        theirs.setblocking(False)
        sent = 0
        for _ in range(40):
            for _ in range(20):
                try:
                    sent += theirs.send(b"x" * 65536)
                except BlockingIOError:
                    break
            await asyncio.sleep(0.02)
        kept, lost = terminal.take()
        assert len(kept) == 64 << 10 and 0 < lost < 3 << 20 and sent > len(kept)
    finally:
        terminal.close()
        theirs.close()
    assert terminal.ended and not await terminal.send(b"x")
