import pytest

from agentgym.errors import UsageError
from agentgym.sessions_to_three import joint_sessions, over_seeds, reached, sessions_to_three

GOOD, BAD = True, False


@pytest.mark.parametrize(
    ("sessions", "count"),
    [
        ([GOOD] * 3, 3),
        ([BAD, GOOD, GOOD, BAD, GOOD, GOOD, GOOD, BAD], 7),
        ([BAD] * 10 + [GOOD] * 3, 13),
        ([GOOD, GOOD, BAD] * 24, 72),  # never three in a row
        ([BAD] * 69 + [GOOD] * 3, 72),
        ([BAD] * 70 + [GOOD] * 3, 72),  # beyond the cap
        ([BAD] * 200, 72),
        ([GOOD, GOOD], 72),  # ended before
        ([], 72),
    ],
)
def test_the_third_of_three_counts(sessions, count):
    assert sessions_to_three(sessions) == count
    assert sessions_to_three(iter(sessions)) == count
    assert reached(sessions) == (count < 72 or sessions[69:72] == [GOOD] * 3)


def test_other_streaks_and_caps():
    assert sessions_to_three([GOOD], streak=1) == 1
    assert sessions_to_three([BAD, BAD, GOOD, GOOD, GOOD], cap=4) == 4
    for streak, cap in ((0, 72), (4, 3)):
        with pytest.raises(UsageError, match="streak"):
            sessions_to_three([], streak=streak, cap=cap)


def test_users_are_averaged():
    assert joint_sessions({"a": [GOOD] * 3, "b": [BAD, BAD] + [GOOD] * 3}) == 4.0
    with pytest.raises(UsageError, match="no users"):
        joint_sessions({})


def test_over_five_seeds():
    seeds = [{"a": [BAD] * n + [GOOD] * 3, "b": [BAD] * 100} for n in range(5)]
    found = over_seeds(seeds)
    assert found.mean == pytest.approx((sum(range(3, 8)) / 5 + 72) / 2)
    assert found.interval[0] < found.mean < found.interval[1] and found.never == 5 and found.seeds == 5
    with pytest.raises(UsageError, match="4 seeds"):
        over_seeds(seeds[:4])
