"""What a bare model did with the cores in different ways, and which way is best. Pure: no clock, no I/O.

A way is so many worker processes with so many torch threads each. What is compared is the rate of all processes
together at the batch size that suits each way best.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

TIE_SHARE = 0.05
"""Ways within this of the best are as good: measurements differ by as much, and each process costs memory."""


class Way(NamedTuple):
    """How the cores are used."""

    workers: int
    threads: int
    """torch threads of each worker."""

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}"


ONE = Way(1, 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """One way in one round, with one batch size; all processes together."""

    per_s: float
    """Requests a second: the sum of the processes' own rates."""
    durations_ns: tuple[int, ...]
    """Of each pass of each process, from the requests to the encoded answers."""
    cores: float
    """Cores used on average."""
    units_useful: int
    units_computed: int
    """In the model's own units, padding included."""
    requests: int = 0
    units_per_s: float = 0.0
    """Useful units a second, as `per_s`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One way with one batch size, all rounds."""

    way: Way
    batch: int
    samples: tuple[Sample, ...]

    @property
    def per_s(self) -> float:
        """Requests a second, median of the rounds."""
        return statistics.median(s.per_s for s in self.samples)

    @property
    def per_s_range(self) -> tuple[float, float]:
        """The least and the greatest of the rounds."""
        rates = [s.per_s for s in self.samples]
        return min(rates), max(rates)

    def pass_ms(self, percentile: float) -> float:
        """A percentile of all passes of all rounds, ms."""
        durations = np.concatenate([np.asarray(s.durations_ns, dtype=np.int64) for s in self.samples])
        return float(np.percentile(durations, percentile)) / 1e6

    @property
    def cores(self) -> float:
        """Cores used on average, median of the rounds."""
        return statistics.median(s.cores for s in self.samples)

    @property
    def padding_share(self) -> float:
        """How much of what was computed was padding."""
        computed = sum(s.units_computed for s in self.samples)
        return 1 - sum(s.units_useful for s in self.samples) / computed if computed else 0.0

    def to_json(self) -> dict[str, Any]:
        """Its figures, ready for JSON."""
        return {
            "workers": self.way.workers,
            "threads": self.way.threads,
            "batch": self.batch,
            "per_s": self.per_s,
            "per_s_rounds": [s.per_s for s in self.samples],
            "pass_ms_p50": self.pass_ms(50),
            "pass_ms_p99": self.pass_ms(99),
            "passes": sum(len(s.durations_ns) for s in self.samples),
            "cores": self.cores,
            "padding_share": self.padding_share,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The way to take. `score` is its share of what is possible (see `choose`), `top` the way with the best score."""

    way: Way
    score: float
    top: Way


def sensible_ways(cores: int) -> list[Way]:
    """One thread of one process, to compare with; and each way to use all cores, the fewest processes first.

    With the threads that a number of processes leaves to each, no further process would fit.
    """
    most = {cores // workers: workers for workers in range(1, cores + 1)}
    full = sorted(Way(workers, threads) for threads, workers in most.items())
    return full if ONE in full else [ONE, *full]


def ways(cores: int, *, workers: Sequence[int] = (), threads: Sequence[int] = ()) -> list[Way]:
    """The ways that fit the cores with these numbers of workers and threads; without both, the sensible ones.

    With only one of them, the other goes as far as the cores reach, by powers of two.
    """
    if not workers and not threads:
        return sensible_ways(cores)
    reach = {cores, *(2**power for power in range(cores.bit_length()))}
    found = {Way(w, t) for w in workers or reach for t in threads or reach if w * t <= cores}
    return sorted(found)


def evened(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with their rates in requests of average size.

    A window sees only some requests, and one that met long texts is not slower for that. So requests a second are
    units a second over the units that a request had on average, in all windows of all ways together.
    """
    samples = [s for cell in cells for s in cell.samples]
    units, requests = sum(s.units_useful for s in samples), sum(s.requests for s in samples)
    if not units or not requests:
        return list(cells)
    mean = units / requests
    return [replace(c, samples=tuple(replace(s, per_s=s.units_per_s / mean) for s in c.samples)) for c in cells]


def best_cell(cells: Iterable[Cell]) -> Cell:
    """The one with the greatest rate."""
    return max(cells, key=lambda cell: cell.per_s)


def best_rates(cells: Iterable[Cell]) -> dict[Way, float]:
    """Requests a second of each way, with the batch size that suits it best."""
    rates: dict[Way, float] = {}
    for cell in cells:
        rates[cell.way] = max(cell.per_s, rates.get(cell.way, 0.0))
    return rates


def choose(rates: Mapping[str, Mapping[Way, float]], *, workers_max: int = 1 << 30) -> Choice:
    """The best way for models that share the workers: `rates` is of each model, then of each way.

    A way's score is the geometric mean over the models of its rate, as a share of the model's best. Ways with more
    than `workers_max` processes are left out. Of those within TIE_SHARE of the best score, the one with the fewest
    processes is taken, then with the fewest threads. Without models, or ways that all of them have, it is 1 x 1.
    """
    shared = set.intersection(*(set(of) for of in rates.values())) if rates else set()
    scores = {way: _score(way, rates.values()) for way in shared if way.workers <= workers_max}
    if not scores:
        return Choice(ONE, 1.0, ONE)
    top = min(scores, key=lambda way: (-scores[way], way))
    good = [way for way, score in scores.items() if score >= (1 - TIE_SHARE) * scores[top]]
    way = min(good)
    return Choice(way, scores[way], top)


def _score(way: Way, rates: Iterable[Mapping[Way, float]]) -> float:
    shares = [of[way] / max(max(of.values()), 1e-9) for of in rates]
    return math.prod(shares) ** (1 / len(shares))
