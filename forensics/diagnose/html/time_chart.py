"""The plot over time: the heat map of latencies, what happened under it, and the load under that, on one axis."""

import math
from collections.abc import Sequence

import numpy as np

from forensics.diagnose.html import svg
from forensics.diagnose.html.markup import Markup, element, short
from forensics.diagnose.html.over_time import HeatMap, Lane, Load, TimeAxis
from forensics.diagnose.when import Onset
from forensics.diagnose.window import Floats

LEFT = 150.0
PLOT = svg.WIDTH - LEFT - 14
CHANGES_MAX = 12
TOP = 20.0
HEAT_HEIGHT = 260.0
LANE_HEIGHT = 17.0
LOAD_HEIGHT = 56.0
LOAD_GAP = 14.0
_LABEL_PX = 110.0
"""Labels of changes nearer than this would lie over each other."""


def draw(
    axis: TimeAxis,
    heat: HeatMap,
    lanes: Sequence[Lane],
    load: Load,
    onset: Onset | None,
    value_ms: float,
    quantile: str,
) -> Markup:
    """All of it. `value_ms` is the quantile over all time, a line across the heat map."""
    lanes_top = TOP + HEAT_HEIGHT + 24
    loads_top = lanes_top + LANE_HEIGHT * len(lanes) + (16 if lanes else 0)
    series = (
        ("arrivals per s", load.arrivals_per_s, 0.0),
        ("waiting, mean", load.waiting, 0.0),
        ("devices busy, %", load.busy * 100, 100.0),
    )
    bottom = loads_top + len(series) * (LOAD_HEIGHT + LOAD_GAP) - LOAD_GAP
    return svg.picture(
        "plot-time",
        "Latency, events and load over time",
        bottom + 6,
        [_lane_ground(lanes_top + i * LANE_HEIGHT) for i in range(0, len(lanes), 2)],
        _ticks(axis, bottom),
        _heat(heat),
        _lines(axis, heat, value_ms, quantile),
        [_lane(axis, lane, lanes_top + i * LANE_HEIGHT) for i, lane in enumerate(lanes)],
        [
            _series(axis, title, values, highest, loads_top + i * (LOAD_HEIGHT + LOAD_GAP))
            for i, (title, values, highest) in enumerate(series)
        ],
        _changes(axis, onset, bottom),
        svg.cursor(LEFT, TOP, bottom - TOP),
        area=svg.Area(LEFT, TOP, PLOT, HEAT_HEIGHT, axis.bins, len(heat.counts)),
    )


def _x(axis: TimeAxis, at_us: float) -> float:
    return LEFT + PLOT * min(1.0, max(0.0, (at_us - axis.start_us) / (axis.bins * axis.step_us)))


def _y(heat: HeatMap, ms: Floats) -> Floats:
    """Where latencies lie in the heat map."""
    low, high = math.log(heat.edges_ms[0]), math.log(heat.edges_ms[-1])
    y: Floats = TOP + HEAT_HEIGHT * (1 - (np.log(ms) - low) / (high - low))
    return y


def _heat(heat: HeatMap) -> list[Markup]:
    level = svg.coloured(heat.counts, svg.count_levels(heat.counts))
    drawn = [svg.cells(level[::-1], LEFT, TOP, PLOT, HEAT_HEIGHT)]
    drawn.append(element("text", "latency", x=LEFT - 8, y=TOP - 6, class_="label end"))
    for ms in svg.latency_ticks(float(heat.edges_ms[0]), float(heat.edges_ms[-1])):
        y = float(_y(heat, np.array(ms)))
        drawn.append(element("line", x1=LEFT - 4, x2=LEFT, y1=y, y2=y, class_="axis"))
        drawn.append(element("text", f"{ms:g} ms", x=LEFT - 8, y=y + 4, class_="tick end"))
    drawn.append(element("rect", x=LEFT, y=TOP, width=PLOT, height=HEAT_HEIGHT, class_="frame"))
    return drawn


def _lines(axis: TimeAxis, heat: HeatMap, value_ms: float, quantile: str) -> list[Markup]:
    middle = LEFT + PLOT * (np.arange(axis.bins) + 0.5) / axis.bins
    y = float(_y(heat, np.array(max(value_ms, float(heat.edges_ms[0])))))
    return [
        svg.line(middle, _y(heat, heat.median_ms), "median halo"),
        svg.line(middle, _y(heat, heat.median_ms), "median"),
        element("line", x1=LEFT, x2=LEFT + PLOT, y1=y, y2=y, class_="quantile"),
        element("text", quantile, x=LEFT + 5, y=y - 4, class_="note"),
    ]


def _ticks(axis: TimeAxis, bottom: float) -> list[Markup]:
    drawn = []
    for at_us, text in svg.time_ticks(axis.start_us, axis.end_us):
        x = _x(axis, at_us)
        drawn.append(element("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="grid"))
        if LEFT + 20 < x < LEFT + PLOT - 20:
            drawn.append(element("text", text, x=x, y=TOP + HEAT_HEIGHT + 15, class_="tick mid"))
    drawn.append(element("text", "UTC", x=LEFT - 8, y=TOP + HEAT_HEIGHT + 15, class_="tick end"))
    return drawn


def _lane_ground(y: float) -> Markup:
    return element("rect", x=0, y=y, width=svg.WIDTH, height=LANE_HEIGHT, class_="ground")


def _lane(axis: TimeAxis, lane: Lane, y: float) -> Markup:
    """What of one kind happened: a mark for each bin that it reaches into, all of them one path."""
    edges = np.diff(np.concatenate([[0], lane.cells(axis).astype(np.int8), [0]]))
    step = PLOT / axis.bins
    path = "".join(
        f"M{short(LEFT + a * step)} {short(y + 3)}h{short(max(2.5, (b - a) * step))}v{short(LANE_HEIGHT - 6)}"
        f"h{short(-max(2.5, (b - a) * step))}z"
        for a, b in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True)
    )
    told = f"{lane.title}: {len(lane.marks):,}" if len(lane.marks) > 1 else f"{lane.title}: {lane.marks[0].what}"
    return element(
        "g",
        element("title", told),
        element("text", lane.title, x=LEFT - 8, y=y + 12, class_="tick end"),
        element("path", d=path, class_="cause" if lane.is_cause else "event"),
    )


def _series(axis: TimeAxis, title: str, values: Floats, top_value: float, y: float) -> Markup:
    """A figure by bin, as steps."""
    known = np.nan_to_num(values)
    highest = max(top_value, float(known.max()), 1e-9)
    step = PLOT / axis.bins
    points = "".join(
        f"L{short(LEFT + i * step)} {short(y + LOAD_HEIGHT * (1 - v / highest))}h{short(step)}"
        for i, v in enumerate(known.tolist())
    )
    base = short(y + LOAD_HEIGHT)
    return element(
        "g",
        element("path", d=f"M{short(LEFT)} {base}{points}V{base}z", class_="area"),
        element("line", x1=LEFT, x2=LEFT + PLOT, y1=y + LOAD_HEIGHT, y2=y + LOAD_HEIGHT, class_="axis"),
        element("text", title, x=LEFT - 8, y=y + 12, class_="label end"),
        element(
            "text", f"{highest:.3g}" if highest < 1000 else f"{highest:,.0f}", x=LEFT - 8, y=y + 26, class_="tick end"
        ),
        element("text", "0", x=LEFT - 8, y=y + LOAD_HEIGHT, class_="tick end"),
    )


def _changes(axis: TimeAxis, onset: Onset | None, bottom: float) -> list[Markup]:
    """Where the level changed, with the interval in which that lies; the first one to worse stands out."""
    drawn: list[Markup] = []
    labelled = -_LABEL_PX
    for change in sorted(onset.changes if onset else (), key=lambda c: c.at_ns)[:CHANGES_MAX]:
        x, low, high = (_x(axis, ns / 1000) for ns in (change.at_ns, change.lo_ns, change.hi_ns))
        first = onset is not None and change.at_ns // 1000 == onset.at_us
        what = f"{change.series.value} x{change.ratio:.2f}"
        fits = x - labelled >= _LABEL_PX
        left = x > LEFT + PLOT - _LABEL_PX
        at = {"x": x - 4 if left else x + 4, "y": TOP - 6, "class_": "note strong end" if left else "note strong"}
        drawn.append(
            element(
                "g",
                element("title", f"the level changed: {what}"),
                element("rect", x=low, y=TOP, width=max(1.0, high - low), height=bottom - TOP, class_="interval"),
                element("line", x1=x, x2=x, y1=TOP - 4, y2=bottom, class_="change first" if first else "change"),
                element("text", what, **at) if fits else None,
            )
        )
        labelled = x if fits else labelled
    return drawn
