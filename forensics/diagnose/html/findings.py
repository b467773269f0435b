"""The findings as cards: what each would give back, its evidence with the queries, the cure, what would refute it."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from forensics.diagnose.case import Evidence
from forensics.diagnose.diagnosis import Diagnosis
from forensics.diagnose.html import svg
from forensics.diagnose.html.markup import Child, Markup, element
from forensics.diagnose.ranking import CONFIDENT, Ranked
from forensics.diagnose.report_text import clock, explain_command

OPEN_MAX = 5
"""Findings that are shown at once; the weaker ones open at a click."""
NAMES_MAX = 5
HOW_TO_READ = (
    "Gains are by a replay of the logged requests without the cause. Several causes can claim the same time, so gains "
    "do not add up. Confidence is the probability that the finding is right, calibrated on recorded faults."
)


def why(d: Diagnosis, logs: Sequence[Path]) -> Markup:
    """All findings, the best first."""
    cards = [_card(d, ranked, place, logs) for place, ranked in enumerate(d.findings, 1)]
    weaker = cards[OPEN_MAX:]
    if not cards:
        cards = [element("p", f"No cause fits: {d.verdict}.")]
    return element(
        "section",
        element("h2", "Why"),
        cards[:OPEN_MAX],
        element("details", element("summary", f"{len(weaker)} weaker findings"), weaker) if weaker else None,
        element(
            "p", f"{d.unknown_share:.1%} of the tail's time has no name. {HOW_TO_READ}", class_="small"
        ),
        id="why",
    )  # fmt: skip


def _card(d: Diagnosis, ranked: Ranked, place: int, logs: Sequence[Path]) -> Markup:
    f = ranked.finding
    p = svg.percentile(d.quantile)
    return element(
        "article",
        element("h3", element("span", str(place), class_="place"), " ", f.cause.title),
        element("p", f"{f.cause.id} {f.cause.name} · {f.cause.family} · in {d.segment_of(ranked)}", class_="small"),
        element(
            "dl",
            _named(f"{p} without it", f"{svg.ms(d.value_ms - f.delta_ms)} ({-f.delta_ms:+.1f} ms)"),
            _named("the tail, mean", f"{-f.gain.tail_ms:+.1f} ms"),
            _named("explains", f"{ranked.explained:.0%}"),
            _named(
                "confidence", f"{ranked.confidence:.0%} ",
                element("meter", value=ranked.confidence, min=0, max=1, aria_label=f"confidence of finding {place}"),
            ),
            class_="figures",
        ),
        element("p", f.summary, class_="summary"),
        element("ul", [_evidence(e, logs) for e in f.evidence], class_="evidence"),
        element("dl", [_named(term, told) for term, told in _facts(d, ranked, logs)], class_="facts"),
        class_="finding" if ranked.confidence >= CONFIDENT else "finding weak",
    )  # fmt: skip


def _facts(d: Diagnosis, ranked: Ranked, logs: Sequence[Path]) -> Iterator[tuple[str, Child]]:
    f = ranked.finding
    for kind, names in f.culprits.items():
        if shown := d.named(kind, names):
            more = f" and {len(shown) - NAMES_MAX} more" if len(shown) > NAMES_MAX else None
            yield (
                kind,
                [[[" " if i else None, element("code", name)] for i, name in enumerate(shown[:NAMES_MAX])], more],
            )
    if f.started_us:
        yield "acted", f"{clock(f.started_us)} to {clock(f.ended_us)} UTC"
    if f.period_s:
        yield "comes back", f"every {f.period_s:.3g} s"
    yield "cure", _with_code(f.cause.remedy)
    yield "wrong if", _with_code(f.cause.check)
    if examples := [d.exemplars[i] for i in f.exemplars if i in d.exemplars]:
        yield "look at", [_code(explain_command(i, logs)) for i in examples]


def _evidence(e: Evidence, logs: Sequence[Path]) -> Markup:
    numbers = " · ".join(f"{name} {value:,.4g}" for name, value in e.numbers.items())
    query = None
    if e.sql:
        query = element(
            "details", element("summary", "the query"), _code(e.sql), _code(sql_command(e.sql, logs)), class_="query"
        )
    return element(
        "li",
        element("span", "against: " if e.against else "for: ", class_="side"),
        e.says,
        element("span", numbers, class_="numbers") if numbers else None,
        query,
        class_="against" if e.against else "for",
    )


def sql_command(query: str, logs: Sequence[Path]) -> str:
    """The command that asks a query."""
    # Queries are full of single quotes: in double ones they stay legible, where nothing in them means anything there.
    asked = shlex.quote(query) if set(query) & set('"$`\\!') else f'"{query}"'
    return " ".join(["tailrace sql", *(shlex.quote(str(path)) for path in logs), asked])


def _with_code(text: str) -> list[Child]:
    """A text of the catalogue: what stands between backticks is code."""
    return [element("code", part) if i % 2 else part for i, part in enumerate(text.split("`"))]


def _code(text: str) -> Markup:
    """Text that is there to be copied."""
    return element("pre", element("code", text), class_="copy", tabindex=0)


def _named(what: str, *told: Child) -> Markup:
    return element("div", element("dt", what), element("dd", *told))
