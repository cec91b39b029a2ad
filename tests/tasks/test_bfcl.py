import asyncio
import importlib.util
import random
import zipfile
from collections import Counter

import mpmath
import pytest

import agentgym
from agentgym.environments.toolcall import ToolCallEnv
from agentgym.errors import UsageError
from agentgym.tasks.bfcl import BFCL, DEFAULT, FILES
from agentgym.tasks.bfcl_check import agrees, judge_calls, matched, mismatch, right_call
from agentgym.tasks.bfcl_data import call_of, place, rows, schema
from agentgym.tasks.bfcl_tools import Office, public

missing = importlib.util.find_spec("bfcl_eval") is None
pytestmark = pytest.mark.skipif(missing, reason="bfcl-eval is not installed: pip install --no-deps bfcl-eval")


def everything(*categories):
    return BFCL(list(categories) or None, test_share=1.0)


@pytest.mark.parametrize(
    ("category", "n"),
    [("simple", 400), ("multiple", 200), ("parallel", 200), ("irrelevance", 240), ("multi_turn_base", 200)],
)
def test_every_ground_truth_scores_full_marks_and_doing_nothing_none(category, n):
    report = agentgym.check_tasks(everything(category), splits=("test",))
    assert report.checked == n
    assert report.ok, report


def test_the_other_categories():
    others = BFCL([one for one in FILES if one not in DEFAULT])
    report = agentgym.check_tasks(others, limit=60)
    assert report.checked == 120
    assert report.ok, report


@pytest.mark.slow
def test_every_ground_truth_of_the_other_categories():
    report = agentgym.check_tasks(everything(*(one for one in FILES if one not in DEFAULT)), splits=("test",))
    assert report.checked > 2800
    assert report.ok, report


def test_splits():
    halves = BFCL()
    train, test = halves.tasks("train"), halves.tasks("test")
    assert len(train) + len(test) == 1240 and 500 < len(test) < 740
    assert {task.family for task in test} == {*DEFAULT}
    assert BFCL(test_share=0).tasks("test") == []
    report = agentgym.check_tasks(halves, limit=2)
    assert report.ok, report


def test_impossible_options(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'parallel'"):
        BFCL(["paralel"])
    with pytest.raises(UsageError, match="test_share"):
        BFCL(test_share=2)
    with pytest.raises(UsageError, match="--no-deps"):
        BFCL(path=str(tmp_path))
    with pytest.raises(UsageError, match="unknown split"):
        BFCL().tasks("dev")
    (tmp_path / "bfcl_eval").mkdir()
    with pytest.raises(UsageError, match="holds no bfcl_eval/data"):
        BFCL(path=str(tmp_path)).tasks("train")


def test_a_wheel_is_read_as_it_is(tmp_path):
    wheel = tmp_path / "bfcl_eval-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("BFCL_v4_simple_python.json", "possible_answer/BFCL_v4_simple_python.json"):
            archive.write(place("") / "bfcl_eval" / "data" / name, f"bfcl_eval/data/{name}")
    assert BFCL(["simple"], path=str(wheel)).tasks("test") == BFCL(["simple"]).tasks("test")


def play(task, *script):
    async def episode():
        env = ToolCallEnv()
        observation, _ = await env.reset(options={"task": task})
        result = None
        for message in script:
            result = await env.step(message)
            if result.terminated:
                break
        await env.close()
        return observation, result

    return asyncio.run(episode())


def message(*calls, said=""):
    task = agentgym.Task(id="x", env="toolcall", instruction="", data={"solution": [list(calls) if calls else said]})
    return asyncio.run(ToolCallEnv().oracle(task))[0]


def test_a_single_call():
    task = everything("simple").tasks("test")[0]
    right = task.data["solution"][0][0]
    observation, result = play(task, message(right))
    assert observation.tools[0].parameters["type"] == "object"
    assert result.reward == 1.0 and result.info["end"] == "calls"
    wrong = {**right, "arguments": {**right["arguments"], "base": 11}}
    for calls, why in (
        ([wrong], "base is 11, which is none of the allowed values"),
        ([right, right], "2 calls were made instead of 1"),
        ([{**right, "arguments": {"base": 10}}], "height is missing"),
        ([{**right, "arguments": {**right["arguments"], "colour": 1}}], "colour is not wanted"),
    ):
        result = play(task, message(*calls))[1]
        assert result.reward == 0.0 and why in result.info["failed"][0]
    result = play(task, message(said="I cannot."))[1]
    assert result.reward == 0.0 and result.info["failed"] == ["0 calls were made instead of 1"]


def test_irrelevance():
    task = everything("irrelevance").tasks("test")[0]
    assert play(task, message(said="None of them will do."))[1].reward == 1.0
    name = task.data["tools"][0]["options"]["functions"][0]["name"]
    result = play(task, message({"name": name, "arguments": {"weight": 1, "height": 1}}))[1]
    assert (result.reward, result.info["failed"]) == (0.0, ["a tool was called"])


def official(task, turns):
    """The verdict of the package's own checker on the calls of each turn."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    at = place("")
    id = task.id.rpartition("/")[2]
    entry = next(row for row in rows(at, "BFCL_v4_multi_turn_base.json") if row["id"] == id)
    right = next(row for row in rows(at, "possible_answer/BFCL_v4_multi_turn_base.json") if row["id"] == id)
    written = [[[f"{one['name']}({', '.join(f'{k}={v!r}' for k, v in one['arguments'].items())})" for one in turn]] for turn in turns]  # fmt: skip
    official.played += 1  # it keeps its instances under the model's name
    return multi_turn_checker(written, right["ground_truth"], entry, "multi_turn_base", f"m{official.played}")["valid"]


official.played = 0


def test_verdicts_agree_with_the_package_s_own_checker():
    """On the right calls, and on conversations in which one is left out, doubled, or made with another argument."""
    draw = random.Random(0)
    tasks = everything("multi_turn_base").tasks("test")
    agreed = Counter()
    for task in draw.sample(tasks, 60):
        turns = [list(turn) for turn in task.data["expect"][0]["turns"]]
        at = draw.choice([index for index, turn in enumerate(turns) if turn])
        which = draw.randrange(len(turns[at]))
        how = draw.choice(("nothing", "left out", "doubled", "changed"))
        call = turns[at][which]
        if how == "left out":
            del turns[at][which]
        elif how == "doubled":
            turns[at].insert(which, call)
        elif how == "changed":
            arguments = {
                key: f"{value}x" if isinstance(value, str) else value for key, value in call["arguments"].items()
            }
            turns[at][which] = {**call, "arguments": arguments}
        script = [part for turn in turns for part in ([message(*turn)] if turn else []) + [message(said="Done.")]]
        solved = bool(play(task, *script)[1].reward)
        assert solved == official(task, turns), (task.id, how, call)
        agreed[solved] += 1
    assert agreed[True] > 10 and agreed[False] > 10


@pytest.mark.parametrize(
    ("value", "allowed", "ok"),
    [
        ("April 1, 2024", "april 1 2024", True),
        ("it's", 'it"s', True),
        ("a", "b", False),
        (1, 1.0, True),
        (True, 1, False),
        ("1", 1, False),
        (["A b", 1], ["ab", 1], True),
        (["a"], ["a", "b"], False),
        ({"x": "A"}, {"x": ["a"], "y": ["", 1]}, True),
        ({"y": 1}, {"x": ["a"], "y": ["", 1]}, False),
        ({"x": "a", "z": 1}, {"x": ["a"]}, False),
        ([{"x": 2}], [{"x": [1, 2]}], True),
        ("a", ["a"], False),
        ([], [], True),
        (None, "a", False),
    ],
)
def test_values(value, allowed, ok):
    assert agrees(value, allowed) == ok


def test_calls_are_matched_in_any_order_each_once():
    one, other = {"f": {"x": [1, 2]}}, {"f": {"x": [1]}}
    fits = [[mismatch(call, wanted) for call in (("f", {"x": 1}), ("f", {"x": 2}))] for wanted in (one, other)]
    assert matched(fits)
    assert not matched([["", "no"], ["", "no"]])
    assert mismatch(("g", {}), one) == "g was called, not f"
    assert mismatch(("f", {"x": ""}), {"f": {"x": ["", 1]}}) == ""
    assert mismatch(("f", {"x": []}), {"f": {"x": []}}) == "" and mismatch(("f", {"x": [1]}), {"f": {"x": []}})
    assert right_call({"f": {"a": ["", 3], "b": [""], "c": [{"d": [1], "e": [""]}]}}) == {
        "name": "f",
        "arguments": {"a": 3, "c": {"d": 1}},
    }

    class Nothing:
        calls = ()

    assert judge_calls(Nothing, {"calls": [one]}) == "0 calls were made instead of 1"


def test_calls_written_as_python_are_data_and_nothing_is_run():
    names = {"sort": ["file_name"]}
    assert call_of("sort('a.txt')", names) == {"name": "sort", "arguments": {"file_name": "a.txt"}}
    assert call_of(" f(a=-1, b=[True, {'c': None}])", names)["arguments"] == {"a": -1, "b": [True, {"c": None}]}
    for attack in ("__import__('os').system('x')", "f(a=__import__('os'))", "1"):
        with pytest.raises(ValueError):
            call_of(attack, names)


def test_schemas_and_states():
    made = schema({"type": "dict", "properties": {"a": {"type": "float"}, "b": {"type": "any"}}, "required": ["a"]})
    assert made == {"type": "object", "properties": {"a": {"type": "number"}, "b": {}}, "required": ["a"]}

    class Node:
        def __init__(self, parent=None):
            self.parent, self.below, self._hidden = parent, {"x": {2, 1}}, 1

    assert public(Node(Node())) == {"below": {"x": [1, 2]}}
    assert public([mpmath.mpf(1) / 2]) == ["mpf('0.5')"]


def test_precision_belongs_to_an_episode():
    """The package's calculator sets it for the whole process."""
    one, other = (Office(["MathAPI"], {}) for _ in range(2))
    third = {"value": 3.0, "base": 10.0}
    long = one.call("logarithm", {**third, "precision": 30})
    short = other.call("logarithm", {**third, "precision": 5})
    assert len(long["result"]) > len(short["result"])
    assert (one.digits, other.digits) == (30, 5)
    assert one.call("logarithm", {**third, "precision": 30}) == long
