"""The study of `make bench-learning`: its task, and the arithmetic of its table."""

import numpy as np
import pytest

from agentgym.check import check_env, check_tasks
from agentgym.models import resolve_model
from agentgym.policies.template import ChatTemplate
from agentgym.types import Message
from benchmarks.cipher import HELD_OUT, LENGTH, LETTERS, Cipher, CipherEnv, lessons, matching
from benchmarks.learning import curves_of, exact_success, mean_interval, paired, plot, summary_of, table
from tests.letters import register


def test_the_cipher_passes_the_public_checks():
    register()
    for found in (check_env("cipher", tasks="cipher"), check_tasks("cipher")):
        assert found.ok, found


def test_a_cipher_is_a_permutation_and_held_out_words_are_never_trained_on():
    made = Cipher(seed=3)
    assert sorted(made.key) == sorted(made.key.values()) == sorted(LETTERS)
    assert Cipher(seed=3).key == made.key != Cipher(seed=4).key
    train = {word for task in made.tasks("train") for word in task.data["words"]}
    test = {word for task in made.tasks("test") for word in task.data["words"]}
    assert not train & test and len(test) == HELD_OUT and len(train) == len(LETTERS) ** LENGTH - HELD_OUT


async def test_what_comes_back_tells_the_answer_and_what_the_turn_was_worth():
    task = Cipher(seed=0).tasks("train")[0]
    first, second = task.data["answers"]
    env = CipherEnv()
    observation, _ = await env.reset(seed=0, options={"task": task})
    assert observation.messages[0].content == task.data["words"][0]
    wrong = "".join(next(letter for letter in LETTERS if letter != right) for right in first)
    result = await env.step(Message(role="assistant", content=wrong))
    assert (result.reward, result.info["score"], result.terminated) == (0.0, -1, False)
    assert result.info["hint"] == f"The answer is {first}"
    assert result.observation.messages[0].content == f"it is {first}\n{task.data['words'][1]}"
    partly = second[:2] + next(letter for letter in LETTERS if letter != second[2])
    result = await env.step(Message(role="assistant", content=partly))
    assert result.info["score"] == 0 and result.reward == pytest.approx(2 / 3 / 2) and result.terminated


def test_wrong_hints_are_as_frequent_as_was_asked_for():
    tasks = Cipher(seed=0, wrong=0.5).tasks("train")
    right = [
        told == answer for task in tasks for told, answer in zip(task.data["told"], task.data["answers"], strict=True)
    ]
    assert 0.4 < np.mean(right) < 0.6
    assert all(task.data["told"] == task.data["answers"] for task in Cipher(seed=0).tasks("train"))


def test_only_an_answer_of_the_right_length_has_right_letters():
    assert [matching(said, "abc") for said in ("abc", "axc", "bca", "ab", "abcd", "")] == [3, 2, 0, 0, 0, 0]


def test_lessons_teach_to_follow_a_hint_and_no_cipher():
    template = ChatTemplate(resolve_model("tiny"))
    hinted = 0
    for sample in lessons(template, "\n\nHint: {hint}", 200, seed=1):
        start = sample.spans[0].start
        asked = template.tokenizer.decode(list(sample.ids[:start]))
        answer = template.tokenizer.decode(list(sample.ids[start:-1]))
        assert len(answer) == LENGTH and sum(sample.mask) == len(sample.ids) - start
        if "Hint: The answer is" in asked:
            hinted += 1
            assert f"Hint: The answer is {answer}" in asked
    assert 80 < hinted < 160


def test_success_is_the_mean_chance_of_the_whole_answer():
    assert exact_success([[None, np.log(0.5), np.log(0.5)], [None, 0.0, 0.0]]) == pytest.approx((0.25 + 1) / 2)


def test_intervals_are_students():
    """t(0.975, 2) = 4.302653 (any table), the standard error of 1, 2, 3 is 1 / sqrt(3)."""
    assert mean_interval(np.array([1.0, 2.0, 3.0])) == pytest.approx(
        (2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5)
    )


def test_the_table_says_how_many_steps_each_arm_took():
    found = {
        "RL only/0": {"curve": {"0": 0.0, "5": 0.2, "10": 0.6}},
        "RL only/1": {"curve": {"0": 0.0, "5": 0.1, "10": 0.2}},
        "hybrid/0": {"curve": {"0": 0.0, "5": 0.5, "10": 0.9}},
        "hybrid/1": {"curve": {"0": 0.0, "5": 0.7, "10": 0.8}},
    }  # fmt: skip
    arms = {arm: curves_of(found, arm) for arm in ("RL only", "hybrid")}
    summary = {arm: summary_of(*curves) for arm, curves in arms.items()}
    assert summary["RL only"]["steps_to_threshold"] == [10, None]
    assert summary["RL only"]["median_steps"] is None and summary["hybrid"]["median_steps"] == 5
    assert summary["hybrid"]["final"][0] == pytest.approx(0.85)
    assert "| hybrid | 2 |" in table(summary) and "| 5 | 2 of 2 |" in table(summary)
    told = paired({arm: curves[1][:, -1] for arm, curves in arms.items()})
    assert "| RL only | 0.450 [-1.000, 1.000] | 2 of 2 |" in told, "0.3 and 0.6: t(0.975, 1) = 12.7 times 0.15"
    drawing = plot(arms)
    assert drawing.startswith("<svg xmlns=") and drawing.count("band") >= 2 and "hybrid" in drawing
