"""The histogram against the sorted list that it stands for."""

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.histogram import VALUE_MAX_NS, Histogram
from bench.report import edges_ns, picture

durations = st.one_of(st.integers(0, 5_000), st.integers(0, VALUE_MAX_NS))


def histogram_of(values: list[int]) -> Histogram:
    h = Histogram()
    for value in values:
        h.record(value)
    return h


@given(st.lists(durations, min_size=1), st.floats(0.001, 1))
def test_a_quantile_is_that_of_the_sorted_list_to_a_thousandth(values: list[int], share: float) -> None:
    """Never below the nearest rank, at most 0.1 % above it."""
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert exact <= histogram_of(values).quantile(share) <= exact * 1.001


@given(st.lists(durations, min_size=1))
def test_count_mean_least_and_greatest_are_exact(values: list[int]) -> None:
    """What is a sum or a comparison needs no buckets."""
    h = histogram_of(values)
    assert (h.count, h.min_ns, h.max_ns) == (len(values), min(values), max(values))
    assert h.mean_ns == sum(values) / len(values)


@given(st.lists(durations, min_size=1))
def test_every_value_is_in_one_bucket_and_buckets_ascend_without_overlap(values: list[int]) -> None:
    """The buckets partition the counts."""
    buckets = list(histogram_of(values).buckets())
    assert sum(count for _, _, count in buckets) == len(values)
    assert all(low <= high for low, high, _ in buckets)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(buckets))
    for value in values:
        assert sum(low <= value <= high for low, high, _ in buckets) == 1


@given(st.lists(durations, min_size=1))
def test_neighbouring_buckets_can_be_taken_together(values: list[int]) -> None:
    """Nothing is lost, and nothing overlaps."""
    buckets = list(histogram_of(values).buckets(32))
    assert sum(count for _, _, count in buckets) == len(values)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(buckets))
    for value in values:
        assert sum(low <= value <= high <= max(low * 1.033, low + 31) for low, high, _ in buckets) == 1


def test_nothing_recorded_is_zero_everywhere() -> None:
    """An empty histogram divides by nothing."""
    h = Histogram()
    assert (h.quantile(0.99), h.mean_ns, h.max_ns, list(h.buckets())) == (0, 0.0, 0, [])


def test_what_is_too_long_or_negative_counts_at_the_ends() -> None:
    """A day counts as a day in the greatest and the mean; clocks that disagree by a hair give no negative time."""
    day_ns = 86_400_000_000_000
    h = histogram_of([-5, day_ns])
    assert (h.min_ns, h.max_ns, h.mean_ns) == (0, day_ns, day_ns / 2)
    assert h.quantile(1.0) == VALUE_MAX_NS


@given(st.lists(durations, min_size=1), st.integers(1, 20))
@example([10_000_000], 12)
def test_the_rows_of_the_picture_hold_every_request(values: list[int], rows: int) -> None:
    """Edges ascend and enclose all values, so the counts between them sum to all."""
    h = histogram_of(values)
    edges, counts = picture(h, rows)
    assert edges == sorted(set(edges))
    assert edges[0] <= h.min_ns
    assert edges[-1] > h.max_ns
    assert len(counts) == len(edges) - 1
    assert sum(counts) == len(values)


@pytest.mark.parametrize("high_ns", [1, 999, 20_000_000])
def test_edges_have_two_digits(high_ns: int) -> None:
    """26 and 31 ms are read faster than 26.384 and 30.915."""
    assert all(len(str(edge).rstrip("0")) <= 2 for edge in edges_ns(1, high_ns, 12))
