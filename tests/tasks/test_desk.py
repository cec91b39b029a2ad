import asyncio
from collections import Counter

import pytest

import agentgym
from agentgym.environments.toolcall import ToolCallEnv
from agentgym.environments.tools import Stateful
from agentgym.errors import UsageError
from agentgym.tasks.desk import LEVELS, Desks
from agentgym.tasks.desk_families import FAMILIES
from agentgym.tasks.desk_office import Desk, Slot, judge_mails
from agentgym.tasks.desk_world import World
from agentgym.types import Message, ToolCall


@pytest.fixture(scope="module")
def desks():
    return Desks(n_train=180, n_test=36)


def n_calls(task):
    return sum(len(said) for said in task.data["solution"] if not isinstance(said, str))


def test_every_oracle_scores_full_marks_and_doing_nothing_none(desks):
    report = agentgym.check_tasks(desks)
    assert report.checked == 216
    assert report.ok, report


def test_families_and_levels_are_balanced(desks):
    for split in ("train", "test"):
        tasks = desks.tasks(split)
        cells = Counter((task.family, task.level) for task in tasks)
        assert set(cells) == {(family, level) for family in FAMILIES for level in LEVELS}
        assert max(cells.values()) - min(cells.values()) <= 1
        assert all(3 <= n_calls(task) <= 8 for task in tasks)
    by_level = {level: [n_calls(task) for task in desks.tasks("train") if task.level == level] for level in LEVELS}
    means = [sum(calls) / len(calls) for calls in by_level.values()]
    assert means[0] < means[1] < means[2]


def test_splits_share_nothing_and_seeds_make_other_tasks(desks):
    train, test = ({task.instruction for task in desks.tasks(split)} for split in ("train", "test"))
    assert not train & test and len(train) == 180
    other = Desks(n_train=180, n_test=36, seed=1)
    assert not {task.id for task in other.tasks("train")} & {task.id for task in desks.tasks("train")}
    assert len({task.instruction for task in other.tasks("train")} & train) < 20
    assert not {task.instruction for task in other.tasks("test")} & train
    assert Desks(n_train=180, n_test=36).tasks("train") == desks.tasks("train")


def test_the_test_split_holds_what_no_policy_can_see_in_the_instruction(desks):
    """What decides is in the world, not in the words: the tools have to be used."""
    for task in desks.tasks("test"):
        said = task.instruction
        hidden = [word for mail in task.data["expect"][1]["mails"] for word in mail["says"]]
        if task.family in ("forward", "booking"):
            assert all(word not in said for word in hidden)


@pytest.mark.parametrize(
    "options", [{"families": ["meting"]}, {"levels": [4]}, {"families": []}, {"n_train": -1}, {"tools": "some"}]
)
def test_impossible_options(options):
    with pytest.raises(UsageError):
        Desks(**options).tasks("train")
    with pytest.raises(UsageError, match="unknown split"):
        Desks().tasks("validation")


def test_few_tools_are_enough():
    few = Desks(n_train=18, n_test=18, tools="few")
    report = agentgym.check_tasks(few)
    assert report.ok, report
    offered = [len(task.data["tools"][0]["only"]) for task in few.tasks("train")]
    assert max(offered) <= 7


def play(task, script):
    async def episode():
        env = ToolCallEnv()
        await env.reset(options={"task": task})
        for message in [*script, *[Message(role="assistant", content="Done.")] * 4]:
            result = await env.step(message)
            if result.terminated:
                break
        await env.close()
        return result

    return asyncio.run(episode())


@pytest.fixture(scope="module")
def solutions(desks):
    env = ToolCallEnv()
    return [(task, asyncio.run(env.oracle(task))) for task in desks.tasks("test")]


def test_a_step_left_out_is_not_solved(solutions):
    changing = (
        "add_event",
        "book_room",
        "send_mail",
        "move_event",
        "move_mail",
        "write_file",
        "move_file",
        "delete_file",
    )
    for task, script in solutions:
        for index, message in enumerate(script):
            if message.tool_calls and message.tool_calls[0].name in changing:
                result = play(task, [*script[:index], *script[index + 1 :]])
                assert result.reward == 0.0, (task.id, message)


def test_more_than_was_asked_for_is_not_solved(solutions):
    for task, script in solutions[:12]:
        stray = ("write_file", '{"path": "a.txt", "text": "b"}'), ("move_mail", '{"mail_id": "M1", "folder": "trash"}')
        for name, arguments in stray:
            extra = Message(role="assistant", tool_calls=(ToolCall(id="x", name=name, arguments=arguments),))
            assert play(task, [extra, *script]).reward == 0.0


def test_the_user_tells_what_is_missing(solutions):
    asked = [(task, script) for task, script in solutions if task.family == "clarify"]
    assert asked
    for task, script in asked:
        question = next(message for message in script if not message.tool_calls)
        env = ToolCallEnv()

        async def ask(env=env, task=task, question=question):
            await env.reset(options={"task": task})
            result = await env.step(question)
            await env.close()
            return result

        result = asyncio.run(ask())
        assert not result.terminated
        told = result.observation.messages[0].content
        assert all(fact["says"] in told for fact in task.data["user"]["facts"])
        assert told not in task.instruction


def test_the_tools_have_schemas():
    tools = asyncio.run(Stateful(Desk, {"world": World("x").plain()}).start())
    specs = {tool.spec.name: tool.spec for tool in tools}
    assert len(specs) == 18 and all(spec.description for spec in specs.values())
    when = specs["book_room"].parameters["properties"]["when"]
    assert when["properties"]["day"]["description"] == "as YYYY-MM-DD."
    assert specs["list_mails"].parameters["properties"]["folder"]["enum"] == ["archive", "inbox", "trash"]


def test_the_desk_refuses_what_makes_no_sense():
    world = World("y")
    desk = Desk(world.plain())
    day = world.days[1]
    taken = next(event for event in world.events.values() if event["day"] == day)
    slot = Slot(day, taken["start"], taken["end"])
    for refused in (
        lambda: desk.add_event("x", slot, []),
        lambda: desk.add_event("x", Slot(day, "8:00", "09:00"), []),
        lambda: desk.add_event("x", Slot(day, "17:30", "17:30"), []),
        lambda: desk.add_event("x", Slot("tomorrow", "17:30", "18:00"), []),
        lambda: desk.add_event("x", Slot(day, "17:30", "18:00"), ["nobody@example.com"]),
        lambda: desk.send_mail([], "a", "b"),
        lambda: desk.read_mail("M99"),
        lambda: desk.cancel_event("E99"),
        lambda: desk.cancel_booking("B99"),
        lambda: desk.book_room("Nowhere", slot, "x"),
        lambda: desk.move_file("no.txt", "a.txt"),
        lambda: desk.write_file("/etc/passwd", "x"),
        lambda: desk.delete_file("no.txt"),
    ):
        with pytest.raises(ValueError):
            refused()
    assert desk.state() == Desk(world.plain()).state()


class Left:
    """What an episode left, as far as the mails go."""

    def __init__(self, *sent):
        self.states = ([{"sent": list(sent)}],)


@pytest.mark.parametrize(
    ("body", "ok"),
    [
        ("It comes to 4310 euros.", True),
        ("It comes to 4,310.", True),
        ("It comes to 4310.", True),
        ("It comes to 4310.50.", False),
        ("It comes to 14310.", False),
        ("It comes to 43100.", False),
        ("", False),
    ],
)
def test_mails_are_judged_by_what_they_say(body, ok):
    wanted = {"mails": [{"to": ["a@x"], "subject": "The sum", "says": ["4310"]}]}
    assert (judge_mails(Left({"to": ["a@x"], "subject": "the  sum", "body": body}), wanted) == "") == ok
    assert judge_mails(Left(), wanted)
    assert judge_mails(Left({"to": ["a@x", "b@x"], "subject": "The sum", "body": "4310"}), wanted)
    assert judge_mails(Left({"to": ["a@x"], "subject": "Sum", "body": "4310"}), wanted)
    assert judge_mails(Left(*[{"to": ["a@x"], "subject": "The sum", "body": "4310"}] * 2), wanted)


def test_times_may_be_written_without_a_zero():
    wanted = {"mails": [{"to": ["a@x"], "subject": "s", "says": ["09:00"]}]}
    for body, ok in (("At 9:00.", True), ("At 09:00 in Oak", True), ("At 19:00.", False), ("At 9:005", False)):
        assert (judge_mails(Left({"to": ["a@x"], "subject": "s", "body": body}), wanted) == "") == ok
