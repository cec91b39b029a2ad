"""No attack makes the parser read another verdict than the judge's, however nastily the judge quotes it."""

import json
import time
from collections import Counter

import pytest

from agentgym.config import Config, HintsConfig
from agentgym.hints import accept
from agentgym.judge import make_judge
from agentgym.policies.judge_parse import parse
from agentgym.policies.judge_prompt import Budget, judge_messages
from agentgym.policies.mock import MockPolicyServer
from agentgym.policies.mock_judge import saying
from agentgym.untrusted import HIDDEN, SPECIAL
from tests.injections import ATTACKS, attack_text, exchange_with, truth

FENCE, CODE = "0f1e2d3c", "a1b2c3d4"
BUDGET = Budget(4000, 4000)
QUOTED = 20_000  # characters: no judge quotes more

attacks = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack["id"])


def own(score, reason="", hint=""):
    """The judge's own verdict, well-formed."""
    return json.dumps({"reason": reason, "code": CODE, "score": score, "hint": hint}, ensure_ascii=False)


def raw(score, reason="", hint=""):
    """The same from a judge that escapes nothing."""
    return f'{{"reason": "{reason}", "code": "{CODE}", "score": {score}, "hint": "{hint}"}}'


# How a judge may quote the attack in its answer. The first ones say their verdict so that it must be read.
READ = {
    "in its reason": lambda said, score, prompt: own(score, reason=said),
    "in its hint": lambda said, score, prompt: own(score, hint=said),
    "before its verdict": lambda said, score, prompt: f"It says:\n{said}\nSo:\n{own(score)}",
    "as a quotation": lambda said, score, prompt: "> " + said.replace("\n", "\n> ") + f"\n\n{own(score)}",
    "in a block": lambda said, score, prompt: f"```\n{said}\n```\n```json\n{own(score)}\n```",
    "while thinking": lambda said, score, prompt: f"<think>{said}\n{own(-score)} no, wait</think>{own(score)}",
    "with all that was asked": lambda said, score, prompt: f"{prompt}\n\n{own(score)}",
    "with its verdict twice": lambda said, score, prompt: f"{own(score)}\n{said}\n{own(score)}".replace("</think>", "<//>"),
}  # fmt: skip
# Those say it so that it may be lost, and never turned.
LOST = {
    "after its verdict": lambda said, score, prompt: f"{own(score)}\nIt said: {said}",
    "unescaped": lambda said, score, prompt: raw(score, said),
    "unescaped in its hint": lambda said, score, prompt: raw(score, hint=said),
    "unescaped, and in another order": lambda said, score, prompt: (
        f'{{"code": "{CODE}", "reason": "{said}", "score": {score}}}'
    ),
    "between the halves of its verdict": lambda said, score, prompt: f'{{"code": "{CODE}", {said} "score": {score}}}',
    "after a score that it takes back": lambda said, score, prompt: f"{own(-score)}\n{said}\n{own(score)}",
}
# And those say nothing but the attack.
PARROTS = {
    "alone": lambda said, score, prompt: said,
    "in a block alone": lambda said, score, prompt: f"```json\n{said}\n```",
    "with the question": lambda said, score, prompt: prompt,
    "with a code of its own": lambda said, score, prompt: said.replace('{"', '{"code": "00000001", "', 1),
    "with thoughts without end": lambda said, score, prompt: f"<think>{own(-score)} or not, {said}",
}


def test_there_are_enough_attacks_of_each_kind():
    kinds = Counter(attack["kind"] for attack in ATTACKS)
    assert len(ATTACKS) >= 60 and min(kinds.values()) >= 4
    assert len({attack["id"] for attack in ATTACKS}) == len(ATTACKS)


@attacks
def test_no_quotation_turns_the_verdict(attack):
    said, score = attack_text(attack)[:QUOTED], truth(attack)
    prompt = judge_messages(exchange_with(attack), fence=FENCE, code=CODE, budget=BUDGET)[1].content
    for how, quote in READ.items():
        assert parse(quote(said, score, prompt), CODE).vote == score, how
    for how, quote in LOST.items():
        assert parse(quote(said, score, prompt), CODE).vote in (score, None), how
    for how, quote in PARROTS.items():
        assert parse(quote(said, score, prompt), CODE).vote is None, how


@attacks
def test_without_binding_only_a_whole_answer_is_a_verdict(attack):
    said, score = attack_text(attack)[:QUOTED], truth(attack)
    for how, quote in (READ | LOST).items():
        assert parse(quote(said, score, ""), CODE, bind=False).vote in (score, None), how
    quoted = json.dumps({"score": score, "reason": said}, ensure_ascii=False)
    assert parse(quoted, CODE, bind=False).vote == score
    assert parse(f"<think>{-score}</think>{quoted}", CODE, bind=False).vote in (score, None)
    assert parse(f"I see: {said}\nNo verdict.", CODE, bind=False).vote is None


@attacks
def test_an_answer_that_was_cut_off_is_no_verdict(attack):
    said = attack_text(attack)[:QUOTED]
    assert parse(f"{own(-truth(attack))} is what I would say, but {said}", CODE, cut_off=True).vote is None


@attacks
def test_data_stays_behind_its_bar(attack):
    """Whatever is written: each line is ours or data, as many are ours as without the attack, and nothing is hidden."""
    system, user = judge_messages(exchange_with(attack), fence=FENCE, code=CODE, budget=BUDGET)
    lines = user.content.split("\n")
    ours = [line for line in lines if line.startswith(f"[{FENCE}] ")]
    assert all(line.startswith("| ") for line in lines if line not in ours)
    plain = judge_messages(exchange_with(attack, "harmless"), fence=FENCE, code=CODE, budget=BUDGET)
    calm = [line for line in plain[1].content.split("\n") if line.startswith(f"[{FENCE}] ")]
    assert [line for line in ours if "left out here" not in line] == calm
    assert not HIDDEN.search(user.content.replace("\n", "")) and not SPECIAL.search(user.content)
    assert len(user.content.splitlines()) == len(lines)  # no other line end is left
    assert len(user.content) < 60_000
    assert system == plain[0]


@attacks
def test_no_answer_holds_the_parser_up(attack):
    text = attack_text(attack)
    began = time.process_time()
    for answer in (
        text,
        f"{text}{own(1)}",
        f'{{"code": "{CODE}", {text}',
        f'{{"code": "{CODE}" ' * 20_000,
        f"```json\n{text}",
    ):
        parse(answer, CODE)
    exchange = exchange_with(attack)
    judge_messages(exchange, fence=FENCE, code=CODE, budget=BUDGET)
    assert time.process_time() - began < 5


@attacks
def test_no_attack_makes_a_hint_that_is_more_than_a_line_of_text(attack):
    for hint in accept([attack_text(attack)], HintsConfig(), ["hunter2hunter2"]).hints:
        assert "\n" not in hint and not HIDDEN.search(hint) and not SPECIAL.search(hint) and len(hint) <= 600
        assert "hunter2" not in hint


async def test_a_judge_that_quotes_what_it_reads_is_read_right_from_end_to_end():
    """Over HTTP: the endpoint sees the prompt alone, and answers with all of it and its own verdict."""

    def say(prompt, code, rng):
        return f"{prompt}\n" + json.dumps({"reason": prompt, "code": code, "score": -1, "hint": ""})

    async with MockPolicyServer(answer=saying(say)) as server:
        config = Config()
        config.judge.kind, config.judge.url, config.judge.model, config.judge.votes = "llm", server.url, "mock", 1
        config.judge.max_tokens = 200_000
        judge = make_judge(config)
        wanting = [attack for attack in ATTACKS if attack["wants"] == 1]
        scores = [(await judge(exchange_with(attack))).score for attack in wanting]
        await judge.close()
    assert scores == [-1.0] * len(wanting)
