"""What the worker was doing while a request waited.

Theory of operation. A worker's log is turned into spans of its monotonic clock, each with a label: it executed a
batch, collected garbage, loaded a model. A wait is cut at every border of a span; of the spans over a piece, the first
in the order of `Doing` gets it, and a piece under no span gets the wait's own name for idleness. So the pieces
partition the wait: they follow each other without a gap, and their nanoseconds sum to it exactly.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import Any

from forensics.load import LogLine, Logs
from forensics.timeline import Wait
from shared.events import Batch, Event, Evt, Hello


class Doing(StrEnum):
    """What a worker can be doing; where two overlap, the first of this list is blamed."""

    MODEL_LOAD = "model_load"
    WARM_UP = "warm_up"
    GC = "gc"
    RECONNECT = "reconnect"
    LOOP_LAG = "loop_lag"
    EXECUTING = "executing"
    ABSENT = "absent"  # the process was not there yet
    UNKNOWN = "unknown"  # its log does not cover this time
    GATHERING = "gathering"  # the device is free: the batch is being decoded, or lingers
    FETCHING = "fetching"  # the device is free: the worker asks for work


_RANK = {doing: rank for rank, doing in enumerate(Doing)}
_BY_EVENT = {d.value: d for d in (Doing.MODEL_LOAD, Doing.WARM_UP, Doing.GC, Doing.RECONNECT, Doing.LOOP_LAG)}
_IDLE_IN = {"batch_wait": Doing.GATHERING}
_ALWAYS_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a worker's clock (ns) with a label; `batch` is what it executed, `attrs` what an event says."""

    start_ns: int
    end_ns: int
    doing: Doing
    batch: Batch | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a wait and what the worker did in it; `span` is None where the worker was idle."""

    segment: str
    start_ns: int
    end_ns: int
    doing: Doing
    span: Span | None = None

    @property
    def ns(self) -> int:
        """How long this part is."""
        return self.end_ns - self.start_ns

    @property
    def batch(self) -> Batch | None:
        """The batch that the worker executed, if it did."""
        return self.span.batch if self.span is not None else None


class WorkerTimeline:
    """The labelled spans of one worker, found by time."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted((s for s in spans if s.end_ns > s.start_ns), key=lambda s: (s.start_ns, s.end_ns))
        # The latest end of the spans so far never falls, so it can be searched.
        self._latest_ends = list(accumulate((s.end_ns for s in self._spans), max))

    @classmethod
    def of(cls, logs: Logs, worker: str, clock: str) -> "WorkerTimeline":
        """From the log of the process `worker`; stamps of another clock than `clock` are not comparable."""
        return cls(spans_of([line for line in logs.written_by("worker", worker) if line.envelope.clock == clock]))

    def blame(self, wait: Wait) -> list[Piece]:
        """Cut a wait into pieces; they follow each other and sum to the wait."""
        first = bisect_right(self._latest_ends, wait.start_ns)
        last = bisect_left(self._spans, wait.end_ns, key=lambda s: s.start_ns)
        return partition(wait, self._spans[first:last])


def spans_of(lines: Sequence[LogLine[Event]]) -> list[Span]:
    """The spans of one worker, from its lines by their monotonic clock."""
    if not lines:
        return [Span(-_ALWAYS_NS, _ALWAYS_NS, Doing.UNKNOWN)]
    spans = []
    before_ns = -_ALWAYS_NS
    for envelope, record in lines:
        match record:
            case Batch():
                spans.append(Span(record.w4, record.w7, Doing.EXECUTING, batch=record))
            case Evt() if record.kind in _BY_EVENT:
                spans.append(Span(record.start, record.end, _BY_EVENT[record.kind], attrs=record.attrs))
            case Hello():
                spans.append(Span(before_ns, envelope.mono, Doing.ABSENT))
            case _:
                pass
        before_ns = envelope.mono
    if not isinstance(lines[0].record, Hello):
        spans.append(Span(-_ALWAYS_NS, lines[0].envelope.mono, Doing.UNKNOWN))
    spans.append(Span(before_ns, _ALWAYS_NS, Doing.UNKNOWN))
    return spans


def partition(wait: Wait, spans: Sequence[Span]) -> list[Piece]:
    """Label every nanosecond of `wait` by the foremost of the spans over it; the spans come by their start.

    Of two spans with one label (batches of two devices), the one that started first is blamed.
    """
    borders = {wait.start_ns, wait.end_ns}
    for span in spans:
        borders.update(at for at in (span.start_ns, span.end_ns) if wait.start_ns < at < wait.end_ns)
    idle = _IDLE_IN.get(wait.segment, Doing.FETCHING)
    pieces: list[Piece] = []
    over: list[tuple[int, int, Span]] = []
    coming = 0
    if wait.end_ns <= wait.start_ns:
        return []
    for start_ns, end_ns in pairwise(sorted(borders)):
        while coming < len(spans) and spans[coming].start_ns <= start_ns:
            heappush(over, (_RANK[spans[coming].doing], coming, spans[coming]))
            coming += 1
        while over and over[0][2].end_ns <= start_ns:
            heappop(over)
        foremost = over[0][2] if over else None
        if pieces and pieces[-1].span is foremost:
            pieces[-1] = Piece(wait.segment, pieces[-1].start_ns, end_ns, pieces[-1].doing, foremost)
        else:
            doing = foremost.doing if foremost is not None else idle
            pieces.append(Piece(wait.segment, start_ns, end_ns, doing, foremost))
    return pieces
