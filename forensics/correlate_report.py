"""Outcomes against latency for people and machines: tables, and sentences that do not claim a cause."""

from collections.abc import Iterator, Sequence
from typing import Any

from forensics.compare_report import ms
from forensics.correlate import P_MAX, Adjusted, Band, Response
from forensics.outcomes import Joined, Outcomes
from forensics.report import visible

MANY_OUTCOMES = 5
LEFT_OUT_MAX = 5
NOT_A_CAUSE = (
    "This is an association. Who asks and why is not in the logs, so it does not show what would change if requests "
    "were faster; only an experiment does."
)


def lines(o: Outcomes, j: Joined, found: Sequence[Response], too_few: Sequence[str] = ()) -> Iterator[str]:
    """The report, line by line."""
    yield from matching_lines(o, j)
    for r in found:
        yield ""
        yield from _table(r)
        yield from conclusion(r)
    yield ""
    yield from (f"{text}." for text in too_few)
    if len(found) >= MANY_OUTCOMES:
        yield f"Of {len(found)} outcomes, one in twenty shows a trend by chance alone."
    yield NOT_A_CAUSE


def matching_lines(o: Outcomes, j: Joined) -> Iterator[str]:
    """How many outcomes found their requests, and what was left over on either side."""
    ways = ", ".join(f"{n:,} by {_WAYS[way]}" for way, n in j.by.items())
    yield f"{len(j.row):,} outcomes have their request" + (f" ({ways})" if ways else "")
    for n, text in (
        (j.outcomes_unmatched, "outcomes name no request in these logs"),
        (j.requests_unmatched, "requests in these logs have no outcome"),
        (j.outcomes_of_several, "outcomes name several requests (--several says which one counts)"),
        (j.outcomes_of_failed, "outcomes are of requests that failed or whose client left: left out (--with-failed)"),
        (o.without_key, f"rows have nothing in the column {visible(o.key_column)!r}"),
        (o.repeated, "rows were replaced by a later row of the same name"),
    ):
        if n:
            yield f"  {n:,} {text}"
    for name, value in list(o.left_out.items())[:LEFT_OUT_MAX]:
        yield f"  column {visible(name)!r} is no outcome: neither boolean nor number ({visible(value[:40])!r})"
    if j.outcomes_unmatched > len(j.row):
        yield "  WARNING  most outcomes found no request: those that did may not be like the others"


_WAYS = {"id": "request id", "label": "x-request-id", "client_id": "id in the body"}


def _table(r: Response) -> Iterator[str]:
    kind = "share" if r.boolean else "mean"
    missing = f", {r.missing:,} without it" if r.missing else ""
    yield f"{visible(r.outcome)}: {kind} {_level(r, r.mean)} over {r.requests:,} requests{missing}"
    yield f"  {'latency, ms':>19} {'requests':>9} {kind:>10}  95 % interval"
    yield from (_band_line(r, b) for b in r.bands)
    if (a := r.adjusted) is None:
        return
    if a.strata == 1:
        yield "  all of them are of one size and hour: there is nothing to adjust for"
        return
    yield (
        f"  adjusted for size and hour: {a.strata_used} of {a.strata} strata hold every band, with {a.covered:.0%} of "
        "the requests"
    )
    if a.relative:
        yield "  Size and hour decide latency here: bands are of a request's latency against the median of its like"
    yield from (_band_line(r, b, relative=a.relative) for b in a.bands)


def _band_line(r: Response, b: Band, *, relative: bool = False) -> str:
    interval = f"{_level(r, b.lo)} .. {_level(r, b.hi)}"
    latency = f"about {b.median:.2f} x median" if relative else f"{ms(b.low):>8} - {ms(b.high):>8}"
    return f"  {latency:>19} {b.requests:>9,} {_level(r, b.mean):>10}  {interval}"


def conclusion(r: Response) -> Iterator[str]:
    """What may be said of it, in sentences that do not claim a cause."""
    name = visible(r.outcome)
    fall = "lower" if r.trend.z < 0 else "higher"
    if r.adjusted is None:
        yield (
            f"{name} cannot be adjusted for size and hour: slow and fast requests hardly meet in the same sizes and "
            "hours, so latency cannot be told apart from them."
        )
        if r.trend.p < P_MAX:
            yield f"Without adjusting, {name} is {fall} where requests took longer (trend {p_text(r.trend.p)})."
        return
    a = r.adjusted
    fast, slow = a.bands[0], a.bands[-1]
    like = " than others of their size and hour" if a.relative else ""
    limits = f"difference {_amount(r, a.difference)}, 95 % interval {_amount(r, a.lo)} to {_amount(r, a.hi)}"
    if a.trend.p < P_MAX:
        way = "lower" if a.trend.z < 0 else "higher"
        yield (
            f"After adjusting for size and hour, {name} is {way} where requests took longer{like}: "
            f"{_level(r, fast.mean)} in the fastest band, {_level(r, slow.mean)} in the slowest ({limits}; trend "
            f"{p_text(a.trend.p)}). {_strata_text(a)}"
        )
    elif r.trend.p < P_MAX:
        yield (
            f"{name} is {fall} where requests took longer (trend {p_text(r.trend.p)}), but after adjusting for size "
            f"and hour no such trend is shown ({p_text(a.trend.p)}; {limits}): size or hour go with both."
        )
    else:
        yield f"No association of {name} with latency is shown, after adjusting for size and hour ({limits})."


def _strata_text(a: Adjusted) -> str:
    if not a.directed:
        return "No stratum is large enough to look at alone."
    return f"{a.same_way} of the {a.directed} strata that are large enough to look at alone point the same way."


def p_text(p: float) -> str:
    """A p in words: "p = 0.03"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _amount(r: Response, value: float) -> str:
    return f"{100 * value:+.2f} points" if r.boolean else _plain(value, "+")


def _level(r: Response, value: float) -> str:
    return f"{value:.2%}" if r.boolean else _plain(value)


def to_json(o: Outcomes, j: Joined, found: Sequence[Response], too_few: Sequence[str] = ()) -> dict[str, Any]:
    """Everything as a value ready for JSON; times in ns."""
    return {
        "matching": {
            "matched": len(j.row),
            "matched_by": dict(j.by),
            "outcomes_unmatched": j.outcomes_unmatched,
            "requests_unmatched": j.requests_unmatched,
            "outcomes_of_several_requests": j.outcomes_of_several,
            "outcomes_of_failed_requests": j.outcomes_of_failed,
            "rows_without_key": o.without_key,
            "rows_replaced": o.repeated,
            "columns_left_out": sorted(o.left_out),
        },
        "outcomes": [_response_json(r) for r in found],
        "too_few": list(too_few),
        "note": NOT_A_CAUSE,
    }


def _plain(value: float, sign: str = "") -> str:
    """A number with as many digits as mean something, the same for all of about its size."""
    return f"{value:{sign},.0f}" if abs(value) >= 1_000 else f"{value:{sign}.{2 if abs(value) >= 1 else 4}f}"


def _response_json(r: Response) -> dict[str, Any]:
    a = r.adjusted
    return {
        "outcome": r.outcome,
        "kind": "boolean" if r.boolean else "number",
        "requests": r.requests,
        "missing": r.missing,
        "mean": r.mean,
        "bands": [_band_json(b) for b in r.bands],
        "trend": {"z": r.trend.z, "p": r.trend.p},
        "adjusted": None
        if a is None
        else {
            "relative": a.relative,
            "bands": [_band_json(b, relative=a.relative) for b in a.bands],
            "strata": a.strata,
            "strata_used": a.strata_used,
            "covered": a.covered,
            "difference": a.difference,
            "lo": a.lo,
            "hi": a.hi,
            "trend": {"z": a.trend.z, "p": a.trend.p},
            "strata_directed": a.directed,
            "strata_same_way": a.same_way,
        },
        "conclusion": list(conclusion(r)),
    }


def _band_json(b: Band, *, relative: bool = False) -> dict[str, Any]:
    unit = "of_median" if relative else "ns"
    latency = {f"low_{unit}": b.low, f"median_{unit}": b.median, f"high_{unit}": b.high}
    return {**latency, "requests": b.requests, "mean": b.mean, "lo": b.lo, "hi": b.hi}
