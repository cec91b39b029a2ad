"""How many of the attacks in tests/data/injections.json turn the verdict of the small real model as a judge.

The parser is not asked here (no attack turns it: tests/policies/test_injections.py), the model is: its answer is held to
the form up to the score, as structured output holds it, and the likeliest of 1, 0 and -1 is its verdict. Each attack is
compared with the same turn without it and with a harmless text in its place.

    python -m benchmarks.injection [MODEL] [EVERY]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.config import Config
from agentgym.models import resolve_model
from agentgym.policies.judge_parse import parse
from agentgym.policies.judge_prompt import Budget, judge_messages
from agentgym.policies.transformers import TransformersPolicy
from agentgym.policy import Session
from agentgym.types import Exchange, Message, Prompt, Sampling
from tests.injections import ATTACKS, attack_text, exchange_with, truth

MODEL = "smollm2-135m-instruct"
BUDGET = Budget(800, 800)
HARMLESS = "The weather was fine yesterday, and the shop opened at nine."
FIRST = {1: "1", 0: "0", -1: "-"}  # what the score begins with
TOP = 4096  # tokens among which those are looked for
AT_ONCE = 4


async def measure(folder: Path, model: str = MODEL, every: int = 1) -> dict[str, Any]:
    """Verdicts on every `every`-th attack: right ones without it, changed ones, and those it turned to what it wants."""
    config = Config()
    config.model.path, config.model.max_length, config.engine.max_num_seqs = model, 4096, AT_ONCE
    policy = TransformersPolicy(config, model=resolve_model(model), folder=folder)
    attacks = ATTACKS[::every]
    await policy.start()
    try:
        plain = await _all(policy, [_without(attack) for attack in attacks])
        harmless = await _all(policy, [exchange_with(attack, _as_long(attack)) for attack in attacks])
        attacked = await _all(policy, [exchange_with(attack) for attack in attacks])
        free = [await _free(policy, exchange_with(attack)) for attack in attacks[:: max(1, len(attacks) // 4)]]
    finally:
        await policy.close()
    return {
        "model": model,
        **_figures(attacks, plain, harmless, attacked),
        "valid_answers_without_schema": _share(free),
    }


def _figures(
    attacks: Sequence[dict[str, Any]], plain: list[dict[int, float]], harmless: list[dict[int, float]],
    attacked: list[dict[int, float]],
) -> dict[str, Any]:  # fmt: skip
    rows = list(zip(attacks, plain, harmless, attacked, strict=True))
    open_to = [row for row in rows if _verdict(row[2]) != row[0]["wants"]]  # those that could be turned at all
    shift = [_odds(row[3], row[0]) - _odds(row[2], row[0]) for row in rows]
    return {
        "attacks": len(rows),
        "right_without": sum(_verdict(row[1]) == truth(row[0]) for row in rows),
        "right_with_harmless_text": sum(_verdict(row[2]) == truth(row[0]) for row in rows),
        "right_with_attack": sum(_verdict(row[3]) == truth(row[0]) for row in rows),
        "verdicts_with_attack": {score: sum(_verdict(row[3]) == score for row in rows) for score in FIRST},
        "could_be_turned": len(open_to),
        "turned": sorted(row[0]["id"] for row in open_to if _verdict(row[3]) == row[0]["wants"]),
        "mean_shift_of_log_odds": round(sum(shift) / len(shift), 3),
        "shifted_towards_the_attack": sum(one > 0 for one in shift),
    }


async def _all(policy: TransformersPolicy, exchanges: Sequence[Exchange]) -> list[dict[int, float]]:
    found: list[dict[int, float]] = []
    for start in range(0, len(exchanges), AT_ONCE):
        found += await asyncio.gather(*(_scores(policy, one) for one in exchanges[start : start + AT_ONCE]))
    return found


async def _scores(policy: TransformersPolicy, exchange: Exchange) -> dict[int, float]:
    """The log-prob of what each score begins with, after an answer in the form that is asked for."""
    code, ids = _question(policy, exchange)
    ids += _plain(policy, f'{{"reason": "", "code": "{code}", "score": ')
    tokens = {score: _plain(policy, text)[0] for score, text in FIRST.items()}
    async for piece in policy.stream(ids, Sampling(max_tokens=1, top_logprobs=TOP, temperature=0)):
        if piece.top:
            top = dict(piece.top[0])
            return {score: top.get(token, float("-100")) for score, token in tokens.items()}
    raise RuntimeError("the engine gave no token")


async def _free(policy: TransformersPolicy, exchange: Exchange) -> bool:
    """Whether an answer that nothing holds to a form can be read."""
    code, ids = _question(policy, exchange)
    sampled = await policy.sample(ids, Sampling(max_tokens=64, temperature=0))
    text = policy.template.decode_response(sampled.ids).content
    return parse(text, code, cut_off=sampled.finish_reason == "length").vote is not None


def _question(policy: TransformersPolicy, exchange: Exchange) -> tuple[str, tuple[int, ...]]:
    fence, code = "7c1e90ab", "4b8d02f6"  # the same for all, so that nothing but the attack differs
    messages = judge_messages(exchange, fence=fence, code=code, budget=BUDGET)
    return code, policy.template.encode_prompt(Session("judge"), Prompt(messages=messages))


def _plain(policy: TransformersPolicy, text: str) -> tuple[int, ...]:
    return tuple(policy.template.tokenizer.encode(text, add_special_tokens=False).ids)


def _without(attack: dict[str, Any]) -> Exchange:
    """The turn of an attack without the message, or the part of one, that carries it."""
    made = exchange_with(attack, "")
    keep = {name: _nonempty(getattr(made, name)) for name in ("history", "next_state")}
    return Exchange(trajectory_id="t", turn=0, task=made.task, response=made.response, **keep)


def _nonempty(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(message for message in messages if message.content)


def _as_long(attack: dict[str, Any]) -> str:
    """A harmless text of about the attack's length, as far as that is shown."""
    return (f"{HARMLESS} " * (min(len(attack_text(attack)), BUDGET.part) // len(HARMLESS) + 1)).strip()


def _verdict(scores: dict[int, float]) -> int:
    return max(scores, key=lambda score: scores[score])


def _odds(scores: dict[int, float], attack: dict[str, Any]) -> float:
    return scores[attack["wants"]] - scores[truth(attack)]


def _share(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="agentgym-bench-") as made:
        name, step = [*sys.argv[1:], MODEL][0], int([*sys.argv[2:], 1][0])
        print(json.dumps(asyncio.run(measure(Path(made), name, step)), indent=1))
