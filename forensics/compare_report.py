"""A comparison for people and for machines."""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from forensics.compare import Comparison, Measure
from forensics.fail_if import Judged
from forensics.report import visible
from forensics.run_figures import Run, quantile_name

PART_SHARE_MIN = 0.005
PARTS_MAX = 8
"""Segments whose part changed by less than this share of the quantile, or beyond this count, are summed up."""
KINDS_MAX = 3
MIX_SHARE_MIN = 0.1
"""What grew and shrank in the mix is told if the mix has this share in the difference."""
FACTS_MAX = 10
WARNINGS_MAX = 12


def lines(c: Comparison, judged: Sequence[Judged] = ()) -> Iterator[str]:
    """The report, line by line."""
    yield from _sides(c)
    yield ""
    yield from _measures(c)
    yield ""
    yield from _where(c)
    yield ""
    yield from _mix(c)
    if c.differing:
        yield ""
        yield "what else differs   A -> B"
        shown = list(c.differing.items())[:FACTS_MAX]
        yield from (f"  {visible(fact)}: {visible(a)} -> {visible(b)}" for fact, (a, b) in shown)
        if len(c.differing) > FACTS_MAX:
            yield f"  and {len(c.differing) - FACTS_MAX} more; --json has them all"
    for warning in c.warnings[:WARNINGS_MAX]:
        yield ""
        yield f"WARNING  {visible(warning)}."
    if len(c.warnings) > WARNINGS_MAX:
        yield f"({len(c.warnings) - WARNINGS_MAX} more warnings; --json has them all)"
    yield ""
    yield verdict(c, c.measure(quantile_name(c.quantile)))
    for one in judged:
        yield judgement(one, c)


def _sides(c: Comparison) -> Iterator[str]:
    what = "slice" if c.sliced else "run"
    for side, name, runs in (("A", c.a_name, c.a), ("B", c.b_name, c.b)):
        count = sum(len(r.e2e_ns) for r in runs)
        seconds = median(r.took_s for r in runs)
        yield (
            f"{side}  {visible(name)}: {len(runs)} {what}{'s' if len(runs) != 1 else ''} of {seconds:.4g} s, "
            f"{count:,} requests answered"
        )


def _measures(c: Comparison) -> Iterator[str]:
    interval = f"{per_cent(c)} interval"
    yield f"{'median of runs':<16} {'A':>12} {'B':>12}  {'B against A':>13}  {interval:>20} {'p':>8}"
    for m in c.measures:
        a, b = (_value(m.name, median(side)) for side in (m.a, m.b))
        yield f"{m.name:<16} {a:>12} {b:>12}  {_change(m, m.change):>13}  {_interval(m):>20} {_p(m.shift.p):>8}"


def per_cent(c: Comparison) -> str:
    """The confidence in words: "95 %"."""
    return f"{100 * c.confidence:.4g} %"


def _value(name: str, value: float) -> str:
    if name == "errors":
        return f"{value:.3%}"
    return f"{value:,.1f} /s" if name == "throughput" else f"{ms(value)} ms"


def ms(ns: float, sign: str = "") -> str:
    """Nanoseconds as milliseconds with three digits or more that mean something; with `sign` "+", always signed."""
    value = ns / 1e6
    digits = 0 if abs(value) >= 1_000 else 1 if abs(value) >= 100 else 2
    return f"{value:{sign},.{digits}f}"


def _change(m: Measure, value: float) -> str:
    return f"{100 * value:+.1f} %" if m.relative else f"{100 * value:+.3f} points"


def _interval(m: Measure) -> str:
    if not m.shift.bounded:
        return "too few runs"
    lo, hi = m.limits
    digits = 1 if m.relative else 3
    return f"{100 * lo:+.{digits}f} .. {100 * hi:+.{digits}f}{' %' if m.relative else ''}"


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 0.001 else "< 0.001"


def _where(c: Comparison) -> Iterator[str]:
    """The parts that changed, the largest change first, and all others as one line: they add up."""
    yield f"where {quantile_name(c.quantile)} is spent, ms (mean of runs; * = beyond the noise between runs)"
    yield f"  {'segment':<14} {'A':>10} {'B':>10} {'B - A':>10}"
    least_ns = PART_SHARE_MIN * sum(p.a_ns for p in c.parts)
    by_change = sorted(c.parts, key=lambda p: -abs(p.b_ns - p.a_ns))
    shown = [p for p in by_change if abs(p.b_ns - p.a_ns) >= least_ns][:PARTS_MAX]
    for p in shown:
        star = " *" if p.shift.shown else ""
        yield f"  {p.segment:<14} {p.a_ns / 1e6:10.3f} {p.b_ns / 1e6:10.3f} {(p.b_ns - p.a_ns) / 1e6:+10.3f}{star}"
    rest = [p for p in c.parts if p not in shown]
    if rest:
        a, b = sum(p.a_ns for p in rest), sum(p.b_ns for p in rest)
        yield f"  {'all others':<14} {a / 1e6:10.3f} {b / 1e6:10.3f} {(b - a) / 1e6:+10.3f}"
    a, b = sum(p.a_ns for p in c.parts), sum(p.b_ns for p in c.parts)
    yield f"  {'sum':<14} {a / 1e6:10.3f} {b / 1e6:10.3f} {(b - a) / 1e6:+10.3f}"


def _mix(c: Comparison) -> Iterator[str]:
    m, name = c.mix, quantile_name(c.quantile)
    yield (
        f"traffic or system? {name} of all requests {ms(m.a_ns)} -> {ms(m.b_ns)} ms: {ms(m.mix_ns, '+')} ms since B "
        f"was asked for other sizes or models, {ms(m.rate_ns, '+')} ms since the same took another time"
    )
    if m.unseen_share > 0.001:
        yield f"  {m.unseen_share:.1%} of B's requests are of kinds that A never had"
    if abs(m.mix_ns) < MIX_SHARE_MIN * abs(m.b_ns - m.a_ns):
        return
    for kind in [k for k in m.kinds if abs(k.b_share - k.a_share) > 0.01][:KINDS_MAX]:
        yield f"  {visible(kind.name)}: {kind.a_share:.1%} of A's requests, {kind.b_share:.1%} of B's"


def verdict(c: Comparison, m: Measure) -> str:
    """One sentence on a quantile."""
    if not m.shift.bounded:
        return f"{m.name}: nothing can be shown; there are too few runs."
    lo, hi = m.limits
    interval = f"{per_cent(c)} interval {100 * lo:+.1f} to {100 * hi:+.1f} %"
    if m.shift.shown:
        word = "higher" if m.change > 0 else "lower"
        return f"{m.name} is {abs(100 * m.change):.1f} % {word} in B ({interval})."
    most = max(abs(lo), abs(hi))
    return f"{m.name}: no difference is shown ({interval}); one of more than {100 * most:.1f} % is ruled out."


def judgement(j: Judged, c: Comparison) -> str:
    """What became of one condition."""
    show = _shown_as(j)
    alone = " of B" if j.condition.absolute else ""
    limits = f"{per_cent(c)} limits {show(j.lo)} to {show(j.hi)}" if j.decidable else "no limits: too few runs"
    told = f"{j.condition.measure}{alone} {show(j.value)}, {limits}"
    word = "FAIL" if j.breached else "pass" if j.decidable else "????"
    return f"{word}  {j.condition.text}: {told}"


def _shown_as(j: Judged) -> Any:
    if not j.condition.absolute:
        return lambda value: f"{100 * value:+.1f} %"
    return (lambda value: f"{value:.3%}") if j.condition.measure == "errors" else (lambda value: f"{ms(value)} ms")


def to_json(c: Comparison, judged: Sequence[Judged] = ()) -> dict[str, Any]:
    """The comparison as a value ready for JSON; times in ns, shares and changes as fractions, null for no limit."""
    return {
        "a": _side_json(c.a_name, c.a),
        "b": _side_json(c.b_name, c.b),
        "sliced": c.sliced,
        "confidence": c.confidence,
        "quantile": c.quantile,
        "measures": [
            {
                "name": m.name,
                "unit": {"errors": "share", "throughput": "per_s"}.get(m.name, "ns"),
                "a": median(m.a),
                "b": median(m.b),
                "change": m.change,
                "relative": m.relative,
                "lo": _finite(m.limits[0]) if m.shift.bounded else None,
                "hi": _finite(m.limits[1]) if m.shift.bounded else None,
                "p": m.shift.p,
                "shown": m.shift.shown,
                "a_runs": list(m.a),
                "b_runs": list(m.b),
            }
            for m in c.measures
        ],
        "where": [
            {
                "segment": p.segment,
                "a_ns": p.a_ns,
                "b_ns": p.b_ns,
                "change_ns": p.b_ns - p.a_ns,
                "lo_ns": _finite(p.shift.lo),
                "hi_ns": _finite(p.shift.hi),
                "shown": p.shift.shown,
            }
            for p in c.parts
        ],
        "mix": {
            "a_ns": c.mix.a_ns,
            "b_ns": c.mix.b_ns,
            "mix_ns": c.mix.mix_ns,
            "rate_ns": c.mix.rate_ns,
            "unseen_share": c.mix.unseen_share,
            "kinds": [{"kind": k.name, "a_share": k.a_share, "b_share": k.b_share} for k in c.mix.kinds],
        },
        "differing": {fact: {"a": a, "b": b} for fact, (a, b) in c.differing.items()},
        "warnings": list(c.warnings),
        "conditions": [
            {
                "condition": j.condition.text,
                "value": j.value,
                "lo": _finite(j.lo),
                "hi": _finite(j.hi),
                "limit": j.condition.limit,
                "breached": j.breached,
            }
            for j in judged
        ],
    }


def _side_json(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "name": name,
        "runs": [
            {
                "name": r.name,
                "first_us": r.first_us,
                "last_us": r.last_us,
                "requests": r.requests,
                "answered": len(r.e2e_ns),
                "errors": r.errors,
                "left": r.left,
                "steal": r.steal,
                "runq": r.runq,
            }
            for r in runs
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
