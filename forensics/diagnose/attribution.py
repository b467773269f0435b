"""Every nanosecond of every request on a second axis: not where it passed (segments) but what it was spent on.

Theory of operation. For each process the log gives a timeline: passes through the device, garbage collections, loads,
stalls of the event loop, times it was not there. Each moment gets one label, by a fixed precedence; so does each
moment within a pass, in proportion to its parts (`service.py`). The running totals G_label(t) of these labels sum to t,
so a wait [x, y] is G(y) - G(x) in each label, and these sum to y - x, exactly, for a million requests with a few array
operations. The label that is left over takes the rounding. A collection within a pass counts only as far as the pass
took longer than it should have: the device computes on while Python stands still.

A request's own pass is split by the law of its model: what it would have taken alone, what its batch-mates added, what
padding added. This order (own, mates, padding) is a convention; another would shift the border between mates and
padding."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from forensics.diagnose.intervals import covered
from forensics.diagnose.service import Part, Passes, explain_passes
from forensics.diagnose.window import Batches, Bools, Event, Floats, Ints, Window


class Spent(StrEnum):
    """What time was spent on."""

    OWN_COMPUTE = "own_compute"
    BATCH_MATES = "batch_mates"
    PADDING = "padding"
    QUEUED = "queued"
    """Waited while the device computed other passes, as long as these should take."""
    LINGER = "linger"
    """The device was free, the request decoded: its batch waited for company."""
    DISPATCH = "dispatch"
    """A sealed batch waited for the device's thread, which computed nothing of ours."""
    FETCH = "fetch"
    """The device was free, the request in the stream: the worker had not asked."""
    GC = "gc"
    COMPILE = "compile"
    COLD = "cold"
    LOAD = "load"
    CPU_WAIT = "cpu_wait"
    PAGE_FAULTS = "page_faults"
    SLOW_COMPUTE = "slow_compute"
    BLOCKED = "blocked"
    WORKER_LOOP = "worker_loop"
    WORKER_WORK = "worker_work"
    ABSENT = "absent"
    RECONNECT = "reconnect"
    RETRY = "retry"
    BROKER = "broker"
    GATEWAY_GC = "gateway_gc"
    GATEWAY_LOOP = "gateway_loop"
    GATEWAY_WORK = "gateway_work"
    CLIENT = "client"
    """The request's body came in, or the answer went out."""
    UNKNOWN = "unknown"
    """The process' log does not cover it, or the clocks compare too badly."""


NORMAL: frozenset[Spent] = frozenset(
    {Spent.OWN_COMPUTE, Spent.BATCH_MATES, Spent.PADDING, Spent.QUEUED, Spent.LINGER, Spent.FETCH, Spent.WORKER_WORK,
     Spent.GATEWAY_WORK, Spent.BROKER, Spent.CLIENT}
)  # fmt: skip
"""What the pipeline spends time on when nothing is wrong."""

_OF_PART = {
    Part.NORMAL: Spent.QUEUED,
    Part.GC: Spent.GC,
    Part.COMPILE: Spent.COMPILE,
    Part.COLD: Spent.COLD,
    Part.CPU_WAIT: Spent.CPU_WAIT,
    Part.PAGE_FAULTS: Spent.PAGE_FAULTS,
    Part.SLOW_COMPUTE: Spent.SLOW_COMPUTE,
    Part.BLOCKED: Spent.BLOCKED,
}
_OF_EVENT = {
    "absent": Spent.ABSENT,
    "model_load": Spent.LOAD,
    "warm_up": Spent.LOAD,
    "gc": Spent.GC,
    "reconnect": Spent.RECONNECT,
    "loop_lag": Spent.WORKER_LOOP,
}
_PRECEDENCE = (
    Spent.ABSENT, Spent.QUEUED, Spent.GC, Spent.LOAD, Spent.RECONNECT, Spent.WORKER_LOOP, Spent.DISPATCH, Spent.UNKNOWN,
)  # fmt: skip
"""Of labels over the same moment, the first counts. QUEUED stands for a pass, which has the rest within it."""
_RANK = {label: i for i, label in enumerate(_PRECEDENCE)}
_IDLE = Spent.FETCH
_FAR_NS = 1 << 61
DISPATCH_MIN_NS = 1_000_000
"""A shorter time between sealed and begun is the ordinary work of handing over."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """`spent[label]` is ns per request; they sum to its end-to-end time. `blocked_on` is ns per pass: for how long
    requests, all together, waited behind it."""

    spent: Mapping[Spent, Ints]
    passes: Passes
    blocked_on: Floats


class _Span(NamedTuple):
    """A piece of a timeline; a tuple, since a busy worker has hundreds of thousands of them."""

    start: int
    end: int
    label: Spent
    batch: int = -1


class _Totals:
    """The running totals of the labels of one process' timeline."""

    def __init__(self, spans: Iterable[_Span], parts: Mapping[Part, Ints], took: Ints) -> None:
        pieces = _cut(spans)
        self._starts = np.array([p.start for p in pieces], dtype=np.int64)
        ends = np.array([p.end for p in pieces], dtype=np.int64)
        self._lengths = np.maximum(ends - self._starts, 1)
        batch = np.array([p.batch for p in pieces], dtype=np.int64)
        amounts: dict[Spent, Ints] = {}
        for label in {p.label for p in pieces} - {Spent.QUEUED}:
            amounts[label] = np.array([p.end - p.start if p.label is label else 0 for p in pieces], dtype=np.int64)
        within = batch >= 0
        if within.any():
            share = (ends - self._starts)[within] / np.maximum(took[batch[within]], 1)
            for part, label in _OF_PART.items():
                if part is not Part.NORMAL and parts[part].any():
                    column = amounts.setdefault(label, np.zeros(len(pieces), dtype=np.int64))
                    column[within] += (parts[part][batch[within]] * share).astype(np.int64)
        # What is left of each piece is idleness, or the normal course of a pass; told apart by two columns.
        rest = (ends - self._starts) - sum(amounts.values(), np.zeros(len(pieces), dtype=np.int64))
        amounts[Spent.QUEUED] = np.where(within, rest, 0)
        self._amounts = amounts
        self._before = {label: np.concatenate([[0], np.cumsum(a)[:-1]]) for label, a in amounts.items()}

    def between(self, x: Ints, y: Ints) -> dict[Spent, Ints]:
        """Nanoseconds of each label in each [x, y]; what is not in any of them is idleness."""
        y = np.maximum(x, y)
        at_x, at_y = self._at(x), self._at(y)
        return {label: self._total(label, *at_y) - self._total(label, *at_x) for label in self._amounts}

    def _at(self, t: Ints) -> tuple[Ints, Floats]:
        piece = np.clip(np.searchsorted(self._starts, t, side="right") - 1, 0, len(self._starts) - 1)
        return piece, np.clip((t - self._starts[piece]) / self._lengths[piece], 0.0, 1.0)

    def _total(self, label: Spent, piece: Ints, share: Floats) -> Ints:
        total: Ints = self._before[label][piece] + (self._amounts[label][piece] * share).astype(np.int64)
        return total


def attribute(window: Window, reference: Bools | None = None) -> Attribution:
    """Label all time of all requests. `reference` marks the passes whose law counts as normal; all, if left out."""
    requests, batches = window.requests, window.batches
    by_process: dict[tuple[str, str], list[Event]] = {}
    for event in window.events:
        by_process.setdefault((event.proc, event.inst), []).append(event)
    gc_ns = _gc_in_passes(window, by_process)
    if reference is None:
        reference = np.ones(len(batches), dtype=np.bool_)
    passes = explain_passes(batches, gc_ns, reference)
    spent = {label: np.zeros(len(requests), dtype=np.int64) for label in Spent}
    blocked_on = np.zeros(len(batches))
    for code, worker in enumerate(requests.names["worker"].names):
        mine = np.flatnonzero(requests.names["worker"].codes == code)
        of_worker = np.flatnonzero(batches.names["worker"].where(worker))
        spans = _of_events(by_process.get(("worker", worker), []))
        plain = _Totals(spans, passes.parts, batches.took)
        w3, w4, w7 = batches.numbers["w3"], batches.numbers["w4"], batches.numbers["w7"]
        spans += [_Span(int(w4[b]), int(w7[b]), Spent.QUEUED, int(b)) for b in of_worker]
        handed = of_worker[w4[of_worker] - w3[of_worker] >= DISPATCH_MIN_NS]
        spans += [_Span(int(w3[b]), int(w4[b]), Spent.DISPATCH) for b in handed]
        full = _Totals(spans, passes.parts, batches.took)
        waits = _worker_side(window, passes, mine, full, plain, spent)
        waiting = covered(*waits)
        blocked_on[of_worker] += np.maximum(waiting(w7[of_worker]) - waiting(w4[of_worker]), 0.0)
    for code, gateway in enumerate(requests.names["gateway"].names):
        mine = np.flatnonzero(requests.names["gateway"].codes == code)
        totals = _Totals(_of_events(by_process.get(("gateway", gateway), [])), passes.parts, batches.took)
        _gateway_side(window, mine, totals, spent)
    for segment, label in (("lost_attempt", Spent.RETRY), ("no_answer", Spent.UNKNOWN), ("unexplained", Spent.UNKNOWN)):
        spent[label] += requests.segments[segment]
    nothing = np.broadcast_to(np.int64(0), len(requests))
    return Attribution({label: ns if ns.any() else nothing for label, ns in spent.items()}, passes, blocked_on)


def _of_events(events: Sequence[Event]) -> list[_Span]:
    return [_Span(e.start, e.end, _OF_EVENT[e.kind]) for e in events if e.kind in _OF_EVENT and e.end > e.start]


def _cut(spans: Iterable[_Span]) -> list[_Span]:
    """The timeline as pieces that follow each other without a gap, each with the label that counts."""
    ordered = sorted(spans, key=lambda s: s[0])
    borders = sorted({-_FAR_NS, *(s[0] for s in ordered), *(s[1] for s in ordered), _FAR_NS})
    pieces: list[_Span] = []
    over: list[tuple[int, int, int, _Span]] = []
    coming, count = 0, len(ordered)
    for start, end in pairwise(borders):
        while coming < count and ordered[coming][0] <= start:
            span = ordered[coming]
            heappush(over, (_RANK[span[2]], coming, span[1], span))
            coming += 1
        while over and over[0][2] <= start:
            heappop(over)
        if over:
            _, _, label, batch = over[0][3]
            pieces.append(_Span(start, end, label, batch))
        else:
            pieces.append(_Span(start, end, _IDLE, -1))
    return pieces


def _gc_in_passes(window: Window, by_process: Mapping[tuple[str, str], Sequence[Event]]) -> Ints:
    """For how long of each pass its process collected garbage."""
    batches = window.batches
    gc_ns = np.zeros(len(batches), dtype=np.int64)
    workers = batches.names["worker"]
    for code, worker in enumerate(workers.names):
        mine = np.flatnonzero(workers.codes == code)
        w4, w7 = batches.numbers["w4"][mine], batches.numbers["w7"][mine]
        for event in by_process.get(("worker", worker), ()):
            if event.kind == "gc":
                overlap = np.minimum(w7, event.end) - np.maximum(w4, event.start)
                gc_ns[mine] += np.clip(overlap, 0, None)
    return gc_ns


def _worker_side(
    window: Window, passes: Passes, mine: Ints, full: _Totals, plain: _Totals, spent: Mapping[Spent, Ints]
) -> tuple[Ints, Ints]:
    """Label what passed on the worker. Returns the waits, from when a request was in the stream until its pass
    began."""
    r = window.requests
    s = {name: column[mine] for name, column in r.segments.items()}
    w = {name: column[mine] for name, column in r.stamps.items()}

    def add(label: Spent, ns: Ints) -> None:
        spent[label][mine] += ns

    def wait(start: Ints, ns: Ints, totals: _Totals, idle: Spent) -> None:
        found = totals.between(start, start + np.maximum(ns, 0))
        known = np.zeros(len(mine), dtype=np.int64)
        for label, amount in found.items():
            if label is not _IDLE:
                add(label, amount)
                known += amount
        add(idle, ns - known)

    begun = w["w1"] - s["deliver"] - s["lost_attempt"]
    wait(begun - s["stream_wait"], s["stream_wait"], full, Spent.FETCH)
    # Beside the device: an answer on its way waits for the process, not for the passes of others.
    wait(w["w1"] - s["deliver"], s["deliver"], plain, Spent.BROKER)
    wait(w["w1"], s["pull"], plain, Spent.WORKER_WORK)
    at = w["w1"] + s["pull"]
    wait(at, s["batch_wait"], full, Spent.LINGER)
    at = at + s["batch_wait"]
    wait(at, s["dispatch"], full, Spent.WORKER_WORK)
    at = at + s["dispatch"]
    own = s["collate"] + s["forward"] + s["post"]
    _own_pass(window, passes, mine, full.between(at, at + own), own, spent)
    wait(at + own, s["out_loop"], plain, Spent.WORKER_WORK)
    # What a lost attempt had held meanwhile did not wait behind this worker's passes.
    return np.where(s["lost_attempt"] > 0, w["w1"], begun - s["stream_wait"]), at


def _own_pass(
    window: Window, passes: Passes, mine: Ints, found: Mapping[Spent, Ints], own: Ints, spent: Mapping[Spent, Ints]
) -> None:
    """Split a request's own pass: what was beyond the normal as it is, the rest into own, mates and padding."""
    r, batches = window.requests, window.batches
    beyond = np.zeros(len(mine), dtype=np.int64)
    for label, amount in found.items():
        if label not in (_IDLE, Spent.QUEUED):
            spent[label][mine] += amount
            beyond += amount
    normal = own - beyond
    cost = np.maximum(r.cost[mine], 1).astype(np.float64)
    rows = np.maximum(r.numbers["rows"][mine], 1).astype(np.float64)
    own_ns, pad_ns = split_normal(batches, passes, normal, r.batch[mine], cost, rows)
    spent[Spent.OWN_COMPUTE][mine] += own_ns
    spent[Spent.PADDING][mine] += pad_ns
    spent[Spent.BATCH_MATES][mine] += normal - own_ns - pad_ns


def split_normal(
    batches: Batches, passes: Passes, normal: Ints, batch: Ints, cost: Floats, rows: Floats
) -> tuple[Ints, Ints]:
    """Of the normal time of requests in their passes (numbers `batch`, -1 for none): what each would have taken alone,
    and what padding added; the rest is the batch-mates'. Without a law all of it is its own."""
    alone, unpadded, whole = np.zeros(len(normal)), np.zeros(len(normal)), np.zeros(len(normal))
    models = batches.names["model"]
    for code, model in enumerate(models.names):
        law = passes.laws.get(model)
        of_model = np.flatnonzero((batch >= 0) & (models.codes[np.maximum(batch, 0)] == code))
        if law is None or not len(of_model):
            continue
        at, size, own_rows = batch[of_model], cost[of_model], rows[of_model]
        alone[of_model] = law.predict(size, size * size / own_rows, own_rows)
        unpadded[of_model] = law.predict(
            passes.useful[at], batches.squares[at], batches.numbers["rows"][at].astype(np.float64)
        )
        whole[of_model] = np.maximum(passes.predicted[at], 1.0)
    known = whole > 0
    scale = np.where(known, normal / np.where(known, whole, 1.0), 0.0)
    own_ns = np.where(known, np.clip(alone * scale, 0, np.maximum(normal, 0)), normal).astype(np.int64)
    pad_ns = np.clip((whole - np.maximum(unpadded, alone)) * scale, 0, np.maximum(normal - own_ns, 0)).astype(np.int64)
    return own_ns, pad_ns


def _gateway_side(window: Window, mine: Ints, totals: _Totals, spent: Mapping[Spent, Ints]) -> None:
    r = window.requests
    s = {name: column[mine] for name, column in r.segments.items()}

    def wait(start: Ints, ns: Ints, otherwise: Spent) -> None:
        known = np.zeros(len(mine), dtype=np.int64)
        for label, amount in totals.between(start, start + np.maximum(ns, 0)).items():
            gateways = {
                Spent.GC: Spent.GATEWAY_GC,
                Spent.WORKER_LOOP: Spent.GATEWAY_LOOP,
                Spent.RECONNECT: Spent.RECONNECT,
            }
            if label in gateways:
                spent[gateways[label]][mine] += amount
                known += amount
        spent[otherwise][mine] += ns - known

    at = r.stamps["g0"][mine]
    for name, label in (
        ("recv", Spent.CLIENT), ("pre", Spent.GATEWAY_WORK), ("gw_loop", Spent.GATEWAY_WORK), ("uplink", Spent.BROKER),
    ):  # fmt: skip
        wait(at, s[name], label)
        at = at + s[name]
    at = r.stamps["g5"][mine] - s["downlink"]
    for name, label in (
        ("downlink", Spent.BROKER), ("gw_wake", Spent.GATEWAY_WORK), ("render", Spent.GATEWAY_WORK),
        ("respond", Spent.CLIENT),
    ):  # fmt: skip
        wait(at, s[name], label)
        at = at + s[name]
