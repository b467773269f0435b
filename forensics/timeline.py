"""From a request's log line to its timeline: which clocks it spans, and how well their offset is known.

On one host the offset is 0. Between hosts the round trips around it bound it (`forensics/offsets.py`); where that
fails, the request's own causality does: it did not reach the worker before it was sent, nor its answer the gateway
before it left the worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.load import LogLine, Logs
from forensics.offsets import SAME, Offset, Offsets, OffsetSource, Pair, Told
from shared.events import Clk, Req, Wreq
from shared.timeline import Segment, Timeline, segments


class Clocks:
    """What the logs tell of the offsets between the clocks of gateways and workers."""

    def __init__(self, logs: Logs) -> None:
        self._offsets = Offsets()
        for envelope, clk in logs.of(Clk):
            for peer in clk.peers:
                self._offsets.told(Pair(envelope.clock, peer.clock), Told(clk.mono_a, peer.lo, peer.hi, peer.n))
        for envelope, r in logs.of(Req):
            if r.g3 and r.g5 and r.w8 and r.worker_clock != envelope.clock:
                self._offsets.round_trip(Pair(envelope.clock, r.worker_clock), r.g3, r.g5, r.w1, r.w8)

    def offset(self, line: LogLine[Req]) -> Offset:
        """The offset between the clocks of the gateway and the worker of a request that was answered."""
        r = line.record
        if not r.w8 or r.worker_clock == line.envelope.clock:
            return SAME
        found = self._offsets.at(Pair(line.envelope.clock, r.worker_clock), r.g5)
        return found or Offset(r.w8 - r.g5, r.w1 - r.g3, OffsetSource.CAUSALITY)

    def between(self, gateway_clock: str, worker_clock: str, at_ns: int) -> Offset | None:
        """The offset near `at_ns` of the gateway's clock; None when nothing tells."""
        return self._offsets.at(Pair(gateway_clock, worker_clock), at_ns)


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
