"""For whom it is slow: what slow requests have in common, and whether other requests came or the same ones got
slower."""

import numpy as np

from forensics.diagnose.case import Case
from forensics.diagnose.when import Onset
from forensics.diagnose.window import Ints
from forensics.statistics.attributes import Amounts, Names
from forensics.statistics.contrast import Contrast, mine
from forensics.statistics.mix import QuantileChange, Window, quantile_change
from forensics.statistics.robust import buckets

SIZES, LOADS = 4, 3
TOLD_MAX = 5
REQUESTS_MIN = 100
"""Of each side of a change, to part mix and rate."""


def contrasts_of(case: Case) -> list[Contrast]:
    """What slow requests have in common beyond their size and the load when they came, the most milliseconds first."""
    r, batches = case.window.requests, case.window.batches
    strata = size_of(case) * LOADS + buckets(case.arrivals[case.request_bin], LOADS)
    excess = r.e2e - _medians(r.e2e, strata)[strata]
    known = r.batch >= 0
    at = np.maximum(r.batch, 0)
    closed = batches.names["close_reason"]
    attributes: dict[str, Names | Amounts] = {
        name: Names(named.codes, named.names) for name, named in r.names.items() if len(named.names) > 1
    }
    attributes["size"] = Amounts(np.where(r.cost > 0, r.cost, np.nan))
    attributes["bytes_in"] = Amounts(r.numbers["bytes_in"].astype(np.float64))
    attributes["attempt"] = Names(np.minimum(r.numbers["attempt"], 2), ("none", "first", "later"))
    if len(batches):
        rows = np.where(known, batches.numbers["rows"][at], 0).astype(np.float64)
        attributes["rows of the batch"] = Amounts(np.where(known, rows, np.nan))
        attributes["batch closed"] = Names(np.where(known, closed.codes[at], -1), closed.names)
    return mine(excess, attributes, strata, clusters=case.request_bin)[:TOLD_MAX]


def mix_or_rate(case: Case, onset: Onset | None) -> QuantileChange | None:
    """The change of the quantile, parted into other requests (mix) and slower ones of the same kind (rate)."""
    if onset is None:
        return None
    r = case.window.requests
    strata = r.names["model"].codes * SIZES + size_of(case)
    before, after = r.at_us < onset.lo_us, (r.at_us >= onset.at_us) & (r.at_us < onset.until_us)
    if min(before.sum(), after.sum()) < REQUESTS_MIN:
        return None
    return quantile_change(Window(r.e2e[before], strata[before]), Window(r.e2e[after], strata[after]), case.quantile)


def size_of(case: Case) -> Ints:
    """Which fourth of the sizes a request is of: by what it costs its model, else by its bytes."""
    r = case.window.requests
    return buckets(r.cost if r.cost.any() else r.numbers["bytes_in"], SIZES)


def _medians(values: Ints, codes: Ints) -> Ints:
    """The median of each code, by code."""
    medians = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    order = np.lexsort((values, codes))
    starts = np.searchsorted(codes[order], np.arange(len(medians) + 1))
    for code in np.flatnonzero(np.diff(starts)):
        medians[code] = values[order[(starts[code] + starts[code + 1]) // 2]]
    return medians
