"""Teachers of every kind in the real engine: frozen, outside of the learner, over several updates, on parted weights."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentgym.errors import UsageError
from agentgym.trainers.batch import plan
from agentgym.trainers.head import TokenScorer
from agentgym.trainers.loss import LossSettings, policy_loss
from agentgym.trainers.process import LearnerProcess
from agentgym.trainers.teacher import Distiller
from agentgym.types import ScoredSample, Taught
from tests.trainers.conftest import VOCABULARY, make_sample, small_config
from tests.trainers.test_learner import weights

pytestmark = pytest.mark.timeout(180)
K = 4
Start = Callable[..., Any]


@pytest.fixture
async def start(tiny: Path, tmp_path: Path) -> Any:
    """Start learners on the tiny model; they are closed at the end."""
    started: list[LearnerProcess] = []

    async def starter(*overrides: str) -> LearnerProcess:
        config = small_config(tiny, "algorithm.w_opd=1", f"algorithm.opd_k={K}", *overrides)
        started.append(LearnerProcess(config, model=tiny, folder=tmp_path))
        await started[-1].start()
        return started[-1]

    yield starter
    for learner in started:
        await learner.close()


def lessons(n: int = 6, hints: int = 2) -> list[ScoredSample]:
    """Responses without an advantage, each with hints; of several lengths, so that ranks have unequal work."""
    own = random.Random(3)
    made = []
    for name in range(n):
        sample = make_sample(name, name, 5, (4 + 3 * (name % 3),))
        prompts = tuple(tuple(own.randrange(VOCABULARY) for _ in range(8 + h)) for h in range(hints))
        made.append(ScoredSample(sample=sample, advantages=(None,), hinted=(prompts,)))
    return made


def logprobs(model: Any, ids: Sequence[int], begin: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0], -1)[begin - 1 : -1]


def taught(model: Any, batch: Sequence[ScoredSample], top: int) -> list[ScoredSample]:
    """The batch with what `model` says of it from outside, as `HTTPTeacher` would tell it."""
    made = []
    for scored in batch:
        (span,), (prompts,) = scored.sample.spans, scored.hinted
        response = scored.sample.ids[span.start : span.end]
        said = []
        for prompt in prompts:
            found = logprobs(model, (*prompt, *response), len(prompt))
            best = found.topk(top) if top else None
            said.append(
                Taught(
                    logprobs=tuple(float(found[t, id]) for t, id in enumerate(response)),
                    top_ids=tuple(map(tuple, best.indices.tolist())) if best else (),
                    top=tuple(map(tuple, best.values.tolist())) if best else (),
                )
            )
        made.append(msgspec.structs.replace(scored, taught=(tuple(said),)))
    return made


@pytest.mark.parametrize(
    "mode",
    [
        ("algorithm.opd=token",),
        ("algorithm.opd=topk_kl",),
        ("algorithm.opd=hybrid_topk", "algorithm.opd_support=teacher"),
        ("algorithm.opd=hybrid_topk", "algorithm.opd_support=overlap", "algorithm.opd_select=token"),
    ],
)
def test_the_same_model_outside_teaches_the_same(tiny: Path, mode: tuple[str, ...]) -> None:
    """What a teacher behind HTTP tells makes the terms that it would make in the learner."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    told = taught(model, lessons(hints=1 if "token" in mode[0] else 2), 0 if "token" in mode[0] else K)
    inside = small_config(tiny, "algorithm.w_opd=1", *mode)
    url = ("teacher.url=http://127.0.0.1:9/v1", "teacher.model=t")
    outside = small_config(tiny, "algorithm.w_opd=1", *mode, "teacher.kind=http", *url)
    scorer = TokenScorer(model, bf16=False)

    def nobody(*inputs: Any) -> tuple[torch.Tensor, ...]:
        raise AssertionError("the learner asks no teacher of its own")

    made = []
    for distiller in (Distiller(inside, scorer, scorer), Distiller(outside, scorer, nobody)):
        batches = distiller.prepared(plan(distiller.admitted(told), micro_batch_tokens=64), told)
        made.append([batch.opd for batch in batches])
        assert ("opd_forwards" in distiller.take_counts()) == (not distiller.outside)
    for ours, theirs in zip(*made, strict=True):
        assert ours is not None and theirs is not None
        assert ours.ids_NK.equal(theirs.ids_NK) and ours.mask_NK.equal(theirs.mask_NK) and ours.mask_NK.any()
        assert torch.allclose(ours.teacher_NK, theirs.teacher_NK, atol=1e-5)
        assert torch.allclose(ours.advantages_NK, theirs.advantages_NK, atol=1e-5)


def test_what_it_did_not_tell_is_masked_and_counted(tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    (scored,) = taught(model, lessons(1, hints=1), 0)
    ((said,),) = scored.taught
    holes = msgspec.structs.replace(said, logprobs=(None, *said.logprobs[1:]))
    given = [msgspec.structs.replace(scored, taught=((holes,),))]
    url = ("teacher.kind=http", "teacher.url=http://127.0.0.1:9/v1", "teacher.model=t")
    config = small_config(tiny, "algorithm.w_rl=0", "algorithm.w_opd=1", "algorithm.opd=token", *url)
    scorer = TokenScorer(model, bf16=False)
    (batch,) = Distiller(config, scorer, scorer).prepared(plan(given, micro_batch_tokens=64), given)
    assert batch.opd is not None and batch.opd.mask_NK[:, 0].tolist() == [False, *[True] * (len(said.logprobs) - 1)]
    found, entropy_N = scorer(*batch.inputs)
    loss, sums = policy_loss(
        LossSettings.of(config, vocabulary=VOCABULARY), batch.tokens, found[:, 0], found[:, 0].detach(), entropy_N, None,
        batch.opd, found[:, 1:],
    )  # fmt: skip
    loss.backward()
    assert loss.isfinite() and all(parameter.grad.isfinite().all() for parameter in scorer.parameters())
    assert (sums["opd_tokens"], sums["opd_masked"]) == (len(said.logprobs) - 1, 1)


def test_hints_that_a_teacher_outside_said_nothing_about_are_dropped(tiny: Path) -> None:
    url = ("teacher.kind=http", "teacher.url=http://127.0.0.1:9/v1", "teacher.model=t", "algorithm.opd=token")
    distiller = Distiller(small_config(tiny, "algorithm.w_opd=1", *url), None, None)  # type: ignore[arg-type]
    admitted = distiller.admitted(lessons(2))
    assert all(scored.hinted == () for scored in admitted)
    assert distiller.take_counts() == {"opd_hints": 0.0, "opd_dropped": 4.0}


@pytest.mark.deepspeed
async def test_a_frozen_teacher_is_learned_from(start: Start, tmp_path: Path, tiny: Path) -> None:
    """It stays as it was, so that the student comes nearer to it; a student who is his own teacher need not."""
    learner = await start(
        "teacher.kind=reference", "algorithm.w_rl=0", "algorithm.opd=topk_kl", "trainer.learning_rate=2e-3"
    )
    batch = lessons()
    first = await learner.step(batch)
    for _ in range(14):
        last = await learner.step(batch)
    assert last["opd_loss"] < 0.5 * first["opd_loss"]
    assert 0 < last["opd_gap"] < first["opd_gap"] and last["opd_overlap"] >= first["opd_overlap"]
    assert all(math.isfinite(value) for value in (*first.values(), *last.values()))
    assert first["opd_forwards"] >= 1 and first["rl_loss"] == 0.0


@pytest.mark.deepspeed
async def test_more_tokens_than_there_are_is_refused_at_start(start: Start) -> None:
    with pytest.raises(UsageError, match=r"algorithm\.opd_k=100000: the model has \d+ tokens"):
        await start("algorithm.opd_k=100000")


@pytest.mark.deepspeed
async def test_a_step_without_hints_is_the_step_without_a_teacher(
    start: Start, batch: list[ScoredSample], tmp_path: Path
) -> None:
    taught_step = await (await start()).step(batch)
    plain = await (await start("algorithm.w_opd=0")).step(batch)
    for name in ("loss", "grad_norm", "ratio_mean", "tokens_trained", "gap_mean"):
        assert taught_step[name] == plain[name]
    assert "opd_forwards" not in taught_step


@pytest.mark.deepspeed
@pytest.mark.parametrize("support", ["teacher", pytest.param("student", marks=pytest.mark.slow)])
async def test_ranks_with_unequal_work_and_parted_weights_agree(
    start: Start, batch: list[ScoredSample], tmp_path: Path, support: str
) -> None:
    """ZeRO-3 gathers weights in each forward pass: ranks that make unequal numbers of them would wait for ever."""
    own = random.Random(1)
    given = [*lessons(5, hints=3), *(msgspec.structs.replace(scored, hinted=()) for scored in batch)]
    own.shuffle(given)
    found = []
    for layout in (("trainer.ranks=1",), ("trainer.ranks=2", "trainer.zero_stage=3")):
        learner = await start(*layout, f"algorithm.opd_support={support}", "trainer.updates_per_batch=2")
        metrics = await learner.step(given)
        await learner.publish(tmp_path / layout[0])
        await learner.close()
        found.append((metrics, weights(tmp_path / layout[0])))
    (one, alone), (two, together) = found
    for name in (
        "loss",
        "rl_loss",
        "opd_loss",
        "opd_overlap",
        "opd_gap",
        "opd_tokens",
        "opd_sign_agreement",
        "tokens_trained",
    ):
        assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    assert one["updates"] == two["updates"] == 2.0
    assert torch.allclose(alone, together, atol=2e-5)
