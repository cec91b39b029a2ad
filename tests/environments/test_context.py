"""Budgets of what an episode says."""

import json
import re
from pathlib import Path

import pytest

from agentgym.environments.blocks import block
from agentgym.environments.context import Budget, counter, cut, cut_tokens, estimate
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import UsageError
from agentgym.types import Message, Task

TASK = Task(
    id="t",
    env="terminal",
    instruction="Look.",
    data={"files": {}, "expect": [{"kind": "text", "path": "a", "text": "b"}]},
)


def test_head_and_tail_are_kept_and_the_rest_is_counted() -> None:
    assert cut("abcdefghij", 10) == "abcdefghij"
    assert cut("abcdefghij", 4) == "ab\n[... 6 characters left out ...]\nij"
    assert cut("abcdefghij", 5) == "ab\n[... 6 characters left out ...]\nij"


@pytest.mark.parametrize("text", ["word " * 900, "1234567890" * 90, "é漢字" * 300, "a\n" * 700, "x" * 5000])
@pytest.mark.parametrize("limit", [48, 100, 500])
def test_a_text_is_cut_to_its_tokens_and_the_note_tells_the_truth(text: str, limit: int) -> None:
    made = cut_tokens(text, limit, estimate)
    assert estimate(made) <= limit and estimate(made) > limit * 0.8 - 6
    head, note, tail = (
        made.partition("\n[...")[0],
        re.search(r"\[\.\.\. (\d+) tokens", made),
        made.rpartition("...]\n")[2],
    )
    assert note is not None and text.startswith(head) and text.endswith(tail) and len(head) == len(tail)
    assert int(note[1]) == estimate(text) - estimate(head) - estimate(tail)


def test_what_fits_is_left_alone() -> None:
    assert cut_tokens("a b c", 3, estimate) == "a b c"
    budget = Budget(0, estimate)
    assert budget.fit("x" * 10**6) == "x" * 10**6 and not budget.spent


def test_an_estimate_is_rather_too_large() -> None:
    """Against what byte-pair encodings of the trade make of it: about 4 letters, 1 to 3 digits, 1 sign a token."""
    assert estimate("The quick brown fox jumps over the lazy dog.") in range(10, 14)
    assert estimate("1234567890") == 10 and estimate("漢字") == 4 and estimate("") == 0
    code = Path(__file__).read_text()
    assert len(code) / 5 < estimate(code) < len(code) / 1.5


def tokenizer(folder: Path) -> Path:
    """One token a character."""
    vocabulary = {chr(code): code for code in range(32, 127)} | {"\n": 10, "?": 0}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
             "post_processor": None, "decoder": None, "truncation": None, "padding": None,
             "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}}
        )
    )  # fmt: skip
    return folder


def test_a_tokenizer_counts_exactly(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    count = counter(str(tokenizer(tmp_path / "t")))
    assert count("hello\n") == 6 and len(cut_tokens("x" * 1000, 100, count)) in (99, 100)
    with pytest.raises(UsageError, match="cannot read"):
        counter(str(tmp_path / "nothing"))


async def test_an_episode_stays_within_its_context_and_ends_with_it(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folder = tokenizer(tmp_path / "t")
    count = counter(str(folder))
    env = TerminalEnv(
        sandbox="plain", max_steps=50, context_tokens=3000, tokenizer=str(folder), max_output_chars=20_000
    )
    observation, _ = await env.reset(options={"task": TASK})
    said = [message.content for message in observation.messages]
    left_out, sizes = 0, []
    for _ in range(50):
        action = Message(role="assistant", content=block("seq 400"))
        result = await env.step(action)
        said += [action.content, result.observation.messages[0].content]
        sizes.append(count(said[-1]))
        left_out += "tokens left out" in said[-1]
        if result.truncated:
            break
    await env.close()
    assert (result.info["end"], result.info["solved"], result.terminated) == ("context", False, False)
    assert sum(map(count, said)) <= 3000 and left_out > 3 and sizes == sorted(sizes, reverse=True) and len(sizes) < 20


async def test_without_a_budget_nothing_is_cut_but_by_characters() -> None:
    env = TerminalEnv(sandbox="plain", max_output_chars=100)
    await env.reset(options={"task": TASK})
    result = await env.step(Message(role="assistant", content=block("seq 400")))
    await env.close()
    assert result.observation.messages[0].content.count("characters left out") == 1
