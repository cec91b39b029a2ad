"""One shell for an episode: what lasts from command to command, and that nothing a command does breaks the next."""

import asyncio
import time

import pytest

from agentgym.environments.output import Kept, Stream, plain_text
from agentgym.environments.sandbox import Limits, Sandbox, open_sandbox


async def says(sandbox: Sandbox, command: str, timeout_s: float = 10.0) -> str:
    result = await sandbox.run(command, timeout_s)
    assert not result.timed_out, result
    return result.stdout


async def test_directory_variables_functions_and_jobs_last(sandbox: Sandbox) -> None:
    result = await sandbox.run("mkdir d; cd d; export X=1; Y=2; f() { echo f$1; }; declare -A m=([k]=v); sleep 97311 &")
    assert result.cwd.endswith("/d") and not result.shell_replaced
    assert await says(sandbox, 'echo $X $Y ${m[k]}; f 3; pwd; jobs -r; kill %1; (exit 5)') == (
        f"1 2 v\nf3\n{result.cwd}\n[1]+  Running                 sleep 97311 &\n"
    )  # fmt: skip
    assert await says(sandbox, "echo $?") == "5\n"


@pytest.mark.parametrize(
    "odd",
    ["set -euo pipefail", "PS1='$ '; PS2=; PROMPT_COMMAND='exit 3'", "trap 'echo bye' EXIT", "trap 'echo dbg >&2' DEBUG", "set -x", "set -v",
     "stty -echo; stty raw", "exec >/dev/null 2>&1", "exec 3>&1 1>f", "exec <&-", "exec 60>&- 61>&- 62>&-", "break", "continue", "return 3",
     "shopt -s expand_aliases; alias eval=false builtin=false printf=false", "printf() { exit 9; }; read() { exit 9; }; eval() { exit 9; }",
     "TMOUT=1; IFS=0123456789abcdef", "A=(", "cat <<EOF", "echo 'unfinished", "if true", "printf 'no newline'", "LC_ALL=nosuch", "set -f -k",
     r"printf '\0\n\0\x1b[2J'", "cd nosuch", "local x=1", "false | true", "enable -f nosuch x", "ulimit -n 70", "unset PATH HOME PWD", "set -o posix"],
)  # fmt: skip
async def test_an_odd_command_does_not_break_the_next(sandbox: Sandbox, odd: str) -> None:
    first = await sandbox.run(odd, 5)
    again = await sandbox.run("echo ok", 5)
    assert not first.timed_out and not first.shell_replaced
    assert (again.stdout, again.exit_code, again.shell_replaced) == ("ok\n", 0, False)


@pytest.mark.parametrize(
    ("last", "code", "out"),
    [("exit 3", 3, ""), ("exec echo over", 0, "over\n"), ("set -e; echo a; false; echo b", 1, "a\n"), ("set -u; echo $NOSUCH", 1, ""),
     ("kill -9 $$", 137, ""), ("trap 'echo bye' EXIT; exit", 0, "bye\n"), ("kill -TERM $$; sleep 5", 143, "")],
)  # fmt: skip
async def test_the_end_of_a_shell_is_said_and_the_next_one_goes_on_where_it_was(
    sandbox: Sandbox, last: str, code: int, out: str
) -> None:
    where = (await sandbox.run("mkdir d; cd d; X=1; set +m")).cwd
    result = await sandbox.run(last, 5)
    assert (result.exit_code, result.stdout, result.shell_replaced, result.timed_out) == (code, out, True, False)
    again = await sandbox.run('echo "<$X>"')
    assert (again.stdout, again.exit_code, again.shell_replaced, again.cwd) == ("<>\n", 0, False, where)


async def test_a_shell_that_dies_between_two_commands_is_said(sandbox: Sandbox) -> None:
    await sandbox.run("(sleep 0.2; kill -9 $$) & X=1")
    await asyncio.sleep(0.6)
    result = await sandbox.run('echo "<$X>"')
    assert (result.stdout, result.shell_replaced) == ("<>\n", True)


async def test_a_job_that_prints_for_ever_delays_nothing(sandbox: Sandbox) -> None:
    first = await sandbox.run("(while :; do echo x; sleep .05; done) & yes >&2 & echo done")
    assert "done\n" in first.stdout and first.seconds < 3
    await asyncio.sleep(0.2)
    second = await sandbox.run("echo second")
    assert second.stdout.startswith("x\n") and "second\n" in second.stdout and second.seconds < 3
    assert len(second.stderr) < 4096 + 100


async def test_a_time_out_keeps_the_directory_and_says_that_the_shell_is_new(sandbox: Sandbox) -> None:
    where = (await sandbox.run("mkdir d; cd d; X=1")).cwd
    slow = await sandbox.run("echo early; printf late; python3 -c 'import time; time.sleep(50)' || sleep 50", 0.5)
    assert (slow.timed_out, slow.shell_replaced, slow.exit_code, slow.stdout) == (True, True, 124, "early\nlate")
    after = await sandbox.run("echo hi")
    assert (after.stdout, after.exit_code, after.cwd) == ("hi\n", 0, where)


async def test_commands_of_a_megabyte_and_heredocs_arrive_whole(sandbox: Sandbox) -> None:
    assert await says(sandbox, "x='" + "é" * 500_000 + "'; echo ${#x}", 60) == "500000\n"
    body = "\n".join(f"line {n} $HOME `date`" for n in range(5000))
    assert await says(sandbox, f"cat > f <<'EOF'\n{body}\nEOF\nwc -l < f", 60) == "5000\n"
    assert await sandbox.read("f") == body.encode() + b"\n"


async def test_bytes_are_kept_as_they_came_and_text_is_clean(sandbox: Sandbox) -> None:
    result = await sandbox.run(r"printf '\x1b[31mred\x1b[0m \xff\0\x1b]0;title\x07.\r\n'; printf '\x1b[1mE' >&2")
    assert result.stdout == "red \ufffd\0.\r\n" and result.stderr == "E"
    assert result.stdout_raw == b"\x1b[31mred\x1b[0m \xff\0\x1b]0;title\x07.\r\n" and result.stderr_raw == b"\x1b[1mE"


async def test_what_a_command_starts_has_no_descriptors_but_the_usual(sandbox: Sandbox) -> None:
    assert await says(sandbox, "exec 5>&-; sh -c 'ls /proc/$$/fd; :' | tr '\\n' ' '") == "0 1 2 "
    assert "0 /dev/null" in await says(sandbox, "sh -c 'echo 0 $(readlink /proc/$$/fd/0)'")


async def test_printing_everything_that_could_be_known_of_the_framing_ends_nothing(sandbox: Sandbox) -> None:
    command = (
        'declare -p; set; cat /proc/$$/cmdline /proc/$$/environ; declare -p | cat >&2; sleep 0.2; echo; echo "end"'
    )
    result = await sandbox.run(command)
    assert result.stdout.endswith("end\n") and result.exit_code == 0 and result.seconds >= 0.2
    assert await says(sandbox, "echo next") == "next\n"


async def test_two_commands_at_once_run_one_after_the_other(sandbox: Sandbox) -> None:
    first, second = await asyncio.gather(sandbox.run("echo 1 > f; sleep 0.2; cat f"), sandbox.run("echo 2 > f; cat f"))
    assert (first.stdout, second.stdout) == ("1\n", "2\n")


async def test_a_builtin_takes_a_fraction_of_a_start(sandbox: Sandbox) -> None:
    await sandbox.run("X=0")
    begun = time.monotonic()
    for _ in range(50):
        await sandbox.run("X=$((X + 1))")
    assert await says(sandbox, "echo $X") == "50\n" and (time.monotonic() - begun) / 50 < 0.05


async def test_memory_that_runs_out_is_said(kind: str) -> None:
    sandbox = open_sandbox(kind, Limits(memory_mb=100))
    await sandbox.start()
    try:
        result = await sandbox.run("echo a; head -c 300M /dev/zero | tail -c 200M | wc -c", 30)
        if getattr(sandbox, "cgroup", True) is None:
            pytest.skip("no cgroups here: memory is limited by address space alone")
        assert result.oom and result.stdout.startswith("a\n")
        assert not (await sandbox.run("echo hi")).oom
    finally:
        await sandbox.close()


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"\x1b[1;31mr\x1b[m", "r"), (b"a\x1b]8;;http://x\x1b\\b\x1b]8;;\x07c", "abc"), (b"\x1bPq#1\x1b\\x", "x"), (b"\x1b(B\x1b=y\x1b7", "y"),
     (b"\xc2\x9b31mz", "z"), (b"50%\r100%\n", "50%\r100%\n"), (b"\x1b", ""), (b"\x1b[", ""), (b"\x1b]0;never ends", "")],
)  # fmt: skip
def test_escape_sequences_go(raw: bytes, text: str) -> None:
    assert plain_text(raw) == text


def test_escape_sequences_take_linear_time() -> None:
    begun = time.monotonic()
    plain_text(b"\x1b]" * 200_000 + b"\x1b[" * 200_000 + b"\x1bP" + b"a" * 200_000)
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
async def test_a_stream_is_split_at_the_word_wherever_it_is_cut(step: int) -> None:
    stream = Stream(100)
    stream.feed(b"before ")
    marked = stream.expect(b"WORD")
    sent = b"WOR\0D and WORWORD0 /work\0after"
    for at in range(0, len(sent), step):
        stream.feed(sent[at : at + step])
    assert await marked == b"0 /work"
    assert stream.take().raw() == b"before WOR\0D and WOR" and stream.take().raw() == b"after"


def test_head_and_tail_are_kept_within_bounds() -> None:
    kept = Kept(10)
    for letter in b"abcdefghijklmnop":
        kept.add(bytes([letter]))
    assert (kept.raw(), kept.dropped, kept.text()) == (b"abcdelmnop", 6, "abcde\n[... 6 bytes left out ...]\nlmnop")
