"""Chat completions as the official client sees them, before a mock engine that says what it is told to."""

import asyncio
import json

import openai
import pytest

from agentgym.policies.mock import MockPolicyServer
from tests.gateway.conftest import gateway_before, saying

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]  # fmt: skip
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "grep -A 3 \\"a\\" x || echo {b"}}\n</tool_call>'


async def streamed(client, **asked):
    """All chunks of a stream, and what its deltas add up to."""
    chunks = [chunk async for chunk in await client.chat.completions.create(model="tiny", stream=True, **asked)]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    text = "".join(delta.content or "" for delta in deltas)
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    calls = {}
    for part in (part for delta in deltas for part in delta.tool_calls or ()):
        name, arguments = calls.get(part.index, ("", ""))
        calls[part.index] = (name + (part.function.name or ""), arguments + (part.function.arguments or ""))
    return chunks, text, reasoning, list(calls.values())


async def test_an_answer_whole_and_streamed(folder):
    async with gateway_before(saying("Good morning, wörld 你好!"), folder) as (gateway, client, _):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=2)
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("Good morning, wörld 你好!", "stop")
        assert whole.id.startswith("chatcmpl-") and whole.object == "chat.completion"
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        assert len(choice.logprobs.content) == whole.usage.completion_tokens - 1  # the stop token is not told
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in choice.logprobs.content)
        chunks, text, _, _ = await streamed(client, messages=HELLO, stream_options={"include_usage": True})
        assert text == choice.message.content and len(chunks) > 10
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["stop"]
        turns = [gateway.ledger.turn(id) for id in (whole.id, chunks[0].id)]
        for turn in turns:
            assert len(turn.completion.ids) == len(turn.completion.logprobs) == len(turn.completion.versions)
            assert turn.state == "complete" and turn.completion.message.content == text


async def test_ids_are_served_as_they_were_sampled(folder):
    said = ["one two", "three"]
    async with gateway_before(saying(*said), folder) as (gateway, client, _):
        first = await client.chat.completions.create(model="tiny", messages=HELLO)
        reply = [*HELLO, {"role": "assistant", "content": " one two\n"}, {"role": "user", "content": "More"}]
        second = await client.chat.completions.with_raw_response.create(model="tiny", messages=reply)
        before, after = gateway.ledger.turn(first.id), gateway.ledger.turn(second.parse().id)
        served = before.completion.prompt_ids + before.completion.ids
        assert after.completion.prompt_ids[: len(served)] == served  # although the client added space
        assert after.taken.parent == first.id
        assert second.headers["x-agentgym-turn"].startswith("main; relation=continued")
        assert second.headers["x-session-id"] == before.taken.session


async def test_tool_calls_and_what_is_said_before_them(folder):
    async with gateway_before(saying(f"Let me look.\n{CALL}"), folder) as (gateway, client, _):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
        message = whole.choices[0].message
        assert (message.content, whole.choices[0].finish_reason) == ("Let me look.\n", "tool_calls")
        arguments = message.tool_calls[0].function.arguments
        assert arguments == '{"command": "grep -A 3 \\"a\\" x || echo {b"}'
        chunks, text, _, calls = await streamed(client, messages=HELLO, tools=TOOLS)
        assert (text, calls) == ("Let me look.\n", [("bash", arguments)])
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        history = [*HELLO, message.model_dump(exclude_none=True)]
        history.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a"})
        on = await client.chat.completions.create(model="tiny", messages=history, tools=TOOLS)
        before, after = gateway.ledger.turn(whole.id), gateway.ledger.turn(on.id)
        served = before.completion.prompt_ids + before.completion.ids
        assert after.completion.prompt_ids[: len(served)] == served
        assert after.messages[1].tool_calls[0].arguments == arguments  # byte for byte
        without = await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS, tool_choice="none")
        assert without.choices[0].message.tool_calls is None and CALL in without.choices[0].message.content


@pytest.mark.parametrize(
    "text",
    [
        "The format uses <tool_call> tags, for example in a chat, and goes on.",
        '<tool_call>{"name": "bash", "arguments": {"command": "cut in the mid',
        "a < b and <tool",
        '<tool_call>{"name": "bash", "arguments": {"command": "He said "hi""}}</tool_call> and more',
        'Some data:\n```json\n{"a": 1}\n```\nand more',
    ],
)
async def test_prose_about_calls_is_content(folder, text):
    async with gateway_before(saying(text), folder) as (_, client, _):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
        assert whole.choices[0].message.tool_calls is None and whole.choices[0].message.content == text
        chunks, streamed_text, _, calls = await streamed(client, messages=HELLO, tools=TOOLS)
        assert (streamed_text, calls) == (text, [])
        if "goes on" in text:  # it did not fall silent at the tag
            assert len([chunk for chunk in chunks if chunk.choices[0].delta.content]) > 10


async def test_reasoning_is_told_apart(folder):
    async with gateway_before(saying("<think>\nThey greet me.\n</think>\n\nHello!"), folder) as (gateway, client, _):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO)
        assert whole.choices[0].message.content == "Hello!"
        assert whole.choices[0].message.reasoning_content == "\nThey greet me.\n"
        _, text, reasoning, _ = await streamed(client, messages=HELLO)
        assert (text, reasoning) == ("Hello!", "\nThey greet me.\n")
        on = [*HELLO, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "More"}]
        again = await client.chat.completions.create(model="tiny", messages=on)
        turn = gateway.ledger.turn(again.id)
        assert turn.taken.relation == "continued" and "<think>" in turn.messages[1].content  # as it was sampled


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_across_pieces(folder, stream):
    async with gateway_before(saying("first second third"), folder) as (_, client, _):
        asked = {"messages": HELLO, "stop": ["nd th", "never"]}
        if stream:
            chunks, text, _, _ = await streamed(client, **asked)
            finish = chunks[-1].choices[0].finish_reason
        else:
            whole = await client.chat.completions.create(model="tiny", **asked)
            text, finish = whole.choices[0].message.content, whole.choices[0].finish_reason
        assert (text, finish) == ("first seco", "stop")


async def test_several_answers_at_once(folder):
    async with gateway_before(saying("one", "two", "three"), folder) as (gateway, client, _):
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, n=3)
        assert {choice.message.content for choice in whole.choices} == {"one", "two", "three"}
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        chosen = whole.choices[1].message.content
        on = [*HELLO, {"role": "assistant", "content": chosen}, {"role": "user", "content": "More"}]
        await client.chat.completions.create(model="tiny", messages=on)
        endings = {turn.turn.id: turn.ending for turn in gateway.ledger.ready()}
        assert endings == {whole.id: "unchosen", f"{whole.id}/1": "reply", f"{whole.id}/2": "unchosen"}


async def test_length_and_no_tokens_at_all(folder):
    async with gateway_before(MockPolicyServer(), folder) as (gateway, client, _):
        cut = await client.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=3, seed=5)
        assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) in {
            ("length", 3),
            ("stop", 3),
            ("stop", 2),
            ("stop", 1),
        }
        none = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=0)
        assert (none.choices[0].finish_reason, none.choices[0].message.content) == ("length", "")
        assert gateway.ledger.fates()["rejected: side (probe)"] == 1


async def test_a_client_that_hangs_up_frees_the_engine(folder):
    server = MockPolicyServer(token_s=0.02, length=500)
    async with gateway_before(server, folder) as (gateway, client, _):
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True, max_tokens=500)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.3).chat.completions.create(model="tiny", messages=HELLO)
        for _ in range(200):
            await asyncio.sleep(0.02)
            if server.aborted == 2 and gateway.ledger.fates().get("rejected: aborted") == 2:
                break
        assert server.aborted == 2 and server.in_flight == 0
        assert gateway.ledger.fates() == {"rejected: aborted": 2}
        turn = gateway.ledger.turn(chunk.id)
        assert turn.state == "aborted" and len(turn.completion.ids) >= 1


async def test_an_engine_that_fails(folder):
    server = MockPolicyServer(length=20, token_s=0.001)
    async with gateway_before(server, folder) as (gateway, client, _):
        for fault in ("500", "malformed", "cut"):
            server.plan(fault)
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="tiny", messages=HELLO)
            assert caught.value.status_code == 503 and caught.value.body["type"] == "service_unavailable"
            assert "127.0.0.1" not in str(caught.value)
        server.plan("500", "cut")
        with pytest.raises(openai.InternalServerError):
            await streamed(client, messages=HELLO)
        with pytest.raises(openai.APIError, match="engine failed"):  # in the middle of a stream
            await streamed(client, messages=HELLO)
        assert gateway.ledger.fates() == {"rejected: failed": 5}


async def test_errors_have_the_shapes_that_clients_know(folder):
    async with gateway_before(saying("x"), folder, model_names=["gpt-x"]) as (_, client, _):
        assert (await client.chat.completions.create(model="gpt-x", messages=HELLO)).model == "gpt-x"
        cases = [
            (openai.NotFoundError, "model_not_found", "model", {"model": "other"}),
            (openai.BadRequestError, "invalid_value", "messages", {"messages": []}),
            (openai.BadRequestError, "invalid_value", "messages[0].role", {"messages": [{"role": "boss", "content": "x"}]}),
            (openai.BadRequestError, "invalid_type", "messages[0].content", {"messages": [{"role": "user", "content": 1}]}),
            (openai.BadRequestError, "invalid_value", "temperature", {"temperature": 3}),
            (openai.BadRequestError, "context_length_exceeded", "messages", {"messages": [{"role": "user", "content": "x " * 3000}]}),
            (openai.BadRequestError, "invalid_value", "messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}),
            (openai.BadRequestError, "invalid_value", "messages[0].content", {"messages": [{"role": "user", "content": None}]}),
            (openai.BadRequestError, "unsupported_content", "messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
            (openai.BadRequestError, "unsupported_parameter", "logit_bias", {"logit_bias": {"5": 10}}),
            (openai.BadRequestError, "unsupported_parameter", "tool_choice", {"tools": TOOLS, "tool_choice": "required"}),
            (openai.BadRequestError, "invalid_value", "tool_choice", {"tool_choice": "required"}),
            (openai.BadRequestError, "invalid_value", "n", {"n": 100}),
        ]  # fmt: skip
        for kind, code, param, changed in cases:
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **changed})
            assert (caught.value.code, caught.value.param) == (code, param), changed
            assert set(caught.value.body) == {"message", "type", "param", "code"}


async def test_content_parts_images_and_developers(folder):
    async with gateway_before(saying("ok"), folder) as (gateway, client, _):
        url = "data:image/png;base64,iVBORw0KGgo="
        content = [
            {"type": "text", "text": "hi"},
            {"type": "text", "text": "there"},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": content}]
        made = await client.chat.completions.create(model="tiny", messages=messages, store=False, user="somebody")
        turn = gateway.ledger.turn(made.id)
        assert [(message.role, message.content) for message in turn.messages] == [
            ("system", "Be kind."), ("user", "hi\nthere\n[image]"),
        ]  # fmt: skip
        assert [(image.message, image.url) for image in turn.images] == [(1, url)]


async def test_a_held_answer(folder):
    server = saying(json.dumps({"n": 1}))
    async with gateway_before(server, folder) as (gateway, client, _):
        schema = {"name": "n", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
        held = {"type": "json_schema", "json_schema": schema}
        made = await client.chat.completions.create(model="tiny", messages=HELLO, response_format=held)
        assert json.loads(made.choices[0].message.content) == {"n": 1}
        assert gateway.ledger.turn(made.id).caveat == "schema"
        gateway.policy.structured = False
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="tiny", messages=HELLO, response_format=held)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "response_format")
