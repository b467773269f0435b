"""What changed first? Changes of many signals, gathered into moments, with those that nobody was surely before.

A cause changes before its effects, or at once with them. Each segment of the latency and each kind of event is a
signal; the changes of all are ordered by their intervals, not by their best guesses: a signal is among the first of a
moment if no other one had surely changed before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from forensics.statistics.binning import BIN_NS
from forensics.statistics.changes import FLOOR_NS, RATIO_MIN, Change, find_changes
from forensics.statistics.robust import Ints
from forensics.statistics.shifts import ALPHA

TOGETHER_NS = 10_000_000_000
"""Changes with less than this between their intervals belong to one moment: queues need seconds to fill."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What happened when: instants [items] (ns, one clock for all signals), and how long each took.

    Without `value_ns` they are events: their rate is looked at. With it the latency is, and not the rate, which is the
    same for all segments of a request: add the arrivals as a signal of their own.
    """

    at_ns: Ints
    value_ns: Ints | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """Changes that belong together. `first` are those with the earliest interval, and all whose interval overlaps it.

    `lo_ns` and `hi_ns` hold the beginning: no signal had surely changed before `lo_ns`, one had at `hi_ns`. `changes`
    are in the order of their instants, with the name of their signal; a signal may change twice.
    """

    at_ns: int
    lo_ns: int
    hi_ns: int
    first: tuple[str, ...]
    changes: tuple[tuple[str, Change], ...]


def order_of_changes(
    signals: Mapping[str, Signal],
    *,
    span: tuple[int, int] | None = None,
    together_ns: int = TOGETHER_NS,
    ratio_min: float = RATIO_MIN,
    floor_ns: int = FLOOR_NS,
    width_ns: int = BIN_NS,
    alpha: float = ALPHA,
    seed: int = 0,
) -> list[Moment]:
    """The moments at which signals changed, in the order of time, each with what changed first.

    `span` is what was watched (from, to), the first to the last instant of all signals by default. The rest is for
    `find_changes`.
    """
    filled = {name: signal for name, signal in signals.items() if len(signal.at_ns)}
    if not filled:
        return []
    span = span or (
        min(int(np.min(signal.at_ns)) for signal in filled.values()),
        max(int(np.max(signal.at_ns)) for signal in filled.values()) + 1,
    )
    found = chain.from_iterable(
        (
            (name, change)
            for change in find_changes(
                signal.at_ns,
                signal.value_ns,
                span=span,
                ratio_min=ratio_min,
                floor_ns=floor_ns,
                width_ns=width_ns,
                count_too=False,
                alpha=alpha,
                seed=seed,
            )
        )
        for name, signal in filled.items()
    )
    return gather(list(found), together_ns=together_ns)


def gather(changes: list[tuple[str, Change]], *, together_ns: int = TOGETHER_NS) -> list[Moment]:
    """Put changes (with their signals' names) together into moments."""
    groups: list[list[tuple[str, Change]]] = []
    until_ns = 0
    for named in sorted(changes, key=lambda named: named[1].lo_ns):
        if not groups or named[1].lo_ns > until_ns + together_ns:
            groups.append([])
            until_ns = named[1].hi_ns
        groups[-1].append(named)
        until_ns = max(until_ns, named[1].hi_ns)
    return [_moment(group) for group in groups]


def _moment(changes: list[tuple[str, Change]]) -> Moment:
    changes = sorted(changes, key=lambda named: named[1].at_ns)
    hi_ns = min(change.hi_ns for _, change in changes)
    first = [(name, change) for name, change in changes if change.lo_ns <= hi_ns]
    # The sharpest of the first knows best when.
    sharpest = min(first, key=lambda named: named[1].hi_ns - named[1].lo_ns)[1]
    return Moment(
        at_ns=sharpest.at_ns,
        lo_ns=min(change.lo_ns for _, change in first),
        hi_ns=hi_ns,
        first=tuple(dict.fromkeys(name for name, _ in first)),
        changes=tuple(changes),
    )
