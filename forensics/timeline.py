"""From a request's log line to its timeline: which clocks it spans, and how well their offset is known.

On one host the offset is 0. Between hosts the gateway measures it with every round trip and logs the bounds (`clk`);
where those lines are missing, causality bounds it: no request reaches a worker before it was sent, no answer the
gateway before it left the worker.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from forensics.load import LogLine, Logs
from shared.events import Clk, PeerOffset, Req, Wreq
from shared.timeline import Segment, Timeline, segments

CAUSALITY_WINDOW_NS = 10_000_000_000
"""Requests this near in time share one offset: clocks drift apart by less than 5 ms meanwhile."""


class OffsetSource(StrEnum):
    """How the offset between two clocks is known."""

    SAME_CLOCK = "same clock"
    ROUND_TRIPS = "round trips"
    CAUSALITY = "causality"


@dataclass(frozen=True, slots=True)
class Offset:
    """Bounds of worker's clock - gateway's clock, in ns."""

    lo_ns: int
    hi_ns: int
    source: OffsetSource

    @property
    def middle_ns(self) -> int:
        """The best guess."""
        return (self.lo_ns + self.hi_ns) // 2


_SAME = Offset(0, 0, OffsetSource.SAME_CLOCK)


class Clocks:
    """What the logs tell of the offsets between the clocks of gateways and workers."""

    def __init__(self, logs: Logs) -> None:
        self._measured: dict[tuple[str, str, str], list[tuple[int, PeerOffset]]] = {}
        for envelope, clk in logs.of(Clk):
            for peer in clk.peers:
                if peer.n > 0 and peer.lo <= peer.hi:
                    key = (envelope.clock, peer.peer, peer.clock)
                    self._measured.setdefault(key, []).append((clk.mono_a, peer))
        self._answered: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
        for envelope, r in logs.of(Req):
            if r.g3 and r.g5 and r.w8 and r.worker_clock != envelope.clock:
                key = (envelope.clock, r.worker, r.worker_clock)
                self._answered.setdefault(key, []).append((r.g5, r.w8 - r.g5, r.w1 - r.g3))
        for answered in self._answered.values():
            answered.sort()

    def offset(self, line: LogLine[Req]) -> Offset:
        """The offset between the clocks of the gateway and the worker of a request that was answered."""
        r = line.record
        if not r.w8:
            return _SAME
        found = self.between(line.envelope.clock, r.worker, r.worker_clock, r.g5)
        return found or Offset(r.w8 - r.g5, r.w1 - r.g3, OffsetSource.CAUSALITY)

    def between(self, gateway_clock: str, worker: str, worker_clock: str, at_ns: int) -> Offset | None:
        """The offset near `at_ns` of the gateway's clock; None when nothing tells."""
        if gateway_clock and gateway_clock == worker_clock:
            return _SAME
        key = (gateway_clock, worker, worker_clock)
        if measured := self._measured.get(key):
            _, peer = min(measured, key=lambda m: abs(m[0] - at_ns))
            return Offset(peer.lo, peer.hi, OffsetSource.ROUND_TRIPS)
        answered = self._answered.get(key, [])
        near = answered[
            bisect_left(answered, at_ns - CAUSALITY_WINDOW_NS, key=lambda a: a[0]) : bisect_right(
                answered, at_ns + CAUSALITY_WINDOW_NS, key=lambda a: a[0]
            )
        ]
        if not near:
            return None
        lo, hi = max(a[1] for a in near), min(a[2] for a in near)
        if lo > hi:
            # The clocks have drifted within the window: only the nearest request tells of its own moment.
            _, lo, hi = min(near, key=lambda a: abs(a[0] - at_ns))
        return Offset(lo, hi, OffsetSource.CAUSALITY)


def gateway_stamps(r: Req) -> tuple[int, ...]:
    """g0..g8, in ns of the gateway's clock."""
    return (r.g0, r.g1, r.g2, r.g3, r.g4, r.g5, r.g6, r.g7, r.g8)


def worker_stamps(r: Req | Wreq) -> tuple[int, ...]:
    """w0..w8, in ns of the worker's clock."""
    return (r.w0, r.w1, r.w2, r.w3, r.w4, r.w5, r.w6, r.w7, r.w8)


def timeline_of(r: Req, offset: Offset) -> Timeline:
    """The whole timeline, from the gateway's line alone."""
    return Timeline(
        gateway_stamps(r),
        worker_stamps(r),
        theta_lo_ns=offset.lo_ns,
        theta_hi_ns=offset.hi_ns,
        lost_ns=r.lost_us * 1_000,
    )


def partial_timeline(w: Wreq, offset: Offset | None) -> Timeline:
    """What the worker's line tells when the gateway's is lost, all on the worker's clock.

    From w1 on it is exact. With the offset known it begins at g3, and `stream_wait` takes in the way to Redis;
    else it begins at w1.
    """
    stamps = worker_stamps(w)
    end = max(stamps)
    start = w.g3 + offset.middle_ns if w.g3 and offset is not None else w.w1
    start = min(start, w.w1)
    return Timeline(
        (start, start, start, start, start, end, end, end, end), (*stamps[:8], end), lost_ns=w.lost_us * 1_000
    )


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch of the worker's clock (ns) in which a request waited; `segment` is its name in the waterfall."""

    segment: str
    start_ns: int
    end_ns: int


def waits(t: Timeline, parts: Sequence[Segment] | None = None) -> list[Wait]:
    """Where a request's waiting lies on its worker's clock; each is as long as its segment."""
    ns = {part.name: part.ns for part in (segments(t) if parts is None else parts)}
    out = []
    if stream_wait_ns := ns.get("stream_wait", 0):
        end_ns = t.w[1] - ns.get("deliver", 0) - ns.get("lost_attempt", 0)
        out.append(Wait("stream_wait", end_ns - stream_wait_ns, end_ns))
    if batch_wait_ns := ns.get("batch_wait", 0):
        end_ns = t.w[3]
        out.append(Wait("batch_wait", end_ns - batch_wait_ns, end_ns))
    return out
