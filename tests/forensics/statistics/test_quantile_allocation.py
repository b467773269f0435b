"""The parts of a quantile add up to it, and say what is in it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_worlds import MS_NS, World, stalls

from forensics.statistics.quantiles import allocate, band_around, parts_by_shares
from forensics.statistics.robust import quantile

SEGMENTS = st.lists(st.tuples(*[st.integers(0, 10**10) | st.sampled_from([0, 5, 10**6])] * 3), min_size=1, max_size=120)
SHARES = st.floats(0, 1) | st.sampled_from([0.5, 0.99, 0.999])


def parts_of(rows: list[tuple[int, int, int]]) -> tuple[Any, dict[str, Any]]:
    """Requests as rows of parts -> the total and the parts as columns."""
    columns = np.array(rows, dtype=np.int64).T
    return columns.sum(axis=0), dict(zip("abc", columns, strict=True))


def of_world(world: World) -> tuple[Any, dict[str, Any]]:
    """Total and parts of a world."""
    return world.latency_ns, {"wait": world.wait_ns, "service": world.service_ns}


@given(SEGMENTS, SHARES)
def test_the_parts_sum_to_the_quantile(rows: list[tuple[int, int, int]], p: float) -> None:
    """Whatever the requests, the quantile and the ties: nothing is left over, but for rounding of floats."""
    total, parts = parts_of(rows)
    taken = allocate(total, parts, p)
    assert taken.quantile_ns == quantile(total, p)
    assert sum(taken.parts_ns.values()) == pytest.approx(taken.quantile_ns, rel=1e-12, abs=1e-6)


@given(SEGMENTS, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_the_requests_decides_nothing(rows: list[tuple[int, int, int]], p: float, random: Any) -> None:
    """Of requests that tie at the band's end, all are in it."""
    total, parts = parts_of(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    mine, other = allocate(total, parts, p), allocate(*parts_of(shuffled), p)
    assert mine.requests == other.requests
    assert mine.parts_ns == pytest.approx(other.parts_ns, rel=1e-9, abs=1e-6)


@given(SEGMENTS, SHARES)
def test_a_part_lies_between_its_least_and_its_greatest_share(rows: list[tuple[int, int, int]], p: float) -> None:
    """No part has more of the quantile than of the request it has most of, nor less than of that with least."""
    total, parts = parts_of(rows)
    taken = allocate(total, parts, p)
    some = total > 0
    for name, ns in taken.parts_ns.items():
        shares = parts[name][some] / total[some] if some.any() else np.zeros(1)
        assert shares.min() * taken.quantile_ns - 1e-3 <= ns <= shares.max() * taken.quantile_ns + 1e-3


def test_the_requests_around_a_quantile_lie_evenly_about_it() -> None:
    """A half per cent of many, 31 of few, and near the end fewer rather than lopsided ones."""
    for n, share, first, last in ((100_000, 0.99, 98_749, 99_249), (1_000, 0.5, 484, 514), (1_000, 0.99, 979, 999)):
        assert band_around(np.arange(n), share) == (first, last)
    assert band_around(np.arange(1), 0.99) == (0, 0)


def test_one_request_that_took_seconds_does_not_speak_for_the_quantile() -> None:
    """In a short run it is within the ranks around p99, yet the parts stay those of its neighbours."""
    compute = 10 * MS_NS + np.arange(900, dtype=np.int64)
    queue = np.zeros(900, dtype=np.int64)
    queue[-1] = 5_000 * MS_NS
    taken = allocate(compute + queue, {"compute": compute, "queue": queue}, 0.99)
    assert (taken.requests, taken.quantile_ns) == (19, 10 * MS_NS + 890)
    assert taken.parts_ns["compute"] > 0.9 * taken.quantile_ns


def test_who_took_no_time_tells_no_shares() -> None:
    """The parts sum to the quantile though a neighbour has nothing to split."""
    assert parts_by_shares(8, np.array([[0, 0], [1, 3]])).tolist() == [2, 6]
    assert parts_by_shares(0, np.zeros((3, 2), dtype=np.int64)).tolist() == [0, 0]


@pytest.mark.parametrize(("count", "p", "off_by"), [(1_000, 0.5, 0.15), (1_000, 0.99, 0.25), (100_000, 0.99, 0.05)])
def test_the_allocation_is_what_such_a_request_has_on_average(count: int, p: float, off_by: float) -> None:
    """Against the requests about the quantile in 2,000,000 of the same make: the mean error over 20 samples, of it."""

    def make(rng: np.random.Generator, n: int) -> tuple[Any, dict[str, Any]]:
        parts = {
            "queue": (rng.pareto(2.5, n) * 20 * MS_NS).astype(np.int64),
            "compute": (rng.lognormal(3, 0.5, n) * MS_NS).astype(np.int64),
        }
        return parts["queue"] + parts["compute"], parts

    total, parts = make(np.random.default_rng(99), 2_000_000)
    value = quantile(total, p)
    near = np.abs(total - value) < 0.002 * value
    truth = parts["queue"][near].mean() / total[near].mean()
    shares = []
    for seed in range(20):
        taken = allocate(*make(np.random.default_rng(seed), count), p)
        shares.append(taken.parts_ns["queue"] / taken.quantile_ns)
    assert np.mean(np.abs(np.array(shares) - truth)) < off_by


def test_the_quantiles_of_the_parts_would_sum_to_too_much() -> None:
    """Nobody has bad luck twice: adding up the p99s of the parts tells of a request that is not there."""
    rng = np.random.default_rng(1)
    parts = {name: (rng.pareto(2.5, 20_000) * 20 * MS_NS).astype(np.int64) for name in ("queue", "compute", "send")}
    total = sum(parts.values(), np.zeros(20_000, dtype=np.int64))
    taken = allocate(total, parts, 0.99)
    assert sum(taken.parts_ns.values()) == pytest.approx(taken.quantile_ns)
    assert sum(quantile(part, 0.99) for part in parts.values()) > 1.3 * taken.quantile_ns


def test_the_parts_name_what_makes_slow() -> None:
    """Behind a stall requests wait; how long they are served is as ever."""
    world = stalls(1, every_s=20, for_s=0.6)
    fast, slow = (allocate(*of_world(world), p) for p in (0.5, 0.99))
    more = slow.quantile_ns - fast.quantile_ns
    assert slow.parts_ns["wait"] - fast.parts_ns["wait"] > 0.9 * more
    assert abs(slow.parts_ns["service"] - fast.parts_ns["service"]) < 0.1 * more


def test_parts_that_do_not_sum_to_the_total_are_refused() -> None:
    """The error names the request and both numbers."""
    total = np.array([10, 20, 30], dtype=np.int64)
    with pytest.raises(ValueError, match="request 1 sum to 19 ns, its total is 20 ns"):
        allocate(total, {"a": np.array([10, 19, 30], dtype=np.int64)}, 0.5)
    with pytest.raises(ValueError, match="'a' has 2 requests, the total 3"):
        allocate(total, {"a": total[:2]}, 0.5)
    with pytest.raises(ValueError, match="of 0 values"):
        allocate(total[:0], {"a": total[:0]}, 0.5)
