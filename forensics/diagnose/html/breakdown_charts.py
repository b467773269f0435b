"""The plots without a time axis: bars of what quantiles consist of, and the heat map folded at the period."""

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.html import svg
from forensics.diagnose.html.breakdowns import Composition, Folded, Part
from forensics.diagnose.html.markup import Markup, element, short

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TONES = 4
"""Colours of a kind."""
_BAR_HEIGHT = 34.0
_BAR_GAP = 12.0
_BARS_LEFT = 60.0
_BARS_WIDTH = svg.WIDTH - _BARS_LEFT - 110
_LEFT = 80.0
_PLOT = svg.WIDTH - _LEFT - 14
_TOP = 8.0
_SHARE_HEIGHT = 50.0


def lettered(c: Composition) -> Iterator[tuple[str, str, Part]]:
    """Each part with its letter and the classes of its colour: a tone of its kind, the strongest for the largest."""
    tones: dict[str, int] = {}
    for kind in {part.kind for part in c.parts}:
        of_kind = sorted((part for part in c.parts if part.kind == kind), key=lambda part: -max(part.ms))
        tones |= {part.name: i % TONES for i, part in enumerate(of_kind)}
    for letter, part in zip(LETTERS, c.parts, strict=False):
        yield letter, f"k-{part.kind} t{tones[part.name]}", part


def bars(c: Composition, identity: str) -> Markup:
    """A bar for each quantile, its parts side by side, with the letters of the table that belongs to it."""
    longest = max(*c.total_ms, 1e-9)
    drawn: list[Markup] = []
    for i, total in enumerate(c.total_ms):
        x, y = _BARS_LEFT, 6 + i * (_BAR_HEIGHT + _BAR_GAP)
        drawn.append(element("text", svg.percentile(c.quantiles[i]), x=x - 10, y=y + 22, class_="label end"))
        for letter, colour, part in lettered(c):
            width = max(0.0, part.ms[i]) / longest * _BARS_WIDTH
            if width < 0.3:
                continue
            told = f"{part.name}: {svg.ms(part.ms[i])} of {svg.ms(total)}, {part.ms[i] / max(total, 1e-9):.0%}"
            drawn.append(
                element(
                    "g",
                    element("rect", x=x, y=y, width=max(0.3, width - 1), height=_BAR_HEIGHT, class_=f"part {colour}"),
                    element("text", letter, x=x + width / 2, y=y + 22, class_="letter mid") if width > 14 else None,
                    element("title", told),
                    data_part=letter,
                    data_told=told,
                )
            )
            x += width
        drawn.append(element("text", svg.ms(total), x=x + 8, y=y + 22, class_="label"))
    height = 6 + len(c.total_ms) * (_BAR_HEIGHT + _BAR_GAP)
    return svg.picture(identity, f"{c.title} of {', '.join(map(svg.percentile, c.quantiles))}", height, drawn)


def fold(folded: Folded) -> Markup:
    """Latency by phase (columns) and cycle (rows), and under it the share of slow requests by phase."""
    rows, phases = folded.mean_ms.shape
    height = float(np.clip(rows * 14, 60, 300))
    shares_top = _TOP + height + 34
    bottom = shares_top + _SHARE_HEIGHT
    level = svg.coloured(folded.mean_ms, svg.value_levels(folded.mean_ms))
    share = 100 * folded.slow / np.maximum(folded.requests, 1)
    highest = max(1.0, float(share.max()))
    width = _PLOT / phases
    path = "".join(
        f"M{short(_LEFT + i * width)} {short(bottom)}v{short(-_SHARE_HEIGHT * s / highest)}h{short(width * 0.92)}"
        f"V{short(bottom)}z"
        for i, s in enumerate(share.tolist())
        if s > 0
    )
    return svg.picture(
        "plot-fold",
        f"Latency folded at a period of {folded.at(1.0)}",
        bottom + 6,
        svg.cells(level, _LEFT, _TOP, _PLOT, height),
        element("rect", x=_LEFT, y=_TOP, width=_PLOT, height=height, class_="frame"),
        element("text", "cycle 1", x=_LEFT - 8, y=_TOP + 11, class_="tick end"),
        element("text", f"{rows * folded.cycles_per_row}", x=_LEFT - 8, y=_TOP + height - 2, class_="tick end"),
        [
            element(
                "text",
                folded.at(quarter / 4),
                x=_LEFT + _PLOT * quarter / 4,
                y=_TOP + height + 15,
                class_=("tick", "tick mid", "tick mid", "tick mid", "tick end")[quarter],
            )
            for quarter in range(5)
        ],
        element("text", "slow, %", x=_LEFT - 8, y=shares_top + 11, class_="label end"),
        element("text", f"{highest:.3g}", x=_LEFT - 8, y=shares_top + 26, class_="tick end"),
        element("path", d=path, class_="bars"),
        element("line", x1=_LEFT, x2=_LEFT + _PLOT, y1=bottom, y2=bottom, class_="axis"),
        svg.cursor(_LEFT, _TOP, bottom - _TOP),
        area=svg.Area(_LEFT, _TOP, _PLOT, height, phases, rows),
    )
