"""The parts of a quantile add up to it, and say what is in it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_worlds import MS_NS, World, stalls

from forensics.statistics.quantiles import REQUESTS_MIN, Allocation, allocate, change, excess, tail
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
def test_the_parts_sum_to_the_allocated_value(rows: list[tuple[int, int, int]], p: float) -> None:
    """Whatever the requests, the quantile and the ties: nothing is left over, but for rounding of floats."""
    total, parts = parts_of(rows)
    for taken in (allocate(total, parts, p), tail(total, parts, p)):
        assert sum(taken.parts_ns.values()) == pytest.approx(taken.value_ns, rel=1e-12, abs=1e-6)
        assert total.min() - 1e-6 <= taken.value_ns <= total.max() * (1 + 1e-12)


@given(SEGMENTS, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_the_requests_decides_nothing(rows: list[tuple[int, int, int]], p: float, random: Any) -> None:
    """Requests that tie at the window's end share its last places."""
    total, parts = parts_of(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    other_total, other_parts = parts_of(shuffled)
    for how in (allocate, tail):
        mine, other = how(total, parts, p), how(other_total, other_parts, p)
        assert mine.requests == other.requests
        assert mine.parts_ns == pytest.approx(other.parts_ns, rel=1e-9, abs=1e-6)


@given(SEGMENTS, SEGMENTS, SHARES)
def test_what_moved_between_two_windows_sums_to_the_move(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]], p: float
) -> None:
    """The change of each part, and of the whole."""
    old, new = (allocate(*parts_of(rows), p) for rows in (before, after))
    moved = change(old, new)
    assert moved.value_ns == new.value_ns - old.value_ns
    assert sum(moved.parts_ns.values()) == pytest.approx(moved.value_ns, rel=1e-9, abs=1e-3)


@given(SEGMENTS, SHARES)
def test_the_tail_is_the_mean_of_the_slowest(rows: list[tuple[int, int, int]], p: float) -> None:
    """Those at or beyond the quantile: counted by sorting them all."""
    total, parts = parts_of(rows)
    slowest = np.sort(total)[-tail(total, parts, p).requests :]
    assert slowest[0] == quantile(total, p)
    assert tail(total, parts, p).value_ns == pytest.approx(slowest.mean(), rel=1e-12)


def test_a_window_has_enough_requests_also_at_the_end() -> None:
    """p99.9 of 400 requests has nothing above it: the window grows inwards."""
    total = np.arange(400, dtype=np.int64)
    taken = allocate(total, {"all": total}, 0.999)
    assert taken.requests == REQUESTS_MIN
    assert taken.value_ns == np.arange(370, 400).mean()
    assert taken.quantile_ns == 399


def test_the_quantiles_of_the_parts_would_sum_to_too_much() -> None:
    """Nobody has bad luck twice: adding up the p99s of the parts tells of a request that is not there."""
    rng = np.random.default_rng(1)
    parts = {name: (rng.pareto(2.5, 20_000) * 20 * MS_NS).astype(np.int64) for name in ("queue", "compute", "send")}
    total = sum(parts.values(), np.zeros(20_000, dtype=np.int64))
    taken = allocate(total, parts, 0.99)
    assert taken.value_ns == pytest.approx(taken.quantile_ns, rel=0.01)
    assert sum(quantile(part, 0.99) for part in parts.values()) > 1.3 * taken.quantile_ns


def test_the_excess_names_what_makes_slow() -> None:
    """Behind a stall requests wait; how long they are served is as ever."""
    more = excess(*of_world(stalls(1, every_s=20, for_s=0.6)), 0.99)
    assert more.parts_ns["wait"] > 0.9 * more.value_ns
    assert abs(more.parts_ns["service"]) < 0.1 * more.value_ns


def test_a_part_that_came_new_is_a_change_too() -> None:
    """A segment that the old window does not know had no time in it."""
    old = Allocation(0.99, 10, 10.0, {"a": 10.0}, 30)
    new = Allocation(0.99, 25, 25.0, {"a": 12.0, "b": 13.0}, 30)
    assert change(old, new).parts_ns == {"a": 2.0, "b": 13.0}


def test_parts_that_do_not_sum_to_the_total_are_refused() -> None:
    """The error names the request and both numbers."""
    total = np.array([10, 20, 30], dtype=np.int64)
    with pytest.raises(ValueError, match="request 1 sum to 19 ns, its total is 20 ns"):
        allocate(total, {"a": np.array([10, 19, 30], dtype=np.int64)}, 0.5)
    with pytest.raises(ValueError, match="'a' has 2 requests, the total 3"):
        tail(total, {"a": total[:2]}, 0.5)
    with pytest.raises(ValueError, match="of 0 values"):
        allocate(total[:0], {}, 0.5)
