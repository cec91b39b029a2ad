"""How requests are taken: sessions without headers, next states, retries and regenerations, main and side."""

import json
from pathlib import Path

import pytest

from agentgym.gateway.reading import Facts, Readers
from tests.gateway.clients import User, called, parsed, said

DATA = Path(__file__).parents[3] / "shared" / "data" / "conversations"
SYSTEM = said("system", "You are a helpful assistant.")
HI = said("user", "How do I sort a list in Python?")
ANSWER = "Use sorted(values), or values.sort() in place."
MORE = said("user", "And in reverse order?")


def begun(user=None, **facts):
    """A user whose first request was answered."""
    user = user or User()
    first = user.ask([SYSTEM, HI], ANSWER, **facts)
    return user, first, [SYSTEM, HI, said("assistant", ANSWER)]


def test_a_conversation_is_one_session_and_its_replies_are_next_states():
    user, first, history = begun()
    assert (first.kind, first.relation, first.parent, first.next_state) == ("main", "new", None, ())
    second = user.ask([*history, MORE], "Pass reverse=True to either.")
    assert (second.relation, second.session, second.parent) == ("continued", first.session, "t0")
    assert second.next_state == (MORE,)
    third = user.ask([*history, MORE, said("assistant", "Pass reverse=True to either."), said("user", "Thanks!")])
    assert (third.session, third.parent, third.next_state) == (first.session, "t1", (said("user", "Thanks!"),))


def test_what_clients_do_to_history_does_not_matter():
    user, first, _ = begun()
    dated = said("system", "You are a helpful assistant. The time is 12:01.")
    spaced = said("assistant", f"\n{ANSWER}\n")
    assert user.ask([dated, HI, spaced, MORE]).session == first.session
    thinker = User()
    started = thinker.ask([HI], f"<think>They want sorted.</think>\n\n{ANSWER}")
    assert thinker.ask([HI, said("assistant", ANSWER), MORE]).session == started.session
    caller = User()
    started = caller.ask([HI], called("bash", '{"command": "ls", "timeout": 5}', id="ours"), tools=("bash",))
    back = called("bash", '{"timeout":5,"command":"ls"}', id="theirs")
    taken = caller.ask([HI, back, said("tool", "a.txt", tool_call_id="theirs")], tools=("bash",))
    assert taken.session == started.session and taken.next_state[0].content == "a.txt"


def test_the_next_state_is_all_that_comes_after():
    user = User()
    first = user.ask([HI], called("bash", '{"command": "ls"}'), tools=("bash",))
    after = (said("tool", "a.txt", tool_call_id="c1"), said("user", "Attached: [image]"), said("user", "and?"))
    taken = user.ask([HI, called("bash", '{"command": "ls"}'), *after], tools=("bash",))
    assert (taken.session, taken.next_state) == (first.session, after)


def test_a_client_that_never_got_its_answer_asks_again():
    for facts in ({"state": "aborted"}, {"state": "failed"}, {"delivered": False}):
        user, first, _ = begun(**facts)
        again = user.ask([SYSTEM, HI])
        assert (again.relation, again.session, again.replaces) == ("retry", first.session, "t0"), facts
        assert again.next_state == ()
    user, first, _ = begun()
    assert user.ask([SYSTEM, HI], retry=True).relation == "retry"  # the client says so
    user, first, _ = begun(state="open")
    assert user.ask([SYSTEM, HI], retry=True).relation == "retry"


def test_an_aborted_answer_is_no_complaint_of_the_one_before():
    user, first, history = begun()
    second = user.ask([*history, MORE], state="aborted")
    again = user.ask([*history, MORE], "Pass reverse=True.")
    assert (again.relation, again.parent, again.session) == ("retry", "t0", first.session)
    longer = User()
    _, first, history = begun(longer)
    longer.ask([*history, MORE], state="aborted")
    both = longer.ask([*history, MORE, said("user", "Hello?")])
    assert (both.relation, both.parent, both.next_state) == ("continued", "t0", (MORE, said("user", "Hello?")))
    assert second.next_state == (MORE,)


def test_the_same_request_after_an_answer_is_a_wish_for_another():
    user, first, _ = begun()
    again = user.ask([SYSTEM, HI], "Call sorted().")
    assert (again.relation, again.replaces, again.session) == ("regenerated", "t0", first.session)
    on = user.ask([SYSTEM, HI, said("assistant", "Call sorted()."), MORE], "Reverse=True.")
    assert (on.relation, on.parent, on.session) == ("continued", "t1", first.session)
    deep = user.ask([SYSTEM, HI, said("assistant", "Call sorted()."), MORE], "Use reversed().")
    assert (deep.relation, deep.replaces, deep.parent) == ("regenerated", "t2", "t1")


def test_the_same_first_words_later_begin_another_session():
    user, first, _ = begun()
    assert user.ask([SYSTEM, HI], wait=3600).relation == "new"
    user, first, history = begun()
    user.ask([*history, MORE])
    assert user.ask([SYSTEM, HI]).session != first.session  # it was answered, and went on


def test_parallel_sessions_stay_apart():
    user = User()
    a = user.ask([SYSTEM, HI], state="open")
    b = user.ask([SYSTEM, HI], state="open")
    assert a.session != b.session and b.relation == "new"
    for id, answer in (("t0", "First."), ("t1", "Second.")):
        user.reader.answered(id, "complete", [SYSTEM, HI], said("assistant", answer))
        user.reader.delivered(id)
    assert user.ask([SYSTEM, HI, said("assistant", "Second."), MORE]).session == b.session
    assert user.ask([SYSTEM, HI, said("assistant", "First."), MORE]).session == a.session
    other = User()
    assert other.ask([SYSTEM, HI, said("assistant", "First."), MORE]).session not in (a.session, b.session)


def test_two_windows_that_began_alike_come_apart_when_both_go_on():
    user, first, history = begun()
    user.ask([SYSTEM, HI], "Call sorted().")  # taken for a wish for another answer: nobody can know better yet
    on = user.ask([*history, MORE])
    other = user.ask([SYSTEM, HI, said("assistant", "Call sorted()."), said("user", "In Rust?")])
    assert on.session == first.session and other.session != first.session


def test_identical_answers_in_two_windows_are_told_by_who_waits():
    user = User()
    for name in ("a", "b"):
        user.ask([HI], ANSWER, session=name)
    assert user.ask([HI, said("assistant", ANSWER), MORE], "x").session == "b"  # the last that waits
    assert user.ask([HI, said("assistant", ANSWER), said("user", "Other")], "y").session == "a"


def test_an_edited_message_takes_the_place_of_one():
    user, first, history = begun()
    user.ask([*history, MORE], "Pass reverse=True.")
    edited = user.ask([*history, said("user", "And by length?")], "key=len")
    assert (edited.relation, edited.replaces, edited.parent, edited.session) == ("edited", "t1", "t0", first.session)
    on = user.ask([*history, said("user", "And by length?"), said("assistant", "key=len"), said("user", "ok")])
    assert (on.relation, on.parent) == ("continued", "t2")
    back = user.ask([*history, MORE, said("assistant", "Pass reverse=True."), said("user", "Good.")])
    assert (back.parent, back.session) == ("t1", first.session)


def test_an_answer_that_the_client_rewrote_is_not_ours():
    user, first, history = begun()
    user.ask([*history, MORE], "Pass reverse=True.")
    theirs = said("assistant", "Something that we never said, by hand.")
    taken = user.ask([*history, MORE, theirs, said("user", "Right?")])
    assert (taken.relation, taken.session, taken.next_state) == ("edited", first.session, (MORE,))


def test_a_dropped_beginning_is_recognised():
    user, first, history = begun()
    user.ask([*history, MORE], "Pass reverse=True to either of them, as a keyword.")
    tail = [SYSTEM, MORE, said("assistant", "Pass reverse=True to either of them, as a keyword."), said("user", "ok")]
    taken = user.ask(tail)
    assert (taken.relation, taken.session, taken.parent, taken.next_state) == (
        "truncated", first.session, "t1", (said("user", "ok"),),
    )  # fmt: skip


def test_a_beginning_that_became_a_summary_is_recognised():
    user, first, history = begun()
    last = "Pass reverse=True to either of them, as a keyword."
    user.ask([*history, MORE], last)
    summary = said("user", "Summary of the conversation so far: sorting lists in Python.")
    taken = user.ask([SYSTEM, summary, MORE, said("assistant", last), said("user", "ok")])
    assert (taken.relation, taken.session) == ("compacted", first.session)
    ours = "The user asked how lists are sorted in Python and learned about sorted, sort and reverse."
    asked = said("user", "Your task is to create a detailed summary of the conversation so far.")
    on = [SYSTEM, summary, MORE, said("assistant", last), said("user", "ok"), said("assistant", "An answer to that.")]
    side = user.ask([*on, asked], ours)
    assert (side.kind, side.label, side.session) == ("side", "summary", first.session)
    after = user.ask([SYSTEM, said("user", f"This session continues from: {ours}"), said("user", "What about tuples?")])
    assert (after.kind, after.relation, after.session) == ("main", "compacted", first.session)
    assert after.next_state == (said("user", "What about tuples?"),)


def test_headers_come_first():
    user = User()
    assert user.ask([HI], session="mine").session == "mine"
    lost = user.ask([said("user", "What about sets?")], session="mine")  # a client that sends only what is new
    assert (lost.relation, lost.session, lost.parent, lost.next_state) == (
        "rewritten", "mine", "t0", (said("user", "What about sets?"),),
    )  # fmt: skip
    foreign = user.ask([HI, said("assistant", "Nobody here said so."), MORE], session="mine")
    assert (foreign.relation, foreign.session, foreign.parent, foreign.next_state) == ("rewritten", "mine", None, ())
    assert user.ask([HI, said("assistant", "An answer to that."), MORE], session="other").session == "other"
    assert user.ask([HI], turn_type="side").kind == "side"
    assert user.ask([HI], turn_type="memory").label == "memory"
    title = said("user", "Generate a concise title for this conversation, no punctuation.")
    assert user.ask([title], turn_type="main").kind == "main"
    assert user.ask([said("user", "Look at a.py")], parent_session="mine").label == "subagent"


SIDES = [
    ("title", "You are a title generator. You output ONLY a thread title.", "Generate a title for this conversation:\n"),
    ("title", "", "Provide a concise, 5-word-or-less title for the conversation, using its same language, with no punctuation."),
    ("title", "", "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\nJSON"),
    ("tags", "", "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history"),
    ("suggestions", "", "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next"),
    ("search", "", "### Task:\nAnalyze the chat history to determine the necessity of generating search queries"),
    ("summary", "You are a helpful AI assistant tasked with summarizing conversations.", "Summarize it."),
    ("summary", "", "Your task is to create a detailed summary of the conversation so far, paying close attention to"),
    ("memory", "", "Pre-compaction memory flush. Store durable memories now. If nothing to store, reply with NO_REPLY."),
    ("memory", "You are a Personal Information Organizer, specialized in accurately storing facts.", "Input: Hi"),
    ("heartbeat", "", "Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK."),
    ("topic", "Analyze if this message indicates a new conversation topic. JSON: isNewTopic, title.", "fix the tests"),
    ("embedding", "", "Represent this sentence for searching relevant passages: sorting lists"),
    ("commit", "You are an expert software engineer that generates concise, one-line Git commit messages.", "diff --git"),
    ("subagent", "You are a sub-agent. Do what the task says and report back.", "List all Python files under src."),
    ("probe", "", "quota"),
]  # fmt: skip


@pytest.mark.parametrize(("label", "system", "text"), SIDES, ids=lambda value: str(value)[:20])
def test_side_requests_are_recognised(label, system, text):
    messages = [*([said("system", system)] if system else []), said("user", text)]
    user, _, history = begun()
    taken = user.ask(messages)
    assert (taken.kind, taken.label) == ("side", label), taken.why
    assert user.ask([*history, MORE]).parent == "t0"  # the conversation goes on as if nothing had happened


MAINS = [
    "Summarize our conversation in one sentence, please.",
    "Please write a title for my blog post about chat programs.",
    "What is a good name for a conversation club?",
    "Remember that I prefer tabs, and list the facts you know about me.",
    "Write a heartbeat function in C that pings the server.",
    "Suggest follow-up questions that I could ask in the interview.",
    "ping",
    "What does <tool_call> mean in the chat history?",
    "Generate a title page for my thesis and make it short.",
]


@pytest.mark.parametrize("text", MAINS)
def test_what_people_ask_for_is_main(text):
    user, _, history = begun()
    taken = user.ask([*history, said("user", text)])
    assert taken.kind == "main", taken.why
    assert User().ask([SYSTEM, said("user", text)]).kind == "main"


def test_side_by_shape():
    user = User()
    task = "Find every place where the config is read, and report file and line."
    user.ask([SYSTEM, HI], called("task", json.dumps({"prompt": task, "type": "explore"})), tools=("task",))
    sub = user.ask(
        [said("system", "You search code."), said("user", task)], called("grep", '{"q": "config"}'), tools=("grep",)
    )
    assert (sub.kind, sub.label) == ("side", "subagent")
    later = [said("system", "You search code."), said("user", task), called("grep", '{"q": "config"}')]
    on = user.ask([*later, said("tool", "a.py:3", tool_call_id="c1")], tools=("grep",))
    assert (on.kind, on.label, on.session) == ("side", "subagent", sub.session)
    user, _, history = begun()
    user.ask([*history, MORE], "Pass reverse=True to either of them.", tools=("bash",))
    whole = [*history, MORE, said("assistant", "Pass reverse=True to either of them.")]
    assert (
        user.ask([said("system", "You name chats."), *whole[1:], said("user", "A name for this chat?")]).kind == "side"
    )
    quoted = "\n".join(message.content for message in whole[1:])
    assert user.ask([said("user", f"What is the mood here?\n{quoted}")]).kind == "side"
    assert User().ask([HI], max_tokens=1).label == "probe"


def test_a_side_turn_ends_nobodys_wait():
    user, _, history = begun()
    side = user.ask([*history, said("user", "Generate a title for this conversation:")])
    assert side.kind == "side" and not user.reader.index.turns["t0"].followed
    assert user.ask([*history, MORE]).relation == "continued"


def test_one_thousand_sessions_that_never_end_are_forgotten():
    readers = Readers(regenerate_s=600, max_sessions=50)
    for number in range(1000):
        reader = readers.of("u")
        taken = reader.take(Facts((said("user", f"question {number}"),)), f"t{number}", float(number))
        readers.use("u", taken.session, float(number))
    assert len(readers) == 50 and len(readers.of("u").index.turns) == 50
    tables = readers.of("u").index
    assert len(tables._before) == 50 and not tables._children


needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/data beside the repository")


@needs_data
def test_the_captured_agent_requests_are_one_session():
    user, sessions = User(), set()
    for number, request in enumerate(json.loads((DATA / "agent_client_requests.json").read_text())):
        messages = parsed(request["body"]["messages"])
        following = json.loads((DATA / "agent_client_requests.json").read_text())[number + 1 : number + 2]
        answer = parsed(following[0]["body"]["messages"])[len(messages)] if following else said("assistant", "Bye.")
        taken = user.ask(messages, answer, tools=("bash",))
        sessions.add(taken.session)
        assert taken.kind == "main" and taken.relation == ("continued" if number else "new")
        if number == 1:
            assert [message.role for message in taken.next_state] == ["tool", "user"]
            assert taken.next_state[1].content == "Attached image(s) from tool result:\n[image]"
        if number == 2:
            assert [message.content for message in taken.next_state] == ["thanks\nnow stop"]
    assert len(sessions) == 1


@needs_data
def test_tool_chats_replay_with_every_turn_taken_rightly():
    user, owners = User(), {}
    chats = json.loads((DATA / "tool_chats_airline.json").read_text())
    for chat in chats:
        messages = parsed([{**message, "content": message.get("content")} for message in chat["traj"]])
        places = [n for n, message in enumerate(messages) if message.role == "assistant"]
        session = None
        for place, after in zip(places, [None, *places], strict=False):
            taken = user.ask(messages[:place], messages[place], tools=("book", "cancel"))
            session = session or taken.session
            assert (taken.kind, taken.session) == ("main", session), taken.why
            if after is not None:
                assert taken.relation == "continued"
                assert taken.next_state == messages[after + 1 : place]
        owners[chat["task_id"], chat["trial"]] = session
    assert len(set(owners.values())) == len(chats)


@needs_data
def test_two_turn_prompts_interleaved_are_eighty_sessions():
    user = User()
    prompts = [json.loads(line)["turns"] for line in (DATA / "two_turn_prompts.jsonl").read_text().splitlines()]
    first = [user.ask([said("user", one)], f"Answer {n} to that.") for n, (one, _) in enumerate(prompts)]
    assert all(taken.kind == "main" and taken.relation == "new" for taken in first), [
        t.why for t in first if t.kind != "main"
    ]
    for n, (one, two) in enumerate(prompts):
        taken = user.ask([said("user", one), said("assistant", f"Answer {n} to that."), said("user", two)])
        assert (taken.kind, taken.relation, taken.session) == ("main", "continued", first[n].session), taken.why
        assert taken.next_state == (said("user", two),)
    assert len({taken.session for taken in first}) == len(prompts)
