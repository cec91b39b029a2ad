import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.config import AlgorithmConfig
from agentgym.samples import repetition, samples_from
from agentgym.types import Completion, TokenSpan, Trajectory, Turn
from tests.fakes import completion

ALGORITHM = AlgorithmConfig()


def trajectory(*completions: Completion) -> Trajectory:
    turns = tuple(Turn(index=index, completion=made) for index, made in enumerate(completions))
    return Trajectory(id="t", task_id="k", group_id="g", env="e", seed=0, status="completed", outcome=1.0, turns=turns)


def test_append_only_turns_merge_into_one_sample():
    first = completion((1, 2), (3, 4), versions=(7, 7))
    second = completion((1, 2, 3, 4, 5), (6,), versions=(8,), logprobs=(-2.0,))
    (sample,), reasons = samples_from(trajectory(first, second), ALGORITHM)
    assert sample.id == "t/0"
    assert sample.ids == (1, 2, 3, 4, 5, 6)
    assert sample.mask == (0, 0, 1, 1, 0, 1)
    assert sample.logprobs == (None, None, -0.5, -0.5, None, -2.0)
    assert sample.versions == (-1, -1, 7, 7, -1, 8)
    assert sample.spans == (TokenSpan(turn=0, start=2, end=4), TokenSpan(turn=1, start=5, end=6))
    assert reasons == []


def test_a_broken_prefix_starts_another_sample():
    first, second = completion((1, 2), (3, 4)), completion((1, 2, 9, 5), (6,))
    one, two = samples_from(trajectory(first, second), ALGORITHM)[0]
    assert (one.ids, one.spans[0].turn) == ((1, 2, 3, 4), 0)
    assert (two.id, two.ids, two.mask, two.spans[0].turn) == ("t/1", (1, 2, 9, 5, 6), (0, 0, 0, 0, 1), 1)


def test_a_response_that_is_gone_on_with_has_a_mask_of_its_whole_length():  # B55
    """Ten tokens were sampled before an abort and five after it: only these are trained on."""
    partial, rest = tuple(range(10, 20)), tuple(range(30, 35))
    first = completion((1, 2), partial, finish_reason="abort")
    second = completion((1, 2, *partial), rest)
    (sample,), reasons = samples_from(trajectory(first, second), ALGORITHM)
    assert sample.mask[2:] == (0,) * 10 + (1,) * 5
    assert len(sample.mask) == len(sample.ids) == len(sample.logprobs) == len(sample.versions) == 17
    assert reasons == ["aborted"]


def test_another_temperature_starts_another_sample():
    first, second = completion((1,), (2,)), completion((1, 2, 3), (4,), temperature=0.5)
    assert [sample.temperature for sample in samples_from(trajectory(first, second), ALGORITHM)[0]] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish_reason": "abort"}, "aborted"),
        ({"finish_reason": "length"}, "truncated"),
        ({"ids": tuple([5] * 40)}, "repetition"),
    ],
)
def test_what_must_not_be_trained_on_is_masked_with_the_reason(changes, reason):
    ids = changes.pop("ids", (3, 4))
    (sample,), reasons = samples_from(trajectory(completion((1,), ids, **changes)), ALGORITHM)
    assert sum(sample.mask) == 0
    assert reasons == [reason]


def test_a_truncated_turn_can_be_made_to_pay():
    cut = completion((1,), (3, 4), finish_reason="length")
    (sample,), reasons = samples_from(trajectory(cut), AlgorithmConfig(truncation="penalise"))
    assert (sample.mask, reasons) == ((0, 1, 1), [])


def test_an_empty_response_is_no_crash():
    (sample,), reasons = samples_from(trajectory(completion((1, 2), ())), ALGORITHM)
    assert (sample.ids, sample.mask, reasons) == ((1, 2), (0, 0), ["empty"])


def test_repetition_is_the_share_of_repeated_ngrams():
    assert repetition(range(20)) == 0.0
    assert repetition([1] * 20) == pytest.approx(12 / 13)
    assert repetition([1, 2]) == 0.0


ids = st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple)


@given(st.lists(st.tuples(ids, ids, st.booleans()), min_size=1, max_size=5))
def test_every_sampled_token_is_in_exactly_one_sample_as_served(turns):
    completions, history = [], ()
    for served, sampled, breaks in turns:
        prompt = served if breaks else history + served
        completions.append(completion(prompt, sampled))
        history = prompt + sampled
    samples, _ = samples_from(trajectory(*completions), ALGORITHM)
    spans = [
        (span.turn, sample.ids[: span.start], sample.ids[span.start : span.end])
        for sample in samples
        for span in sample.spans
    ]
    assert spans == [(index, made.prompt_ids, made.ids) for index, made in enumerate(completions)]
    assert sum(sum(sample.mask) for sample in samples) == sum(len(made.ids) for made in completions)
