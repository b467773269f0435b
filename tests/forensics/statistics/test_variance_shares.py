"""Shares of the variance sum to 1, and name what varies and what varies together."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_worlds import MS_NS, clean, stalls

from forensics.statistics.variance import shares

ROWS = st.lists(st.tuples(*[st.integers(0, 10**10)] * 3), min_size=2, max_size=60)


@given(ROWS, st.sampled_from([0.9, 0.999, 1.0]))
def test_the_shares_sum_to_one(rows: list[Any], winsorised_at: float) -> None:
    """Also after slow requests were scaled down, for their parts were too."""
    parts = dict(zip("abc", np.array(rows, dtype=np.int64).T, strict=True))
    seen = shares(sum(parts.values()), parts, winsorised_at=winsorised_at)  # type: ignore[arg-type]
    if seen.sd_ns > 1:
        assert sum(seen.shares.values()) == pytest.approx(1, abs=1e-6)


@given(ROWS)
def test_the_variance_is_the_variance(rows: list[Any]) -> None:
    """Nothing scaled down: the same as of the totals."""
    parts = dict(zip("abc", np.array(rows, dtype=np.int64).T, strict=True))
    total = np.sum(list(parts.values()), axis=0)
    assert shares(total, parts, winsorised_at=1).sd_ns == pytest.approx(float(np.std(total)), rel=1e-6, abs=1e-3)


def test_more_requests_than_fit_at_once_are_the_same() -> None:
    """The sums go over chunks of the requests: against numpy's covariance of all."""
    rng = np.random.default_rng(1)
    parts = {name: rng.integers(0, 10**9, 150_000) for name in "ab"}
    seen = shares(parts["a"] + parts["b"], parts, winsorised_at=1)
    ((aa, ab), (_, bb)) = np.cov(parts["a"], parts["b"], bias=True)
    assert seen.shares["a"] == pytest.approx((aa + ab) / (aa + bb + 2 * ab))
    (pair,) = seen.pairs
    assert pair.share == pytest.approx(2 * ab / (aa + bb + 2 * ab))


def test_waiting_owns_the_variance_of_a_busy_server() -> None:
    """And who is served for long does not wait for long, other than at a stall."""
    world = stalls(1, every_s=20, for_s=0.6)
    seen = shares(world.latency_ns, {"wait": world.wait_ns, "service": world.service_ns})
    assert seen.shares["wait"] > 0.9


def test_parts_that_rise_together_and_parts_that_compensate() -> None:
    """A longer wait for the batch makes the pass shorter: a negative share, and a pair with a negative sign."""
    rng = np.random.default_rng(2)
    wait = rng.integers(0, 20 * MS_NS, 5_000)
    parts = {"wait": wait, "pass": 30 * MS_NS - wait // 2, "send": rng.integers(0, MS_NS, 5_000)}
    seen = shares(np.sum(list(parts.values()), axis=0), parts)
    assert seen.shares["pass"] < 0 < seen.shares["wait"]
    assert {seen.pairs[0].a, seen.pairs[0].b} == {"wait", "pass"}
    assert seen.pairs[0].correlation == pytest.approx(-1)


def test_one_outage_does_not_own_everything() -> None:
    """A single request of a minute: as it is, it is all there is; scaled down, the rest is heard."""
    world = clean(1)
    extra = np.zeros(len(world.at_ns), dtype=np.int64)
    extra[100] = 60_000 * MS_NS
    parts = {"wait": world.wait_ns, "service": world.service_ns, "outage": extra}
    total = world.latency_ns + extra
    assert shares(total, parts, winsorised_at=1).shares["outage"] > 0.99
    assert shares(total, parts).shares["outage"] < 0.2


def test_where_nothing_varies_nobody_is_to_blame() -> None:
    """No share is told, not even a nought divided by nought."""
    same = np.full(10, 5, dtype=np.int64)
    assert shares(same, {"a": same}).shares == {"a": 0.0}
