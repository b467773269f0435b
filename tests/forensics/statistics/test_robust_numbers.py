"""Quantiles are values, and a few bad ones move nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.statistics.robust import buckets, noise, quantile, quantile_rank, spread, weighted_quantile

VALUES = st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=80)
SHARES = st.floats(0, 1) | st.integers(0, 100).map(lambda i: i / 100)


@given(VALUES, SHARES)
def test_a_quantile_has_its_share_at_or_below_it(values: list[int], p: float) -> None:
    """And with the next smaller value it would not have it."""
    found = quantile(np.array(values), p)
    assert found in values
    assert sum(v <= found for v in values) >= p * len(values) - 1e-6
    assert found == min(values) or sum(v < found for v in values) < p * len(values)


@given(VALUES, SHARES)
def test_equal_weights_are_no_weights(values: list[int], p: float) -> None:
    """The weighted quantile is the quantile, then."""
    array = np.array(values)
    assert weighted_quantile(array, np.full(len(values), 0.1), p) == quantile(array, p)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 4)), min_size=1, max_size=30), SHARES)
def test_a_weight_of_three_is_three_of_them(weighted: list[tuple[int, int]], p: float) -> None:
    """The weighted quantile of few is the quantile of many."""
    values, weights = np.array(weighted).T
    assert weighted_quantile(values, weights.astype(float), p) == quantile(np.repeat(values, weights), p)


def test_rounding_costs_no_rank() -> None:
    """0.07 * 100 is a little more than 7 in floating point; it is the 7th value all the same."""
    assert [quantile_rank(100, i / 100) for i in range(1, 101)] == list(range(100))


@given(VALUES, st.integers(1, 6))
def test_buckets_follow_the_order_and_keep_equals_together(values: list[int], count: int) -> None:
    """A larger value is never in a lower bucket, and no bucket has more than its share, but for equals."""
    codes = buckets(np.array(values), count)
    by_value = sorted(zip(values, codes.tolist(), strict=True))
    assert [code for _, code in by_value] == sorted(codes.tolist())
    assert len({(value, code) for value, code in by_value}) == len(set(values))
    assert set(codes.tolist()) <= set(range(count))
    if len(set(values)) == len(values):
        assert max(np.bincount(codes)) <= -(-len(values) // count)


def test_a_tenth_of_outliers_hardly_moves_the_spread() -> None:
    """The standard deviation would be 30 times as large."""
    values = np.random.default_rng(1).normal(0, 1, 10_000)
    values[:1000] = 100
    assert spread(values) == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("r", [0.0, 0.4, 0.7])
def test_noise_is_told_from_a_shift(r: float) -> None:
    """A series with memory, and with a step of ten standard deviations in its middle."""
    rng = np.random.default_rng(1)
    series = np.empty(4000)
    series[0] = 0
    for i, shock in enumerate(rng.normal(0, (1 - r * r) ** 0.5, 3999), start=1):
        series[i] = r * series[i - 1] + shock
    series[2000:] += 10
    sd, correlation = noise(series)
    assert sd == pytest.approx(1, rel=0.1)
    assert correlation == pytest.approx(r, abs=0.1)


def test_weights_that_are_all_nought_are_refused() -> None:
    """There is nobody whose quantile it could be."""
    with pytest.raises(ValueError, match="weight above 0"):
        weighted_quantile(np.array([1, 2]), np.zeros(2), 0.5)
