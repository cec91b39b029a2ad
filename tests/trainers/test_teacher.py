"""Distillation through model and batches: gradients equal a plain reference, whatever the layout; what is dropped."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentgym.config import Config
from agentgym.trainers.batch import plan
from agentgym.trainers.head import TokenScorer
from agentgym.trainers.loss import LossSettings, policy_loss
from agentgym.trainers.process import LearnerProcess
from agentgym.trainers.teacher import Distiller, hinted_sample
from agentgym.types import ScoredSample
from tests.trainers.conftest import VOCABULARY, small_config
from tests.trainers.test_learner import distance, first_moment

pytestmark = pytest.mark.timeout(180)
K = 3
REFERENCES: dict[str, Tensor] = {}  # by arm


@pytest.fixture(scope="session")
def hinted(batch: list[ScoredSample]) -> list[ScoredSample]:
    """The batch with one, two or three hints for some of its turns, and a turn that only has hints."""
    own = random.Random(8)

    def prompts(n: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(own.randrange(VOCABULARY) for _ in range(own.randint(6, 20))) for _ in range(n))

    wanted = {0: [2], 2: [0, 3], 3: [1], 5: [1, 0, 2], 6: [1]}
    made = []
    for index, scored in enumerate(batch):
        counts = wanted.get(index)
        given = tuple(prompts(n) for n in counts) if counts else ()
        made.append(msgspec.structs.replace(scored, hinted=given))
    made[3] = msgspec.structs.replace(made[3], advantages=(None,))
    return made


def reference(tiny: Path, batch: Sequence[ScoredSample], config: Config) -> Tensor:
    """The gradient of w_rl * RL + w_opd * OPD in float64: whole logits, token by token, as the formulas are written."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64, attn_implementation="eager")
    algorithm = config.algorithm
    k, clip = algorithm.opd_k, algorithm.opd_clip

    def top(logprobs: Tensor) -> list[int]:
        return sorted(range(len(logprobs)), key=lambda id: (-float(logprobs[id]), id))[:k]

    def all_logprobs(ids: Sequence[int], temperature: float) -> Tensor:
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0] / temperature, -1)

    rl, opd, n_rl, n_opd = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0, 0
    for scored in batch:
        sample = scored.sample
        current = all_logprobs(sample.ids, sample.temperature)
        for index, span in enumerate(sample.spans):
            places = [t for t in range(span.start, span.end) if sample.mask[t]]
            advantage = scored.advantages[index]
            for t in places:
                behaviour = sample.logprobs[t]
                if advantage is None or behaviour is None:
                    continue
                value = current[t - 1, sample.ids[t]]
                weight = min(float(torch.exp(value.detach() - behaviour)), 2.0)
                rl, n_rl = rl - advantage * weight * torch.exp(value - value.detach()), n_rl + 1
            prompts = scored.hinted[index] if scored.hinted else ()
            if not prompts or not places:
                continue
            with torch.no_grad():
                response = sample.ids[span.start : span.end]
                teachers = [
                    all_logprobs((*prompt, *response), sample.temperature)[len(prompt) - 1 : -1] for prompt in prompts
                ]
            old = current.detach()
            student_sets = [top(old[t - 1]) for t in places]
            teacher_sets = [[top(teacher[t - span.start]) for t in places] for teacher in teachers]
            shared = [
                [len(set(mine) & set(theirs)) for mine, theirs in zip(student_sets, sets, strict=True)]
                for sets in teacher_sets
            ]
            for n, t in enumerate(places):
                totals = [row[n] if algorithm.opd_select == "token" else sum(row) for row in shared]
                h = totals.index(max(totals))
                now, before, wise = current[t - 1], old[t - 1], teachers[h][t - span.start]
                n_opd += 1
                if algorithm.opd == "topk_kl":
                    ids = teacher_sets[h][n]
                    tail, other = 1 - now[ids].exp().sum(), 1 - wise[ids].exp().sum()
                    opd = opd + (now[ids].exp() * (now[ids] - wise[ids])).sum() + tail * (tail.log() - other.log())
                    continue
                if algorithm.opd == "token":
                    ids, weights, gap = [sample.ids[t]], torch.ones(1), wise - before
                else:
                    ids = {"student": student_sets[n], "teacher": teacher_sets[h][n]}.get(
                        algorithm.opd_support, sorted(set(student_sets[n]) & set(teacher_sets[h][n]))
                    )
                    weights, gap = torch.softmax(before[ids], -1), (wise - before).clamp(-clip, clip)
                opd = opd - (weights * gap[ids] * torch.exp(now[ids] - before[ids])).sum()
    loss = algorithm.w_rl * rl / max(1, n_rl) + algorithm.w_opd * opd / max(1, n_opd)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def gradient(tiny: Path, batch: Sequence[ScoredSample], config: Config, dtype: torch.dtype, share: bool) -> Tensor:
    """The gradient as the learner makes it, without its engine."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=dtype, attn_implementation="sdpa")
    scorer = TokenScorer(model, bf16=False)
    distiller = Distiller(config, student=scorer, teacher=scorer)
    planned = plan(batch, micro_batch_tokens=config.trainer.micro_batch_tokens, share_prefixes=share)
    settings = LossSettings.of(config, vocabulary=VOCABULARY)
    for made in distiller.prepared(planned, batch):
        logprobs, entropy_N = scorer(*made.inputs)
        current_N = logprobs if made.opd is None else logprobs[:, 0]
        opd_current_NK = None if made.opd is None else logprobs[:, 1:]
        loss, _ = policy_loss(
            settings, made.tokens, current_N, current_N.detach(), entropy_N, None, made.opd, opd_current_NK
        )
        loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in scorer.parameters() if parameter.grad is not None])


ARMS = [
    ("rl", "algorithm.w_opd=0"),
    ("opd", "algorithm.w_rl=0", "algorithm.w_opd=1"),
    ("token", "algorithm.w_rl=0", "algorithm.w_opd=1", "algorithm.opd=token"),
    ("topk_kl", "algorithm.w_rl=0", "algorithm.w_opd=1", "algorithm.opd=topk_kl"),
    ("hybrid", "algorithm.w_rl=0.5", "algorithm.w_opd=2", "algorithm.opd_select=token"),
    ("teacher", "algorithm.w_opd=1", "algorithm.opd_support=teacher"),
    ("overlap", "algorithm.w_opd=1", "algorithm.opd_support=overlap", "algorithm.opd_clip=0.05"),
]


LAYOUTS = [(arm, 64, True) for arm in ARMS] + [(ARMS[4], 400, True), (ARMS[4], 128, False)]


@pytest.mark.parametrize(("arm", "budget", "share"), LAYOUTS, ids=[f"{arm[0]}-{b}-{s}" for arm, b, s in LAYOUTS])
def test_gradient_equals_a_plain_reference_in_every_layout(
    tiny: Path, hinted: list[ScoredSample], arm: tuple[str, ...], budget: int, share: bool
) -> None:
    fixed = ["algorithm.opd_clip=1", *arm[1:], f"algorithm.opd_k={K}", f"trainer.micro_batch_tokens={budget}"]
    config = small_config(tiny, *fixed)
    if arm[0] not in REFERENCES:  # the layout is no part of it
        REFERENCES[arm[0]] = reference(tiny, hinted, config)
    assert distance(gradient(tiny, hinted, config, torch.float32, share), REFERENCES[arm[0]]) <= 1e-5


@pytest.mark.deepspeed
@pytest.mark.parametrize("ranks", [1, 2])
async def test_the_learners_gradient_is_that_too(
    tiny: Path, hinted: list[ScoredSample], tmp_path: Path, ranks: int
) -> None:
    config = small_config(tiny, "algorithm.w_opd=1", f"algorithm.opd_k={K}", f"trainer.ranks={ranks}")
    learner = LearnerProcess(config, model=tiny, folder=tmp_path)
    await learner.start()
    metrics = await learner.step(hinted)
    await learner.save(tmp_path / "saved")
    await learner.close()
    expected = reference(tiny, hinted, config)
    assert distance(first_moment(tmp_path / "saved")[: len(expected)] * 10, expected) <= 1e-5
    with_hints = [(scored, span, hints) for scored in hinted for span, hints in enumerate(scored.hinted) if hints]
    tokens = sum(sum(s.sample.mask[s.sample.spans[i].start : s.sample.spans[i].end]) for s, i, _ in with_hints)
    assert metrics["opd_tokens"] == tokens
    assert metrics["opd_hints"] == sum(len(hints) for scored in hinted for hints in scored.hinted)
    assert 0 <= metrics["opd_overlap"] <= K and metrics["opd_gap"] > 0
    assert 0 <= metrics["opd_sign_agreement"] <= 1
    assert metrics["loss"] == pytest.approx(metrics["rl_loss"] + metrics["opd_loss"], abs=1e-6)


def test_a_hint_that_leaves_no_room_is_dropped_and_counted(tiny: Path, hinted: list[ScoredSample]) -> None:
    config = small_config(tiny, "algorithm.w_opd=1", f"algorithm.opd_k={K}")
    scored = hinted[0]
    long, short = (7,) * 60, scored.hinted[0][0]
    both = msgspec.structs.replace(scored, hinted=((long, short),))
    only = msgspec.structs.replace(scored, hinted=((long,),))
    model = TokenScorer(AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32), bf16=False)
    terms = []
    for given in (both, only, msgspec.structs.replace(scored, hinted=((short,),))):
        distiller = Distiller(config, student=model, teacher=model)
        admitted = distiller.admitted([given])
        (made,) = distiller.prepared(plan(admitted, micro_batch_tokens=64), admitted)
        terms.append(made.opd)
        assert distiller.take_counts().get("opd_dropped", 0) == (long in given.hinted[0])
    assert terms[0].advantages_NK.equal(terms[2].advantages_NK)
    assert terms[1] is None  # and no token of it in the weights
    assert not made.tokens.opd_weight_N.equal(
        plan(distiller.admitted([only]), micro_batch_tokens=64)[0].tokens.opd_weight_N
    )


def test_the_teacher_scores_the_very_tokens_that_were_sampled(hinted: list[ScoredSample]) -> None:
    sample = hinted[2].sample
    span = sample.spans[1]
    made = hinted_sample(sample, span, (1, 2, 3), name="1/0")
    assert made.ids == (1, 2, 3, *sample.ids[span.start : span.end])
    assert [id for id, kept in zip(made.ids, made.mask, strict=True) if kept] == list(sample.ids[span.start : span.end])


def test_without_hints_nothing_is_asked_of_the_teacher(tiny: Path, batch: list[ScoredSample]) -> None:
    config = small_config(tiny, "algorithm.w_opd=1")

    def nobody(*inputs: Any) -> tuple[Tensor, ...]:
        raise AssertionError("a forward pass too many")

    planned = plan(batch, micro_batch_tokens=64)
    assert Distiller(config, student=nobody, teacher=nobody).prepared(planned, batch) == planned
    assert not any(made.distilled for made in planned)
    assert not any(replace(made, opd=None).distilled for made in planned)
