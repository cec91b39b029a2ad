"""Scoring beside the episodes: next states, deadlines, what is kept, and what is never paid for twice."""

import asyncio
import time

import pytest

from agentgym.config import Config, load_config
from agentgym.errors import UsageError
from agentgym.scoring import RETRIED, TOO_LONG, UNTOLD, Scorer, deadline_s, exchanges, retried
from agentgym.store import Store
from agentgym.types import Group, Judgement, Message, Task, ToolCall, Trajectory, Turn
from tests.fakes import ScriptedJudge, completion, hinted

TASK = Task(id="k", env="e", instruction="Count the lines.", data={"secrets": ["42", 7]})
ASKED = (Message(role="system", content="You are a shell."), Message(role="user", content="Count the lines."))


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def episode(id: str = "t", status: str = "completed", outcome: float | None = 1.0, turns: int = 2) -> Trajectory:
    """Append-only turns; after the first one a tool, another tool and the user come back, after the last nothing."""
    came_back = (
        Message(role="tool", content="12", tool_call_id="c1"),
        Message(role="tool", content="an image", tool_call_id="c2"),
        Message(role="user", content="the image of c2"),
    )
    made, messages, ids = [], ASKED, (1, 2)
    for k in range(turns):
        after = came_back if k + 1 < turns else ()
        reward = (outcome or 0.0) if k + 1 == turns else 0.0
        body = completion(ids, (10 + k, 2), message=said(f"turn {k}"))
        made.append(Turn(index=k, completion=body, next_state=after, reward=reward, info={"exit_code": k}))
        messages += (body.message, *after)
        ids += (*body.ids, 99)
    return Trajectory(
        id=id, task_id="k", group_id="g", env="e", seed=0, status=status, outcome=outcome, turns=tuple(made), messages=messages
    )  # fmt: skip


@pytest.fixture
def config() -> Config:
    return load_config(None, ["judge.concurrency=2"])


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store.sqlite")
    yield made
    made.close()


async def stored(work, *args):
    return await asyncio.to_thread(work, *args)


async def scores(scorer: Scorer, *ended: Trajectory) -> Group:
    scorer.take(ended, TASK)
    return await scorer.judged(Group(id="g", task_id="k", trajectories=ended))


def test_the_next_state_is_all_that_came_back_typed_by_role():
    (first, one), (second, two) = exchanges(episode(), TASK)
    assert [message.role for message in one.next_state] == ["tool", "tool", "user"]
    assert (one.turn, one.response.content, one.info, one.last, one.outcome) == (
        0,
        "turn 0",
        {"exit_code": 0},
        False,
        None,
    )
    assert one.history == ASKED
    assert two.history == (*ASKED, one.response, *one.next_state)
    assert (two.next_state, two.reward, two.last, two.outcome) == ((), 1.0, True, 1.0)
    assert one.task == "Count the lines." and one.secrets == ("42", "7")
    assert (first, second) == episode().turns


def test_an_episode_that_overflowed_its_context_has_its_last_next_state():
    whole = episode(turns=3)
    cut = Trajectory(
        id="t", task_id="k", group_id="g", env="e", seed=0, status="truncated", outcome=0.0, turns=whole.turns[:2],
        messages=whole.messages[:-1],
    )  # fmt: skip
    last = list(exchanges(cut))[-1][1]
    assert last.last and [message.role for message in last.next_state] == ["tool", "tool", "user"]


def test_a_retry_is_no_next_state():
    """The client sent the same request again: the first answer was lost on its way and nobody complained about it."""
    call = ToolCall(id="c", name="count", arguments="{}")
    lost = Turn(index=0, completion=completion((1, 2), (3,), message=said("lost")))
    again = Turn(
        index=1, completion=completion((1, 2), (4,), message=Message(role="assistant", tool_calls=(call,))),
        next_state=(Message(role="tool", content="12"),),
    )  # fmt: skip
    trajectory = Trajectory(
        id="t", task_id="k", group_id="g", env="e", seed=0, status="completed", outcome=1.0, turns=(lost, again),
        messages=(*ASKED, again.completion.message, *again.next_state),
    )  # fmt: skip
    assert retried(trajectory) == {0}
    ((_, exchange),) = exchanges(trajectory)
    assert (exchange.turn, exchange.history) == (1, ASKED)


async def test_a_retried_turn_is_unscored_without_asking_anybody(store, config):
    first = episode(turns=1)
    turns = (first.turns[0], Turn(index=1, completion=first.turns[0].completion))
    judge = ScriptedJudge()
    twice = Trajectory(
        id="t", task_id="k", group_id="g", env="e", seed=0, status="completed", outcome=1.0, turns=turns,
        messages=first.messages,
    )  # fmt: skip
    group = await scores(Scorer(judge, store, config, stored), twice)
    assert [(j.turn, j.score, j.reason) for j in group.judgements[0]] == [(0, None, RETRIED), (1, 1, "")]
    assert judge.asked == [("t", 1)]


async def test_every_turn_gets_one_judgement_in_order_and_all_are_in_the_store(store, config):
    judge = ScriptedJudge(lambda exchange: 1 if exchange.last else -1)
    members = [episode(f"t{n}", turns=n + 1) for n in range(3)]
    group = await scores(Scorer(judge, store, config, stored), *members)
    assert [[j.score for j in judgements] for judgements in group.judgements] == [[1], [-1, 1], [-1, -1, 1]]
    for member, judgements in zip(members, group.judgements, strict=True):
        assert tuple(store.judgements(member.id).values()) == judgements


async def test_what_is_in_the_store_is_not_judged_again(store, config):
    first = ScriptedJudge(lambda exchange: RuntimeError("gone") if exchange.turn else 1)
    before = await scores(Scorer(first, store, config, stored), episode())
    second = ScriptedJudge()
    after = await scores(Scorer(second, store, config, stored), episode())
    assert after == before
    assert second.asked == []


async def test_a_life_that_ended_between_two_judgements_leaves_the_rest_to_the_next(store, config):
    judge = ScriptedJudge(wait_s=0.0)
    forever = asyncio.Event()
    ask = judge.__call__

    class Stops(ScriptedJudge):
        async def __call__(self, exchange):
            if exchange.turn:
                await forever.wait()
            return await ask(exchange)

    scorer = Scorer(Stops(), store, config, stored)
    scorer.take([episode()], TASK)
    while not store.judgements("t"):  # noqa: ASYNC110 (the store tells nobody)
        await asyncio.sleep(0.01)
    await scorer.close()
    await scorer.close()
    again = ScriptedJudge(lambda exchange: -1)
    group = await scores(Scorer(again, store, config, stored), episode())
    assert [j.score for j in group.judgements[0]] == [1, -1]
    assert again.asked == [("t", 1)]


@pytest.mark.parametrize(("status", "outcome"), [("infrastructure", None), ("task", None), ("cancelled", None)])
async def test_nobody_pays_to_judge_a_failure(store, config, status, outcome):
    judge = ScriptedJudge()
    group = await scores(Scorer(judge, store, config, stored), episode(status=status, outcome=outcome))
    assert group.judgements == ((),)
    assert judge.asked == []


async def test_a_judge_that_fails_leaves_the_turn_unscored_with_the_reason(store, config):
    judge = ScriptedJudge(lambda exchange: ValueError("no\nsense") if exchange.turn == 0 else 1)
    group = await scores(Scorer(judge, store, config, stored), episode())
    failed, scored = group.judgements[0]
    assert (failed.score, failed.reason) == (None, "the judge failed: ValueError: no sense")
    assert scored.score == 1


@pytest.mark.parametrize(
    "said",
    [None, "good", 1, float("nan"), float("inf"), Judgement(trajectory_id="other", turn=0, judge="x", score=1.0)],
)
async def test_what_is_no_judgement_of_the_turn_leaves_it_unscored(store, config, said):
    class Odd(ScriptedJudge):
        async def __call__(self, exchange):
            return await super().__call__(exchange) if isinstance(said, float) else said

    group = await scores(Scorer(Odd(lambda exchange: said), store, config, stored), episode(turns=1))
    (judgement,) = group.judgements[0]
    assert (judgement.trajectory_id, judgement.turn, judgement.score) == ("t", 0, None)
    assert judgement.reason.startswith("the judge failed: it said ")


async def test_a_judge_that_cannot_be_stopped_delays_nobody_beyond_its_deadline(store, config):
    release = asyncio.Event()

    class Deaf(ScriptedJudge):
        async def __call__(self, exchange):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return await super().__call__(exchange)

    scorer = Scorer(Deaf(), store, config, stored)
    scorer.deadline_s = 0.05
    began = time.monotonic()
    group = await scores(scorer, episode(turns=1))
    assert time.monotonic() - began < 5
    assert group.judgements[0][0].reason == "the judge took longer than 0.05 s"
    release.set()
    await asyncio.sleep(0)


async def test_a_judge_that_cancels_itself_does_not_end_the_run(store, config):
    class Cancels(ScriptedJudge):
        async def __call__(self, exchange):
            raise asyncio.CancelledError

    group = await scores(Scorer(Cancels(), store, config, stored), episode(turns=1))
    assert group.judgements[0][0].reason == "the judge failed: it was cancelled"


async def test_only_so_many_turns_are_judged_at_once_and_taking_returns_at_once(store, config):
    now = most = 0

    class Counts(ScriptedJudge):
        async def __call__(self, exchange):
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1
            return await super().__call__(exchange)

    scorer = Scorer(Counts(), store, config, stored)
    members = [episode(f"t{n}") for n in range(4)]
    scorer.take(members, TASK)
    assert most == 0
    group = await scorer.judged(Group(id="g", task_id="k", trajectories=tuple(members)))
    assert most == 2
    assert scorer.stats() == {"waiting": 0, "scored": 8, "unscored": 0}
    assert len(group.judgements) == 4


async def test_the_teachers_prompts_are_made_and_kept_with_the_hints(store, config):
    judge = ScriptedJudge(lambda exchange: (-1, ("use wc -l instead", "count, do not list")))
    group = await scores(Scorer(judge, store, config, stored, hinted), episode(turns=1))
    (judgement,) = group.judgements[0]
    served = episode(turns=1).turns[0].completion.prompt_ids
    assert judgement.hinted == tuple((*served, *map(ord, hint)) for hint in judgement.hints)
    assert store.judgements("t")[0] == judgement


async def test_a_hint_that_leaves_no_room_for_the_response_is_refused(store):
    config = load_config(None, ["model.max_length=40", "rollout.max_tokens=8"])
    long, short, broken = "x" * 37, "y" * 36, "cannot be rendered"

    def render(prompt, served, hints):
        return [None if hint == broken else ids for hint, ids in zip(hints, hinted(prompt, served, hints), strict=True)]

    judge = ScriptedJudge(lambda exchange: (None, (long, short, broken)))
    group = await scores(Scorer(judge, store, config, stored, render), episode(turns=1))
    (judgement,) = group.judgements[0]
    assert judgement.hints == (short,)
    assert len(judgement.hinted) == 1 and len(judgement.hinted[0]) + 2 == 40
    assert judgement.refused_hints == (TOO_LONG, UNTOLD)


async def test_a_chat_template_that_refuses_the_conversation_costs_the_hints_only(store, config):
    def refuses(prompt, served, hints):
        raise UsageError("no tools, please")

    judge = ScriptedJudge(lambda exchange: (1, ("use wc -l instead",)))
    group = await scores(Scorer(judge, store, config, stored, refuses), episode(turns=1))
    (judgement,) = group.judgements[0]
    assert (judgement.score, judgement.hints, judgement.hinted) == (1, (), ())
    assert judgement.refused_hints == ("cannot be told: no tools, please",)


async def test_a_disk_that_fails_is_told_and_not_taken_for_a_judgement(store, config):
    async def broken(work, *args):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        await scores(Scorer(ScriptedJudge(), store, config, broken), episode())


async def test_without_a_judge_groups_stay_as_they_are(store, config):
    scorer = Scorer(None, store, config, stored)
    group = await scores(scorer, episode())
    assert (group.judgements, scorer.stats()) == ((), {})
    await scorer.close()


async def test_closing_frees_the_judge(store, config):
    judge = ScriptedJudge(wait_s=60)
    scorer = Scorer(judge, store, config, stored)
    scorer.take([episode()], TASK)
    await asyncio.sleep(0.01)
    await scorer.close()
    assert judge.closed == 1
    assert len(asyncio.all_tasks()) == 1


def test_the_deadline_is_beyond_what_all_calls_of_a_turn_may_take():
    config = load_config(None, ["judge.votes=5", "judge.retries=1", "judge.timeout_s=10"])
    assert deadline_s(config.judge) > 5 * 2 * 10
