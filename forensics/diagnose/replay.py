"""What would have been: the same requests in the same passes, without what a cause took.

Theory of operation. A pass of a worker begins when the one before it has ended and its members are there (Lindley's
recursion), plus the gap that was seen between: the worker's own work, or a wait for company. Take what a cause added
away from the passes and from the gaps, run the recursion again, and each request ends earlier by what its pass does;
what the cause took elsewhere (in the gateway, on the way) is subtracted from it directly. So the knock-on is in it: the
backlog that a stall leaves behind and that outlasts it. Who shares a pass with whom stays as it was. That makes the
answer a lower bound of the gain where shorter queues would have made smaller passes, and it needs no model of the
scheduler."""

from collections.abc import Sequence

import numpy as np

from forensics.diagnose.attribution import Attribution, Spent
from forensics.diagnose.window import Event, Floats, Ints, Window

FIRST_GAP_NS = 60_000_000_000
"""So long before its first pass a worker counts as waiting for it."""


def without(
    window: Window,
    attribution: Attribution,
    *,
    passes_ns: Floats | Ints | None = None,
    gaps_ns: Floats | Ints | None = None,
    direct_ns: Floats | Ints | None = None,
) -> Ints:
    """End-to-end times as they would have been. `passes_ns` and `gaps_ns`: what to take out of each pass, and out of
    the time before it; `direct_ns`: out of each request, beside the queue. None of it is taken below nothing."""
    e2e = window.requests.e2e.astype(np.float64)
    if direct_ns is not None:
        e2e = e2e - np.clip(direct_ns, 0, e2e)
    if passes_ns is not None or gaps_ns is not None:
        count = len(window.batches)
        earlier = _earlier(
            window,
            np.zeros(count) if passes_ns is None else np.asarray(passes_ns, dtype=np.float64),
            np.zeros(count) if gaps_ns is None else np.asarray(gaps_ns, dtype=np.float64),
        )
        has = window.requests.batch >= 0
        gain = np.where(has, earlier[np.maximum(window.requests.batch, 0)], 0.0)
        e2e = np.maximum(e2e - gain, 0.0)
    return e2e.astype(np.int64)


def ready(window: Window) -> Ints:
    """When the last member of each pass was there, on its worker's clock; 0 for a pass without a known member."""
    r = window.requests
    in_stream = r.stamps["w1"] - r.segments["deliver"] - r.segments["lost_attempt"] - r.segments["stream_wait"]
    there = np.zeros(len(window.batches), dtype=np.int64)
    known = r.batch >= 0
    np.maximum.at(there, r.batch[known], np.maximum(in_stream[known], 1))
    return there


def _earlier(window: Window, passes_ns: Floats, gaps_ns: Floats) -> Floats:
    """How much earlier each pass would have ended, ns.

    "Begins when the one before has ended and its members are there, then a gap" is a sum in the max-plus algebra:
    end_n = max over k <= n of (there_k + the gaps and durations of k..n), which two running totals and a running
    maximum give for all passes at once.
    """
    batches = window.batches
    earlier = np.zeros(len(batches))
    start, end, there = batches.numbers["w4"], batches.numbers["w7"], ready(window)
    took = batches.took.astype(np.float64)
    less = np.clip(passes_ns, 0, took)
    workers = batches.names["worker"].codes
    for code in np.unique(workers):
        # Rows are by worker and time, so the pass before is the one above.
        mine = np.flatnonzero(workers == code)
        origin = int(start[mine[0]])
        began, ended = ((stamps[mine] - origin).astype(np.float64) for stamps in (start, end))
        present = np.minimum((there[mine] - origin).astype(np.float64), began)
        # On a device with two slots the one before may still run: then it was not what this one waited for.
        was = np.minimum(np.concatenate([[-np.inf], np.maximum.accumulate(ended)[:-1]]), began)
        gap = np.maximum(began - np.maximum(was, present) - gaps_ns[mine], 0.0)
        steps = np.cumsum(gap + took[mine] - less[mine])
        would = np.maximum.accumulate(present - np.concatenate([[0.0], steps[:-1]])) + steps
        earlier[mine] = ended - np.minimum(would, ended)
    return earlier


def idle_before(window: Window, attribution: Attribution, labels: Sequence[Spent]) -> Ints:
    """How long the device was free before each pass for these reasons (LINGER, FETCH): as long as for the member that
    lost least by it."""
    r = window.requests
    total = sum((attribution.spent[label] for label in labels), np.zeros(len(r), dtype=np.int64))
    gaps = np.full(len(window.batches), np.iinfo(np.int64).max)
    known = r.batch >= 0
    np.minimum.at(gaps, r.batch[known], total[known])
    gaps[gaps == np.iinfo(np.int64).max] = 0
    return gaps


def in_gaps(window: Window, events: Sequence[Event]) -> Ints:
    """For how long of the time before each pass, since the pass before it on its worker, these events lasted."""
    batches = window.batches
    workers = batches.names["worker"]
    total = np.zeros(len(batches), dtype=np.int64)
    for code, worker in enumerate(workers.names):
        mine = np.flatnonzero(workers.codes == code)
        begin = batches.numbers["w4"][mine]
        free = np.concatenate([begin[:1] - FIRST_GAP_NS, np.maximum.accumulate(batches.numbers["w7"][mine])[:-1]])
        for event in events:
            if event.inst == worker:
                total[mine] += np.clip(np.minimum(begin, event.end) - np.maximum(free, event.start), 0, None)
    return total
