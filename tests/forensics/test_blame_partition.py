"""What the worker did while a request waited partitions the wait, to the nanosecond."""

from itertools import pairwise
from pathlib import Path

from forensics_logbook import HELLO, Logbook, batch, ns
from hypothesis import given
from hypothesis import strategies as st

from forensics.blame import Doing, Span, WorkerTimeline, spans_of
from forensics.load import Logs
from forensics.timeline import Wait
from shared.events import Evt, Res

INSTANT = st.integers(0, 1_000)
LABELS = st.sampled_from([Doing.MODEL_LOAD, Doing.GC, Doing.LOOP_LAG, Doing.EXECUTING, Doing.ABSENT, Doing.UNKNOWN])
SPANS = st.lists(
    st.builds(lambda a, b, doing: Span(min(a, b), max(a, b), doing), INSTANT, INSTANT, LABELS), max_size=12
)
WAITS = st.builds(lambda a, b: Wait("stream_wait", min(a, b), max(a, b)), INSTANT, INSTANT)


@given(SPANS, WAITS)
def test_the_pieces_partition_the_wait_exactly(spans: list[Span], wait: Wait) -> None:
    """They begin with the wait, follow each other without a gap, end with it, and none is empty."""
    pieces = WorkerTimeline(spans).blame(wait)
    assert sum(p.ns for p in pieces) == wait.end_ns - wait.start_ns
    assert all(p.ns > 0 for p in pieces)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(pieces))
    if pieces:
        assert (pieces[0].start_ns, pieces[-1].end_ns) == (wait.start_ns, wait.end_ns)


@given(SPANS, WAITS)
def test_every_nanosecond_goes_to_the_foremost_label_over_it(spans: list[Span], wait: Wait) -> None:
    """The sweep agrees with looking at every instant by itself."""
    order = list(Doing)
    pieces = WorkerTimeline(spans).blame(wait)
    for at in range(wait.start_ns, wait.end_ns, 7):
        over = [s.doing for s in spans if s.start_ns <= at < s.end_ns]
        (piece,) = [p for p in pieces if p.start_ns <= at < p.end_ns]
        assert piece.doing is min(over, key=order.index, default=Doing.FETCHING)


def test_a_pause_within_a_batch_is_blamed_on_the_pause() -> None:
    """The batch before mine took long because of the garbage collector: that is what I want to read."""
    spans = [Span(0, 60, Doing.EXECUTING), Span(10, 35, Doing.GC)]
    pieces = WorkerTimeline(spans).blame(Wait("stream_wait", 5, 70))
    assert [(p.doing, p.ns) for p in pieces] == [
        (Doing.EXECUTING, 5),
        (Doing.GC, 25),
        (Doing.EXECUTING, 25),
        (Doing.FETCHING, 10),
    ]


def test_idle_time_in_the_batcher_is_called_filling() -> None:
    """An idle worker waits for work in the stream's case, for more rows in the batch's."""
    assert [p.doing for p in WorkerTimeline([]).blame(Wait("batch_wait", 0, 4))] == [Doing.GATHERING]
    assert [p.doing for p in WorkerTimeline([]).blame(Wait("stream_wait", 0, 4))] == [Doing.FETCHING]


def test_of_two_batches_at_once_the_first_is_blamed() -> None:
    """A second device's batch did not keep the worker from taking me any longer than the first did."""
    first, second = Span(0, 50, Doing.EXECUTING), Span(10, 80, Doing.EXECUTING)
    pieces = WorkerTimeline([second, first]).blame(Wait("stream_wait", 20, 70))
    assert [(p.span, p.ns) for p in pieces] == [(first, 30), (second, 20)]


def test_time_before_a_worker_started_and_after_its_last_line_is_not_called_idle(tmp_path: Path) -> None:
    """A worker that was not there, or whose log ends, was not idle as far as anybody knows."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", HELLO, at_ms=10)
    book.write("worker", "w-1", Evt("model_load", ns(10), ns(30)), at_ms=30)
    book.write("worker", "w-1", batch("b-1", start_ms=40, end_ms=50, members=["x"]), at_ms=50)
    at = WorkerTimeline.of(Logs.load([tmp_path]), "w-1", "clock-a")
    pieces = at.blame(Wait("stream_wait", ns(0), ns(60)))
    assert [p.doing for p in pieces] == [
        Doing.ABSENT,
        Doing.MODEL_LOAD,
        Doing.FETCHING,
        Doing.EXECUTING,
        Doing.UNKNOWN,
    ]


def test_without_the_workers_log_all_waiting_is_unknown() -> None:
    """No log, no verdict."""
    pieces = WorkerTimeline(spans_of([])).blame(Wait("batch_wait", 3, 9))
    assert [(p.doing, p.ns) for p in pieces] == [(Doing.UNKNOWN, 6)]


def test_lines_of_another_clock_are_not_compared(tmp_path: Path) -> None:
    """A worker of the same name on another host, or before a reboot, did not block anybody here."""
    book = Logbook(tmp_path)
    used = Res(
        interval=1, cpu_process=0, cpu_user=[], cpu_system=[], cpu_iowait=[], cpu_steal=[], rss_bytes=0, threads=1
    )
    book.write("worker", "w-1", HELLO, at_ms=0)
    book.write("worker", "w-1", batch("b-1", start_ms=40, end_ms=50, members=["x"]), at_ms=50, clock="clock-b")
    book.write("worker", "w-1", used, at_ms=90)
    at = WorkerTimeline.of(Logs.load([tmp_path]), "w-1", "clock-a")
    assert [p.doing for p in at.blame(Wait("stream_wait", ns(30), ns(60)))] == [Doing.FETCHING]
