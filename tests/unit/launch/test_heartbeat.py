"""Who hangs and who is slow, from beats."""

import pytest

from src.launch.heartbeat import START_SECONDS, find_hang, find_slow
from src.runtime.pulse import Beat


def beat(time=0.0, *, step=0, busy=0.0):
    return Beat(time, step, busy)


@pytest.mark.parametrize(
    ("beats", "now", "expected"),
    [
        ({0: beat(100), 1: beat(101)}, 110.9, None),
        ({0: beat(100), 1: beat(101)}, 111.1, 0),
        ({0: beat(101), 1: beat(100)}, 111.1, 1),
        ({0: beat(100), 1: beat(500)}, 509.0, None),  # rank 1 evaluates its last images, rank 0 has done so
        ({0: beat(100), 1: None}, 110.5, 1),  # it never came so far
        ({0: None, 1: None}, 50 + 10 + START_SECONDS - 0.1, None),
        ({0: None, 1: None}, 50 + 10 + START_SECONDS + 0.1, 0),
        ({0: beat(10), 1: beat(12)}, 59.9, None),  # the machine was paused until 50
    ],
)
def test_a_hang_is_when_no_rank_gets_on_and_the_oldest_beat_is_its_cause(beats, now, expected):
    found = find_hang(beats, since=50.0, now=now, timeout=10.0)
    assert (None if found is None else found[0]) == expected


def test_a_hangs_length_counts_from_the_newest_beat():
    assert find_hang({0: beat(100), 1: beat(104)}, since=0.0, now=120.0, timeout=10.0) == (0, 16.0)


SLOW = {
    "three times slower": ([1.0, 3.1], 10, {1}),
    "not quite": ([1.0, 2.9], 10, set()),
    "of several ranks": ([1.0, 1.1, 0.9, 4.0], 10, {3}),
    "the first": ([3.5, 1.0, 1.0], 10, {0}),
    "too few steps to tell": ([1.0, 3.0], 4, set()),
    "a small part of the time": ([0.05, 0.3], 10, set()),
    "a lone rank": ([3.0], 10, set()),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_rank_is_three_times_the_others(name):
    """FAULTS row 21."""
    busy, steps, slow = SLOW[name]
    before = {rank: beat(step=100, busy=7.0) for rank in range(len(busy))}
    now = {rank: beat(step=100 + steps, busy=7.0 + seconds) for rank, seconds in enumerate(busy)}
    found = find_slow(before, now, seconds=4.0)
    assert set(found) == slow
    for rank in slow:
        assert found[rank][0] == pytest.approx(busy[rank] / steps)


def test_ranks_without_an_earlier_beat_are_not_compared():
    assert find_slow({}, {0: beat(step=50, busy=1), 1: beat(step=50, busy=9)}, seconds=4.0) == {}
