"""Ids to text as they come: characters whole, stop strings found, calls and reasoning told apart."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.gateway.text import Detokenizer, Parts, Stops, overlap, split_thinking
from agentgym.models import resolve_model
from agentgym.policies.template import ChatTemplate

TEMPLATE = ChatTemplate(resolve_model("tiny"))
TEXT = "Grüße, 你好 👩‍👩‍👧 (naïve) \n\t done"


def decode(ids):
    return TEMPLATE.decode_response(tuple(ids)).content


def pieces(items, rng):
    while items:
        size = rng.randint(1, 4)
        yield items[:size]
        items = items[size:]


@given(st.lists(st.integers(0, 270), max_size=120), st.integers(0, 2**16))
@settings(max_examples=150, deadline=None)
def test_what_comes_in_pieces_is_what_all_ids_say(ids, seed):
    ids = [id % TEMPLATE.tokenizer.get_vocab_size() for id in ids]
    detokenizer = Detokenizer(decode)
    told = [detokenizer.push(part) for part in pieces(ids, random.Random(seed))]
    assert "".join(told) + detokenizer.finish() == decode(ids)


def test_a_character_is_never_split():
    ids = TEMPLATE.tokenizer.encode(TEXT, add_special_tokens=False).ids
    detokenizer = Detokenizer(decode)
    told = [detokenizer.push([id]) for id in ids]
    assert "".join(told) + detokenizer.finish() == TEXT
    assert not any("\ufffd" in part for part in told)


def test_a_long_answer_costs_no_more_per_token():
    asked = []

    def counted(ids):
        asked.append(len(ids))
        return decode(ids)

    detokenizer = Detokenizer(counted)
    ids = TEMPLATE.tokenizer.encode("word " * 400, add_special_tokens=False).ids
    for id in ids:
        detokenizer.push([id])
    assert max(asked) < 80 and sum(asked) < 60 * len(ids)


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.integers(0, 99))
@settings(deadline=None)
def test_stop_strings_wherever_pieces_end(text, stops, seed):
    looker = Stops(stops)
    told = "".join(looker.push(part) for part in pieces(text, random.Random(seed))) + looker.finish()
    ends = [place for stop in stops if (place := text.find(stop)) >= 0]
    if not ends:
        assert told == text and looker.found is None
    else:  # found as soon as it is whole: one that is whole earlier wins, however long another that began before it is
        assert text.startswith(told) and looker.found in stops
        assert text[len(told) :].startswith(looker.found)
        assert not any(stop in told for stop in stops)


def test_overlap():
    assert (overlap("ab<to", "<tool>"), overlap("ab", "<tool>"), overlap("<tool>", "<tool>")) == (3, 0, 0)


def told(text, size, **options):
    parts = Parts(**options)
    deltas = [parts.push(text[start : start + size]) for start in range(0, len(text), size)]
    deltas.append(parts.push("", last=True))
    return "".join(delta.content for delta in deltas), "".join(delta.reasoning for delta in deltas)


def test_reasoning_content_and_calls_for_every_size_of_piece():
    text = "<think>a < b</think>\n\nSo: <tool_call>\n{}\n</tool_call>\nand <tool_call> in prose <"
    for size in range(1, len(text)):
        assert told(text, size, tools=True) == ("So: \nand <tool_call> in prose <", "a < b"), size
        assert told(text, size, tools=False)[0] == text.partition("</think>\n\n")[2]
    for size in (1, 3, 100):
        assert told("opened by the template</think>yes", size, tools=True, thinking=True) == (
            "yes",
            "opened by the template",
        )
        assert told("<think>never closed", size, tools=True) == ("", "never closed")
        assert told("<thin ice", size, tools=True) == ("<thin ice", "")
        assert told("no call: <tool_call>", size, tools=True)[0].startswith("no call: ")
    assert split_thinking("<think>x</think> y") == ("x", "y")


def test_what_looked_like_a_call_and_was_none_is_content():
    text = 'See <tool_call>{"name": broken}</tool_call> and ```json\n{"a": 1}\n``` there'
    for size in (1, 4, 200):
        assert told(text, size, tools=True, ended=lambda: False) == (text, "")
        assert told(text, size, tools=True)[0] == "See  and  there"
        assert told(' {"name": "f"}', size, tools=True, bare=True) == ("", "")
        assert told(" plain", size, tools=True, bare=True) == (" plain", "")
