"""A diagnosis as text: for the terminal, and as Markdown for a ticket."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from forensics.diagnose.catalogue import FAMILIES
from forensics.diagnose.diagnosis import Diagnosis, Share
from forensics.diagnose.periodicity import told
from forensics.diagnose.ranking import CONFIDENT, Ranked
from forensics.report import visible

SHARES_MAX = 8
FINDINGS_MAX = 5
WHO_MAX = 3
BAR_CHARS = 30


def render(d: Diagnosis, *, markdown: bool = False, logs: Sequence[Path] = ()) -> str:
    """The whole text. `logs`: what to name in the commands that are proposed."""
    return "\n".join(_markdown(d, logs) if markdown else _plain(d, logs)) + "\n"


def headline(d: Diagnosis) -> str:
    """The quantile, the answer, in a sentence."""
    p = f"p{100 * d.quantile:g}"
    best = d.findings[0] if d.findings else None
    if best is not None and best.confidence >= CONFIDENT:
        f = best.finding
        return f"{p} is {d.value_ms:.1f} ms, {f.delta_ms:.1f} ms of it because: {visible(f.cause.title)} ({f.cause.id})"
    return f"{p} is {d.value_ms:.1f} ms (median {d.median_ms:.1f} ms): {visible(d.verdict)}"


def clock(at_us: int) -> str:
    """An instant, UTC, to the tenth of a second."""
    return datetime.fromtimestamp(at_us / 1e6, tz=UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-5]


def facts(d: Diagnosis) -> Iterator[str]:
    """What was looked at, and what stands against what is said about it."""
    yield f"{d.requests:,} answered requests from {clock(d.started_us)} to {clock(d.ended_us)} UTC"
    if d.unanswered:
        told = ", ".join(f"{count:,} {visible(code) or 'without a code'}" for code, count in d.unanswered.items())
        yield f"not answered: {told}"
    for doubt in (*d.refused, *d.doubts):
        yield f"{doubt.severity.value}: {visible(doubt.what)}; cannot say {visible(doubt.cannot)}"


def when_told(d: Diagnosis) -> Iterator[str]:
    """When it became worse, and what happened then."""
    if d.onset is None:
        yield "The level did not change in this time."
        return
    o = d.onset
    half_s = (o.hi_us - o.lo_us) / 2e6
    yield f"worse from {clock(o.at_us)} on (+-{half_s:.1f} s): {o.before_ms:.1f} -> {o.after_ms:.1f} ms"
    if o.first:
        yield f"segments that moved, in this order: {', '.join(o.first)}"
    for happened in o.beside:
        yield f"{(happened.at_us - o.at_us) / 1e6:+.1f} s: {visible(happened.what)}"
    if d.mix is not None:
        yield (
            f"of the change {d.mix.mix_ns / 1e6:+.1f} ms are other requests than before, {d.mix.rate_ns / 1e6:+.1f} "
            "ms the same ones slower"
        )


def who_told(d: Diagnosis) -> Iterator[str]:
    """What slow requests have in common."""
    for c in d.who[:WHO_MAX]:
        terms = " and ".join(f"{visible(t.attribute)} {visible(t.value)}" for t in c.terms)
        yield (
            f"{terms}: {c.risk_ratio:.1f} times as often slow ({c.lo:.1f} to {c.hi:.1f}), {c.excess_share:.0%} of the "
            f"slow milliseconds; holds in {c.strata_held} of {c.strata_tested} strata"
        )
    if not d.who:
        yield "no attribute that the slow requests have in common, beyond size and load"


def kind_told(d: Diagnosis) -> Iterator[str]:
    """What kind of slowness it is, and how often it comes."""
    yield from (rule.says for rule in d.rules)
    if d.period is not None:
        yield told(d.period)


def _plain(d: Diagnosis, logs: Sequence[Path]) -> Iterator[str]:
    yield headline(d)
    yield from (f"  {fact}" for fact in facts(d))
    if d.refused:
        return
    yield ""
    yield "WHERE (what requests at the quantile and at the median consist of; both add up)"
    yield from _bars(d.segments)
    yield ""
    yield "ON WHAT"
    yield from _bars(d.spent)
    yield ""
    yield "WHEN"
    yield from (f"  {line}" for line in when_told(d))
    for title, lines in (("WHO", who_told(d)), ("WHAT KIND", kind_told(d))):
        if shown := list(lines):
            yield ""
            yield title
            yield from (f"  {line}" for line in shown)
    yield ""
    yield "WHY"
    if not d.findings:
        yield f"  {visible(d.verdict)}"
    for place, ranked in enumerate(d.findings[:FINDINGS_MAX], 1):
        yield from _finding(d, ranked, place, logs)
    yield f"  {d.unknown_share:.1%} of the tail's time has no name"


def _bars(shares: Sequence[Share]) -> Iterator[str]:
    top = max((s.at_quantile_ms for s in shares), default=1.0) or 1.0
    for share in shares[:SHARES_MAX]:
        bar = "#" * max(0, round(BAR_CHARS * share.at_quantile_ms / top))
        grown = share.at_quantile_ms - share.at_median_ms
        yield (
            f"  {share.name:<15}{share.at_quantile_ms:10.2f} ms  {share.at_median_ms:9.2f} ms  {grown:+9.2f}  "
            f"{share.kind:<9} |{bar}"
        ).rstrip()


def _finding(d: Diagnosis, ranked: Ranked, place: int, logs: Sequence[Path]) -> Iterator[str]:
    f = ranked.finding
    yield (
        f"  {place}. {f.cause.title} [{f.cause.id}, {FAMILIES[f.cause.id[0]]}]  "
        f"p{100 * d.quantile:g} {-f.delta_ms:+.1f} ms, tail {-f.gain.tail_ms:+.1f} ms, confidence "
        f"{ranked.confidence:.0%}"
    )
    yield f"     {visible(f.summary)}"
    for evidence in f.evidence:
        yield f"     {'but' if evidence.against else ' + '} {visible(evidence.says)}"
    for kind, names in f.culprits.items():
        if shown := d.named(kind, names):
            yield f"     {kind}: {', '.join(visible(name) for name in shown[:3])}"
    if f.started_us:
        yield f"     from {clock(f.started_us)} to {clock(f.ended_us)}"
    yield f"     cure:  {f.cause.remedy}"
    yield f"     wrong if: {f.cause.check}"
    if examples := [d.exemplars[i] for i in f.exemplars if i in d.exemplars]:
        yield f"     look:  {explain_command(examples[0], logs)}"


def _markdown(d: Diagnosis, logs: Sequence[Path]) -> Iterator[str]:
    yield f"## {_escaped(headline(d))}"
    yield ""
    yield from (f"- {_escaped(fact)}" for fact in facts(d))
    if d.refused:
        return
    for title, shares in (("Where", d.segments), ("On what", d.spent)):
        yield ""
        yield f"| {title} | at the quantile, ms | at the median, ms | more, ms |"
        yield "| --- | ---: | ---: | ---: |"
        for s in shares[:SHARES_MAX]:
            more = s.at_quantile_ms - s.at_median_ms
            yield f"| `{s.name}` | {s.at_quantile_ms:.2f} | {s.at_median_ms:.2f} | {more:+.2f} |"
    yield ""
    yield "### When"
    yield ""
    yield from (f"- {_escaped(line)}" for line in when_told(d))
    for title, lines in (("Who", who_told(d)), ("What kind", kind_told(d))):
        if shown := list(lines):
            yield ""
            yield f"### {title}"
            yield ""
            yield from (f"- {_escaped(line)}" for line in shown)
    yield ""
    yield "### Why"
    for place, ranked in enumerate(d.findings[:FINDINGS_MAX], 1):
        f = ranked.finding
        yield ""
        yield (
            f"{place}. **{f.cause.title}** ({f.cause.id}): p{100 * d.quantile:g} {-f.delta_ms:+.1f} ms, tail "
            f"{-f.gain.tail_ms:+.1f} ms, confidence {ranked.confidence:.0%}. "
            f"{_escaped(f.summary)}"
        )
        for evidence in f.evidence:
            yield f"   - {'but: ' if evidence.against else ''}{_escaped(evidence.says)}"
            if evidence.sql:
                yield ""
                yield "     ```sql"
                yield from (f"     {line}" for line in evidence.sql.splitlines())
                yield "     ```"
        for kind, names in f.culprits.items():
            if shown := d.named(kind, names):
                yield f"   - {kind}: {', '.join(f'`{_escaped(name)}`' for name in shown[:3])}"
        yield f"   - Cure: {f.cause.remedy}"
        yield f"   - Wrong if: {f.cause.check}"
        if examples := [d.exemplars[i] for i in f.exemplars if i in d.exemplars]:
            yield f"   - Look: {', '.join(f'`{explain_command(i, logs)}`' for i in examples)}"
    yield ""
    yield f"{d.unknown_share:.1%} of the tail's time has no name."


def explain_command(request_id: str, logs: Sequence[Path]) -> str:
    """The command that shows one request. A client may choose its id, so it is quoted: it will be pasted in a shell."""
    where = f" --log-dir {shlex.quote(str(logs[0]))}" if len(logs) == 1 else ""
    return f"tailrace explain {'-- ' if request_id.startswith('-') else ''}{shlex.quote(request_id)}{where}"


def _escaped(text: str) -> str:
    """Names come from logs, and logs from clients: none of it may be markup."""
    shown = visible(text)
    for char in "\\`*_<>[]|":
        shown = shown.replace(char, "\\" + char)
    return shown
