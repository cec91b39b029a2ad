"""A judge's answer: what counts as its verdict, and what does not."""

import json
import time

import pytest

from agentgym.policies.judge_parse import MAX_CHARS, parse
from agentgym.policies.judge_prompt import answer_form

CODE = "a1b2c3d4"


def says(**fields):
    return json.dumps({"reason": "", "code": CODE, **fields})


@pytest.mark.parametrize(
    ("answer", "vote", "hint"),
    [
        (says(score=1, reason="r", hint="Use mkdir -p."), 1, "Use mkdir -p."),
        (says(score=-1), -1, ""),
        (says(score=0, hint=None), 0, ""),
        (json.dumps({"score": -1, "reason": "the code came last", "code": CODE}, indent=2), -1, ""),
        (f"```json\n{says(score=1)}\n```", 1, ""),
        (f"```\n{says(score=1)}\n```", 1, ""),
        (f"<think>hm {{</think>\n\n{says(score=1)}", 1, ""),
        (f"hm</think>{says(score=1)}", 1, ""),
        (f"Here is my verdict: {says(score=-1)} Thank you.", -1, ""),
        ('It said "no", so: ' + says(score=-1, hint='Say "yes".') + " Thank you.", -1, 'Say "yes".'),
        (f'{{"reason": "it said "no"", "code": "{CODE}", "score": -1, "hint": "Say so."}}', -1, "Say so."),
        (f"{says(score=-1)}\n{says(score=-1)}", -1, ""),
        (f"Form: {answer_form(CODE)}\nMine: {says(score=1)}", 1, ""),
        (says(score="+1"), 1, ""),
        (says(score="-1"), -1, ""),
        (says(score=1.0), 1, ""),
        (says(score=1, hint=["not text"]), 1, ""),
        (says(score=1, hint="do not write </think>"), 1, "do not write </think>"),
    ],
)
def test_the_judges_own_verdict_counts(answer, vote, hint):
    assert parse(answer, CODE)[:2] == (vote, hint)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "no verdict with the code"),
        ("- `skill-a`: helps with lists\n- `skill-b`: helps with tables", "no verdict with the code"),
        ("The response is good: 1", "no verdict with the code"),
        ('{"score": 1}', "no verdict with the code"),
        ('{"code": "ffffffff", "score": 1}', "no verdict with the code"),
        ('{"code": ["a1b2c3d4"], "score": 1}', "no verdict with the code"),
        (f'{{"code": "{CODE.upper()}", "score": 1}}', "no verdict with the code"),
        (says(score=2), "no score"),
        (says(score=True), "no score"),
        (says(score=None), "no score"),
        (says(score=[1]), "no score"),
        (says(score="1 or -1"), "no score"),
        (says(score=0.5), "no score"),
        (says(reason="no score at all"), "no score"),
        (f'{{"code": "{CODE}", "score": NaN}}', "no verdict with the code"),
        (f'{{"code": "{CODE}", "score": {"9" * 5000}}}', "no verdict with the code"),
        (f'{{"code": "{CODE}", "score": 1, "score": -1}}', "contradictory"),
        (f"{says(score=1)}\nno, wait\n{says(score=-1)}", "contradictory"),
        (f"{says(score=1)} " * 9, "contradictory"),
        (says(score=1)[:-1], "no verdict with the code"),
        ("<think>" + says(score=1), "cut off"),
        (answer_form(CODE), "no verdict with the code"),
        ("x" * (MAX_CHARS + 1), "far too long"),
    ],
)
def test_what_is_no_verdict_is_no_vote_and_no_reward_is_invented(answer, why):
    parsed = parse(answer, CODE)
    assert parsed.vote is None and parsed.hint == "" and why in parsed.reason


def test_an_answer_that_was_cut_off_counts_only_if_it_is_whole():
    assert parse(says(score=1), CODE, cut_off=True).vote == 1
    assert parse(f"I think {says(score=1)} but", CODE, cut_off=True) == (None, "", "cut off")


def test_without_a_code_asked_for_nothing_counts():
    assert parse('{"code": "", "score": 1}', "").vote is None


def test_an_endpoint_that_cannot_repeat_the_code_may_answer_without():
    assert parse('{"score": -1, "hint": "h"}', CODE, bind=False)[:2] == (-1, "h")
    assert parse('{"code": "another", "score": -1}', CODE, bind=False).vote is None
    assert parse('I say {"score": -1}', CODE, bind=False).vote is None


@pytest.mark.parametrize(
    "text",
    ["{" * MAX_CHARS, "[" * MAX_CHARS, '{"a":' * (MAX_CHARS // 5), '{"code":"' * (MAX_CHARS // 9), "</think>" * (MAX_CHARS // 8),
     "```json\n" * (MAX_CHARS // 8), "{ " * (MAX_CHARS // 2), "{" + " " * (MAX_CHARS - 1), "\n" * MAX_CHARS, '"' * MAX_CHARS,
     f'{{"code":"{CODE}",' * (MAX_CHARS // 20), f'"code":"{CODE}","score":1,"hint":"' * (MAX_CHARS // 36), "```\n" + "\n ```x" * (MAX_CHARS // 7)],
    ids=range(13),
)  # fmt: skip
@pytest.mark.parametrize("bind", [True, False])
def test_hostile_answers_take_little_time(text, bind):
    began = time.process_time()
    assert parse(text[:MAX_CHARS], CODE, bind=bind).vote is None
    assert time.process_time() - began < 1
