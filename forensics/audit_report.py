"""The audit for people and machines: what was judged, what breaks the promise, what cannot be told, and one verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from forensics.audit import RECLAIMED, AuditReport, Breach, Finding, Process, Untold
from forensics.report import time_text, visible

SHOWN_MAX = 20
"""So many findings of each kind are listed; --json has them all."""
TOLD: dict[Breach | Untold, str] = {
    Breach.LOST: "no end, though their gateway's log is whole",
    Breach.ENDED_TWICE: "more than one end",
    Breach.DONE_TWICE: "answered by two workers",
    Breach.ATTEMPTS: "attempts that do not increase",
    Untold.GATEWAY_DIED: "their gateway died before it could log an end",
    Untold.LINES_LOST: "their gateway's log has gaps",
    Untold.NO_LOG: "their gateway's log is not here",
}
ENDS = {
    "answered": "answered",
    "refused": "refused (4xx)",
    "failed": "failed (5xx)",
    "left": "left by their clients",
    "by_worker": "ended by a worker, their gateway gone",
    "by_tick": "ended by a tick, their gateway gone",
}


def audit_lines(r: AuditReport) -> Iterator[Text]:
    """The report, line by line."""
    lost = sum(r.load.lost.values())
    yield Text(
        f"{_count(r.load.lines, 'line')} of {_count(len(r.processes), 'process')} in {_count(r.load.files, 'file')}"
    )
    if r.last_us:
        yield Text(f"from {time_text(r.first_us)} to {time_text(r.last_us)}", style="dim")
    yield Text()
    yield _row("requests", r.requests, bold=True)
    for kind, text in ENDS.items():
        if n := r.statuses[kind]:
            yield _row(f"  {text}", n)
    for text, n in (("  still in flight", r.in_flight), ("  end cannot be told", len(r.untold))):
        if n:
            yield _row(text, n)
    yield _row("attempts", r.attempts, bold=True)
    for text, n in (
        ("  of requests that needed more than one", r.retried),
        ("  begun when their request had ended", r.for_nobody),
        ("  again, since Redis had lost the first", r.computed_again),
    ):
        if n:
            yield _row(text, n)
    if any(r.reclaimed.values()):
        yield Text("ticks: " + ", ".join(f"{n:,} {what}" for what, n in r.reclaimed.items() if n))
    yield from _processes(r.processes)
    if r.load.torn or r.load.bad:
        yield Text(f"{_count(r.load.torn, 'torn line')} and {_count(r.load.bad, 'unreadable line')} passed over")
    yield from _findings(r.breaches, "red")
    yield from _findings(r.untold, "yellow")
    yield Text()
    yield _verdict(r, lost)


def _processes(processes: Sequence[Process]) -> Iterator[Text]:
    remarkable = [p for p in processes if p.died or p.lost or p.cut]
    if remarkable:
        yield Text()
    for p in remarkable:
        facts = ["ended without a goodbye"] if p.died else []
        if p.lost:
            dropped = f", {p.dropped:,} of them dropped by a full queue" if p.dropped else ""
            facts.append(f"{_count(p.lost, 'line')} lost{dropped}")
        if p.cut:
            facts.append(f"the first {_count(p.cut, 'line')} rotated away")
        yield Text(f"{visible(p.name)}: {'; '.join(facts)}", style="yellow")


def _findings(findings: Sequence[Finding], style: str) -> Iterator[Text]:
    by_kind: dict[Breach | Untold, list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    for kind, some in by_kind.items():
        yield Text()
        yield Text(f"{_count(len(some), 'request')}: {TOLD[kind]}", style=style)
        for finding in some[:SHOWN_MAX]:
            yield Text(f"  {visible(finding.id)}  {visible(finding.detail)}")
        if len(some) > SHOWN_MAX:
            yield Text(f"  {len(some) - SHOWN_MAX:,} more; --json has them all", style="dim")


def _verdict(r: AuditReport, lost: int) -> Text:
    if not r.ok:
        return Text(f"BROKEN: {_count(len(r.breaches), 'breach', 'breaches')} of the promise", style="bold red")
    judged = r.requests - r.in_flight - len(r.untold)
    text = f"OK: each of {_count(judged, 'request')} ended once"
    if r.untold:
        text += f"; of {len(r.untold):,} the end cannot be told"
    if lost:
        text += f"; {_count(lost, 'line')} of the logs are missing"
    return Text(text, style="bold green")


def _row(text: str, n: int, *, bold: bool = False) -> Text:
    return Text(f"{text:<48} {n:>11,}", style="bold" if bold else "")


def _count(n: int, what: str, many: str = "") -> str:
    plural = many or (f"{what}es" if what.endswith("s") else f"{what}s")
    return f"{n:,} {what if n == 1 else plural}"


def to_json(r: AuditReport) -> dict[str, Any]:
    """The report for machines; times in us of the wall clock."""
    return {
        "ok": r.ok,
        "requests": r.requests,
        "ends": dict(r.statuses),
        "in_flight": r.in_flight,
        "attempts": r.attempts,
        "retried": r.retried,
        "for_nobody": r.for_nobody,
        "computed_again": r.computed_again,
        "reclaimed": {what: r.reclaimed[what] for what in RECLAIMED},
        "breaches": [finding._asdict() for finding in r.breaches],
        "untold": [finding._asdict() for finding in r.untold],
        "processes": [
            {**process._asdict(), "died": process.died} for process in r.processes
        ],
        "first_us": r.first_us,
        "last_us": r.last_us,
        "files": r.load.files,
        "lines": r.load.lines,
        "lines_lost": sum(r.load.lost.values()),
        "torn": r.load.torn,
        "bad": r.load.bad,
    }  # fmt: skip
