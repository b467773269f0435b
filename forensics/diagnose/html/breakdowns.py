"""What the plots without a time axis show: what quantiles consist of, who lost time to what, and what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case
from forensics.diagnose.periodicity import Period
from forensics.diagnose.window import Floats, Ints, Requests
from forensics.statistics.periods import Clock
from forensics.statistics.quantiles import allocate
from shared.timeline import CLASS_OF

PARTS_MAX = 11
"""Parts of a bar; what is less goes together."""
SHARE_MIN = 0.005
"""A part is shown if it is so large a share of any of the bars."""
OTHER = "other"

_KINDS = {
    "compute": (Spent.OWN_COMPUTE, Spent.BATCH_MATES, Spent.PADDING),
    "queue": (Spent.QUEUED, Spent.LINGER, Spent.FETCH),
    "transfer": (Spent.BROKER, Spent.CLIENT),
    "overhead": (Spent.WORKER_WORK, Spent.GATEWAY_WORK),
    OTHER: (Spent.UNKNOWN,),
}
KIND_OF_SPENT: Mapping[str, str] = {label.value: kind for kind, labels in _KINDS.items() for label in labels}
"""What is in none of these is a disturbance."""
DISTURBED = "disturbed"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the bars: ms in each."""

    name: str
    kind: str
    ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Composition:
    """What some quantiles consist of. The parts of each sum to its `total_ms`, the quantile."""

    title: str
    quantiles: Sequence[float]
    total_ms: Sequence[float]
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class BlameRow:
    """What the requests of the tail that are of one class spent their time on, ms on average; sums to `total_ms`.
    `all_requests` counts those of the class that are not in the tail, too."""

    name: str
    requests: int
    all_requests: int
    total_ms: float
    ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Blame:
    """Who in the tail lost time to what: a row for each class of requests, a column for each of `labels`. `everyone` is
    the whole tail, `usual` the requests of the middle."""

    by: str
    labels: Sequence[str]
    rows: Sequence[BlameRow]
    everyone: BlameRow
    usual: BlameRow


@dataclass(frozen=True, slots=True)
class Folded:
    """Latency by phase and cycle: `mean_ms` is [rows, phases], NaN without requests; a row holds `cycles_per_row`
    cycles, the first one on top. `requests` and `slow` are [phases], over all cycles."""

    period: Period
    cycles_per_row: int
    mean_ms: Floats
    requests: Ints
    slow: Ints
    slow_ms: float

    def at(self, phase: float) -> str:
        """Where in the period a phase (0 to 1) is, in the unit of its clock."""
        if self.period.clock is Clock.TIME:
            return f"{self.period.length * phase / 1e9:.3g} s"
        return f"{self.period.length * phase:,.0f}"


def compositions(case: Case) -> tuple[Composition, Composition]:
    """What p50, p90, p99 and the quantile that is asked about consist of: by segment, and by what time was spent on."""
    quantiles = sorted({0.5, 0.9, 0.99, case.quantile})
    kinds = {name: kind.value for name, kind in CLASS_OF.items()}
    segments = _composition("Segments", case, case.window.requests.segments, kinds, quantiles)
    columns = {label.value: ns for label, ns in case.attribution.spent.items()}
    kinds = {name: KIND_OF_SPENT.get(name, DISTURBED) for name in columns}
    return segments, _composition("Spent on", case, columns, kinds, quantiles)


def _composition(
    title: str, case: Case, columns: Mapping[str, Ints], kinds: Mapping[str, str], quantiles: Sequence[float]
) -> Composition:
    found = [allocate(case.window.requests.e2e, columns, p) for p in quantiles]
    total = [a.quantile_ns / MS for a in found]
    ms = {name: [a.parts_ns[name] / MS for a in found] for name in columns}
    large = [
        name
        for name in columns
        if any(abs(x) >= SHARE_MIN * max(t, 1e-9) for x, t in zip(ms[name], total, strict=True))
    ]
    kept = set(sorted(large, key=lambda name: -max(ms[name]))[:PARTS_MAX])
    parts = [Part(name, kinds[name], ms[name]) for name in columns if name in kept]
    if rest := [ms[name] for name in columns if name not in kept and any(ms[name])]:
        parts.append(Part(OTHER, OTHER, [sum(x) for x in zip(*rest, strict=True)]))
    return Composition(title, quantiles, total, parts)


CLASSES_MAX = 8
COLUMNS_MAX = 9
COLUMN_SHARE_MIN = 0.01
SIZES_MAX = 7
BY_NAME = ("worker", "model", "tenant", "gateway")


def blames(case: Case) -> list[Blame]:
    """The tail by size of the requests, and by each name of which there are several."""
    classes: list[tuple[str, Ints, Sequence[str]]] = [("size", *_sizes(case.window.requests))]
    for kind in BY_NAME:
        named = case.window.requests.names[kind]
        classes.append((kind, named.codes, named.names))
    several = [c for c in classes if len(np.unique(c[1])) > 1]
    # With one of everything the whole tail is the only row, and worth its line still.
    return [_blame(case, *c) for c in several or classes[:1]]


def _blame(case: Case, by: str, codes: Ints, names: Sequence[str]) -> Blame:
    spent, e2e = case.attribution.spent, case.window.requests.e2e
    tail = np.flatnonzero(case.tail)
    floor = COLUMN_SHARE_MIN * float(e2e[tail].sum())
    totals = {label: float(ns[tail].sum()) for label, ns in spent.items()}
    labels = sorted((x for x in totals if totals[x] >= floor), key=lambda x: -totals[x])[:COLUMNS_MAX]

    def row(name: str, members: Ints, of_all: int) -> BlameRow:
        total = float(e2e[members].mean()) / MS
        ms = [float(spent[label][members].mean()) / MS for label in labels]
        return BlameRow(name, len(members), of_all, total, [*ms, total - sum(ms)])

    in_tail = np.bincount(codes[tail], minlength=len(names))
    everywhere = np.bincount(codes, minlength=len(names))
    largest = set(np.argsort(-in_tail, kind="stable")[:CLASSES_MAX].tolist())
    shown = [c for c in range(len(names)) if c in largest and in_tail[c]]
    if by != "size":
        shown.sort(key=lambda c: -in_tail[c])
    rows = [row(names[c], tail[codes[tail] == c], int(everywhere[c])) for c in shown]
    if len(rest := tail[~np.isin(codes[tail], shown)]):
        rows.append(row("all others", rest, int(len(codes) - everywhere[shown].sum())))
    middle = np.flatnonzero(case.middle)
    return Blame(
        by,
        [*(label.value for label in labels), OTHER],
        rows,
        row("whole tail", tail, len(codes)),
        row("usual requests", middle, len(middle)),
    )


def _sizes(requests: Requests) -> tuple[Ints, list[str]]:
    """Classes by size: each twice as wide as the one below, or wider if these would be too many. The size is what the
    model counts (tokens, rows), or the bytes of the body where no worker told one."""
    size, unit = requests.cost, ""
    if not size.any():
        size, unit = requests.numbers["bytes_in"], " bytes"
    octave = np.floor(np.log2(np.maximum(size, 1))).astype(np.int64)
    low, high = int(octave.min()), int(octave.max())
    wide = -(-(high - low + 1) // SIZES_MAX)
    codes = (octave - low) // wide
    names = []
    for c in range(int(codes.max()) + 1):
        first, last = 2 ** (low + c * wide), 2 ** (low + (c + 1) * wide) - 1
        names.append(f"{first if low or c else 0:,} to {last:,}{unit}" if last > first else f"up to {last:,}{unit}")
    return codes, names


PHASES_MAX = 48
CYCLE_ROWS_MAX = 40
PER_CELL = 3
"""Phases are not narrower than this many requests a cell, on average."""


def folded(case: Case) -> Folded | None:
    """Latency by phase and cycle, on the clock that it comes back by; None when it does not."""
    period = case.period
    if period is None:
        return None
    turns = _position(case, period) / period.length
    cycle = np.floor(turns).astype(np.int64)
    cycles = int(cycle.max()) + 1
    per_row = -(-cycles // CYCLE_ROWS_MAX)
    rows = -(-cycles // per_row)
    phases = int(np.clip(len(turns) // (rows * PER_CELL), 12, PHASES_MAX))
    phase = np.minimum((turns % 1.0 * phases).astype(np.int64), phases - 1)
    cell = cycle // per_row * phases + phase
    counts = np.bincount(cell, minlength=rows * phases)
    sums = np.bincount(cell, weights=case.e2e_ms, minlength=rows * phases)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_ms = np.where(counts > 0, sums / counts, np.nan).reshape(rows, phases)
    slow_ms = float(np.quantile(case.e2e_ms, min(case.quantile, 0.95)))
    slow = case.e2e_ms > slow_ms
    by_phase, slow_by_phase = (np.bincount(p, minlength=phases) for p in (phase, phase[slow]))
    return Folded(period, per_row, mean_ms, by_phase, slow_by_phase, slow_ms)


def _position(case: Case, period: Period) -> Floats:
    """Where each request stands on the period's clock: ns, requests or bytes since the first."""
    r = case.window.requests
    match period.clock:
        case Clock.TIME:
            since_first: Floats = (r.at_us - r.at_us[0]) * 1e3
            return since_first
        case Clock.REQUESTS:
            return np.arange(len(r), dtype=np.float64)
        case Clock.BYTES:
            sizes = r.numbers["bytes_in"]
            return np.cumsum(sizes, dtype=np.float64) - sizes
