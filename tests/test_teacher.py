"""Who may teach what; and a teacher outside of the learner: what it says goes with the hints, and what it fails at costs that hint."""

import asyncio

import msgspec
import pytest

from agentgym.collect import Collected
from agentgym.config import AlgorithmConfig, load_config
from agentgym.errors import ConfigError, EngineError
from agentgym.pipeline import check_judging
from agentgym.scoring import Scorer
from agentgym.store import Store
from agentgym.teacher import TEMPERATURE, Teacher, with_taught
from agentgym.trainers.assemble import assemble
from agentgym.types import Group, Judgement, Message, Taught, Trajectory, Turn
from tests.fakes import ScriptedJudge, completion, hinted

RESPONSE = completion((1, 2, 3), (10, 20))


class Numbers(Teacher):
    """Says of each token how long the prompt was; `fault` by that length may change the answer."""

    def __init__(self, faults=None):
        self.faults, self.asked = faults or {}, []

    async def start(self):
        """It is always there."""

    async def score(self, prompt_ids, response_ids):
        self.asked.append((prompt_ids, response_ids))
        await asyncio.sleep(0)
        fault = self.faults.get(len(prompt_ids))
        if isinstance(fault, BaseException):
            raise fault
        return fault or Taught(logprobs=(-float(len(prompt_ids)),) * len(response_ids))


def judgement(*prompts: tuple[int, ...]) -> Judgement:
    hints = tuple(f"the hint number {n}" for n in range(len(prompts)))
    return Judgement(trajectory_id="t", turn=0, judge="scripted", score=-1.0, hints=hints, hinted=prompts)


async def test_it_is_asked_about_the_very_ids_under_each_hint():
    teacher = Numbers()
    found = await with_taught(teacher, judgement((1, 2, 3, 4), (1, 2, 3, 4, 5)), RESPONSE)
    assert sorted(teacher.asked) == [((1, 2, 3, 4), (10, 20)), ((1, 2, 3, 4, 5), (10, 20))]
    assert [taught.logprobs for taught in found.taught] == [(-4.0, -4.0), (-5.0, -5.0)]
    assert len(found.hints) == len(found.hinted) == 2 and found.refused_hints == ()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (EngineError("no answer\nat all"), "the teacher failed: no answer at all"),
        (TimeoutError(), "the teacher failed: TimeoutError"),
        (Taught(logprobs=(-1.0,)), "the teacher failed: it told 1 of 2 log-probs"),
    ],
)
async def test_a_failed_call_is_a_missing_term_and_never_zeros(fault, reason):
    found = await with_taught(Numbers({4: fault}), judgement((1,) * 4, (1,) * 5), RESPONSE)
    assert found.hinted == ((1,) * 5,) and found.hints == ("the hint number 1",)
    assert [taught.logprobs for taught in found.taught] == [(-5.0, -5.0)]
    assert found.refused_hints == (reason,)


async def test_it_knows_one_temperature_only():
    teacher, hot = Numbers(), msgspec.structs.replace(RESPONSE, temperature=0.7)
    found = await with_taught(teacher, judgement((1,) * 4), hot)
    assert (found.hints, found.hinted, found.taught, found.refused_hints) == ((), (), (), (TEMPERATURE,))
    assert teacher.asked == []


async def test_from_the_judge_to_the_learner(tmp_path):
    """What the scorer has of it is in the store, and what is assembled of that has it beside its prompts."""
    made = RESPONSE
    turns = (
        Turn(index=0, completion=made),
        Turn(index=1, completion=completion((*made.prompt_ids, *made.ids, 5), (30,))),
    )
    messages = tuple(Message(role="user", content="x") for _ in range(3))
    member = Trajectory(
        id="t", task_id="k", group_id="g", env="e", seed=0, status="completed", outcome=0.0, turns=turns, messages=messages
    )  # fmt: skip
    judge = ScriptedJudge(lambda exchange: (-1, ("use wc instead",) if exchange.turn == 0 else ()))
    config, teacher, store = load_config(None, ["algorithm.w_opd=1"]), Numbers(), Store(tmp_path / "store.sqlite")

    async def stored(work, *args):
        return work(*args)

    async def scored_group():
        scorer = Scorer(judge, store, config, stored, hinted, teacher)
        scorer.take([member])
        return await scorer.judged(Group(id="g", task_id="k", trajectories=(member,)))

    group = await scored_group()
    assert store.judgements("t")[0].taught == group.judgements[0][0].taught != ()
    assert (await scored_group()).judgements == group.judgements
    store.close()
    assert len(teacher.asked) == 1  # the second life pays for nothing
    (scored,) = assemble(Collected(groups=(group,)), AlgorithmConfig(w_rl=0.0, w_opd=1.0)).ready
    ((prompt,), nothing) = scored.hinted
    assert nothing == () and scored.taught == ((Taught(logprobs=(-float(len(prompt)),) * 2),), ())


def test_who_has_a_teacher_inside_carries_nothing_more():
    member = Trajectory(
        id="t", task_id="k", group_id="g", env="e", seed=0, status="completed", outcome=0.0,
        turns=(Turn(index=0, completion=RESPONSE),),
    )  # fmt: skip
    group = Group(id="g", task_id="k", trajectories=(member,), judgements=((judgement((1, 2)),),))
    (scored,) = assemble(Collected(groups=(group,)), AlgorithmConfig(w_rl=0.0, w_opd=1.0)).ready
    assert scored.hinted == (((1, 2),),) and scored.taught == ()


@pytest.mark.parametrize("kind", ["self", "reference", "http"])
@pytest.mark.parametrize("support", ["student", "teacher", "overlap"])
@pytest.mark.parametrize("opd", ["hybrid_topk", "topk_kl", "token"])
@pytest.mark.parametrize("preset", ["agentgym", "opd", "hybrid"])
def test_every_loss_has_its_teacher_or_is_refused(preset, opd, support, kind):
    wanted = [
        f"algorithm.preset={preset}",
        f"algorithm.opd={opd}",
        f"algorithm.opd_support={support}",
        f"teacher.kind={kind}",
    ]
    impossible = kind == "http" and preset != "agentgym" and (opd, support) == ("hybrid_topk", "student")
    given = [*wanted, "teacher.url=http://127.0.0.1:9/v1", "teacher.model=t"]
    if impossible:
        with pytest.raises(ConfigError, match=r"algorithm\.opd=hybrid_topk.*teacher\.kind=http"):
            load_config(None, given)
    else:
        assert load_config(None, given).algorithm.opd == opd


@pytest.mark.parametrize("preset", ["opd", "hybrid"])
@pytest.mark.parametrize(("kind", "source"), [("none", "environment"), ("none", "judge"), ("verifier", "judge")])
def test_hints_that_nobody_gives_are_refused_at_start(preset, kind, source):
    config = load_config(None, [f"algorithm.preset={preset}", f"judge.kind={kind}", f"hints.source={source}"])
    with pytest.raises(ConfigError, match=r"judge\.kind"):
        check_judging(config)
