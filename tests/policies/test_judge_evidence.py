"""Judges without a model: the environment's evidence, and rules of the config."""

import asyncio
import re
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentgym.config import Config, load_config
from agentgym.errors import ConfigError
from agentgym.judge import make_judge
from agentgym.policies.judge_rules import BUDGET_S
from agentgym.types import Exchange, Message, ToolCall


def exchange(next_state="", **fields):
    came_back = (Message(role="tool", content=next_state),) if next_state else ()
    given = {"trajectory_id": "t", "turn": 2, "task": "Do it.", "response": Message(role="assistant", content="ls")}
    return Exchange(**{**given, **fields}, next_state=came_back)


def judge_of(kind="verifier", rules=(), source="environment"):
    config = Config()
    config.judge.kind, config.judge.rules, config.hints.source = kind, list(rules), source
    return make_judge(config)


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({"info": {"score": 1}}, 1),
        ({"info": {"score": 0}}, 0),
        ({"info": {"score": -1.0}}, -1),
        ({"info": {"score": 1, "parse_error": "no block", "exit_code": 1}, "last": True, "outcome": 0.0}, 1),
        ({"info": {"parse_error": "no block"}}, -1),
        ({"info": {"parse_error": ""}, "reward": 0.5}, 1),
        ({"last": True, "outcome": 1.0, "info": {"exit_code": 1}}, 1),
        ({"last": True, "outcome": 0.0, "info": {"exit_code": 0}}, -1),
        ({"last": True, "outcome": 0.5}, 0),
        ({"last": True, "outcome": -3.0}, -1),
        ({"last": True, "info": {"solved": True}}, 1),
        ({"info": {"solved": False}}, -1),
        ({"reward": 0.1}, 1),
        ({"reward": -0.1, "info": {"exit_code": 0}}, -1),
        ({"info": {"timed_out": True, "exit_code": 0}}, -1),
        ({"info": {"timed_out": False, "exit_code": 0}}, 0),
        ({"info": {"exit_code": 2}}, -1),
        ({"info": {"exit_code": -9}}, -1),
    ],
)
async def test_evidence_becomes_a_score(fields, score):
    judgement = await judge_of()(exchange(**fields))
    assert (judgement.score, judgement.votes, judgement.reason) == (float(score), (score,), "")
    assert (judgement.trajectory_id, judgement.turn, judgement.judge) == ("t", 2, "verifier")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "no evidence"),
        ({"info": {"exit_code": None, "solved": "yes", "timed_out": 0}}, "no evidence"),
        ({"outcome": 1.0}, "no evidence"),  # of an episode that goes on
        ({"last": True, "outcome": float("nan")}, "no evidence"),
        ({"reward": float("nan")}, "no evidence"),
        ({"info": {"score": None, "exit_code": 0}}, "cannot tell"),
        ({"info": {"score": 0.7}}, "'0.7', not -1, 0 or 1"),
        ({"info": {"score": True}}, "not -1, 0 or 1"),
        ({"info": {"score": "1"}}, "not -1, 0 or 1"),
        ({"info": {"score": {"x": 1}}}, "not -1, 0 or 1"),
        ({"info": {"score": float("nan")}}, "not -1, 0 or 1"),
    ],
)
async def test_without_evidence_a_turn_is_unscored_and_the_reason_is_told(fields, why):
    judgement = await judge_of()(exchange(**fields))
    assert judgement.score is None and judgement.votes == (None,) and why in judgement.reason


async def test_hints_of_the_environment_come_with_the_score_and_without():
    hint = "Expected 3 lines, found 2."
    scored = await judge_of()(exchange(info={"exit_code": 1, "hint": [hint, "short"]}))
    assert (scored.score, scored.hints, scored.refused_hints) == (-1.0, (hint,), ("too short",))
    unscored = await judge_of()(exchange(info={"hint": hint}))
    assert (unscored.score, unscored.hints) == (None, (hint,))
    guarded = await judge_of()(exchange(info={"hint": hint}, secrets=("3 lines",)))
    assert (guarded.hints, guarded.refused_hints) == ((), ("leaks the answer",))


RULES = [
    {"matches": r"\b(\d+) failed", "score": -1, "hint": "Run the tests and mend those that fail."},
    {"matches": "traceback", "ignore_case": True, "role": "tool", "score": -1},
    {"matches": "rm -rf", "where": "response", "score": -1},
    {"path": "info.exit_code", "above": 0, "score": -1},
    {"path": "info.coverage.lines", "above": 0.5, "below": 0.9, "hint": "Cover the other lines with tests as well."},
    {"path": "last", "equals": True, "matches": "passed", "score": 1},
    {"path": "outcome", "exists": True, "score": 0},
]


@pytest.mark.parametrize(
    ("made", "score", "hints"),
    [
        (exchange("2 failed, 3 passed"), -1, ("Run the tests and mend those that fail.",)),
        (exchange("TraceBack (most recent call last)"), -1, ()),
        (exchange(next_state="", response=Message(role="assistant", content="rm -rf x")), -1, ()),
        (exchange(response=Message(role="assistant", tool_calls=(ToolCall(id="1", name="sh", arguments="rm -rf /"),))), -1, ()),
        (exchange("ok", info={"exit_code": 3}), -1, ()),
        (exchange("all passed", last=True, info={"coverage": {"lines": 0.7}}), 1, ("Cover the other lines with tests as well.",)),
        (exchange("all passed", last=True, info={"coverage": 0.7}), 1, ()),
        (exchange("nothing", last=True, outcome=0.3), 0, ()),
        (exchange("all passed"), None, ()),
        (exchange("ok", info={"exit_code": True}), None, ()),
    ],
)  # fmt: skip
async def test_the_first_rule_that_applies_decides(made, score, hints):
    judgement = await judge_of("rules", RULES, "both")(made)
    assert (judgement.score, judgement.hints) == (score, hints)
    assert bool(judgement.reason) == (score is None)


async def test_the_role_of_a_message_can_be_asked_for():
    rules = [{"matches": "wrong", "role": "user", "score": -1}, {"score": 0}]
    said = [
        (Message(role="tool", content="wrong"),),
        (Message(role="tool", content="x"), Message(role="user", content="wrong")),
    ]
    judge = judge_of("rules", rules)
    assert [(await judge(replace(exchange(), next_state=one))).score for one in said] == [0, -1]


async def test_rules_come_from_a_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "judge:\n  kind: rules\n  rules:\n    - {matches: 'no such', score: -1}\n"
        "    - {path: info.exit_code, equals: 0, score: 1}\n"
    )
    judge = make_judge(load_config(file))
    assert (await judge(exchange("no such file"))).score == -1
    assert (await judge(exchange("fine", info={"exit_code": 0}))).score == 1
    assert (await judge(exchange("fine", info={"exit_code": False}))).score is None


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("matches", "expected a mapping"),
        ({"scor": 1}, "unknown key 'scor' .did you mean 'score'"),
        ({"score": 2}, "expected -1, 0 or 1"),
        ({"score": True}, "expected -1, 0 or 1"),
        ({"matches": "x"}, "neither a score nor a hint"),
        ({"hint": 3}, "neither a score nor a hint"),
        ({"matches": "(", "score": 1}, "is no regular expression"),
        ({"matches": 3, "score": 1}, "is no regular expression"),
        ({"matches": "x", "where": "page", "score": 1}, "expected one of next_state, response, task"),
        ({"matches": "x", "role": "robot", "score": 1}, "role='robot'"),
        ({"matches": "x", "role": "tool", "where": "task", "score": 1}, "with where=next_state"),
        ({"matches": "x", "ignore_case": "no", "score": 1}, "expected true or false"),
        ({"role": "tool", "score": 1}, "role goes with matches"),
        ({"path": "info.x", "score": 1}, "path needs one of"),
        ({"path": "info", "equals": 1, "score": 1}, "expected info.NAME"),
        ({"path": "reward.x", "equals": 1, "score": 1}, "expected info.NAME"),
        ({"path": "secrets", "equals": 1, "score": 1}, "expected info.NAME"),
        ({"path": "info..x", "equals": 1, "score": 1}, "expected info.NAME"),
        ({"equals": 1, "score": 1}, "equals goes with path"),
        ({"path": "reward", "above": "1", "score": 1}, "expected a number"),
        ({"path": "reward", "below": True, "score": 1}, "expected a number"),
        ({"path": "reward", "exists": 1, "score": 1}, "expected true or false"),
    ],
)
def test_a_malformed_rule_is_refused_by_its_number(rule, says):
    with pytest.raises(ConfigError, match=rf"judge\.rules\[1\].*{says}"):
        judge_of("rules", [{"score": 0, "matches": "fine"}, rule])


def test_a_rule_that_always_applies_comes_last():
    with pytest.raises(ConfigError, match=r"rules\[0\] always applies"):
        judge_of("rules", [{"score": 0}, {"score": 1, "matches": "x"}])


async def test_an_expression_made_to_take_for_ever_leaves_the_turn_unscored():
    judge = judge_of("rules", [{"matches": r"^(a|aa)+$", "score": 1}, {"score": 0}])
    began = time.process_time()
    judgement = await judge(exchange("a" * 5000 + "b"))
    assert judgement.score is None and judgement.reason.startswith("judge.rules[0] took too long")
    assert time.process_time() - began < BUDGET_S + 2
    assert (await judge(exchange("aaa"))).score == 1


async def test_such_an_expression_holds_nobody_else_up():
    judge = judge_of("rules", [{"matches": r"^(a|aa)+$", "score": 1}, {"score": 0}])
    searching = asyncio.create_task(judge(exchange("a" * 5000 + "b")))
    ticks = 0
    while not searching.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 5


async def test_a_very_long_next_state_is_searched_at_both_ends():
    judge = judge_of("rules", [{"matches": "END$", "score": 1}, {"matches": "^START", "score": -1}, {"score": 0}])
    assert (await judge(exchange("x" * 5_000_000 + "END"))).score == 1
    assert (await judge(exchange("START" + "x" * 5_000_000))).score == -1


async def test_the_rules_of_the_documentation_work(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "rules.yaml").write_text(next(one for one in examples if "kind: rules" in one))
    judge = make_judge(load_config(tmp_path / "rules.yaml"))
    said = Message(role="user", content="Thanks a lot")
    turns = [
        exchange("2 failed"),
        exchange("x", info={"exit_code": 1}),
        replace(exchange(), next_state=(said,)),
        exchange("x"),
    ]
    assert [(await judge(turn)).score for turn in turns] == [-1, -1, 1, 0]
