"""What the figures say, in text and JSON, and when they blame the generator."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from bench.connections import Exchange, Failure, FailureKind
from bench.load import Progress
from bench.report import line_of, print_report
from bench.responses import Response
from bench.results import Results
from bench.tally import Tally
from shared.timeline import Class

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nx-tailrace-request-id: id-%d\r\nServer-Timing: queue;dur=4, compute;dur=2, transfer;dur=1, "
LEDGER = HEAD + b"overhead;dur=1, total;dur=8"


def answered(
    tally: Tally, count: int, *, late_ms: float = 0.0, connecting_ms: float = 0.0, head: bytes = LEDGER
) -> None:
    """So many requests whose answers took 10, 20, 30 ... ms from when they were due."""
    for i in range(1, count + 1):
        sent_ns = round(late_ms * MS)
        x = Exchange(0, b"abc", 2, taken_ns=sent_ns - round(connecting_ms * MS), sent_ns=sent_ns, done_ns=i * 10 * MS)
        x.outcome = Response(200, head % i if b"%d" in head else head, b"{}", True)
        tally.add(x)


def failed(tally: Tally, outcome: Response | Failure) -> None:
    tally.add(Exchange(0, b"abc", 1, taken_ns=1, sent_ns=1, done_ns=2, outcome=outcome))


def results(tally: Tally, **more: Any) -> Results:
    told: dict[str, Any] = {
        "server": {"name": "fake", "version": "1"},
        "target": "http://h",
        "models": ("m",),
        "binary": False,
        "connections_max": 8,
        "connections_most": 4,
        "is_open": True,
        "tally": tally,
        "elapsed_s": 2.0,
        "unfinished_count": 0,
        "broken_off": False,
        "generator_cores": 0.2,
    }
    return Results(**(told | more))


def text_of(r: Results) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=200), r)
    return out.getvalue()


def test_the_report_has_every_figure() -> None:
    """Counts, rates, quantiles, the histogram, the ledger and what lies outside of it, the slowest, the errors."""
    tally = Tally()
    answered(tally, 100)
    failed(tally, Response(429, b"HTTP/1.1 429 X", b'{"error": "full, [bold]really[/bold]"}', True))
    failed(tally, Failure(FailureKind.LOST, "gone\x1b[2J"))
    text = text_of(results(tally))
    assert "requests 102, answered 100, failed 2, in 2.00 s: 50.0 answered/s, 100.0 rows/s" in text
    rows = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert [float(word) for word in text.split("max\n")[1].split()[:6]] == pytest.approx(
        [505, 500, 900, 990, 1000, 1000], rel=0.001
    )
    assert rows["server: queue"][2:] == ["4.000", "4.000", "4.000", "0.8%"]
    assert rows["server, in all"][3:] == ["8.000", "8.000", "8.000", "1.6%"]
    assert rows["network and client"][-1] == "98.4%"
    assert "slow: 1000.000 ms, of which outside the server 992.000: tailrace explain id-100" in text
    assert "429" in text
    assert "full, [bold]really[/bold]" in text
    assert "gone\\x1b[2J" in text
    assert sum(int(line.split(" ms ")[1].split()[0]) for line in text.splitlines() if "  ##" in line) == 100


def test_the_means_of_the_parts_sum_to_the_mean_latency() -> None:
    """Lateness, the server's four and the rest: nothing is counted twice, nothing is lost."""
    tally = Tally()
    answered(tally, 50, late_ms=1)
    parts = [h.mean_ns for name, h in tally.parts.items() if name != "total"]
    assert set(tally.parts) == {*(kind.value for kind in Class), "total"}
    assert tally.late.mean_ns + sum(parts) + tally.outside.mean_ns == pytest.approx(tally.latency.mean_ns)


def test_without_a_ledger_the_report_says_so() -> None:
    """Other servers keep none; everything else is there all the same."""
    tally = Tally()
    answered(tally, 3, head=b"HTTP/1.1 200 OK")
    r = results(tally)
    assert "the server sent no Server-Timing" in text_of(r)
    assert r.to_json()["ledger_ns"] is None


def test_the_json_has_all_figures() -> None:
    """Ready to be written and compared; the buckets hold every request."""
    tally = Tally()
    answered(tally, 10)
    figures = json.loads(json.dumps(results(tally).to_json()))
    assert (figures["requests"], figures["ok"], figures["failed"], figures["per_s"]) == (10, 10, 0, 5.0)
    assert sum(count for _, _, count in figures["latency_ns"]["buckets"]) == 10
    assert figures["latency_ns"]["p999"] == figures["latency_ns"]["max"] == 100 * MS
    assert figures["ledger_ns"]["queue"]["mean"] == 4 * MS
    assert [slow["id"] for slow in figures["slowest"]] == ["id-10", "id-9", "id-8"]


def test_nothing_answered_is_reported_too() -> None:
    """All failed: no division by zero, exit status 1."""
    tally = Tally()
    failed(tally, Failure(FailureKind.CONNECT, "Connection refused"))
    r = results(tally)
    assert "Connection refused" in text_of(r)
    assert r.exit_status == 1


@pytest.mark.parametrize(("ok", "failures", "status"), [(1, 0, 0), (1, 1, 1), (0, 1, 1), (0, 0, 1)])
def test_the_exit_status_is_0_only_if_all_were_answered(ok: int, failures: int, status: int) -> None:
    """Scripts ask nothing else."""
    tally = Tally()
    answered(tally, ok)
    for _ in range(failures):
        failed(tally, Response(500, b"HTTP/1.1 500 X", b"", True))
    assert results(tally).exit_status == status


def test_a_generator_that_was_late_is_blamed() -> None:
    """More than 1 ms and 5 % of the latency, at the median or at p99."""
    for late_ms, is_blamed in ((0.9, False), (2, False), (40, True)):
        tally = Tally()
        answered(tally, 100, late_ms=late_ms)
        assert ["the generator was the bottleneck" in w for w in results(tally).warnings()] == [True] * is_blamed


def test_a_closed_loop_is_never_late() -> None:
    """It sends when it can; that is no lateness."""
    tally = Tally()
    answered(tally, 100, late_ms=40)
    assert results(tally, is_open=False).warnings() == []


def test_waiting_for_connections_is_not_the_generators_fault() -> None:
    """All busy, since the server is slow; or not all, then it took long to open them."""
    tally = Tally()
    answered(tally, 100, late_ms=60, connecting_ms=59)
    (warning,) = results(tally, connections_most=8).warnings()
    assert "all 8 were busy" in warning
    (warning,) = results(tally, connections_most=7).warnings()
    assert "opening them took long" in warning


def test_a_generator_without_time_is_blamed_in_either_loop() -> None:
    """It used a whole core."""
    tally = Tally()
    answered(tally, 10)
    for is_open in (False, True):
        (warning,) = results(tally, is_open=is_open, generator_cores=0.97).warnings()
        assert "used 97% of a core" in warning


def test_what_was_never_sent_is_told() -> None:
    """With the reason of the first."""
    tally = Tally()
    failed(tally, Failure(FailureKind.UNSENT, "the generator was 9.0 s late"))
    assert results(tally).warnings() == ["1 requests were not sent, the first since the generator was 9.0 s late"]


def test_a_run_that_was_broken_off_says_so() -> None:
    """Its figures are those of a shorter run."""
    tally = Tally()
    answered(tally, 1)
    assert "broken off, 5 requests had not ended" in text_of(results(tally, broken_off=True, unfinished_count=5))


def test_the_line_of_progress() -> None:
    """How far, how fast, how many are on their way, and failures loudly."""
    tally, progress = Tally(), Progress(1000 * MS, 11_000 * MS, taken_count=52, ended_count=50)
    assert line_of(progress, tally, 999 * MS) == "warming up ..."
    answered(tally, 50)
    assert line_of(progress, tally, 6_000 * MS) == (
        "[############............] 5 of 10 s, 10 answered/s, 2 on their way"
    )
    failed(tally, Failure(FailureKind.TIMEOUT, "x"))
    assert line_of(progress, tally, 60_000 * MS).endswith("1 FAILED")
    assert line_of(progress, tally, 60_000 * MS).startswith("[########################] 10 of 10 s")
