"""What the traffic changed and what the system changed, told apart."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_worlds import MS_NS, lognormal_ns

from forensics.statistics.mix import Window, quantile_change

REQUESTS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 4)), min_size=1, max_size=60)


def window(rows: list[tuple[int, int]]) -> Window:
    """Requests as (value, stratum)."""
    values, strata = np.array(rows, dtype=np.int64).T
    return Window(values, strata)


def sized(seed: int, large_share: float, *, factor: float = 1.0, count: int = 20_000) -> Window:
    """Small requests of 10 ms and large ones of 40 ms, all of which take `factor` times as long."""
    rng = np.random.default_rng(seed)
    large = rng.random(count) < large_share
    taken: Any = np.where(large, 4, 1) * lognormal_ns(rng, 10 * MS_NS * factor, 0.2, count)
    return Window(taken, large.astype(np.int64))


@given(REQUESTS, REQUESTS, st.sampled_from([0.5, 0.9, 0.99]))
def test_mix_and_rate_sum_to_the_change_of_a_quantile(
    before: list[tuple[int, int]], after: list[tuple[int, int]], p: float
) -> None:
    """By definition; and the old window under its own mix is itself."""
    old, new = window(before), window(after)
    seen = quantile_change(old, new, p)
    assert seen.mix_ns + seen.rate_ns == seen.after_ns - seen.before_ns
    assert quantile_change(old, old, p).mix_ns == 0


@given(REQUESTS, st.sampled_from([0.5, 0.9, 0.99]))
def test_requests_served_as_ever_are_no_change_of_the_rate(rows: list[tuple[int, int]], p: float) -> None:
    """The same requests, some of them twice: whole strata, so only the mix is another."""
    old = window(rows)
    new = window(rows + [row for row in rows if row[1] == rows[0][1]])
    assert quantile_change(old, new, p).rate_ns == 0


def test_more_large_requests_are_a_matter_of_the_mix() -> None:
    """20 % large become 70 %, at the same latencies: nobody made the system slower."""
    median = quantile_change(sized(1, 0.2), sized(3, 0.7), 0.5)
    assert median.mix_ns > 10 * abs(median.rate_ns)


def test_a_slower_system_is_a_matter_of_the_rate() -> None:
    """The same traffic, everything 20 % slower."""
    before, after = sized(1, 0.3), sized(2, 0.3, factor=1.2)
    p99 = quantile_change(before, after, 0.99)
    assert p99.rate_ns > 0.9 * (p99.after_ns - p99.before_ns)


def test_a_kind_of_request_that_came_new_belongs_to_the_mix() -> None:
    """The old window says nothing of how long it took, and that is told."""
    before = window([(10, 0)] * 50)
    after = window([(10, 0)] * 40 + [(90, 7)] * 10)
    seen = quantile_change(before, after, 0.99)
    assert (seen.mix_ns, seen.rate_ns, seen.covered) == (80, 0, 0.8)


def test_a_thin_basis_is_told() -> None:
    """One request of the old window stands for half of the new one's: worth four requests, not a hundred."""
    seen = quantile_change(window([(10, 0)] * 99 + [(40, 1)]), window([(10, 0)] * 50 + [(40, 1)] * 50), 0.5)
    assert seen.effective_requests == pytest.approx(4, rel=0.05)


def test_a_window_without_requests_is_refused() -> None:
    """And so are values without strata."""
    with pytest.raises(ValueError, match="0 values and 0 strata"):
        Window(np.array([], dtype=np.int64), np.array([], dtype=np.int64))
    with pytest.raises(ValueError, match="2 values and 1 strata"):
        Window(np.array([1, 2]), np.array([1]))
