"""Hints from what a verifier found."""

import pytest

from agentgym.environments.findings import WANTED, hints_of
from agentgym.environments.sandbox import Entry
from agentgym.environments.terminal import TerminalEnv, grade
from agentgym.environments.verify import JUDGES
from agentgym.hints import leaks
from agentgym.judge import make_judge
from agentgym.tasks.terminal_basics import TerminalBasics
from agentgym.types import Message, Task
from tests.policies.test_judge_evidence import exchange
from tests.test_judge import judged

BEFORE = {"a": Entry(kind="file", mode=0o644, size=4, content=b"one\n")}


def task(*expect, **data):
    return Task(
        id="t", env="terminal", instruction="Do it.", data={"files": {"a": "one\n"}, "expect": list(expect), **data}
    )


def hint(made, after=BEFORE):
    """The finding, without what each begins with."""
    return "".join(hints_of(made, grade(made, BEFORE, after))).removeprefix("It is not done: ")


@pytest.mark.parametrize(
    ("expectation", "says"),
    [
        ({"kind": "text", "path": "a", "text": "two\n"}, "a should hold 'two\\n', but a holds 'one\\n' instead of 'two\\n'."),
        ({"kind": "lines", "path": "n", "lines": ["x", "y"]}, "n should hold the lines 'x\\ny', but n is missing."),
        ({"kind": "json", "path": "n", "value": {"b": 1}}, 'n should hold the JSON value {"b": 1}, but n is missing.'),
        ({"kind": "archive", "path": "n", "members": {"y": "", "x": ""}}, "n should be an archive of x, y, but n is missing."),
        ({"kind": "dir", "path": "d"}, "d should be a directory, but d is no directory."),
        ({"kind": "absent", "path": "a"}, "a should be gone, but a is still there."),
        ({"kind": "mode", "path": "a", "mode": "600"}, "a should have mode 600, but a has mode 644 instead of 600."),
        ({"kind": "link", "path": "l", "target": "a"}, "l should be a symbolic link to a, but l is no symbolic link."),
        ({"kind": "like", "path": "n", "source": "a"}, "n should have the content that a had, but n is missing."),
    ],
)  # fmt: skip
def test_each_kind_of_check_says_what_was_expected_and_what_was_found(expectation, says):
    assert hint(task(expectation)) == says


def test_every_kind_of_expectation_has_its_words():
    assert WANTED.keys() == JUDGES.keys()


def test_what_else_was_touched_is_told_and_long_lists_are_cut():
    stray = {**BEFORE, "junk": Entry(kind="dir", mode=0o755)}
    assert hint(task(), stray) == "nothing else should change, but junk should not be there."
    many = task(*({"kind": "dir", "path": f"d{number}"} for number in range(5)))
    assert hint(many).count("should be a directory") == 3 and hint(many).endswith("; and 2 more.")


def test_nothing_wrong_gives_no_hint():
    assert hint(task({"kind": "text", "path": "a", "text": "one"})) == ""


def test_a_secret_of_the_task_is_not_told():
    made = task({"kind": "text", "path": "n.txt", "text": "open sesame\n"}, secrets=["Open Sesame"])
    assert hint(made) == "n.txt is not what the task asks for."
    found = {**BEFORE, "n.txt": Entry(kind="file", mode=0o644, size=16, content=b"o-p-e-n sesame!\n")}
    assert not leaks(hint(made, found), ["Open Sesame"])
    assert (
        hint(task({"kind": "dir", "path": "sesame-7"}, secrets=["sesame-7"])) == "a file is not what the task asks for."
    )


def test_commands_that_hold_a_secret_are_not_told():
    check = {"kind": "text", "path": "n.txt", "text": "open sesame\n"}
    open_hint, closed = (hints_of(made, grade(made, BEFORE, BEFORE)) for made in (
        task(check, solution=["echo open sesame > n.txt"]),
        task(check, solution=["echo open sesame > n.txt"], secrets=["open sesame"]),
    ))  # fmt: skip
    assert open_hint[0] == "These commands do it: echo open sesame > n.txt"
    assert closed == ["It is not done: n.txt is not what the task asks for."]


async def test_an_episode_that_fails_ends_with_a_hint_that_a_judge_accepts():
    made = TerminalBasics(families=["count"], levels=[1], n_train=1).tasks("train")[0]
    env = TerminalEnv(sandbox="plain", max_steps=1)
    try:
        await env.reset(seed=0, options={"task": made})
        step = await env.step(Message(role="assistant", content="```bash\ntrue\n```"))
        failed = step.info
        await env.reset(seed=0, options={"task": made})
        solved = (await env.step((await env.oracle(made))[0])).info
    finally:
        await env.close()
    assert failed["hint"][0] == f"These commands do it: {made.data['solution'][0]}" and "hint" not in solved
    assert made.data["expect"][0]["path"] in failed["hint"][1]
    judgement = await make_judge(judged("verifier"))(exchange(last=True, outcome=0.0, info=failed))
    assert judgement.hints == tuple(failed["hint"]) and judgement.score == -1
