"""The bounds between two hosts' clocks hold the truth, are as narrow as can be, and never move in silence."""

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from forensics_fleet import small_store, write_fleet
from forensics_logbook import MS
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.make_logs import Fleet
from forensics.load import Logs
from forensics.offsets import (
    BLOCK_NS,
    BUCKET_NS,
    DRIFT_MAX_PPM,
    Bound,
    Offsets,
    OffsetSource,
    Pair,
    Told,
    allowance_ns,
    fit,
)
from forensics.offsets import Block as OffsetBlock
from forensics.store import Store, open_store
from forensics.timeline import Clocks
from shared.events import Req

PAIR = Pair("clock-a", "clock-b")
S = 1_000_000_000


class Worker:
    """A worker's clock against the gateway's: an offset, a drift, and jumps at instants."""

    def __init__(self, offset_ns: int, drift_ppm: int, *jumps: tuple[int, int]) -> None:
        self.offset_ns, self.drift_ppm, self.jumps = offset_ns, drift_ppm, jumps

    def at(self, true_ns: int) -> int:
        """What it shows when the gateway's shows `true_ns`."""
        jumped = sum(by_ns for at_ns, by_ns in self.jumps if true_ns >= at_ns)
        return true_ns + self.offset_ns + true_ns * self.drift_ppm // 1_000_000 + jumped


def send(offsets: Offsets, worker: Worker, *, until_s: int, per_s: int = 40, seed: int = 1) -> list[int]:
    """Requests through a worker with that clock; returns when their answers came."""
    chance, ended = random.Random(seed), []
    for _ in range(until_s * per_s):
        g3 = chance.randrange(until_s * S)
        w1 = g3 + int(chance.lognormvariate(12.5, 0.7)) + chance.choice([0, 0, 30 * MS])
        w8 = w1 + 20 * MS
        g5 = w8 + int(chance.lognormvariate(12.5, 0.7))
        offsets.round_trip(PAIR, g3, g5, worker.at(w1), worker.at(w8))
        ended.append(g5)
    return ended


@given(
    st.integers(-(10**15), 10**15),
    st.integers(-DRIFT_MAX_PPM, DRIFT_MAX_PPM),
    st.lists(st.tuples(*[st.integers(0, 10**10)] * 4), min_size=1, max_size=30),
)
def test_the_bounds_hold_the_true_offset(
    offset_ns: int, drift_ppm: int, trips: list[tuple[int, int, int, int]]
) -> None:
    """Of any two clocks that drift no faster than clocks may, at every instant of a bucket, to the nanosecond."""
    offsets, worker = Offsets(), Worker(offset_ns, drift_ppm)
    for g3, there, inside, back in trips:
        w1, w8 = g3 + there, g3 + there + inside
        offsets.round_trip(PAIR, g3, w8 + back, worker.at(w1), worker.at(w8))
    assert not offsets.contradictions()
    assert not offsets.impossibilities()
    for pair, bucket, offset in offsets.buckets():
        assert pair == PAIR
        for at_ns in (bucket * BUCKET_NS, bucket * BUCKET_NS + BUCKET_NS // 3, (bucket + 1) * BUCKET_NS):
            # The worker's clock counts whole nanoseconds.
            assert offset.lo_ns - 1 <= worker.at(at_ns) - at_ns <= offset.hi_ns + 1


some_ns = st.integers(-50, 50).map(lambda n: n * 1_000)
some_instant_ns = st.integers(0, 600).map(lambda n: n * BUCKET_NS)
bounds = st.lists(st.builds(Bound, some_ns, some_instant_ns), min_size=1, max_size=6)


@given(bounds, bounds)
@settings(max_examples=100)
def test_the_bounds_are_the_optimum_of_the_linear_programme(lows: list[Bound], highs: list[Bound]) -> None:
    """The least and the greatest value of all lines allowed, found by trying every corner that there can be."""
    block = OffsetBlock()
    for low in lows:
        block.narrow(low, None, requests=1)
    for high in highs:
        block.narrow(None, high, requests=0)
    lines = [(bound, 1) for bound in block.highs.values()] + [(bound, -1) for bound in block.lows.values()]
    steepest = Fraction(DRIFT_MAX_PPM, 1_000_000)
    corners = []
    for (one, _), (other, _) in combinations(lines, 2):
        if one.at_ns != other.at_ns:
            b = Fraction(other.ns - one.ns, other.at_ns - one.at_ns)
            corners.append((one.ns - b * one.at_ns, b))
    corners += [(bound.ns - b * bound.at_ns, b) for bound, _ in lines for b in (steepest, -steepest)]
    allowed = [
        (a, b)
        for a, b in corners
        if abs(b) <= steepest and all(side * (a + b * bound.at_ns - bound.ns) <= 0 for bound, side in lines)
    ]
    stretches = fit(block)
    assert bool(allowed) == (len(stretches) == 1)
    if allowed:
        for at_ns in (0, 7 * S, 60 * S):
            lo, hi = stretches[0].band.over(at_ns, at_ns)
            values = [a + b * at_ns for a, b in allowed]
            assert lo <= min(values) < lo + 1
            assert hi - 1 < max(values) <= hi


def test_drift_does_not_widen_the_bounds() -> None:
    """40 ppm move the offset by 12 ms in five minutes; one interval for all of them would be empty."""
    offsets, worker = Offsets(), Worker(-77 * S, 40)
    ended = send(offsets, worker, until_s=300)
    widths = []
    for at_ns in ended:
        if at_ns >= 300 * S:
            continue  # the first of a minute that hardly began
        offset = offsets.at(PAIR, at_ns)
        assert offset is not None
        assert offset.source is OffsetSource.ROUND_TRIPS
        assert offset.lo_ns <= worker.at(at_ns) - at_ns <= offset.hi_ns
        widths.append(offset.hi_ns - offset.lo_ns)
    assert sorted(widths)[len(widths) // 2] < MS // 2
    assert not offsets.contradictions()


def test_a_step_is_reported_where_it_was_and_not_larger_than_it_was() -> None:
    """The bounds before and after it hold the truth of their time."""
    offsets, worker = Offsets(), Worker(5 * S, -30, (90 * S, 20 * MS))
    ended = send(offsets, worker, until_s=180)
    (found,) = offsets.contradictions()
    assert found.pair == PAIR
    assert abs(found.at_ns - 90 * S) < S
    assert 19 * MS < found.by_ns <= 20 * MS
    for at_ns in ended:
        offset = offsets.at(PAIR, at_ns)
        if offset is not None and abs(at_ns - 90 * S) > S:
            assert offset.lo_ns <= worker.at(at_ns) - at_ns <= offset.hi_ns


def test_a_step_at_the_border_of_two_minutes_is_reported_too() -> None:
    """Each minute by itself is without contradiction."""
    offsets = Offsets()
    send(offsets, Worker(0, 10, (2 * BLOCK_NS, -10 * MS)), until_s=180)
    (found,) = [c for c in offsets.contradictions() if c.by_ns]
    assert 9 * MS < found.by_ns <= 10 * MS
    assert abs(found.at_ns - 2 * BLOCK_NS) < S


def test_a_request_that_contradicts_itself_bounds_nothing_and_is_reported() -> None:
    """It was longer in the worker than for the gateway, more than any drift explains."""
    offsets = Offsets()
    send(offsets, Worker(0, 0), until_s=2)
    before = offsets.at(PAIR, S)
    again = Offsets()
    send(again, Worker(0, 0), until_s=2)
    again.round_trip(PAIR, S, S + 10 * MS, S, S + 25 * MS)
    assert again.at(PAIR, S) == before
    (found,) = again.impossibilities()
    assert (found.pair, found.requests, found.by_ns) == (PAIR, 1, 15 * MS - allowance_ns(10 * MS))


def test_few_round_trips_are_called_causality_and_none_nothing() -> None:
    """And bounds that the gateway logged count when it knew more than the lines tell."""
    offsets = Offsets()
    offsets.round_trip(PAIR, S, S + 100 * MS, S + 60 * MS, S + 90 * MS)
    offset = offsets.at(PAIR, S)
    assert offset is not None
    assert offset.source is OffsetSource.CAUSALITY
    assert offsets.at(PAIR, 500 * S) is None
    offsets.told(PAIR, Told(S, -MS, MS, 50))
    offset = offsets.at(PAIR, S)
    assert offset is not None
    assert (offset.lo_ns, offset.hi_ns, offset.source) == (-MS, MS, OffsetSource.ROUND_TRIPS)


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Fleet, Store]]:
    """A log of two hosts, 77 s apart with 50 ppm of drift."""
    folder = tmp_path_factory.mktemp("hosts")
    fleet = write_fleet(folder, requests=4_000, per_s=50.0, drift_ppm=50.0)
    with open_store([folder]) as store:
        yield folder, fleet, store


def test_the_store_bounds_the_offset_of_every_request_that_crossed(two_hosts: tuple[Path, Fleet, Store]) -> None:
    """With the bounds in the log's view of the truth, and none of its segments negative."""
    _, fleet, store = two_hosts
    gateway, worker = fleet.clocks
    crossed = store.rows(
        "SELECT g5, theta_lo_ns, theta_hi_ns, least(uplink_ns, deliver_ns, downlink_ns) FROM requests "
        "WHERE answered AND clock <> worker_clock"
    )
    assert len(crossed) > 1_500
    for g5, lo_ns, hi_ns, least_ns in crossed:
        true_ns = g5 - gateway.offset_ns
        assert lo_ns - 1 <= worker.at(true_ns) - g5 <= hi_ns + 1
        assert least_ns >= 0
    assert not store.offsets.contradictions()


def test_whoever_reads_the_minute_around_a_request_has_the_bounds_of_who_reads_all(
    two_hosts: tuple[Path, Fleet, Store],
) -> None:
    """`explain` reads 70 s around; its waterfall and the rows of SQL must not disagree."""
    folder, _, store = two_hosts
    chosen = store.rows(
        "SELECT id, epoch_us(ended_at), theta_lo_ns, theta_hi_ns FROM requests "
        "WHERE answered AND clock <> worker_clock ORDER BY hash(id) LIMIT 5"
    )
    for request_id, ended_us, lo_ns, hi_ns in chosen:
        logs = Logs.load([folder], since_us=ended_us - 70_000_000, until_us=ended_us + 70_000_000)
        (line,) = [line for line in logs.of(Req) if line.record.id == request_id]
        offset = Clocks(logs).offset(line)
        assert (offset.lo_ns, offset.hi_ns) == (lo_ns, hi_ns)


def test_the_view_of_the_offsets_follows_the_drift(tmp_path: Path) -> None:
    """Where one reads how far the clocks are apart."""
    with small_store(tmp_path, requests=600, per_s=20.0, drift_ppm=500.0) as store:
        middles = store.rows("SELECT from_ns, (lo_ns + hi_ns) // 2 FROM clock_offsets ORDER BY from_ns")
        (from_ns, first_ns), (to_ns, last_ns) = middles[0], middles[-1]
        assert abs((last_ns - first_ns) / (to_ns - from_ns)) == pytest.approx(500e-6, rel=0.1)
        assert all(a[0] < b[0] for a, b in pairwise(middles))
