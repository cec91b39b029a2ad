"""Keys, limits and a user's own data."""

import asyncio
import json

import openai
import pytest

from agentgym.errors import UsageError
from agentgym.gateway.keep import load_hook
from agentgym.gateway.keys import Keys, check_binding, new_key
from agentgym.policies.mock import MockPolicyServer
from tests.gateway.conftest import gateway_before, saying, tiny_config

HELLO = [{"role": "user", "content": "Hello, this is MY-SECRET"}]


def hide(text):
    return text.replace("MY-SECRET", "[hidden]")


async def chat(client, messages=HELLO, **asked):
    return await client.chat.completions.create(model="tiny", messages=messages, **asked)


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys" / "file"
    return path, {user: new_key(path, user) for user in ("ann", "bob")}


def test_keys_are_hashed_and_a_new_one_counts_at_once(keys):
    path, made = keys
    known = Keys(path)
    assert known.user_of(f"Bearer {made['ann']}") == "ann" and known.user_of(f"bearer {made['bob']}") == "bob"
    assert not any(key in path.read_text() for key in made.values())
    assert known.user_of(f"Bearer {new_key(path, 'eve')}") == "eve"
    path.write_text("no json\n")
    with pytest.raises(UsageError, match="no key"):
        Keys(path)


def test_binding():
    check_binding(tiny_config(host="::1").gateway)
    check_binding(tiny_config(host="0.0.0.0", keys="k").gateway)
    with pytest.raises(UsageError, match="other machines"):
        check_binding(tiny_config(host="0.0.0.0").gateway)


async def test_users_see_their_own_data_alone(folder, keys):
    path, made = keys
    async with gateway_before(saying("Sure."), folder, keys=str(path)) as (gateway, client, _):
        ann, bob = (client.with_options(api_key=made[user]) for user in ("ann", "bob"))
        for wrong in ("", "sk-wrong", made["ann"][:-1]):
            with pytest.raises((openai.AuthenticationError, openai.OpenAIError)):
                await chat(client.with_options(api_key=wrong))
        first = await chat(ann, extra_headers={"X-Session-Id": "s/1", "X-User-Id": "bob"}, user="bob")
        await chat(ann, [{"role": "user", "content": "Something else"}])
        await chat(bob)
        sessions = (await ann.get("/sessions", cast_to=object))["data"]
        assert [session["turns"] for session in sessions] == [1, 1] and sessions[1]["id"] == "s/1"
        turns = (await ann.get("/sessions/s/1", cast_to=object))["data"]
        assert [turn["id"] for turn in turns] == [first.id] and turns[0]["messages"][0]["content"] == HELLO[0][
            "content"
        ]
        for attempt in (
            bob.get("/sessions/s/1", cast_to=object),
            bob.delete("/sessions/s/1", cast_to=object),
            bob.post("/feedback", body={"completion_id": first.id, "thumb": "up"}, cast_to=object),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        export = (
            await ann.with_raw_response.get("/export", cast_to=str) if hasattr(ann.with_raw_response, "get") else None
        )
        del export
        lines = (await ann._client.get(f"{ann.base_url}export", headers=ann.auth_headers)).text.splitlines()
        assert [json.loads(line)["user"] for line in lines] == ["ann", "ann"]
        assert (await ann.delete("/sessions/s/1", cast_to=object))["turns"] == 1
        assert (await ann.delete("/sessions", cast_to=object))["turns"] == 1
        assert (await ann.get("/sessions", cast_to=object))["data"] == []
        assert gateway.ledger.fates() == {"waiting": 1} and gateway.ledger.sessions("bob")


async def test_what_is_erased_is_gone_from_the_file(folder):
    async with gateway_before(saying("Sure."), folder) as (gateway, client, _):
        message = {"role": "user", "content": "zebra-4711 " * 5}
        await chat(client, [message], user="ann")
        gateway.ledger._db.execute("CREATE TABLE trajectories (id TEXT)")
        gateway.ledger._db.execute("CREATE TABLE samples (trajectory_id TEXT)")
        (turn, *_), *_ = gateway.ledger.recent(1)
        gateway.ledger._db.execute("INSERT INTO trajectories VALUES (?)", (turn.id,))
        await client.delete("/sessions", cast_to=object, options={"headers": {"X-User-Id": "ann"}})
        assert not gateway.ledger._db.execute("SELECT * FROM trajectories").fetchall()
        assert gateway.readers.of("ann").index.turns == {} and not gateway._sessions
        stored = b"".join(file.read_bytes() for file in folder.glob("store.sqlite*"))
        assert turn.id.encode() not in stored


async def test_retention(folder):
    settings = {"retention_days": 0.3 / 86400, "session_timeout_s": 0.4}
    async with gateway_before(saying("Sure."), folder, **settings) as (gateway, client, _):
        await chat(client)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if not gateway.ledger.fates() and not gateway.ledger.sessions("local"):
                return
        raise AssertionError(gateway.ledger.fates())


async def test_redaction_before_anything_is_stored(folder):
    settings = {"redact": "tests.gateway.test_users:hide"}
    async with gateway_before(saying("Sure, MY-SECRET.", "Fine."), folder, **settings) as (gateway, client, _):
        made = await chat(client)
        assert made.choices[0].message.content == "Sure, MY-SECRET."  # the answer itself is left alone
        await client.post("/feedback", body={"completion_id": made.id, "text": "MY-SECRET"}, cast_to=object)
        plain = await chat(client, [{"role": "user", "content": "Nothing to hide"}])
        hidden, kept = gateway.ledger.turn(made.id), gateway.ledger.turn(plain.id)
        assert (
            hidden.messages[0].content == "Hello, this is [hidden]"
            and hidden.completion.message.content == "Sure, [hidden]."
        )
        assert hidden.completion.ids == hidden.completion.prompt_ids == ()  # they spell the secret
        assert kept.completion.ids
        assert gateway.ledger.fates() == {"rejected: redacted": 1, "waiting": 1}
        assert b"MY-SECRET" not in b"".join(json.dumps(turn).encode() for turn in gateway.ledger.export("local"))
    for name in ("nowhere:f", "tests.gateway.test_users:nothing", "builtins:len"):
        with pytest.raises(UsageError, match="redact"):
            load_hook(name)


async def test_rate_and_concurrency(folder):
    async with gateway_before(saying("x"), folder, requests_per_minute=3) as (_, client, _url):
        for _ in range(3):
            await chat(client)
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(client)
        assert (
            caught.value.code == "rate_limit_exceeded" and 15 <= int(caught.value.response.headers["retry-after"]) <= 21
        )
        await chat(client, user="another")
    server = MockPolicyServer(length=50, token_s=0.01)
    async with gateway_before(server, folder, concurrency=2, requests_per_minute=0) as (_, client, _url):
        streams = [await chat(client, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError):
            await chat(client)
        for stream in streams:
            await stream.close()
        await asyncio.sleep(0.3)
        assert (await chat(client, max_tokens=3)).choices  # the places were given back


async def test_sizes(folder):
    limits = {"max_body_mib": 0.01, "max_messages": 5, "max_message_chars": 100}
    async with gateway_before(saying("x"), folder, **limits) as (_, client, _url):
        for messages, status in (
            ([{"role": "user", "content": "x" * 20_000}], 413),
            ([{"role": "user", "content": "x"}] * 6, 400),
            ([{"role": "user", "content": "x" * 101}], 400),
        ):
            with pytest.raises(openai.APIStatusError) as caught:
                await chat(client, messages)
            assert caught.value.status_code == status and caught.value.body["message"]
