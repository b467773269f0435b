"""What all plots are drawn with. Colours are classes, so that light, dark and print have their own; a thousand cells of
one colour are one path, so that the size of a plot depends on its bins and never on its requests.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import numpy as np

from forensics.diagnose.html.markup import Child, Markup, element, short
from forensics.diagnose.window import Floats, Ints

WIDTH = 1000.0
LEVELS = 7
"""Colours of a heat map."""
_TICKS_US = tuple(
    round(s * 1e6)
    for s in (
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
        43200, 86400, 172800, 604800, 2592000, 31536000,
    )
)  # fmt: skip
_TICKS_MAX = 9


@dataclass(frozen=True, slots=True)
class Area:
    """Where a plot has its cells, in units of its view box, and how many these are."""

    left: float
    top: float
    width: float
    height: float
    columns: int
    rows: int


def picture(identity: str, title: str, height: float, *children: Child, area: Area | None = None) -> Markup:
    """A plot `WIDTH` wide with its title for those who do not see it; the script reads it out by its `area`."""
    attributes: dict[str, float] = {f"data_{name}": value for name, value in asdict(area).items()} if area else {}
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        *children,
        id=identity,
        viewBox=f"0 0 {short(WIDTH)} {short(height)}",
        role="img",
        aria_labelledby=f"{identity}-title",
        aria_describedby=f"{identity}-note",
        **attributes,
    )


def cells(level: Ints, x: float, y: float, width: float, height: float) -> Markup:
    """A heat map: `level` is [rows, columns], the upper row first; 0 is empty, others are colours up to `LEVELS`."""
    rows, columns = level.shape
    paths = []
    for colour in range(1, LEVELS + 1):
        parts = []
        for r in range(rows):
            edges = np.diff(np.concatenate([[0], (level[r] == colour).astype(np.int8), [0]]))
            starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
            parts += [f"M{start} {r}h{end - start}v1h{start - end}z" for start, end in zip(starts, ends, strict=True)]
        if parts:
            paths.append(element("path", d="".join(parts), class_=f"q{colour}"))
    return element(
        "svg", *paths, x=x, y=y, width=width, height=height, viewBox=f"0 0 {columns} {rows}",
        preserveAspectRatio="none", class_="cells",
    )  # fmt: skip


def line(x: Floats, y: Floats, class_: str) -> Markup:
    """A line through the points that are known; a gap where one is NaN."""
    parts, pen = [], "M"
    for at, value in zip(x.tolist(), y.tolist(), strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        parts.append(f"{pen}{short(round(at, 1))} {short(round(value, 1))}")
        pen = "L"
    return element("path", d="".join(parts), class_=class_)


def cursor(x: float, y: float, height: float) -> Markup:
    """The line that the script moves; nothing without it."""
    return element("line", x1=x, x2=x, y1=y, y2=y + height, class_="cursor", visibility="hidden")


def count_levels(counts: Ints) -> list[int]:
    """The least count of each colour, up to `LEVELS`: steps of a constant ratio from 1 to the highest."""
    highest = max(1, int(counts.max(initial=0)))
    return sorted({math.ceil(highest ** (i / LEVELS)) for i in range(LEVELS)})


def value_levels(values: Floats) -> list[float]:
    """The least value of each colour: steps of a constant ratio from the usual to the nearly highest."""
    known = values[~np.isnan(values)]
    low, high = (float(np.quantile(known, p)) for p in (0.1, 0.99))
    if high < 1.02 * low:
        return [0.0]
    return [0.0, *(low * (high / low) ** (i / (LEVELS - 1)) for i in range(1, LEVELS))]


def colours(found: Sequence[float]) -> list[int]:
    """Which colours so many levels have: few of them lie as far apart as many."""
    last = max(1, len(found) - 1)
    return [round(1 + i * (LEVELS - 1) / last) for i in range(len(found))] if len(found) > 1 else [4]


def coloured(values: Floats | Ints, found: Sequence[float]) -> Ints:
    """The colour of each value; 0 below the first level, and where it is NaN."""
    place = np.searchsorted(np.asarray(found), np.nan_to_num(values, nan=-1.0), side="right")
    return np.asarray([0, *colours(found)], dtype=np.int64)[place]


def ms(value: float) -> str:
    """Milliseconds, with three or four digits that matter."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} ms"


def percentile(p: float) -> str:
    """p99"""
    return f"p{100 * p:g}"


def time_ticks(start_us: int, end_us: int) -> list[tuple[int, str]]:
    """Round instants between two, and how to write them, UTC."""
    step = next((s for s in _TICKS_US if (end_us - start_us) // s <= _TICKS_MAX), _TICKS_US[-1])
    first = -(-start_us // step) * step
    return [(at, instant(at, step)) for at in range(first, end_us, step)]


def instant(at_us: int, step_us: int) -> str:
    """An instant, UTC, as exactly as steps of this width need it."""
    at = datetime.fromtimestamp(at_us / 1e6, tz=UTC)
    if step_us >= 86_400_000_000:
        return at.strftime("%Y-%m-%d")
    if step_us >= 60_000_000:
        return at.strftime("%H:%M")
    text = at.strftime("%H:%M:%S")
    if step_us >= 1_000_000:
        return text
    digits = 2 if step_us < 100_000 else 1
    return f"{text}.{at_us % 1_000_000:06d}"[: digits - 6]


def latency_ticks(low_ms: float, high_ms: float) -> list[float]:
    """Round latencies between two, on a logarithmic scale."""
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [
            step * 10.0**power
            for power in range(math.floor(math.log10(low_ms)), math.ceil(math.log10(high_ms)) + 1)
            for step in steps
            if low_ms <= step * 10.0**power <= high_ms
        ]
        if len(found) <= 8:
            break
    return found
