"""Slowness that comes back is found with its period and its clock; slowness that does not is let alone.

Each share is a promise of `find_period`; the bounds are what chance allows of it in so many runs.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from binomial_bounds import at_least, at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_worlds import SECOND_NS, World, bursts, clean, serve, slow_few, slower_service, stalls, stalls_by_count

from forensics.statistics.folding import fold
from forensics.statistics.periods import Clock, Period, find_period

SEEDS = range(20)


def period_of(world: World, seed: int = 0) -> Period | None:
    """The period of a world's slow requests."""
    return find_period(world.at_ns, world.latency_ns, seed=seed)


@pytest.mark.parametrize(
    ("every_s", "for_s", "jitter_s"),
    [(60.0, 0.6, 0.0), (37.0, 0.6, 0.0), (45.0, 1.0, 0.0), (12.0, 0.15, 0.3), (3.0, 0.2, 0.0), (1.5, 0.2, 0.0)],
)
def test_stalls_by_the_clock_are_found(every_s: float, for_s: float, jitter_s: float) -> None:
    """In 9 of 10 runs of ten minutes, to a hundredth of the period (not a multiple), and as a matter of time."""
    found = [period_of(stalls(s, every_s=every_s, for_s=for_s, jitter_s=jitter_s), s) for s in SEEDS]
    right = [p for p in found if p is not None and p.period / SECOND_NS == pytest.approx(every_s, rel=0.01)]
    assert sum(p.clock is Clock.TIME for p in right) >= at_least(len(SEEDS), 0.9)
    assert np.median([abs(p.period / SECOND_NS - every_s) for p in right]) < 0.1
    assert all(p.p_value <= 0.005 for p in right)


@pytest.mark.parametrize(("every", "for_s"), [(200, 0.3), (500, 0.4), (900, 0.6)])
def test_stalls_by_the_number_of_requests_are_told_from_those_by_the_clock(every: int, for_s: float) -> None:
    """A collector of garbage runs every so many allocations: with the time its fold would smear."""
    found = [period_of(stalls_by_count(s, every=every, for_s=for_s), s) for s in range(10)]
    right = [
        p for p in found if p is not None and p.clock is Clock.REQUESTS and p.period == pytest.approx(every, rel=0.01)
    ]
    assert len(right) >= at_least(10, 0.95)


def test_stalls_by_the_bytes_are_told_from_both() -> None:
    """A log is rotated when it is full; sizes are uneven, so neither time nor requests fold as sharply."""
    hits = 0
    for seed in range(10):
        world = clean(seed, rate_per_s=15, length_s=600)
        size_bytes = (np.random.default_rng(seed).lognormal(8, 1.0, len(world.at_ns))).astype(np.int64)
        full = np.flatnonzero(np.diff(np.cumsum(size_bytes) // 3_000_000)) + 1
        world = serve(world.at_ns, world.service_ns, world.at_ns[full], np.full(len(full), int(0.5 * SECOND_NS)))
        found = find_period(world.at_ns, world.latency_ns, size_bytes)
        hits += found is not None and found.clock is Clock.BYTES and found.period == pytest.approx(3e6, rel=0.01)
    assert hits >= at_least(10, 0.95)


@pytest.mark.parametrize(
    "make",
    [
        partial(clean, rate_per_s=15, length_s=600),
        partial(clean, mean_ms=27.0),
        partial(bursts, length_s=600),
        partial(bursts, length_s=300),
    ],
    ids=["clean", "clean, load 0.7", "bursts", "bursts, 5 minutes"],
)
def test_where_nothing_returns_no_period_is_found(make: Callable[[int], World]) -> None:
    """In 99 of 100 runs that are clean, or have 15 stalls at moments that nothing connects."""
    assert sum(period_of(make(seed), seed) is not None for seed in range(40)) <= at_most(40, 0.01)


@pytest.mark.parametrize("make", [partial(slower_service, ratio=1.5), slow_few], ids=["slower", "few slow"])
def test_a_step_is_no_period(make: Callable[[int], World]) -> None:
    """Whose latency is higher from some moment on is like itself at every distance, but seldom has a peak: in 1 of 30
    runs."""
    assert sum(period_of(make(seed), seed) is not None for seed in range(40)) <= at_most(40, 1 / 30)


def test_phase_duty_and_amplitude_describe_the_stall() -> None:
    """Ten seconds of stall each minute, beginning 25 s after the first request."""
    world = clean(1, rate_per_s=20, length_s=900)
    hit = (world.at_ns - world.at_ns[0] - 25 * SECOND_NS) % (60 * SECOND_NS) < 10 * SECOND_NS
    latency_ns = world.latency_ns + np.where(hit, 200_000_000, 0)
    found = find_period(world.at_ns, latency_ns, slow_p=0.9)
    assert found is not None
    assert found.period == pytest.approx(60 * SECOND_NS, rel=0.005)
    assert found.phase == pytest.approx(25 * SECOND_NS, abs=SECOND_NS)
    assert found.duty == pytest.approx(1 / 6, abs=0.02)
    assert found.amplitude_ns == pytest.approx(200_000_000, rel=0.1)
    assert found.cycles == pytest.approx(15, rel=0.01)


def test_a_fold_counts_every_request_once() -> None:
    """And its slow stretch goes round the end of the circle."""
    position = np.array([0.0, 1.0, 9.5, 10.5, 19.9, 25.0])
    slow = np.array([True, False, True, True, True, False])
    seen = fold(position, np.arange(6, dtype=np.int64), slow, 10.0, phases=10)
    assert seen.requests.tolist() == [2, 1, 0, 0, 0, 1, 0, 0, 0, 2]
    assert seen.slow.tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert seen.mean_ns.tolist() == [1.5, 1, 0, 0, 0, 5, 0, 0, 0, 3]
    assert seen.slow_arc() == (9, 2)


def test_the_order_of_the_requests_decides_nothing() -> None:
    """A log is sorted by the end of requests, not by their beginning."""
    world = stalls(1, every_s=45, for_s=1)
    order = np.random.default_rng(1).permutation(len(world.at_ns))
    assert find_period(world.at_ns[order], world.latency_ns[order]) == period_of(world)


@pytest.mark.parametrize("count", [0, 1, 199])
def test_too_few_requests_have_no_period(count: int) -> None:
    """And that is no error."""
    world = stalls(1, every_s=2, for_s=0.2)
    assert find_period(world.at_ns[:count], world.latency_ns[:count]) is None


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 5)), min_size=200, max_size=300), st.booleans())
def test_whatever_the_requests_the_answer_is_a_period_of_them(rows: list[tuple[int, int]], sized: bool) -> None:
    """All at one instant, all equal, sizes of 0: no error, and numbers that can be."""
    at_ns, value_ns = np.array(rows, dtype=np.int64).T
    found = find_period(at_ns * SECOND_NS // 10, value_ns, value_ns if sized else None)
    if found is not None:
        assert 0 <= found.phase < found.period
        assert 0 < found.duty <= 1
        assert found.cycles >= 2.5


def test_requests_that_all_take_as_long_have_no_period() -> None:
    """Nobody is slow."""
    at_ns = (np.arange(1000) * SECOND_NS).astype(np.int64)
    assert find_period(at_ns, np.full(1000, 5, dtype=np.int64)) is None
    assert find_period(np.zeros(1000, dtype=np.int64), np.arange(1000, dtype=np.int64)) is None
