"""Schedules: what is due when, from the seed alone."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.arrivals import Arrivals, schedule

SECOND_NS = 1_000_000_000


def instants(
    arrivals: Arrivals, *, rate: float = 1000, seconds: float = 20, burst: float = 10, seed: int = 1
) -> list[int]:
    length_ns = int(seconds * SECOND_NS)
    return list(schedule(arrivals, rate_per_s=rate, duration_ns=length_ns, burst_mean=burst, seed=seed))


def dispersion(at_ns: list[int], *, bins: int = 200, seconds: float = 20) -> float:
    """Variance by mean of the counts in equal bins: 1 for a Poisson process, 0 for a clock."""
    width = seconds * SECOND_NS / bins
    counts = Counter(int(at / width) for at in at_ns)
    mean = len(at_ns) / bins
    return sum((counts[i] - mean) ** 2 for i in range(bins)) / bins / mean


@given(st.sampled_from(Arrivals), st.floats(0.5, 5000), st.floats(0.001, 0.2), st.floats(1, 50), st.integers(0, 2**32))
def test_instants_ascend_and_lie_within_the_run(
    arrivals: Arrivals, rate: float, seconds: float, burst: float, seed: int
) -> None:
    """Whatever the rate, the length, the burstiness and the seed."""
    at_ns = instants(arrivals, rate=rate, seconds=seconds, burst=burst, seed=seed)
    assert at_ns == sorted(at_ns)
    assert all(0 <= at < seconds * SECOND_NS for at in at_ns)


@pytest.mark.parametrize("arrivals", Arrivals)
def test_a_seed_gives_one_schedule(arrivals: Arrivals) -> None:
    """The same again for the same seed; another one for another seed, unless chance plays no part."""
    assert instants(arrivals, seed=3) == instants(arrivals, seed=3)
    assert (instants(arrivals, seed=3) == instants(arrivals, seed=4)) is (arrivals is Arrivals.UNIFORM)


def test_uniform_requests_come_like_a_clock_without_drift() -> None:
    """The last of ten thousand at 3 a second is where it belongs, though a third of a second is no whole number."""
    at_ns = instants(Arrivals.UNIFORM, rate=3, seconds=10_000 / 3)
    assert at_ns[:4] == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert at_ns[9_999] == round(9_999 * SECOND_NS / 3)


def test_poisson_requests_have_the_rate_and_exponential_gaps() -> None:
    """20,000 are expected, give or take 5 standard deviations; 1 - 1/e of the gaps are below the mean."""
    at_ns = instants(Arrivals.POISSON)
    assert abs(len(at_ns) - 20_000) < 5 * math.sqrt(20_000)
    gaps = [b - a for a, b in itertools.pairwise(at_ns)]
    assert sum(gap < 1_000_000 for gap in gaps) / len(gaps) == pytest.approx(1 - 1 / math.e, abs=0.02)
    assert dispersion(at_ns) == pytest.approx(1, abs=0.5)


def test_bursty_requests_have_the_rate_but_come_many_at_once() -> None:
    """Bursts of 10 on average: as many in all, and 19 times the variance of Poisson's."""
    at_ns = instants(Arrivals.BURSTY)
    assert abs(len(at_ns) - 20_000) < 5 * math.sqrt(19 * 20_000)
    assert len(at_ns) / len(set(at_ns)) == pytest.approx(10, rel=0.1)
    assert dispersion(at_ns) == pytest.approx(19, rel=0.4)


def test_bursts_of_one_are_a_poisson_process() -> None:
    """--burst 1 changes nothing but the name."""
    assert instants(Arrivals.BURSTY, burst=1) == instants(Arrivals.POISSON)
