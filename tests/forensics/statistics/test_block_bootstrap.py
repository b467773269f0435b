"""An interval that knows that neighbouring requests share their fate."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_worlds import SECOND_NS, World, clean, serve

from forensics.statistics.bootstrap import (
    block_indices,
    block_interval,
    block_length,
    correlated_items,
    replicates,
    t_over_normal,
)
from forensics.statistics.robust import quantile


def p50(values: Any) -> float:
    """The median."""
    return quantile(values, 0.5)


def queue(seed: int, load: float = 0.7) -> World:
    """M/M/1 at 20/s for five minutes: its latency is exponential, with the mean 1 / (service rate - arrival rate)."""
    rng = np.random.default_rng(seed)
    at_ns = np.cumsum(rng.exponential(SECOND_NS / 20, 6000)).astype(np.int64)
    return serve(at_ns, rng.exponential(load * SECOND_NS / 20, 6000).astype(np.int64))


def test_an_interval_of_a_queues_median_holds_the_truth() -> None:
    """In 90 % of runs or more it should (measured: 95 %); one for independent requests does in half of them."""
    truth_ns = np.log(2) / (20 / 0.7 - 20) * SECOND_NS
    held = 0
    for seed in range(20):
        world = queue(seed)
        seen = block_interval(p50, world.at_ns, world.latency_ns, resamples=100, seed=seed)
        held += seen.lo <= truth_ns <= seen.hi
        assert seen.lo < seen.estimate < seen.hi
    assert held >= 17


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60).map(sorted), st.integers(20, 2000), st.integers(0, 3))
def test_a_resample_is_made_of_stretches(times: list[int], block_ns: int, seed: int) -> None:
    """Its requests are the original's, and as many break the order as there are blocks, or go round the end."""
    at_ns = np.array(times, dtype=np.int64)
    length = times[-1] - times[0] + 1
    blocks = -(-length // min(block_ns, length))
    for indices in block_indices(at_ns, block_ns, 3, seed=seed):
        assert set(indices.tolist()) <= set(range(len(times)))
        breaks = sum(b != (a + 1) % len(times) for a, b in pairwise(indices.tolist()))
        assert breaks <= blocks - 1


def test_blocks_of_items_keep_their_number() -> None:
    """A list without times: the indices are the times, and each resample is as long as the original."""
    items = np.arange(103)
    assert [len(indices) for indices in block_indices(items, 10, 20)] == [103] * 20


def test_every_request_is_drawn_as_often() -> None:
    """Also the first and the last: blocks go round the end."""
    drawn = np.bincount(np.concatenate(list(block_indices(np.arange(50), 10, 4000))), minlength=50)
    assert drawn / 4000 == pytest.approx(np.ones(50), abs=0.1)


def test_columns_are_drawn_together_and_a_statistic_may_be_a_vector() -> None:
    """Two columns that are equal are equal in each resample."""
    world = clean(1)
    seen = replicates(
        lambda a, b: np.array([a.mean(), b.mean()]), world.at_ns, world.wait_ns, world.wait_ns, block_ns=10 * SECOND_NS
    )
    assert seen.shape == (400, 2)
    assert np.array_equal(seen[:, 0], seen[:, 1])


def test_the_same_seed_gives_the_same_interval() -> None:
    """A report is reproducible."""
    world = clean(1)
    one, two = (block_interval(p50, world.at_ns, world.latency_ns, resamples=20) for _ in range(2))
    assert one == two


def test_a_log_of_less_than_eight_blocks_is_refused() -> None:
    """Nothing could be said, so nothing is."""
    world = clean(1, length_s=60)
    with pytest.raises(ValueError, match="5 blocks of 10 s; an interval needs a log of 8 or more"):
        block_interval(p50, world.at_ns, world.latency_ns)


def test_what_ties_requests_together_makes_the_blocks_longer() -> None:
    """A level that holds for a minute is one fact, not thousands: ten of them are ten minutes."""
    world = clean(1, length_s=900)
    assert block_length(world.at_ns, world.latency_ns) == 10 * SECOND_NS
    slow = (world.at_ns // (60 * SECOND_NS)) % 2 == 0
    assert block_length(world.at_ns, np.where(slow, world.latency_ns * 20, world.latency_ns)) > 60 * SECOND_NS


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_correlated_items_are_counted(r: float) -> None:
    """Of a series x_t = r x_{t-1} + e_t it is known: (1 + r) / (1 - r)."""
    rng = np.random.default_rng(1)
    series = np.empty(50_000)
    series[0] = 0
    for i, shock in enumerate(rng.normal(0, 1, 49_999), start=1):
        series[i] = r * series[i - 1] + shock
    assert correlated_items(series) == pytest.approx((1 + r) / (1 - r), rel=0.15)


@pytest.mark.parametrize(("freedom", "t"), [(4, 2.776), (7, 2.365), (19, 2.093), (100, 1.984)])
def test_students_t_is_as_in_the_tables(freedom: int, t: float) -> None:
    """The series is good to half a per cent."""
    assert 1.959964 * t_over_normal(0.95, freedom) == pytest.approx(t, rel=0.005)
