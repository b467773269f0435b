"""The arrival rate: right from the beginning, it follows, and it fades when nobody comes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.arrivals import COUNT_MIN, ArrivalRate

S = 1_000_000_000


def poisson(rate: ArrivalRate, per_s: float, *, from_s: float, to_s: float, seed: int = 1) -> None:
    chance, at_s = random.Random(seed), from_s
    while (at_s := at_s + chance.expovariate(per_s)) < to_s:
        rate.observe(1, int(at_s * S))


@pytest.mark.parametrize("per_s", [20, 200, 2000])
def test_a_steady_rate_is_found(per_s: float) -> None:
    """Within the chance of what came in two seconds."""
    rate = ArrivalRate()
    poisson(rate, per_s, from_s=0, to_s=10)
    assert rate.per_s(10 * S) == pytest.approx(per_s, rel=4 / (4 * per_s) ** 0.5)


def test_it_is_right_long_before_its_memory_is_full() -> None:
    """Half a second of 100 a second is 100 a second."""
    rate = ArrivalRate()
    for i in range(51):
        rate.observe(1, i * S // 100)
    assert rate.per_s(S // 2) == pytest.approx(100, rel=0.02)


def test_a_change_is_followed_and_silence_fades() -> None:
    """Within some seconds; after a minute of silence there is no rate to speak of."""
    rate = ArrivalRate()
    poisson(rate, 20, from_s=0, to_s=10)
    poisson(rate, 400, from_s=10, to_s=16)
    assert rate.per_s(16 * S) == pytest.approx(400, rel=0.2)
    assert rate.per_s(76 * S) < 1


def test_several_at_once_count_as_several() -> None:
    """They come with one reply of the queue."""
    rate = ArrivalRate()
    for i in range(100):
        rate.observe(5, i * S // 10)
    assert rate.per_s(10 * S) == pytest.approx(50, rel=0.1)


def test_too_few_are_no_rate() -> None:
    """The first call only begins the count; then it takes a handful."""
    rate = ArrivalRate()
    assert rate.per_s(S) == 0
    for i in range(COUNT_MIN):
        rate.observe(1, i * S)
        assert rate.per_s((i + 1) * S) == 0
    rate.observe(1, 9 * S)
    assert rate.per_s(9 * S) > 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10 * S)), max_size=30), st.integers(0, 20 * S))
def test_it_is_never_negative_and_never_infinite(events: list[tuple[int, int]], now_ns: int) -> None:
    """Also for instants out of order: they are taken for simultaneous."""
    rate = ArrivalRate()
    for count, at_ns in events:
        rate.observe(count, at_ns)
    assert 0 <= rate.per_s(now_ns) < 1e13


def test_a_memory_of_nothing_is_refused() -> None:
    """When it is made."""
    with pytest.raises(ValueError, match="memory_ns must be positive"):
        ArrivalRate(0)
