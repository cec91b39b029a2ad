"""Text completions, responses, models, health and numbers."""

import asyncio

import openai
import pytest

from tests.gateway.conftest import gateway_before, saying

TOOLS = [
    {
        "type": "function",
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


async def test_text_completions(folder):
    async with gateway_before(saying("and so on"), folder) as (gateway, client, _):
        whole = await client.completions.create(model="tiny", prompt="Once", max_tokens=40, logprobs=1)
        choice = whole.choices[0]
        assert (choice.text, choice.finish_reason) == ("and so on", "stop")
        assert "".join(choice.logprobs.tokens) == "and so on" and choice.logprobs.text_offset[:2] == [
            0,
            len(choice.logprobs.tokens[0]),
        ]
        turn = gateway.ledger.turn(whole.id)
        assert turn.taken.kind == "side" and turn.completion.prompt_ids == tuple(
            gateway.policy.template.tokenizer.encode("Once").ids
        )
        chunks = [
            chunk
            async for chunk in await client.completions.create(model="tiny", prompt="Once", max_tokens=40, stream=True)
        ]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "and so on"
        several = await client.completions.create(model="tiny", prompt=["A", "B"], n=2, max_tokens=40, echo=True)
        assert [(choice.index, choice.text) for choice in several.choices] == [
            (0, "Aand so on"), (1, "Aand so on"), (2, "Band so on"), (3, "Band so on"),
        ]  # fmt: skip
        ids = await client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=40)
        assert gateway.ledger.turn(ids.id).completion.prompt_ids == (5, 6, 7)
        for prompt in ("", [], [[]], [1, "a"]):
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(model="tiny", prompt=prompt)
        with pytest.raises(openai.BadRequestError, match="vocabulary"):
            await client.completions.create(model="tiny", prompt=[10**9])


async def test_responses(folder):
    async with gateway_before(saying("Hello.", "Bye."), folder) as (gateway, client, _):
        first = await client.responses.create(model="tiny", input="Hi", instructions="Be kind.")
        assert (first.output_text, first.status) == ("Hello.", "completed")
        assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
        second = await client.responses.create(
            model="tiny", input="And now?", instructions="Be kind.", previous_response_id=first.id
        )
        turn = gateway.ledger.turn(second.id)
        assert [message.content for message in turn.messages] == ["Be kind.", "Hi", "Hello.", "And now?"]
        assert (turn.taken.relation, turn.taken.parent) == ("continued", first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="tiny", input="x", previous_response_id="resp_none")
        for wrong in (
            {"input": []},
            {"input": [{"type": "audio"}]},
            {"input": [{"role": "boss", "content": "x"}]},
            {"background": True},
        ):
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(**{"model": "tiny", "input": "x", **wrong})


async def test_responses_with_tools_whole_and_streamed(folder):
    async with gateway_before(saying(f"<think>hm</think>Let me look. {CALL}"), folder) as (gateway, client, _):
        whole = await client.responses.create(model="tiny", input="List", tools=TOOLS)
        assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
        call = whole.output[-1]
        assert (call.name, call.arguments) == ("bash", '{"command": "ls"}')
        events = [
            event async for event in await client.responses.create(model="tiny", input="List", tools=TOOLS, stream=True)
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[0].type == "response.created" and events[-1].type == "response.completed"
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == "Let me look. "
        assert [item.type for item in events[-1].response.output] == ["reasoning", "message", "function_call"]
        items = [{"role": "user", "content": "List"}, *(item.model_dump(exclude_none=True) for item in whole.output)]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"})
        on = await client.responses.create(model="tiny", input=items, tools=TOOLS)
        turn = gateway.ledger.turn(on.id)
        assert [message.role for message in turn.messages] == ["user", "assistant", "tool"]
        assert turn.taken.relation == "continued" and turn.messages[1].content.startswith("<think>")
        async with client.responses.stream(
            model="tiny", input="List", tools=TOOLS
        ) as stream:  # the client's own gathering
            final = await stream.get_final_response()
        assert final.output[-1].arguments == '{"command": "ls"}'


async def test_models_health_and_numbers(folder):
    async with gateway_before(saying("x"), folder, model_names=["gpt-x", "org/name"]) as (_, client, url):
        assert [model.id for model in (await client.models.list()).data] == ["tiny", "gpt-x", "org/name"]
        assert (await client.models.retrieve("org/name")).owned_by == "agentgym"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("none")
        await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
        root = url.removesuffix("/v1")
        health = (await client._client.get(f"{root}/healthz")).json()
        assert health == {"status": "ok", "model": "tiny", "version": 0}
        numbers = (await client._client.get(f"{root}/metrics")).text
        for line in (
            'agentgym_turns_total{kind="main",relation="new"} 1.0',
            'agentgym_requests_total{route="/v1/chat/completions",status="200"} 1.0',
            'agentgym_turns_by_fate{fate="waiting"} 1.0',
            'agentgym_answers_total{state="complete"} 1.0',
        ):
            assert line in numbers
        assert (await client._client.get(f"{root}/docs")).status_code == 200


async def test_completions_that_were_kept(folder):
    async with gateway_before(saying("one", "two", "three"), folder) as (_, client, _url):
        made = []
        for text in "abc":
            messages = [{"role": "system", "content": "S"}, {"role": "user", "content": text}]
            made.append(
                await client.chat.completions.create(model="tiny", messages=messages, metadata={"k": text}, store=True)
            )
        page = await client.chat.completions.list(limit=2)
        assert [item.id for item in page.data] == [one.id for one in made[:2]] and page.has_more
        assert [item.id async for item in client.chat.completions.list(limit=1)] == [one.id for one in made]
        kept = await client.chat.completions.retrieve(made[1].id)
        assert (kept.choices[0].message.content, kept.usage, kept.metadata) == ("two", made[1].usage, {"k": "b"})
        told = await client.chat.completions.messages.list(made[1].id)
        assert [message.content for message in told.data] == ["S", "b"]
        assert (await client.chat.completions.delete(made[1].id)).deleted
        for gone in (made[1].id, "chatcmpl-none"):
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.retrieve(gone)
        with pytest.raises(openai.NotFoundError):
            await client.with_options(default_headers={"X-User-Id": "eve"}).chat.completions.retrieve(made[0].id)


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_that_were_never_begun_are_accounted_for(folder, stream):
    server = saying("one")
    async with gateway_before(server, folder) as (gateway, client, _url):
        server.plan("500")
        with pytest.raises(openai.APIError):
            made = await client.completions.create(model="tiny", prompt=["A", "B"], max_tokens=9, stream=stream)
            [chunk async for chunk in made]
        for _ in range(100):  # the client goes with the error, a moment before the stream's end
            await asyncio.sleep(0.02)
            if sum(gateway.ledger.fates().values()) == 2:
                break
        assert gateway.ledger.fates() == {"rejected: failed": 1, "rejected: aborted": 1}
        assert {turn.state for turn in gateway.readers.of("local").index.turns.values()} == {"failed", "aborted"}
