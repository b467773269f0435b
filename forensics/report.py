"""Explanations and tables for people: in colour on a terminal, plain text in a pipe.

Whatever comes from a log is shown as it is: never read as markup, and its control characters escaped, so that a
label can neither colour the screen nor forge a line.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from forensics.blame import Doing, Piece
from forensics.explain import BatchView, Explanation
from forensics.requests import RequestRow, percentile
from shared.timeline import CLASS_OF, Class, Segment

STYLE_OF = {Class.QUEUE: "yellow", Class.COMPUTE: "green", Class.TRANSFER: "blue", Class.OVERHEAD: "magenta"}

WIDTH_MAX = 120
"""Wider terminals get no wider bars: the eye loses the line."""
UNCERTAINTY_SHOWN_NS = 1_000
CULPRITS_MAX = 8
"""So many lines say what the worker was doing in one wait; the rest is one sum."""
MATES_MAX = 6
SHORT_ID_CHARS = 8
"""The end of an id tells requests apart, and `explain` takes it."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines that fit themselves to the console: its width, and whether it can show more than ASCII."""

    build: Callable[[int, bool], list[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = not console.is_terminal or options.ascii_only
        yield from self.build(min(options.max_width, WIDTH_MAX), plain)


def print_to(console: Console, shown: _Lines) -> None:
    """Print without wrapping or cropping: a line that is too long for a terminal must still be whole in a pipe."""
    console.print(shown, soft_wrap=True)


def visible(text: str) -> str:
    """`text` with everything that is not printable escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def exact_ms(ns: int) -> str:
    """Nanoseconds as milliseconds with all their digits, so that what is shown adds up."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1_000_000}.{abs(ns) % 1_000_000:06d}"


def render_explanation(e: Explanation) -> _Lines:
    """The waterfall of one request, its batch, its attempts, and what is not known."""
    return _Lines(lambda width, plain: _explanation_lines(e, width, plain))


def _explanation_lines(e: Explanation, width: int, plain: bool) -> list[Text]:
    lines = [*_head(e), Text(), *_waterfall(e, width, plain), Text(), *_class_lines(e)]
    if e.batch is not None:
        lines += [Text(), *_batch_lines(e.batch)]
    if e.own_pass:
        lines.append(Text(f"  {_own_pass(e.own_pass)}"))
    if len(e.attempt_list) > 1 or any(a.error_code for a in e.attempt_list):
        lines.append(Text())
    for a in e.attempt_list if len(e.attempt_list) > 1 or any(a.error_code for a in e.attempt_list) else ():
        where = f" on {visible(a.worker)}" if a.worker else ""
        error = f": {visible(a.error_code)} {visible(a.error)}" if a.error_code else ""
        lines.append(Text(f"attempt {a.attempt}{where}: {visible(a.outcome)}{error}"))
    if e.notes:
        lines += [Text(), *(Text(f"note: {visible(note)}", style="dim") for note in e.notes)]
    return lines


def _head(e: Explanation) -> list[Text]:
    first = Text("request ").append(visible(e.id), style="bold")
    for name, value in (("label", e.label), ("body id", e.client_id)):
        if value:
            first.append(f"  {name} {visible(value)}")
    status = "status unknown" if e.status is None else f"status {e.status}"
    second = Text(status, style="red" if e.status is None or e.status >= 400 else "green")
    if e.error_code:
        second.append(f" {visible(e.error_code)}: {visible(e.error)}")
    about = [
        time_text(e.started_us),
        *([f"model {visible(e.model)}/{visible(e.version)}"] if e.model else []),
        *([f"worker {visible(e.worker)}"] if e.worker else []),
    ]
    via = [Text(f"gateway {visible(e.gateway)}", style="dim")] if e.gateway else []
    trace = [Text(f"trace {visible(e.trace_id)}", style="dim")] if e.trace_id else []
    return [first, second, Text("  ".join(about)), *via, *trace]


def time_text(at_us: int) -> str:
    """An instant of the wall clock, UTC, to the millisecond."""
    # From parts: a float of microseconds since 1970 would be off in the last digit.
    at = datetime.fromtimestamp(at_us // 1_000_000, tz=UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_us % 1_000_000 // 1_000:03d}Z"


def _waterfall(e: Explanation, width: int, plain: bool) -> list[Text]:
    bar_width = max(10, width - 48)
    lines = [Text(f"{'segment':<12} {'ms':>13} {'':<9} {'class':<8} |", style="bold")]
    at_ns = 0
    for s in e.segments:
        style = STYLE_OF[s.kind]
        line = Text(f"{s.name:<12} {exact_ms(s.ns):>13} {_uncertainty(s, plain):<9} ")
        line.append(f"{s.kind.value:<8}", style=style).append(" |")
        line.append(_bar(at_ns, s.ns, e.e2e_ns, bar_width, "#" if plain else "█").rstrip(), style=style)
        lines.append(line)
        lines += [_culprit_line(pieces) for pieces in _culprits(e, s.name)[:CULPRITS_MAX]]
        if rest := _culprits(e, s.name)[CULPRITS_MAX:]:
            rest_ns = sum(p.ns for pieces in rest for p in pieces)
            lines.append(Text(f"{'':<12} {exact_ms(rest_ns):>13} {len(rest)} more; --json has them all", style="dim"))
        at_ns += s.ns
    what = "the known part" if e.partial else "e2e"
    sum_ns = sum(s.ns for s in e.segments)
    verdict = f"= {what}, exactly" if sum_ns == e.e2e_ns else f"but {what} is {exact_ms(e.e2e_ns)}"
    return [*lines, Text(f"{'sum':<12} {exact_ms(sum_ns):>13} {verdict}", style="bold")]


def _uncertainty(s: Segment, plain: bool) -> str:
    if s.uncertainty_ns <= UNCERTAINTY_SHOWN_NS:
        return ""
    return f"{'+-' if plain else '±'}{s.uncertainty_ns / 1e6:.3f}"


def _bar(at_ns: int, ns: int, total_ns: int, width: int, mark: str) -> str:
    """A bar on the time axis: at least one mark long, so that a short segment can still be seen."""
    if total_ns <= 0:
        return ""
    first = min(max(0, min(at_ns, at_ns + ns)) * width // total_ns, width - 1)
    last = min(max(first + 1, -(-max(at_ns, at_ns + ns) * width // total_ns)), width)
    return " " * first + mark * (last - first)


def _culprits(e: Explanation, segment: str) -> list[list[Piece]]:
    """The pieces of one wait by what they were spent on, in the order of their beginning."""
    found: dict[object, list[Piece]] = {}
    for piece in e.waited_behind:
        if piece.segment == segment:
            key = id(piece.span) if piece.span is not None and piece.doing is not Doing.UNKNOWN else piece.doing
            found.setdefault(key, []).append(piece)
    return list(found.values())


def _culprit_line(pieces: Sequence[Piece]) -> Text:
    ns = sum(p.ns for p in pieces)
    return Text(f"{'':<12} {exact_ms(ns):>13} {_what(pieces[0])}", style="dim")


def _what(piece: Piece) -> str:
    if (b := piece.batch) is not None:
        tokens = f", {b.tokens_padded} tokens" if b.tokens_padded else ""
        count = f"{b.requests} request{'s' if b.requests != 1 else ''}"
        return f"ran batch {visible(b.batch_id)}: {count} of {visible(b.model)}/{visible(b.version)}{tokens}"
    attrs = piece.span.attrs if piece.span is not None else {}
    detail = visible(", ".join(f"{key}={value}" for key, value in attrs.items()))
    told = {
        Doing.MODEL_LOAD: "worker loaded a model",
        Doing.WARM_UP: "worker warmed up a model",
        Doing.GC: "worker collected garbage",
        Doing.RECONNECT: "worker had lost Redis and reconnected",
        Doing.LOOP_LAG: "worker's event loop was held up",
        Doing.ABSENT: "worker was not running yet",
        Doing.UNKNOWN: "unknown: the worker's log does not cover it",
        Doing.GATHERING: "the device was free: the batch was being gathered",
        Doing.FETCHING: "the device was free: the worker was fetching",
    }
    return told.get(piece.doing, piece.doing.value) + (f" ({detail})" if detail else "")


def _class_lines(e: Explanation) -> list[Text]:
    lines = []
    for kind, ns in e.classes.items():
        share = 100 * ns / e.e2e_ns if e.e2e_ns else 0.0
        lines.append(Text(f"{kind.value:<12} {exact_ms(ns):>13} {share:8.1f} %", style=STYLE_OF[kind]))
    return lines


_PASS_WORDS = {
    "own_compute": "alone",
    "batch_mates": "for batch-mates",
    "padding": "padding",
    "gc": "collecting garbage",
    "compile": "compiling graphs",
    "cold": "cold: something was done for the first time",
    "cpu_wait": "waiting for a core",
    "page_faults": "reading pages from disk",
    "slow_compute": "computing more than such a pass does",
    "blocked": "standing still",
}


def _own_pass(split: Mapping[str, int]) -> str:
    """What its pass was spent on; the parts add up to collate, forward and post."""
    told = ", ".join(f"{exact_ms(ns)} {_PASS_WORDS[name]}" for name, ns in split.items() if ns)
    return f"its pass, ms: {told}"


def _batch_lines(batch: BatchView) -> list[Text]:
    facts = [f"batch {visible(batch.batch_id)}"]
    if batch.requests:
        facts.append(f"{batch.requests} request{'s' if batch.requests != 1 else ''}")
    if batch.rows:
        rows_max = f" of at most {batch.record.rows_max}" if batch.record is not None else ""
        facts.append(f"{batch.rows} row{'s' if batch.rows != 1 else ''}{rows_max}")
    if batch.close_reason:
        facts.append(f"closed: {visible(batch.close_reason)}")
    lines = [Text(", ".join(facts))]
    if batch.padding_ratio is not None:
        text = (
            f"  {batch.tokens_useful} of {batch.tokens_padded} tokens useful, {100 * batch.padding_ratio:.1f} % padding"
        )
        lines.append(Text(text))
    if (b := batch.record) is not None:
        if b.h2d or b.compute or b.d2h:
            times = f"copy in {exact_ms(b.h2d)}, compute {exact_ms(b.compute)}, copy out {exact_ms(b.d2h)}"
            lines.append(Text(f"  on the device, ms: {times}"))
        if batch.mates:
            shown = ", ".join(visible(m[-SHORT_ID_CHARS:]) for m in batch.mates[:MATES_MAX])
            more = f" and {len(batch.mates) - MATES_MAX} more" if len(batch.mates) > MATES_MAX else ""
            lines.append(Text(f"  with {shown}{more}"))
    return lines


def render_requests(rows: Sequence[RequestRow]) -> _Lines:
    """A table of requests, one a line, ids shortened to their ends."""
    return _Lines(lambda width, plain: _request_lines(rows, width, plain))


def _request_lines(rows: Sequence[RequestRow], width: int, plain: bool) -> list[Text]:
    head = (
        f"{'time UTC':<8} {'id (end)':<{SHORT_ID_CHARS}} {'st.':<3} {'e2e ms':>7} {'queue':>7} {'compute':>7} "
        f"{'transf':>6} {'overhd':>6} {'bat':>3} {'try':>3} model, label"
    )
    lines = [Text(head, style="bold")]
    for row in rows:
        line = Text(f"{time_text(row.started_us)[11:19]} ").append(
            f"{visible(row.id[-SHORT_ID_CHARS:]):<{SHORT_ID_CHARS}} "
        )
        line.append(f"{row.status:<3} ", style="red" if row.status >= 400 else "green")
        line.append(f"{_short_ms(row.e2e_ns):>7} ", style="bold")
        for kind, columns in ((Class.QUEUE, 7), (Class.COMPUTE, 7), (Class.TRANSFER, 6), (Class.OVERHEAD, 6)):
            line.append(f"{_short_ms(row.classes[kind]):>{columns}} ", style=STYLE_OF[kind])
        line.append(f"{row.batch_requests or '-':>3} {row.attempt or '-':>3} ")
        line.append(visible(f"{row.model}/{row.version}" if row.model else row.error_code or "-"))
        if row.label:
            line.append(f" {visible(row.label)}", style="dim")
        if not plain:
            line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _short_ms(ns: int) -> str:
    ms = ns / 1e6
    return f"{ms:.0f}" if abs(ms) >= 10_000 else f"{ms:.1f}" if abs(ms) >= 100 else f"{ms:.2f}"


def segment_table(reqs: Sequence[RequestRow]) -> _Lines:
    """Each segment over many requests: p50, p99, mean, and its share of all the time spent."""
    return _Lines(lambda width, plain: _segment_lines(reqs))


def _segment_lines(reqs: Sequence[RequestRow]) -> list[Text]:
    count = len(reqs)
    if not count:
        return [Text("no requests")]
    ns_of: dict[str, list[int]] = {}
    for row in reqs:
        for s in row.segments:
            ns_of.setdefault(s.name, []).append(s.ns)
    total_ns = sum(row.e2e_ns for row in reqs)
    lines = [
        Text(f"{'segment':<12} {'class':<8} {'p50 ms':>11} {'p99 ms':>11} {'mean ms':>11} {'share':>8}", style="bold")
    ]

    def columns(values: Sequence[int]) -> str:
        share = 100 * sum(values) / total_ns if total_ns else 0.0
        p50, p99 = percentile(values, 0.5) / 1e6, percentile(values, 0.99) / 1e6
        return f"{p50:11.3f} {p99:11.3f} {sum(values) / count / 1e6:11.3f} {share:6.1f} %"

    for name, kind in CLASS_OF.items():
        if name in ns_of:
            # A request that did not pass through a segment spent nothing in it.
            values = ns_of[name] + [0] * (count - len(ns_of[name]))
            lines.append(Text(f"{name:<12} ").append(f"{kind.value:<8} ", style=STYLE_OF[kind]).append(columns(values)))
    lines.append(Text(f"{'e2e':<12} {'':<8} {columns([row.e2e_ns for row in reqs])}", style="bold"))
    lines.append(Text(f"{count} requests. Means and shares add up; p99s do not: each is of another request."))
    return lines
