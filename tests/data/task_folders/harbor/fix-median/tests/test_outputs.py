import sys

sys.path.insert(0, "/app")
import stats


def test_odd():
    assert stats.median([5, 1, 3]) == 3


def test_even():
    assert stats.median([4, 1, 3, 2]) == 2.5


def test_it_leaves_the_list_alone():
    given = [3, 1, 2]
    stats.median(given)
    assert given == [3, 1, 2]


def test_mean_is_as_it_was():
    assert stats.mean([1, 2, 6]) == 3
