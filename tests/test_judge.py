"""Votes and what becomes of them."""

import math

import pytest

from agentgym.judge import majority_vote, vote_entropy


@pytest.mark.golden("majority_vote")
def test_the_most_frequent_valid_vote_counts(case):
    assert majority_vote(case["votes"]) == case["score"]


def test_entropy_of_votes_is_that_of_their_shares():
    assert vote_entropy([1, 1, None]) == vote_entropy([]) == 0.0
    assert vote_entropy([1, 0, -1]) == pytest.approx(math.log(3))
