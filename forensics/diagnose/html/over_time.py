"""What the plots over time show: latency by time, what happened meanwhile, and the load. Counts, never requests.

Theory of operation. One axis of time for all: at most `BINS_MAX` bins of a round width. Whatever the number of
requests, a plot has so many columns, and so the report has a bound. All is by the wall clock, which all hosts share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.case import Case
from forensics.diagnose.intervals import covered
from forensics.diagnose.ranking import Ranked
from forensics.diagnose.window import Bools, Event, Floats, Ints, Window

BINS_MAX = 180
ROWS_MAX = 56
STEPS_US = tuple(
    round(s * 1e6)
    for s in (
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200,
        86400, 7 * 86400, 28 * 86400, 364 * 86400,
    )
)  # fmt: skip
REQUESTS_PER_BIN = 12
"""Bins are not narrower than this many requests on average: a column of one or two dots shows no distribution."""
WHOLE_SHARE_MIN = 0.3
"""A bin of which the window holds less has no rate."""
NAMED_MAX = 12
"""A lane with more marks than this does not name each."""
FINDINGS_MAX = 5
OCTAVE_PARTS = (8, 4, 2, 1)
"""Rows for a doubling of the latency: the most that `ROWS_MAX` allows."""

LANES = (
    ("collections, workers", ("gc",), "worker"),
    ("collections, gateways", ("gc",), "gateway"),
    ("late event loop", ("loop_lag",), ""),
    ("Redis slow or away", ("redis_lag", "redis_stood_still", "redis_restart", "reconnect"), ""),
    ("models loaded", ("model_load",), ""),
    ("workers lost", ("worker_lost", "lease_lost", "pass_hung"), ""),
    ("workers found", ("worker_found",), ""),
    ("requests taken back", ("reclaim", "release", "adopt", "audit"), ""),
    ("profiling", ("profile",), ""),
    ("log or clock", ("log_drop", "clock_step"), ""),
)
"""Title, kinds of events, and the kind of process (any, if empty)."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """`bins` equal steps from `start_us` on, wall clock. The requests came from `first_us` to `last_us`."""

    start_us: int
    step_us: int
    bins: int
    first_us: int
    last_us: int

    @property
    def end_us(self) -> int:
        """Where the last bin ends."""
        return self.start_us + self.bins * self.step_us

    @property
    def edges_us(self) -> Ints:
        """[bins + 1]"""
        return self.start_us + self.step_us * np.arange(self.bins + 1, dtype=np.int64)

    def bin_of(self, at_us: Ints) -> Ints:
        """The bin of each instant; what lies outside is in the first or the last."""
        found: Ints = np.clip((at_us - self.start_us) // self.step_us, 0, self.bins - 1)
        return found

    def bin_at(self, at_us: int) -> int:
        """The same of one instant."""
        return min(max((at_us - self.start_us) // self.step_us, 0), self.bins - 1)

    def holds(self, start_us: int, end_us: int) -> bool:
        """Does any of this time lie on the axis?"""
        return end_us >= self.start_us and start_us < self.end_us

    @property
    def whole(self) -> Bools:
        """Bins of which the window holds enough to tell a rate."""
        edges = np.clip(self.edges_us, self.first_us, max(self.last_us, self.first_us + 1))
        whole: Bools = np.diff(edges) >= WHOLE_SHARE_MIN * self.step_us
        return whole


@dataclass(frozen=True, slots=True)
class HeatMap:
    """How many requests of each latency came in each bin: `counts` is [rows, bins], `edges_ms` [rows + 1], the lowest
    first. `median_ms` and `slow_ms` are [bins], NaN without requests; `slow_ms` is the quantile that is asked about,
    or the slowest request where a bin has too few for it."""

    edges_ms: Floats
    counts: Ints
    median_ms: Floats
    slow_ms: Floats


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: what, when, and how long it took (0 for an instant, or when that is of no matter)."""

    what: str
    start_us: int
    end_us: int
    ms: float


@dataclass(frozen=True, slots=True)
class Lane:
    """What of one kind happened, oldest first; `is_cause` when it is where a cause that was found acted."""

    title: str
    marks: Sequence[Mark]
    is_cause: bool = False

    def by_bin(self, axis: TimeAxis) -> list[tuple[int, int, float]]:
        """The bins in which something began: bin, how often, how long in all (ms)."""
        bins = axis.bin_of(np.array([m.start_us for m in self.marks], dtype=np.int64))
        counts = np.bincount(bins, minlength=axis.bins)
        total_ms = np.bincount(bins, weights=[m.ms for m in self.marks], minlength=axis.bins)
        return [(int(b), int(counts[b]), float(total_ms[b])) for b in np.flatnonzero(counts)]

    def cells(self, axis: TimeAxis) -> Bools:
        """The bins that anything of it reaches into."""
        edges = np.zeros(axis.bins + 1, dtype=np.int64)
        starts = np.array([m.start_us for m in self.marks], dtype=np.int64)
        ends = np.array([max(m.start_us, m.end_us - 1) for m in self.marks], dtype=np.int64)
        np.add.at(edges, axis.bin_of(starts), 1)
        np.add.at(edges, axis.bin_of(ends) + 1, -1)
        reached: Bools = np.cumsum(edges)[:-1] > 0
        return reached


@dataclass(frozen=True, slots=True)
class Load:
    """What was to be done, by bin: requests that arrive per second, requests that wait for a pass, on average, and the
    share of the devices' time in which they compute; NaN where it cannot be told."""

    arrivals_per_s: Floats
    waiting: Floats
    busy: Floats


def time_axis(window: Window) -> TimeAxis:
    """The axis on which the requests of a window lie."""
    at = window.requests.at_us
    first, last = int(at[0]), int(at[-1])
    bins_max = int(np.clip(len(at) // REQUESTS_PER_BIN, 10, BINS_MAX))
    for step in STEPS_US:
        start = first // step * step
        bins = (last - start) // step + 1
        if bins <= bins_max:
            return TimeAxis(start, step, bins, first, last)
    return TimeAxis(first, (last - first) // bins_max + 1, bins_max, first, last)


def heat_map(case: Case, axis: TimeAxis) -> HeatMap:
    """Count requests by when they came and how long they took."""
    ms = np.maximum(case.e2e_ms, 1e-3)
    low, high = float(np.log2(ms.min())), float(np.log2(ms.max()))
    parts = next((p for p in OCTAVE_PARTS if np.floor(high * p) - np.floor(low * p) < ROWS_MAX), OCTAVE_PARTS[-1])
    bottom = int(np.floor(low * parts))
    rows = int(np.floor(high * parts)) - bottom + 1
    row = np.clip(np.floor(np.log2(ms) * parts).astype(np.int64) - bottom, 0, rows - 1)
    column = axis.bin_of(case.window.requests.at_us)
    counts = np.bincount(row * axis.bins + column, minlength=rows * axis.bins).reshape(rows, axis.bins)
    median_ms, slow_ms = np.full(axis.bins, np.nan), np.full(axis.bins, np.nan)
    borders = np.searchsorted(column, np.arange(axis.bins + 1))
    for b in range(axis.bins):
        if len(inside := ms[borders[b] : borders[b + 1]]):
            median_ms[b], slow_ms[b] = np.quantile(inside, [0.5, case.quantile])
    return HeatMap(2.0 ** ((bottom + np.arange(rows + 1)) / parts), counts, median_ms, slow_ms)


def lanes(case: Case, axis: TimeAxis, findings: Sequence[Ranked]) -> list[Lane]:
    """What happened meanwhile: when the causes that were found acted, events by kind, processes that came and went."""
    found = [
        Lane(f"{place}. {f.cause.id} {f.cause.name}", [Mark("acted", f.started_us, f.ended_us, 0.0)], True)
        for place, f in enumerate((r.finding for r in findings[:FINDINGS_MAX]), 1)
        if f.started_us and axis.holds(f.started_us, f.ended_us)
    ]
    for title, kinds, proc in LANES:
        events = [e for e in case.window.events if e.kind in kinds and proc in ("", e.proc)]
        found.append(Lane(title, list(_marks(events, axis))))
    found.append(Lane("processes", sorted(_processes(case.window, axis), key=lambda m: m.start_us)))
    return [lane for lane in found if lane.marks]


def load(case: Case, axis: TimeAxis) -> Load:
    """The load by bin."""
    window = case.window
    arrivals = np.bincount(axis.bin_of(window.requests.at_us), minlength=axis.bins)
    missed = window.unanswered_at_us
    missed = missed[(missed >= axis.start_us) & (missed < axis.end_us)]
    arrivals = arrivals + np.bincount(axis.bin_of(missed), minlength=axis.bins)
    edges = axis.edges_us
    inside = np.diff(np.clip(edges, axis.first_us, max(axis.last_us, axis.first_us + 1)))
    batches = window.batches
    queued = covered(*_waits_us(window))(edges)
    computed = covered(batches.at_us, batches.at_us + batches.took // 1000)(edges)
    busy = np.diff(computed) / axis.step_us / max(1, case.workers)
    gap = ~axis.whole
    return Load(
        np.where(gap, np.nan, arrivals / np.maximum(inside, 1) * 1e6),
        np.maximum(np.diff(queued) / axis.step_us, 0.0),
        np.where(gap, np.nan, np.clip(busy, 0.0, 1.0)),
    )


def _waits_us(window: Window) -> tuple[Ints, Ints]:
    """From when each request was in the stream until its batch was sealed."""
    r = window.requests
    begin = r.at_us + sum(r.segments[s] for s in ("recv", "pre", "gw_loop", "uplink")) // 1000
    end = begin + sum(r.segments[s] for s in ("stream_wait", "lost_attempt", "deliver", "pull", "batch_wait")) // 1000
    return begin, np.maximum(begin, end)


def _marks(events: Sequence[Event], axis: TimeAxis) -> Iterator[Mark]:
    for e in events:
        end_us = e.at_us + e.ns // 1000
        if axis.holds(e.at_us, end_us):
            yield Mark(f"{e.kind} in {e.proc} {e.inst}{_facts(e)}", e.at_us, end_us, e.ns / 1e6)


def _facts(event: Event) -> str:
    told = ", ".join(f"{name} {value}" for name, value in event.attrs.items() if isinstance(value, str | int | float))
    return f" ({told[:100]})" if told else ""


def _processes(window: Window, axis: TimeAxis) -> Iterator[Mark]:
    for life in window.lives:
        if life.hello and axis.holds(life.first_us, life.first_us):
            yield Mark(f"{life.proc} {life.inst} started", life.first_us, life.first_us, 0.0)
        # Whoever wrote until the end of the logs is only not read any further.
        if axis.holds(life.last_us, life.last_us) and (life.bye or life.last_us < window.newest_us - 2_000_000):
            how = f"stopped ({life.bye})" if life.bye else "ended without a goodbye"
            yield Mark(f"{life.proc} {life.inst} {how}", life.last_us, life.last_us, 0.0)
    known: dict[str, object] = {}
    for config in window.configs:
        before = known.get(config.inst)
        known[config.inst] = config.config
        if before is not None and before != config.config and axis.holds(config.at_us, config.at_us):
            yield Mark(f"{config.proc} {config.inst} changed its configuration", config.at_us, config.at_us, 0.0)
