"""What a judge is shown: everything that came back, in order and by role, within bounds, each line ours or data."""

import time

from agentgym.policies.judge_prompt import Budget, answer_schema, content_key, judge_messages
from agentgym.types import Exchange, Image, Message, ToolCall

FENCE, CODE, BUDGET = "0f1e2d3c", "a1b2c3d4", Budget(4000, 4000)


def exchange(**fields):
    given = {
        "trajectory_id": "t",
        "turn": 3,
        "task": "Count the lines.",
        "response": Message(role="assistant", content="wc -l a"),
    }
    return Exchange(**{**given, **fields})


def shown(made, budget=BUDGET):
    return judge_messages(made, fence=FENCE, code=CODE, budget=budget)[1].content


def test_the_whole_next_state_is_shown_in_order_and_by_role():
    call = ToolCall(id="c", name="shell", arguments='{"cmd": "ls"}')
    made = exchange(
        history=(Message(role="system", content="You count."), Message(role="user", content="Count the lines.")),
        response=Message(role="assistant", content="", tool_calls=(call,)),
        next_state=(
            Message(role="tool", content="3 a\n", tool_call_id="c", name="shell"),
            Message(role="tool", content="", name="evil\n] name"),
            Message(role="user", content="Wrong file!", images=(Image(data=b"x"),)),
        ),
    )
    expected = f"""[{FENCE}] BEGIN TASK
| Count the lines.
[{FENCE}] END TASK
[{FENCE}] BEGIN HISTORY
[{FENCE}] message 1 of 2, role system
| You count.
[{FENCE}] message 2 of 2, role user
| Count the lines.
[{FENCE}] END HISTORY
[{FENCE}] BEGIN RESPONSE
| call shell({{"cmd": "ls"}})
[{FENCE}] END RESPONSE
[{FENCE}] BEGIN NEXT STATE
[{FENCE}] message 1 of 3, role tool, name shell
| 3 a
|{" "}
[{FENCE}] message 2 of 3, role tool
|{" "}
[{FENCE}] message 3 of 3, role user, 1 images that are not shown
| Wrong file!
[{FENCE}] END NEXT STATE
[{FENCE}] Judge the response. Answer with the JSON object alone: {{"reason": "...", "code": "{CODE}", "score": 1 or 0 or -1, "hint": "..."}}"""
    assert shown(made) == expected


def test_an_episodes_end_and_nothing_at_all_are_told():
    text = shown(exchange(last=True))
    assert (
        f"[{FENCE}] BEGIN NEXT STATE\n[{FENCE}] (nothing)\n[{FENCE}] END NEXT STATE\n[{FENCE}] The episode ended here."
        in text
    )
    assert "ended here" not in shown(exchange())


def test_a_long_history_is_shown_by_its_head_and_its_tail():
    history = tuple(Message(role="user", content=f"message number {n:04} " + "x" * 80) for n in range(1000))
    text = shown(exchange(history=history), Budget(1000, 1000))
    assert "message number 0000" in text and "message number 0999" in text and "message number 0500" not in text
    assert "messages left out here)" in text
    assert len(text) < 3000
    left_out = int(text.partition(" messages left out")[0].rpartition("(")[2])
    assert left_out + text.count("message number") == 1000


def test_a_long_message_is_shown_by_its_head_and_its_tail():
    made = exchange(next_state=(Message(role="tool", content="HEAD" + "x" * 99_992 + "TAIL"),))
    text = shown(made, Budget(1000, 1000))
    assert "| HEAD" in text and "TAIL\n" in text and "characters left out here)" in text
    kept = text.count("x" * 10) * 10
    assert 900 < kept <= 1000


def test_the_response_is_shown_with_its_own_budget():
    made = exchange(
        response=Message(role="assistant", content="a" * 5000), next_state=(Message(role="tool", content="b" * 500),)
    )
    text = shown(made, Budget(1000, 1000))
    assert "b" * 500 in text and 900 < text.count("a" * 50) * 50 <= 1000


def test_a_huge_exchange_takes_little_time():
    huge = "\u200b<|x " * 2_000_000
    made = exchange(
        task=huge, history=(Message(role="user", content=huge),) + (Message(role="user"),) * 100_000,
        response=Message(role="assistant", content=huge), next_state=(Message(role="tool", content=huge),) * 3,
    )  # fmt: skip
    began = time.process_time()
    assert len(shown(made)) < 100_000
    assert time.process_time() - began < 5


def test_the_same_question_has_the_same_key_and_another_one_another():
    made = exchange(next_state=(Message(role="tool", content="3"),))
    same = exchange(next_state=(Message(role="tool", content="3"),), trajectory_id="u", turn=9, secrets=("x",))
    assert content_key(made, BUDGET, True) == content_key(same, BUDGET, True)
    others = [
        exchange(next_state=(Message(role="user", content="3"),)),
        exchange(next_state=(Message(role="tool", content="4"),)),
        exchange(next_state=(Message(role="tool", content="3"),) * 2),
        exchange(next_state=(Message(role="tool", content="3"),), last=True),
        exchange(next_state=(Message(role="tool", content="3"),), task="Another."),
    ]
    keys = {content_key(one, BUDGET, True) for one in (made, *others)}
    assert len(keys) == 6 and content_key(made, BUDGET, False) not in keys


def test_secrets_are_not_shown():
    assert "hunter2" not in shown(exchange(secrets=("hunter2",)))


def test_the_schema_asks_for_the_reason_first_and_binds_the_code():
    schema = answer_schema(CODE, hints=True, max_length=300)
    assert list(schema["properties"]) == schema["required"] == ["reason", "code", "score", "hint"]
    assert schema["properties"]["code"]["enum"] == [CODE] and schema["properties"]["score"]["enum"] == [1, 0, -1]
    assert "hint" not in answer_schema(CODE, hints=False)["properties"]
    assert "hint" not in judge_messages(exchange(), fence=FENCE, code=CODE, budget=BUDGET, hints=False)[0].content
