"""What changed first: the cause is among the first, and effects that came surely later are not."""

from typing import Any

import numpy as np
import pytest
from latency_worlds import (
    SECOND_NS,
    World,
    arrivals,
    clean,
    instant,
    lognormal_ns,
    longer_linger,
    serve,
    slow_few,
    slower_service,
)

from forensics.statistics.changes import Change, Series
from forensics.statistics.order_of_changes import Signal, gather, order_of_changes


def signals_of(world: World, steady: int = 0) -> dict[str, Signal]:
    """A world's segments and arrivals, and so many segments to which nothing happens."""
    rng = np.random.default_rng(5)
    segments: dict[str, Any] = {"wait": world.wait_ns, "service": world.service_ns, "latency": world.latency_ns}
    segments |= {f"steady {i}": lognormal_ns(rng, 2_000_000, 0.5, len(world.at_ns)) for i in range(steady)}
    return {name: Signal(world.at_ns, value) for name, value in segments.items()} | {"arrivals": Signal(world.at_ns)}


@pytest.mark.parametrize(
    ("make", "cause"),
    [(slower_service, "service"), (longer_linger, "wait"), (slow_few, "service")],
    ids=["slower service", "longer linger", "a few slow"],
)
def test_the_cause_is_among_the_first(make: Any, cause: str) -> None:
    """Of eight runs six or more; and what did not change is never named."""
    moments = [order_of_changes(signals_of(make(seed)), seed=seed) for seed in range(8)]
    first = [run[0].first for run in moments if run]
    assert sum(cause in names for names in first) >= 6
    assert not any("arrivals" in names for names in first)
    hits = sum(any(m.lo_ns <= instant(150.0) <= m.hi_ns for m in run) for run in moments)
    assert hits >= 5


def test_of_sixteen_steady_signals_none_changes() -> None:
    """Many signals are as many chances of a false alarm: at most one run of four has one (measured: 0 of 20)."""
    runs = [order_of_changes(signals_of(clean(seed), steady=12), seed=seed) for seed in range(4)]
    assert sum(bool(moments) for moments in runs) <= 1


def test_more_arrivals_come_before_a_longer_wait() -> None:
    """The traffic grew: arrivals are among the first, the service is not there at all."""
    rng = np.random.default_rng(3)
    more_ns = arrivals(rng, 16, 300)
    at_ns = np.sort(np.concatenate([arrivals(rng, 24, 300), more_ns[more_ns >= instant(150.0)]]))
    service_ns = lognormal_ns(rng, 17_000_000, 0.3, len(at_ns))
    (moment,) = order_of_changes(signals_of(serve(at_ns, service_ns)))
    assert "arrivals" in moment.first
    assert "service" not in dict(moment.changes)


def at(lo_s: float, best_s: float, hi_s: float) -> Change:
    """A change at some seconds."""
    return Change(int(best_s * SECOND_NS), int(lo_s * SECOND_NS), int(hi_s * SECOND_NS), 1.0, 2.0, 2.0, Series.MEDIAN)


def test_only_intervals_say_what_was_surely_before() -> None:
    """b may have been before a, whatever the best guesses say; c was surely later; d is another story."""
    changes = [("c", at(15, 16, 17)), ("a", at(10, 10.5, 11)), ("d", at(60, 61, 62)), ("b", at(9, 12, 14))]
    one, two = gather(changes)
    assert one.first == ("a", "b")
    assert [name for name, _ in one.changes] == ["a", "b", "c"]
    assert (one.at_ns, one.lo_ns, one.hi_ns) == (10.5 * SECOND_NS, 9 * SECOND_NS, 11 * SECOND_NS)
    assert two.first == ("d",)


def test_without_signals_there_are_no_moments() -> None:
    """Nor with signals in which nothing happened at all."""
    empty = np.zeros(0, dtype=np.int64)
    assert order_of_changes({}) == []
    assert order_of_changes({"a": Signal(empty), "b": Signal(empty, empty)}) == []
