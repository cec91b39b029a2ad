"""What a learner is given: completed turns with their next state, each once, and feedback."""

import asyncio
from contextlib import aclosing

import openai
import pytest

from agentgym.errors import UsageError
from agentgym.policies.mock import MockPolicyServer
from tests.gateway.conftest import gateway_before, saying

HELLO = [{"role": "user", "content": "Hello"}]


async def ask(client, messages, headers=None, **asked):
    made = await client.chat.completions.create(model="tiny", messages=messages, extra_headers=headers, **asked)
    return made, [*messages, {"role": "assistant", "content": made.choices[0].message.content}]


async def taken(gateway, number, seconds=5.0):
    """The next completed turns."""
    found = []
    async with asyncio.timeout(seconds), aclosing(gateway.feed.completed()) as turns:
        async for turn in turns:
            found.append(turn)
            if len(found) == number:
                return found


async def test_a_reply_completes_a_turn(folder):
    async with gateway_before(saying("one", "two", "three"), folder) as (gateway, client, _):
        first, history = await ask(client, HELLO)
        waiting = asyncio.create_task(taken(gateway, 1))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        second, history = await ask(client, [*history, {"role": "user", "content": "No, shorter!"}])
        (turn,) = await waiting
        assert (turn.turn.id, turn.ending) == (first.id, "reply")
        assert [message.content for message in turn.next_state] == ["No, shorter!"]
        assert turn.turn.completion.message.content == "one" and turn.feedback is None
        await gateway.feed.settle(first.id, "trained")
        await ask(client, [*history, {"role": "user", "content": "Thanks"}])
        (turn,) = await taken(gateway, 1)
        assert turn.turn.id == second.id
        assert gateway.ledger.fates() == {"trained": 1, "ready": 1, "waiting": 1}
        with pytest.raises(UsageError):
            await gateway.feed.settle(second.id, "ready")


async def test_what_was_not_settled_comes_again_after_a_restart(folder):
    async with gateway_before(saying("one", "two"), folder) as (gateway, client, _):
        first, history = await ask(client, HELLO)
        await ask(client, [*history, {"role": "user", "content": "More"}])
        await taken(gateway, 1)
    async with gateway_before(saying("three"), folder) as (gateway, client, _):
        (turn,) = await taken(gateway, 1)
        assert turn.turn.id == first.id
        made, _ = await ask(client, [*history, {"role": "user", "content": "Another way"}])
        assert gateway.ledger.turn(made.id).taken.relation == "edited"  # it knows what was said before


async def test_regenerations_are_a_preference_and_retries_are_not(folder):
    server = saying("one", "two", "three")
    async with gateway_before(server, folder) as (gateway, client, _):
        first, _ = await ask(client, HELLO)
        second, _ = await ask(client, HELLO)
        (turn,) = await taken(gateway, 1)
        assert (turn.turn.id, turn.ending, turn.alternative) == (first.id, "regenerated", second.id)
        assert turn.next_state == ()
        server.plan("500")
        with pytest.raises(openai.InternalServerError):
            await ask(client, [{"role": "user", "content": "Other"}])
        again, _ = await ask(client, [{"role": "user", "content": "Other"}])
        assert gateway.ledger.turn(again.id).taken.relation == "retry"
        assert gateway.ledger.fates() == {"ready": 1, "rejected: failed": 1, "waiting": 2}


async def test_sessions_close_by_header_and_by_time(folder):
    async with gateway_before(saying("one"), folder, session_timeout_s=0.4) as (gateway, client, _):
        first, _ = await ask(client, HELLO, {"X-Session-Id": "mine", "X-Session-Done": "1"})
        second, _ = await ask(client, [{"role": "user", "content": "Other"}])
        turns = {turn.turn.id: turn.ending for turn in await taken(gateway, 2)}
        assert turns == {first.id: "done", second.id: "timeout"}
        states = {session["id"]: session["closed"] for session in gateway.ledger.sessions("local")}
        assert states["mine"] == "done" and sorted(states.values()) == ["done", "timeout"]


async def test_side_turns_are_never_given_out(folder):
    async with gateway_before(saying("one"), folder) as (gateway, client, _):
        await ask(client, HELLO, {"X-Turn-Type": "side", "X-Session-Done": "1"})
        await ask(
            client,
            [{"role": "user", "content": "Generate a title for this conversation:\nUSER: hi"}],
            {"X-Session-Done": "1"},
        )
        assert gateway.ledger.fates() == {"rejected: side (side)": 1, "rejected: side (title)": 1}
        with pytest.raises(TimeoutError):
            await taken(gateway, 1, seconds=0.2)


async def test_feedback_and_the_later_wins(folder):
    async with gateway_before(saying("one"), folder) as (gateway, client, _):
        first, history = await ask(client, HELLO)

        async def tell(**given):
            return await client.post("/feedback", body=given, cast_to=object)

        await tell(completion_id=first.id, thumb="up")
        await tell(completion_id=first.id, thumb="down", text="too long", correction="Hi.")
        await ask(client, [*history, {"role": "user", "content": "More"}])
        (turn,) = await taken(gateway, 1)
        assert (turn.feedback.thumb, turn.feedback.correction, turn.feedback.user) == ("down", "Hi.", "local")
        told = aiter(gateway.feed.feedback())
        assert [(await anext(told)).thumb, (await anext(told)).thumb] == ["up", "down"]
        for given, kind in (
            ({"completion_id": "chatcmpl-none", "thumb": "up"}, openai.NotFoundError),
            ({"completion_id": first.id}, openai.BadRequestError),
            ({"completion_id": first.id, "score": 7}, openai.BadRequestError),
            ({"thumb": "up"}, openai.BadRequestError),
        ):
            with pytest.raises(kind):
                await tell(**given)


async def test_a_disk_that_fails_refuses_nobody(folder):
    async with gateway_before(saying("one"), folder) as (gateway, client, _):
        gateway.ledger._db.execute("PRAGMA query_only=ON")
        made, _ = await ask(client, HELLO)
        assert made.choices[0].message.content == "one"
        assert gateway.unrecorded >= 1


async def test_weights_change_under_load(folder):
    """32 streams across 20 updates: none refused, none cut, each token under the version that sampled it."""
    server = MockPolicyServer(length=60, token_s=0.01, jitter=0.3)
    async with gateway_before(server, folder) as (gateway, client, _):
        policy, done = gateway.policy, asyncio.Event()

        async def stream(number):
            count = 0
            while not done.is_set():
                messages = [{"role": "user", "content": f"{number} {count}"}]
                finish = None
                async for chunk in await client.chat.completions.create(
                    model="tiny", messages=messages, stream=True, max_tokens=60
                ):
                    finish = chunk.choices[0].finish_reason or finish
                assert finish in ("stop", "length")
                count += 1
            return count

        async def updates():
            for version in range(1, 21):
                await asyncio.sleep(0.05)
                await policy._post("/pause?mode=keep")
                await policy._post("/start_weight_update")
                await policy._post("/finish_weight_update", {"weight_version": str(version)})
                await policy._post("/resume")
                policy.version = version
            done.set()

        results = await asyncio.gather(updates(), *(stream(number) for number in range(32)))
        turns = [turn for turn, *_ in gateway.ledger.recent(10_000)]
        assert len(turns) == sum(results[1:]) and all(turn.state == "complete" for turn in turns)
        mixed = [turn for turn in turns if len(set(turn.completion.versions)) > 1]
        assert mixed and all(-1 not in turn.completion.versions for turn in turns)
        assert all(list(turn.completion.versions) == sorted(turn.completion.versions) for turn in turns)
