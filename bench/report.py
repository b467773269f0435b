"""The results as text, and a line of progress while they come."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.histogram import Histogram
from bench.load import Progress
from bench.results import Results
from bench.tally import Slow, Tally
from shared import clock

HISTOGRAM_ROWS = 12
HISTOGRAM_CHARS = 50
PROGRESS_CHARS = 24
PROGRESS_S = 0.5


def report(r: Results) -> Group:
    """Everything that people want to know of a run, warnings last so that they are seen."""
    parts: list[RenderableType] = [_head(r)]
    if r.tally.ok_count:
        parts += [Text(), _latency_table(r.tally.latency), Text(), *_histogram(r.tally.latency)]
        parts += [Text(), *_ledger(r)]
    if r.is_open and r.tally.late.count:
        late = r.tally.late
        parts += [
            Text(),
            Text(
                f"sent later than intended, ms: p50 {_ms(late.quantile(0.5))}, p99 {_ms(late.quantile(0.99))}, "
                f"max {_ms(late.max_ns)} (counted in the latency); generator {r.generator_cores:.0%} of a core"
            ),
        ]
    if r.tally.errors:
        parts += [Text(), _errors(r)]
    parts += [Text(f"\nwarning: {warning}", style="bold yellow") for warning in r.warnings()]
    return Group(*parts)


def print_report(console: Console, r: Results) -> None:
    """Print without wrapping: a line that is too long for a terminal must still be whole in a pipe."""
    console.print(report(r), soft_wrap=True, highlight=False)


def _head(r: Results) -> Text:
    how = f"open loop, at most {r.connections_most}" if r.is_open else f"closed loop, {r.connections_most}"
    t = r.tally
    lines = [
        f"{r.target}  {', '.join(r.models)}  {'binary' if r.binary else 'JSON'}  {how} connections",
        f"requests {r.request_count}, answered {t.ok_count}, failed {t.failed_count}, in {r.elapsed_s:.2f} s: "
        f"{r.rate_per_s:.1f} answered/s, {t.ok_rows / r.elapsed_s:.1f} rows/s",
    ]
    if t.warm_up_count:
        lines.append(f"before that {t.warm_up_count} to warm up, not counted")
    if r.broken_off:
        lines.append(f"broken off, {r.unfinished_count} requests had not ended and are not counted")
    return Text("\n".join(lines))


def _latency_table(latency: Histogram) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("latency, ms")
    columns = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    for title in ("mean", *columns, "max"):
        table.add_column(title, justify="right")
    quantiles = [_ms(latency.quantile(share)) for share in columns.values()]
    table.add_row("", _ms(latency.mean_ns), *quantiles, _ms(latency.max_ns))
    return table


def edges_ns(low_ns: int, high_ns: int, rows: int) -> list[int]:
    """Where rows of a histogram begin: equal ratios, two significant digits, ascending, the last above `high_ns`."""
    ratio = max(1.02, (high_ns / max(1, low_ns)) ** (1 / rows))
    edges = [_two_digits(low_ns, up=False)]
    value = float(max(1, low_ns))
    while edges[-1] <= high_ns:
        value *= ratio
        edge = _two_digits(math.ceil(value), up=True)
        if edge > edges[-1]:
            edges.append(edge)
    return edges


def _two_digits(value: int, *, up: bool) -> int:
    step = int(10 ** max(0, len(str(value)) - 2))
    return -(-value // step) * step if up else value // step * step


def picture(latency: Histogram, rows: int) -> tuple[list[int], list[int]]:
    """Edges in ns, and how many requests lie between each and the next."""
    edges = edges_ns(latency.min_ns, latency.max_ns, rows)
    below, *counts, above = latency.between(edges)
    # A bucket may begin a hair below the least value that it holds.
    counts[0] += below
    counts[-1] += above
    return edges, counts


def _histogram(latency: Histogram) -> Iterator[Text]:
    edges, counts = picture(latency, HISTOGRAM_ROWS)
    most = max(counts)
    texts = [_plain_ms(edge) for edge in edges]
    width = max(map(len, texts))
    for low, high, count in zip(texts, texts[1:], counts, strict=False):
        bar = "#" * math.ceil(HISTOGRAM_CHARS * count / most)
        yield Text(f"{low:>{width}} - {high:>{width}} ms {count:>9}  {bar}".rstrip())


def _ledger(r: Results) -> Iterator[RenderableType]:
    t = r.tally
    if not r.has_ledger:
        yield Text("the server sent no Server-Timing with queue, compute, transfer and overhead: no ledger to compare")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("where it went, ms")
    for title in ("p50", "p99", "mean", "share"):
        table.add_column(title, justify="right")
    rows = [("sent late", t.late)] if r.is_open else []
    rows += [(f"server: {name}", h) for name, h in t.parts.items() if name != "total"]
    rows += [("network and client", t.outside)]
    total = sum(h.mean_ns for _, h in rows)
    for name, h in [*rows, ("server, in all", t.parts["total"])]:
        share = f"{h.mean_ns / total:.1%}" if total else ""
        table.add_row(name, _ms(h.quantile(0.5)), _ms(h.quantile(0.99)), _ms(h.mean_ns), share)
    yield table
    for slow in t.slowest:
        if slow.id:
            yield Text(f"slow: {_ms(slow.latency_ns)} ms{_most_of(slow)}: tailrace explain {slow.id}")


def _most_of(slow: Slow) -> str:
    """Where most of a slow request's time went."""
    if slow.ledger is None:
        return ""
    parts = {**slow.ledger._asdict(), "outside the server": slow.latency_ns - slow.ledger.total}
    del parts["total"]
    name, ns = max(parts.items(), key=lambda item: item[1])
    return f", of which {name} {_ms(ns)}"


def _errors(r: Results) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("failed", justify="right")
    table.add_column("why")
    table.add_column("the first of them", overflow="fold")
    for kind, error in sorted(r.tally.errors.items(), key=lambda item: -item[1].count):
        table.add_row(str(error.count), kind, Text(error.first))
    return table


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"


def _plain_ms(ns: int) -> str:
    """An edge without the zeros behind its two digits."""
    return f"{ns / 1e6:.6f}".rstrip("0").rstrip(".")


@contextlib.contextmanager
def progress_line(out: TextIO, progress: Progress, tally: Tally) -> Iterator[None]:
    """Show on a terminal how far it is, twice a second, on one line; nothing elsewhere.

    Plain text, since drawing with rich takes milliseconds of the loop that has to be on time.
    """
    if not out.isatty():
        yield
        return
    task = asyncio.create_task(_show(out, progress, tally))
    try:
        yield
    finally:
        task.cancel()
        out.write("\r\x1b[K")
        out.flush()


async def _show(out: TextIO, progress: Progress, tally: Tally) -> None:
    while True:
        out.write(f"\r{line_of(progress, tally, clock.now_ns())}\x1b[K")
        out.flush()
        await asyncio.sleep(PROGRESS_S)


def line_of(progress: Progress, tally: Tally, now_ns: int) -> str:
    """The line of progress at `now_ns`."""
    length_s = (progress.until_ns - progress.from_ns) / 1e9
    done_s = (now_ns - progress.from_ns) / 1e9
    if done_s < 0:
        return "warming up ..."
    filled = int(PROGRESS_CHARS * min(1.0, done_s / length_s))
    bar = "#" * filled + "." * (PROGRESS_CHARS - filled)
    rate_per_s = tally.ok_count / done_s if done_s else 0.0
    text = f"[{bar}] {min(done_s, length_s):.0f} of {length_s:.0f} s, {rate_per_s:.0f} answered/s"
    waiting = progress.taken_count - progress.ended_count
    return text + f", {waiting} on their way" + (f", {tally.failed_count} FAILED" if tally.failed_count else "")
