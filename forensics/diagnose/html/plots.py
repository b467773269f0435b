"""Each plot with what belongs to it: a sentence on how to read it, its key, the table behind it, and its data for the
script. Without the script they stand one below the other."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forensics.diagnose.case import Case
from forensics.diagnose.diagnosis import Diagnosis
from forensics.diagnose.html import breakdown_charts, breakdowns, over_time, svg, time_chart
from forensics.diagnose.html.breakdowns import Blame, BlameRow, Composition, Folded
from forensics.diagnose.html.markup import Child, Markup, element
from forensics.diagnose.html.over_time import HeatMap, Lane, Load, TimeAxis
from forensics.diagnose.periodicity import told
from forensics.diagnose.report_text import clock
from forensics.statistics.periods import Clock

BY = {"size": "size, as its model counts (tokens or rows)"}
EVENTS_TOLD_MAX = 80
"""Events in the table; of each kind the longest."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot under its title; `data` is what the script reads out."""

    identity: str
    title: str
    body: Markup
    data: Mapping[str, Any] = field(default_factory=dict)


def panels(case: Case, d: Diagnosis) -> list[Panel]:
    """All plots of a case. What the gate refuses is not drawn: then only what one clock measured is there."""
    found = [_over_time(case, d)]
    if d.refused:
        return found
    segments, spent = breakdowns.compositions(case)
    found += [_composition("where", "Where", segments, d), _composition("spent", "On what", spent, d)]
    found.append(_blame(breakdowns.blames(case), case))
    folded = breakdowns.folded(case)
    return [*found, _folded(folded)] if folded else found


def _over_time(case: Case, d: Diagnosis) -> Panel:
    axis = over_time.time_axis(case.window)
    heat, load = over_time.heat_map(case, axis), over_time.load(case, axis)
    lanes = over_time.lanes(case, axis, d.findings)
    p = svg.percentile(d.quantile)
    note = (
        f"Each cell: how many requests came in these {_width(axis)} and took so long. The line is the median, the "
        f"dashed one {p} over all time. Vertical lines: the level changed, with the interval in which that lies. "
        "Below: when the causes acted, what was logged meanwhile, and the load."
    )
    body = [
        element("p", note, id="plot-time-note"),
        _key("requests in a cell", svg.count_levels(heat.counts), "{:,}"),
        element("div", time_chart.draw(axis, heat, lanes, load, d.onset, d.value_ms, p), class_="scroll"),
        _table(f"every {_width(axis)}", *_load_table(axis, heat, load, p)),
        _table("what happened", ("when, UTC", "what", "ms"), _event_rows(lanes)) if lanes else None,
    ]
    return Panel("over-time", "Over time", element("div", body), {"time": _time_data(axis, heat, lanes, load, p)})


def _load_table(axis: TimeAxis, heat: HeatMap, load: Load, p: str) -> tuple[Sequence[str], list[list[Child]]]:
    head = ("from, UTC", "requests", "median ms", f"{p} ms", "arrivals per s", "waiting", "busy")
    requests = heat.counts.sum(axis=0).tolist()
    rows: list[list[Child]] = [
        [
            svg.instant(int(axis.edges_us[b]), axis.step_us),
            f"{requests[b]:,}",
            _number(heat.median_ms[b]),
            _number(heat.slow_ms[b]),
            _number(load.arrivals_per_s[b]),
            _number(load.waiting[b]),
            "" if math.isnan(load.busy[b]) else f"{load.busy[b]:.0%}",
        ]
        for b in range(axis.bins)
    ]
    return head, rows


def _event_rows(lanes: Sequence[Lane]) -> list[list[Child]]:
    """Of each lane the longest marks: one of many short collections leaves room for the only crash."""
    share = max(1, EVENTS_TOLD_MAX // len(lanes))
    told = [m for lane in lanes if not lane.is_cause for m in sorted(lane.marks, key=lambda m: -m.ms)[:share]]
    return [[clock(m.start_us), m.what, _number(m.ms) if m.ms else ""] for m in sorted(told, key=lambda m: m.start_us)]


def _time_data(axis: TimeAxis, heat: HeatMap, lanes: Sequence[Lane], load: Load, p: str) -> dict[str, Any]:
    return {
        "from": [svg.instant(int(at), axis.step_us) for at in axis.edges_us],
        "p": p,
        "edges": _rounded(heat.edges_ms),
        "counts": heat.counts.tolist(),
        "median": _rounded(heat.median_ms),
        "slow": _rounded(heat.slow_ms),
        "arrivals": _rounded(load.arrivals_per_s),
        "waiting": _rounded(load.waiting),
        "busy": _rounded(load.busy),
        "lanes": [
            {
                "title": lane.title,
                "bins": [[b, count, round(total_ms, 1)] for b, count, total_ms in lane.by_bin(axis)],
                "names": [[axis.bin_at(m.start_us), m.what] for m in lane.marks]
                if len(lane.marks) <= over_time.NAMED_MAX
                else [],
            }
            for lane in lanes
        ],
    }


def _composition(identity: str, title: str, c: Composition, d: Diagnosis) -> Panel:
    quantiles = [svg.percentile(p) for p in c.quantiles]
    asked, middle = c.quantiles.index(d.quantile), c.quantiles.index(0.5)
    head = ("", c.title.lower(), "kind", *(f"{p}, ms" for p in quantiles), f"{quantiles[asked]} more than p50, ms")
    rows: list[list[Child]] = [
        [
            element("span", letter, class_=f"swatch {colour}", data_part=letter),
            element("code", part.name),
            part.kind,
            *(f"{x:,.2f}" for x in part.ms),
            f"{part.ms[asked] - part.ms[middle]:+,.2f}",
        ]
        for letter, colour, part in breakdown_charts.lettered(c)
    ]
    total = ["", "sum", "", *(f"{x:,.2f}" for x in c.total_ms), f"{c.total_ms[asked] - c.total_ms[middle]:+,.2f}"]
    note = (
        "Each quantile, split as the requests next to it are on average, so the parts add up. "
        "The p99s of the parts would not: their sum says nothing about p99."
    )
    body = [
        element("p", note, id=f"plot-{identity}-note"),
        element("div", breakdown_charts.bars(c, f"plot-{identity}"), class_="scroll"),
        element("div", _rows(head, [*rows, total], text_columns=3, last_is_sum=True), class_="scroll"),
    ]
    return Panel(identity, title, element("div", body))


def _blame(blames: Sequence[Blame], case: Case) -> Panel:
    note = (
        f"Who of the slowest {int(case.tail.sum()):,} requests lost time to what, ms on average. "
        "Rows sum to the time in the last column; the stronger the colour, the more."
    )
    tables = [
        [element("h4", f"By {BY.get(blame.by, blame.by)}"), element("div", _matrix(blame), class_="scroll")]
        for blame in blames
    ]
    return Panel("blame", "Who lost time to what", element("div", element("p", note), tables))


def _matrix(blame: Blame) -> Markup:
    rows = [*blame.rows, *([blame.everyone] if len(blame.rows) > 1 else []), blame.usual]
    levels = svg.value_levels(np.array([x for row in rows for x in row.ms if x > 0] or [0.0]))

    def line(row: BlameRow) -> Markup:
        return element(
            "tr",
            element("th", row.name, scope="row"),
            element("td", f"{row.requests:,} of {row.all_requests:,}"),
            [
                element("td", _number(x), class_=f"q{colour}" if x >= 0.005 else None)
                for x, colour in zip(row.ms, svg.coloured(np.maximum(row.ms, 0.0), levels).tolist(), strict=True)
            ],
            element("td", _number(row.total_ms), class_="sum"),
            class_="summary-row" if row in (blame.everyone, blame.usual) else None,
        )

    head = [blame.by, "requests", *blame.labels, "in all"]
    return element(
        "table",
        element("thead", element("tr", [element("th", h.replace("_", " "), scope="col") for h in head])),
        element("tbody", [line(row) for row in rows]),
        class_="matrix",
    )


def _folded(f: Folded) -> Panel:
    phases = len(f.requests)
    cycles = "a cycle" if f.cycles_per_row == 1 else f"{f.cycles_per_row} cycles"
    unit = "" if f.period.clock is Clock.TIME else f", {f.period.clock.value}"
    note = (
        f"{told(f.period).capitalize()}. Each row is {cycles}, the first on top; the colour is the mean latency. "
        "Where it truly comes back, cells of the same colour stand below each other. Under it, the share of requests "
        f"that took more than {svg.ms(f.slow_ms)}, over all cycles."
    )
    levels = svg.value_levels(f.mean_ms)
    table: list[list[Child]] = [
        [
            f"{f.at(i / phases)} to {f.at((i + 1) / phases)}",
            f"{int(f.requests[i]):,}",
            f"{f.slow[i] / max(1, f.requests[i]):.1%}",
        ]
        for i in range(phases)
    ]
    body = [
        element("p", note, id="plot-fold-note"),
        _key("mean ms in a cell", levels, "{:.3g}"),
        element("div", breakdown_charts.fold(f), class_="scroll"),
        _table("by phase", (f"phase{unit}", "requests", "slow"), table),
    ]
    data = {
        "from": [f.at(i / phases) for i in range(phases + 1)],
        "per_row": f.cycles_per_row,
        "mean": [_rounded(row) for row in f.mean_ms],
        "requests": f.requests.tolist(),
        "slow": f.slow.tolist(),
    }
    return Panel("folded", "Folded at the period", element("div", body), {"fold": data})


def _key(what: str, levels: Sequence[float], shape: str) -> Markup:
    """What the colours mean: the least value of each."""
    swatches = [
        [element("span", class_=f"swatch q{colour}"), shape.format(level) if level else "less", " "]
        for level, colour in zip(levels, svg.colours(levels), strict=True)
    ]
    return element("p", f"{what}, from: ", swatches, class_="key")


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[Child]]) -> Markup:
    """A table that opens at a click."""
    table = element("div", _rows(head, rows), class_="scroll")
    return element("details", element("summary", f"Table: {title}"), table)


def _rows(
    head: Sequence[str], rows: Iterable[Sequence[Child]], *, text_columns: int = 1, last_is_sum: bool = False
) -> Markup:
    body = [element("tr", [element("td", cell) for cell in row]) for row in rows]
    return element(
        "table",
        element("thead", element("tr", [element("th", h, scope="col") for h in head])),
        element("tbody", body),
        class_=f"plain text-{text_columns}{' with-sum' if last_is_sum else ''}",
    )


def _width(axis: TimeAxis) -> str:
    seconds = axis.step_us / 1e6
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min"


def _number(value: float) -> str:
    if math.isnan(value):
        return ""
    if abs(value) < 0.005:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}"


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Four digits that matter; what is not known is null."""
    return [None if math.isnan(v) else float(f"{v:.4g}") for v in map(float, values)]
