"""Requests in time, put into bins: the series that change points and periods are looked for in."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forensics.statistics.robust import Floats, Ints, Numbers, quantile, quantile_rank

BIN_NS = 2_000_000_000
BINS_MIN = 30
"""Bins are made shorter for short logs, so that a change has a before and an after."""
BINS_MAX = 600
"""Bins are made longer for long logs: what costs grows with the square of their number."""
REQUESTS_MIN = 10
"""A bin with fewer requests has no median worth the name."""


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal bins [start_ns + i * width_ns, ...) over the requests; `firsts` is [bins + 1], the requests' indices at
    the bins' borders."""

    start_ns: int
    width_ns: int
    firsts: Ints

    @property
    def counts(self) -> Ints:
        """Requests in each bin, [bins]."""
        return np.diff(self.firsts)

    def starts_ns(self) -> Ints:
        """The instant at which each bin begins, [bins]."""
        return self.start_ns + self.width_ns * np.arange(len(self.firsts) - 1, dtype=np.int64)

    def quantiles(self, values: Numbers, p: float) -> Floats:
        """The p-quantile of each bin, [bins]; 0 for an empty one. `values` are [requests], in the order of time."""
        return np.array([quantile(values[a:b], p) if b > a else 0.0 for a, b in self._ends()])

    def tails(self, values: Numbers, p: float) -> Floats:
        """The mean of each bin's requests at or beyond its p-quantile, [bins]; 0 for an empty one."""
        result = np.zeros(len(self.firsts) - 1)
        for i, (first, last) in enumerate(self._ends()):
            if last > first:
                rank = quantile_rank(last - first, p)
                result[i] = np.partition(values[first:last], rank)[rank:].mean()
        return result

    def _ends(self) -> list[tuple[int, int]]:
        return list(pairwise(self.firsts.tolist()))


def bin_width(span_ns: int, count: int, *, width_ns: int = BIN_NS, requests_min: int = REQUESTS_MIN) -> int:
    """A width that suits `count` requests in `span_ns`: 2 s, but 30 to 600 bins, and enough requests in most.

    Where 30 bins of enough requests cannot be had, there are fewer bins: for whoever asks to say that it is too little.
    """
    # Half as many again: arrivals are uneven, and most bins should have enough.
    for_enough_ns = int(1.5 * requests_min * span_ns / max(count, 1))
    return max(min(width_ns, span_ns // BINS_MIN), for_enough_ns, -(-span_ns // BINS_MAX), 1)


def bin_times(at_ns: Ints, width_ns: int, span: tuple[int, int]) -> Bins:
    """Whole bins of `width_ns` within `span` (from, to; ns), at least one; what is behind the last is left out.

    `at_ns` is sorted, [requests].
    """
    start_ns, end_ns = span
    count = max((end_ns - start_ns) // width_ns, 1)
    borders = start_ns + width_ns * np.arange(count + 1, dtype=np.int64)
    return Bins(start_ns, width_ns, np.searchsorted(at_ns, borders, side="left").astype(np.int64))


def in_order(at_ns: Ints, *columns: Numbers) -> tuple[Numbers, ...]:
    """The columns sorted by time; what is sorted already is not copied. ValueError if they are not as long."""
    if any(len(column) != len(at_ns) for column in columns):
        raise ValueError(f"{len(at_ns)} instants, but columns of {[len(column) for column in columns]}; one for each")
    if bool(np.all(at_ns[1:] >= at_ns[:-1])):
        return (at_ns, *columns)
    order = np.argsort(at_ns, kind="stable")
    return (at_ns[order], *(column[order] for column in columns))
