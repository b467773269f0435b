"""Two sides of runs set against each other: how large the difference is, how sure, where it is, and what blurs it.

Everything here is computed from figures (`run_figures.py`) by statistics over runs (`statistics/runs.py`); no I/O.
Ratios are compared by their logarithms, so that twice as slow and twice as fast weigh alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from forensics.compare_doubts import differing_facts, doubts_of
from forensics.run_figures import Run, quantile, quantile_name
from forensics.segments_sql import SEGMENTS
from forensics.statistics.mix import Window, quantile_change
from forensics.statistics.runs import Shift, shift_between

SHOWN_QUANTILES = (0.5, 0.9, 0.99)
KIND_REQUESTS_MIN = 30
REST = "rarer kinds"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number a run, on both sides. `relative`: `shift` is of the logarithms, so exp(shift) is B's share of A."""

    name: str
    a: Sequence[float]
    b: Sequence[float]
    shift: Shift
    relative: bool

    @property
    def change(self) -> float:
        """B less A: as a share of A when relative (0.05: 5 % more), else the plain difference."""
        return math.expm1(self.shift.estimate) if self.relative else self.shift.estimate

    @property
    def limits(self) -> tuple[float, float]:
        """The confidence limits of `change`; infinite (-1 below when relative) when there are too few runs."""
        lo, hi = self.shift.lo, self.shift.hi
        return (math.expm1(lo), math.expm1(hi)) if self.relative else (lo, hi)


@dataclass(frozen=True, slots=True)
class Part:
    """A segment's part of the quantile, ns: the mean over the runs of each side. The parts of a side sum to its mean
    quantile, so the differences sum to the difference."""

    segment: str
    a_ns: float
    b_ns: float
    shift: Shift


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request, and its share of either side."""

    name: str
    a_share: float
    b_share: float


@dataclass(frozen=True, slots=True)
class Mix:
    """The difference of the quantile over all requests of each side, ns: what comes from B having been asked for other
    things (`mix_ns`), and what from taking another time for the same (`rate_ns`). They sum to it.

    `unseen_share` of B's requests are of kinds that A never had; whatever they take counts as the mix.
    """

    a_ns: int
    b_ns: int
    mix_ns: float
    rate_ns: float
    unseen_share: float
    kinds: Sequence[Kind]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two sides show. `quantile` is the one whose parts are told; `sliced` when the runs are slices of one."""

    a: Sequence[Run]
    b: Sequence[Run]
    a_name: str
    b_name: str
    quantile: float
    confidence: float
    sliced: bool
    measures: Sequence[Measure]
    parts: Sequence[Part]
    mix: Mix
    differing: Mapping[str, tuple[str, str]]
    warnings: Sequence[str]

    def measure(self, name: str) -> Measure:
        """The measure of this name. Raises KeyError."""
        return {m.name: m for m in self.measures}[name]


def compare(
    a: Sequence[Run],
    b: Sequence[Run],
    *,
    names: tuple[str, str],
    quantile_of: float = 0.99,
    more_quantiles: Iterable[float] = (),
    confidence: float = 0.95,
    sliced: bool = False,
) -> Comparison:
    """Set the runs of B against those of A; `quantile_of` must have been asked for when they were read."""
    shares = sorted({*SHOWN_QUANTILES, quantile_of, *more_quantiles})
    measures = [_latency(share, a, b, confidence) for share in shares]
    measures.append(_measure("throughput", [r.per_s for r in a], [r.per_s for r in b], confidence, relative=True))
    measures.append(_measure("errors", [r.error_share for r in a], [r.error_share for r in b], confidence))
    return Comparison(
        a, b, *names, quantile_of, confidence, sliced, measures, _parts(a, b, quantile_of, confidence),
        mix_and_rate(a, b, quantile_of), differing_facts(a, b),
        doubts_of(a, b, share=quantile_of, confidence=confidence, sliced=sliced),
    )  # fmt: skip


def _latency(share: float, a: Sequence[Run], b: Sequence[Run], confidence: float) -> Measure:
    of_a, of_b = ([float(quantile(r.e2e_ns, share)) for r in side] for side in (a, b))
    return _measure(quantile_name(share), of_a, of_b, confidence, relative=True)


def _measure(
    name: str, a: Sequence[float], b: Sequence[float], confidence: float, *, relative: bool = False
) -> Measure:
    of_a, of_b = ([math.log(v) for v in side] if relative else side for side in (a, b))
    return Measure(name, a, b, shift_between(of_a, of_b, confidence=confidence), relative)


def _parts(a: Sequence[Run], b: Sequence[Run], share: float, confidence: float) -> list[Part]:
    """The segments that take time on either side, in the order of a request's life."""
    found = []
    for i, segment in enumerate(SEGMENTS):
        of_a, of_b = ([float(r.parts_ns[share][i]) for r in side] for side in (a, b))
        if any(of_a) or any(of_b):
            shift = shift_between(of_a, of_b, confidence=confidence)
            found.append(Part(segment, fmean(of_a), fmean(of_b), shift))
    return found


def mix_and_rate(a: Sequence[Run], b: Sequence[Run], share: float) -> Mix:
    """Split the difference of the quantile: what the mix of kinds alone would have done, and what the system did."""
    names = sorted({name for run in (*a, *b) for name in run.kind_names})
    code = {name: i for i, name in enumerate((*names, REST))}
    before, after = _pooled(a, code), _pooled(b, code)
    # A handful of requests cannot stand for many: kinds of which A has few are one kind together.
    few = np.bincount(before.strata, minlength=len(code))
    rare = np.flatnonzero((few > 0) & (few < KIND_REQUESTS_MIN))
    for window in (before, after):
        window.strata[np.isin(window.strata, rare)] = code[REST]
    of_a, of_b = (np.bincount(w.strata, minlength=len(code)) / len(w.strata) for w in (before, after))
    kinds = [Kind(name, float(of_a[i]), float(of_b[i])) for name, i in code.items() if of_a[i] or of_b[i]]
    kinds.sort(key=lambda kind: -abs(kind.b_share - kind.a_share))
    change = quantile_change(before, after, share)
    return Mix(
        round(change.before_ns), round(change.after_ns), change.mix_ns, change.rate_ns, 1 - change.covered, kinds
    )


def _pooled(runs: Sequence[Run], code: Mapping[str, int]) -> Window:
    """All latencies of a side, and their kinds by one code; copies."""
    kinds = [np.asarray([code[name] for name in run.kind_names], np.int64)[run.kinds] for run in runs]
    return Window(np.concatenate([run.e2e_ns for run in runs]), np.concatenate(kinds))
