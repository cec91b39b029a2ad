"""The judge that asks a model: votes, failures that cost votes, time, tries, and answers that are kept."""

import asyncio
import json
import time

import aiohttp
import pytest

from agentgym.config import Config
from agentgym.judge import MemoryCache, make_judge
from agentgym.policies.mock import CHAT, MockPolicyServer
from agentgym.policies.mock_judge import saying, verdict
from agentgym.types import Exchange, Message
from tests.policies.test_judge_prompt import exchange as made

HINT = "Create the directory first."


def exchange(text="No such file or directory", **fields) -> Exchange:
    return made(next_state=(Message(role="tool", content=text),), **fields)


def config_for(url="", **settings):
    config = Config()
    config.judge.kind, config.judge.url, config.judge.model = "llm", url, "mock" if url else ""
    config.judge.max_tokens = 400
    for key, value in settings.items():
        section, _, name = key.partition("_")
        setattr(getattr(config, section), name, value)
    return config


async def ask(url, *exchanges, cache=None, **settings):
    """The judgements of a new judge on `exchanges`, all at once."""
    judge = make_judge(config_for(url, **settings), cache=cache)
    try:
        return await asyncio.gather(*map(judge, exchanges))
    finally:
        await judge.close()


async def test_votes_become_a_score_and_hints_of_the_judge_are_candidates():
    scores = iter([-1, 1, -1])

    def say(prompt, code, rng):
        return json.dumps({"reason": "", "code": code, "score": next(scores), "hint": HINT})

    async with MockPolicyServer(answer=saying(say)) as server:
        [judgement] = await ask(server.url, exchange(info={"hint": "Use the option -p."}), hints_source="both")
    assert sorted(judgement.votes) == [-1, -1, 1] and judgement.score == -1 and judgement.reason == ""
    assert judgement.hints == ("Use the option -p.", HINT) and judgement.refused_hints == ("a duplicate",) * 2
    assert judgement.judge == "llm" and judgement.seconds > 0


async def test_a_hint_of_the_judge_never_holds_a_secret():
    async with MockPolicyServer(answer=saying(verdict(-1, "Write s e s a m e into it."))) as server:
        [judgement] = await ask(server.url, exchange(secrets=("Sesame",)), hints_source="judge", judge_votes=1)
    assert (judgement.score, judgement.hints, judgement.refused_hints) == (-1, (), ("leaks the answer",))


@pytest.mark.parametrize("fault", ["500", "503", "drop", "cut", "malformed", "nonsense"])
async def test_a_call_that_fails_is_tried_again(fault):
    async with MockPolicyServer(answer=saying(verdict(1))) as server:
        server.plan(fault, fault, path=CHAT)
        [judgement] = await ask(server.url, exchange(), judge_votes=1)
        assert judgement.score == 1 and server.met[fault] == 2 and server.asked[CHAT] == 3


async def test_an_endpoint_that_fails_half_of_the_time_costs_votes_only():
    async with MockPolicyServer(answer=saying(verdict(-1)), faults={"500": 0.3, "malformed": 0.2}, seed=5) as server:
        turns = [exchange(f"error {number}") for number in range(40)]
        judgements = await ask(server.url, *turns, judge_retries=0, judge_votes=5)
    scored = [judgement for judgement in judgements if judgement.score is not None]
    assert len(scored) >= 36 and {judgement.score for judgement in scored} == {-1}
    votes = [vote for judgement in judgements for vote in judgement.votes]
    assert 60 <= votes.count(None) <= 140 and len(votes) == 200


async def test_an_endpoint_that_always_fails_leaves_the_turn_unscored_with_the_reason_and_the_environments_hint():
    async with MockPolicyServer(faults={"500": 1.0}) as server:
        [judgement] = await ask(server.url, exchange(info={"hint": HINT}), judge_retries=1)
        assert server.asked[CHAT] == 6
    assert judgement.score is None and judgement.votes == (None,) * 3 and judgement.hints == (HINT,)
    assert "500" in judgement.reason and "(3 of 3)" in judgement.reason and len(judgement.reason) < 600


async def test_an_endpoint_that_never_answers_is_given_up():
    async with MockPolicyServer(faults={"hang": 1.0}) as server:
        began = time.monotonic()
        [judgement] = await ask(server.url, exchange(), judge_timeout_s=0.2, judge_retries=1)
        assert time.monotonic() - began < 20
        await until(lambda: not server.in_flight)
    assert judgement.score is None and "no answer within judge.timeout_s=0.2 s (3 of 3)" in judgement.reason


async def test_an_endpoint_that_is_not_there_leaves_the_turn_unscored():
    [judgement] = await ask("http://127.0.0.1:9", exchange(), judge_retries=0)
    assert judgement.score is None and "127.0.0.1:9" in judgement.reason


async def test_slow_votes_count_if_they_come_in_time():
    async with MockPolicyServer(answer=saying(verdict(0)), faults={"slow": 1.0}, slow_s=0.5) as server:
        [judgement] = await ask(server.url, exchange(), judge_timeout_s=10)
    assert judgement.score == 0


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "- `skill-a`: helps with lists",
        "1",
        '{"score": 1}',
        "[" * 400,
        "\x00\ud7ff",
        '{"code": "00000000", "score": 1}',
        "null",
    ],
)
async def test_nonsense_is_no_vote_and_not_asked_for_again(nonsense):
    cache = MemoryCache()
    async with MockPolicyServer(answer=saying(lambda prompt, code, rng: nonsense)) as server:
        [judgement] = await ask(server.url, exchange(), cache=cache)
        assert (
            judgement.score is None
            and judgement.reason.startswith("no valid vote: ")
            and judgement.votes == (None,) * 3
        )
        assert (await ask(server.url, exchange(), cache=cache))[0].reason == judgement.reason
        assert server.asked[CHAT] == 3


async def test_what_was_paid_for_is_not_asked_again():
    cache = MemoryCache()
    async with MockPolicyServer(answer=saying(verdict(1, HINT))) as server:
        turns = [exchange(text) for text in ("a", "b", "a")]
        first = await ask(server.url, *turns[:2], cache=cache, hints_source="judge")
        assert server.asked[CHAT] == 6
        again = await ask(server.url, *turns, cache=cache, hints_source="judge")
        assert server.asked[CHAT] == 6
        assert [one.votes for one in again] == [one.votes for one in (*first, first[0])]
        assert [one.hints for one in again] == [(HINT,)] * 3
        await ask(server.url, exchange("c"), cache=cache, hints_source="judge")
        assert server.asked[CHAT] == 9
        await ask(server.url, turns[0], cache=cache, hints_source="judge", judge_temperature=0.1)  # another question
        assert server.asked[CHAT] == 12


async def test_more_votes_ask_for_the_missing_ones_alone_and_failures_are_not_kept():
    cache = MemoryCache()
    async with MockPolicyServer(answer=saying(verdict(1))) as server:
        server.plan("500", path=CHAT)
        [judgement] = await ask(server.url, exchange(), cache=cache, judge_votes=1, judge_retries=0)
        assert judgement.score is None and not cache.kept
        await ask(server.url, exchange(), cache=cache, judge_votes=2)
        await ask(server.url, exchange(), cache=cache, judge_votes=5)
        assert server.asked[CHAT] == 6


async def test_what_another_version_kept_is_asked_again():
    cache = MemoryCache()
    async with MockPolicyServer(answer=saying(verdict(1))) as server:
        await ask(server.url, exchange(), cache=cache, judge_votes=1)
        cache.kept = dict.fromkeys(cache.kept, '{"vote": 1}')
        [judgement] = await ask(server.url, exchange(), cache=cache, judge_votes=1)
    assert judgement.score == 1 and server.asked[CHAT] == 2


async def test_calls_at_once_are_bounded():
    async with MockPolicyServer(answer=saying(verdict(1)), latency_s=0.05) as server:
        await ask(server.url, *[exchange(str(number)) for number in range(10)], judge_concurrency=4)
        assert server.most_in_flight == 4 and server.asked[CHAT] == 30


async def test_a_turn_after_which_nothing_came_is_not_judged_unless_the_episode_ended():
    async with MockPolicyServer(answer=saying(verdict(1))) as server:
        unheard, last = await ask(server.url, made(), made(last=True))
    assert unheard.score is None and unheard.reason == "nothing came back after the response"
    assert last.score == 1


async def test_an_empty_response_is_judged_like_any_other():
    async with MockPolicyServer(answer=saying(verdict(-1))) as server:
        [judgement] = await ask(server.url, exchange(response=Message(role="assistant")))
    assert judgement.score == -1


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the server knows of no event
            await asyncio.sleep(0.01)


async def test_cancelling_hangs_up():
    async with MockPolicyServer(faults={"hang": 1.0}) as server:
        judge = make_judge(config_for(server.url))
        asking = asyncio.create_task(judge(exchange()))
        await until(lambda: server.in_flight == 3)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: not server.in_flight)
        await judge.close()
        await judge.close()


async def test_the_mock_judge_is_a_program(tmp_path):
    import sys

    command = [
        sys.executable,
        "-m",
        "agentgym.policies.mock_judge",
        "--score",
        "-1",
        "--hint",
        HINT,
        "--fault",
        "500=0.2",
    ]
    program = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert program.stdout is not None
        url = (await asyncio.wait_for(program.stdout.readline(), 60)).decode().strip()
        [judgement] = await ask(url, exchange(), hints_source="judge")
        async with aiohttp.ClientSession() as http, http.get(url.removesuffix("/v1") + "/counters") as response:
            assert (await response.json())["asked"][CHAT] >= 3
    finally:
        program.terminate()
        await program.wait()
    assert (judgement.score, judgement.hints) == (-1, (HINT,))
