"""Everything the logs tell of one request, as one value: its segments, its batch, its attempts, whom it waited for.

The gateway's line alone has the whole timeline. The worker's lines add the mates, the device times and what the
worker was doing meanwhile. Whatever is missing is said in `notes`, and `complete` is then False.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forensics.blame import Piece, WorkerTimeline
from forensics.load import LogLine, Logs
from forensics.offsets import Offset, OffsetSource
from forensics.timeline import Clocks, partial_timeline, timeline_of, waits
from shared.events import Batch, Evt, Req, Wreq
from shared.timeline import Class, Segment, Timeline, class_totals, segments


@dataclass(frozen=True, slots=True)
class Hop:
    """Round trip minus residence, in ns: the part of the time that crosses clocks, and how well these compare."""

    ns: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class BatchView:
    """The batch of a request. `record` is None when the worker's line is missing; then the mates are unknown."""

    batch_id: str
    requests: int
    rows: int
    close_reason: str
    tokens_useful: int
    tokens_padded: int
    mates: tuple[str, ...] = ()
    record: Batch | None = None

    @property
    def padding_ratio(self) -> float | None:
        """The share of the tokens computed that were padding; None for a model without tokens."""
        return 1 - self.tokens_useful / self.tokens_padded if self.tokens_padded else None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One worker's try at the request. A worker that died leaves no line, so its outcome is `unknown`."""

    attempt: int
    worker: str
    outcome: str
    batch_id: str = ""
    error_code: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One request. `status` is None when the gateway's line is lost; the times are ns, `started_us` the wall clock."""

    id: str
    label: str
    client_id: str
    trace_id: str
    route: str
    status: int | None
    error_code: str
    error: str
    model: str
    version: str
    attempts: int
    started_us: int
    ended_us: int
    timeline: Timeline
    segments: tuple[Segment, ...]
    hop: Hop | None
    batch: BatchView | None
    attempt_list: tuple[Attempt, ...]
    waited_behind: tuple[Piece, ...]
    own_pass: Mapping[str, int]
    """What its time in its own pass (collate, forward, post) was spent on, ns; empty when no law is known."""
    worker: str
    gateway: str
    complete: bool
    partial: bool
    notes: tuple[str, ...]

    @property
    def e2e_ns(self) -> int:
        """The sum of the segments: exactly g8 - g0, or the worker's part when the explanation is partial."""
        return self.timeline.e2e_ns

    @property
    def classes(self) -> Mapping[Class, int]:
        """Nanoseconds of each class; they sum to `e2e_ns`."""
        return class_totals(self.segments)


def explain(logs: Logs, query: str) -> list[Explanation]:
    """Explain every request that `query` names (see `Logs.find`), oldest first; an empty list when there is none.

    Raises AmbiguousId when `query` is a piece of several ids.
    """
    ids = logs.find(query)
    if not ids:
        return []
    explainer = Explainer(logs)
    return [explainer.explain(i) for i in ids]


class Explainer:
    """Explains requests of the same logs, which it indexes once."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._clocks = Clocks(logs)
        self._reqs = {line.record.id: line for line in logs.of(Req)}
        self._wreqs: dict[str, list[LogLine[Wreq]]] = {}
        for line in logs.of(Wreq):
            self._wreqs.setdefault(line.record.id, []).append(line)
        self._batches = {(line.envelope.inst, line.record.batch_id): line.record for line in logs.of(Batch)}
        self._workers: dict[tuple[str, str], WorkerTimeline] = {}

    def explain(self, request_id: str) -> Explanation:
        """Explain one request by its whole id. Raises KeyError when no line is about it."""
        tries = self._tries(request_id)
        line = self._reqs.get(request_id)
        if line is not None and line.record.part:
            tries = self._tries(line.record.part)
        return self._whole(line, tries) if line is not None else self._part(request_id, tries)

    def _tries(self, request_id: str) -> list[LogLine[Wreq]]:
        return sorted(self._wreqs.get(request_id, ()), key=lambda line: (line.record.attempt, line.envelope.wall_us))

    def _whole(self, line: LogLine[Req], tries: Sequence[LogLine[Wreq]]) -> Explanation:
        r = line.record
        offset = self._clocks.offset(line)
        timeline = timeline_of(r, offset)
        parts = segments(timeline)
        answered = bool(r.w8 and r.g3 and r.g5)
        batch = self._batch(r.worker, r.batch_id, r.part or r.id, r)
        missing = self._missing(r, tries, batch)
        notes = [*missing, *_clock_notes(offset, parts), *_silent_attempts(r.attempt, tries)]
        if r.submits > 1:
            notes.append(f"handed over {r.submits} times: the gateway had lost Redis, or Redis the request")
        if r.parts > 1:
            notes.append(f"the request went out in {r.parts} parts; shown is the one answered last, {r.part}")
        if r.g3 and not answered:
            notes.append("the request was handed over, but no worker's answer came back")
        if any(p.name == "lost_attempt" for p in parts) and any(p.name == "stream_wait" for p in parts):
            notes.append(f"stream_wait was for the worker of attempt 1; shown is what worker {r.worker} did meanwhile")
        lost = self._lost((line.writer, f"worker-{r.worker}"))
        return Explanation(
            id=r.id,
            label=r.label,
            client_id=r.client_id,
            trace_id=r.trace_id,
            route=r.route,
            status=r.status,
            error_code=r.error_code,
            error=r.error,
            model=r.model,
            version=r.version,
            attempts=max(r.attempt, len(tries)),
            started_us=line.envelope.wall_us - (line.envelope.mono - r.g0) // 1_000,
            ended_us=line.envelope.wall_us,
            timeline=timeline,
            segments=tuple(parts),
            hop=Hop((r.g5 - r.g3) - (r.w8 - r.w1), offset) if answered else None,
            batch=batch,
            attempt_list=_attempts(r.attempt, tries),
            waited_behind=self._blame(timeline, parts, r.worker, r.worker_clock) if answered else (),
            own_pass=self._own_pass(batch, r.part or r.id, r.worker, parts) if answered else {},
            worker=r.worker,
            gateway=line.envelope.inst,
            complete=not missing and not lost,
            partial=False,
            notes=tuple(dict.fromkeys([*notes, *lost])),
        )

    def _part(self, request_id: str, tries: Sequence[LogLine[Wreq]]) -> Explanation:
        if not tries:
            raise KeyError(request_id)
        envelope, w = tries[-1]
        gateway_clock = self._clock_of(w.gateway)
        offset = self._clocks.between(gateway_clock, envelope.clock, w.g3) if gateway_clock else None
        timeline = partial_timeline(w, offset)
        parts = segments(timeline)
        batch = self._batch(envelope.inst, w.batch_id, w.id, None)
        since = "from the gateway's hand-over" if timeline.g[0] < w.w1 else "from the worker's pull"
        notes = [
            f"the line of gateway {w.gateway or '?'} is missing: shown is only the time {since} to the answer",
            *_silent_attempts(w.attempt, tries),
            *self._lost((f"gateway-{w.gateway}", tries[-1].writer)),
        ]
        if timeline.g[0] < w.w1:
            notes.append("when Redis had the request is unknown: its way there is part of stream_wait or deliver")
        return Explanation(
            id=w.id,
            label="",
            client_id="",
            trace_id=w.trace_id,
            route="",
            status=None,
            error_code=w.error_code,
            error=w.error,
            model=w.model,
            version=w.version,
            attempts=max(w.attempt, len(tries)),
            started_us=envelope.wall_us - (envelope.mono - timeline.g[0]) // 1_000,
            ended_us=envelope.wall_us,
            timeline=timeline,
            segments=tuple(parts),
            hop=None,
            batch=batch,
            attempt_list=_attempts(w.attempt, tries),
            waited_behind=self._blame(timeline, parts, envelope.inst, envelope.clock),
            own_pass=self._own_pass(batch, w.id, envelope.inst, parts),
            worker=envelope.inst,
            gateway=w.gateway,
            complete=False,
            partial=True,
            notes=tuple(notes),
        )

    def _blame(self, timeline: Timeline, parts: Sequence[Segment], worker: str, clock: str) -> tuple[Piece, ...]:
        if (worker, clock) not in self._workers:
            self._workers[worker, clock] = WorkerTimeline.of(self._logs, worker, clock)
        at = self._workers[worker, clock]
        return tuple(piece for wait in waits(timeline, parts) for piece in at.blame(wait))

    def _own_pass(
        self, batch: BatchView | None, request_id: str, worker: str, parts: Sequence[Segment]
    ) -> Mapping[str, int]:
        b = batch.record if batch is not None else None
        if b is None or request_id not in b.members or len(b.costs) != len(b.members):
            return {}
        # Here, since numpy takes its time to load, and a request without a pass can do without.
        from forensics.diagnose.own_pass import own_pass

        lines = [line.record for line in self._logs.written_by("worker", worker)]
        took_ns = sum(part.ns for part in parts if part.name in ("collate", "forward", "post"))
        passes = [record for record in lines if isinstance(record, Batch)]
        pauses = [record for record in lines if isinstance(record, Evt) and record.kind == "gc"]
        rows = next((w.record.rows for w in self._wreqs.get(request_id, ()) if w.envelope.inst == worker), 1)
        return own_pass(b, b.costs[b.members.index(request_id)], rows, took_ns, passes, pauses)

    def _batch(self, worker: str, batch_id: str, request_id: str, r: Req | None) -> BatchView | None:
        if not batch_id:
            return None
        b = self._batches.get((worker, batch_id))
        if b is None:
            if r is None:
                return BatchView(batch_id, 0, 0, "", 0, 0)
            return BatchView(batch_id, r.batch_requests, r.batch_rows, r.close_reason, r.tokens_useful, r.tokens_padded)
        mates = tuple(m for m in b.members if m != request_id)
        return BatchView(batch_id, b.requests, b.rows, b.close_reason, b.tokens_useful, b.tokens_padded, mates, b)

    def _missing(self, r: Req, tries: Sequence[LogLine[Wreq]], batch: BatchView | None) -> list[str]:
        if not r.worker:
            return []
        if not any(line.envelope.inst == r.worker for line in tries) and (batch is None or batch.record is None):
            return [f"the log of worker {r.worker} is missing: mates, device times and what it did are unknown"]
        if batch is not None and batch.record is None:
            return [f"the worker's line of batch {batch.batch_id} is missing: mates and device times are unknown"]
        if not any(line.envelope.inst == r.worker for line in tries):
            return [f"the line of worker {r.worker} about this request is missing"]
        return []

    def _lost(self, writers: Iterable[str]) -> list[str]:
        lost = self._logs.report.lost
        return [f"{lost[writer]} log lines of {writer} were lost" for writer in writers if lost.get(writer)]

    def _clock_of(self, inst: str) -> str:
        lines = self._logs.written_by("gateway", inst) if inst else []
        return lines[-1].envelope.clock if lines else ""


def _attempts(count: int, tries: Sequence[LogLine[Wreq]]) -> tuple[Attempt, ...]:
    told = [Attempt(w.attempt, envelope.inst, w.outcome, w.batch_id, w.error_code, w.error) for envelope, w in tries]
    silent = set(range(1, count + 1)) - {a.attempt for a in told}
    return tuple(sorted([*told, *(Attempt(n, "", "unknown") for n in silent)], key=lambda a: a.attempt))


def _silent_attempts(count: int, tries: Sequence[LogLine[Wreq]]) -> list[str]:
    told = {line.record.attempt for line in tries}
    return [
        f"attempt {n} left no line: its worker died with it, or its log is missing"
        for n in range(1, count)
        if n not in told
    ]


def _clock_notes(offset: Offset, parts: Sequence[Segment]) -> list[str]:
    notes = []
    if any(part.name == "unexplained" for part in parts):
        half_ms = (offset.hi_ns - offset.lo_ns) / 2e6
        notes.append(f"the clocks compare only to +-{half_ms:.3f} ms, so the way there and back is not split")
    if offset.source is OffsetSource.CAUSALITY:
        notes.append("no measured clock offset is in the logs; it is bounded by causality alone")
    crossing = ("uplink", "deliver", "downlink", "unexplained")
    for p in parts:
        if p.ns < 0:
            why = "the clocks' bounds contradict the stamps" if p.name in crossing else "its stamps are out of order"
            notes.append(f"{p.name} is negative: {why}")
    return notes


def to_json(e: Explanation) -> dict[str, Any]:
    """The explanation as a value ready for JSON; all times in ns, integers."""
    return {
        "id": e.id,
        "label": e.label,
        "client_id": e.client_id,
        "trace_id": e.trace_id,
        "route": e.route,
        "status": e.status,
        "error_code": e.error_code,
        "error": e.error,
        "model": e.model,
        "version": e.version,
        "attempts": e.attempts,
        "started_us": e.started_us,
        "e2e_ns": e.e2e_ns,
        "segments": [
            {"name": s.name, "class": s.kind.value, "ns": s.ns, "uncertainty_ns": s.uncertainty_ns} for s in e.segments
        ],
        "classes": {kind.value: ns for kind, ns in e.classes.items()},
        "hop": _hop_json(e.hop),
        "batch": _batch_json(e.batch),
        "attempt_list": [
            {
                "attempt": a.attempt,
                "worker": a.worker,
                "outcome": a.outcome,
                "batch_id": a.batch_id,
                "error_code": a.error_code,
                "error": a.error,
            }
            for a in e.attempt_list
        ],
        "waited_behind": [_piece_json(p) for p in e.waited_behind],
        "own_pass": dict(e.own_pass),
        "worker": e.worker,
        "gateway": e.gateway,
        "complete": e.complete,
        "partial": e.partial,
        "notes": list(e.notes),
    }


def _hop_json(hop: Hop | None) -> dict[str, Any] | None:
    if hop is None:
        return None
    bounds = {"theta_lo_ns": hop.offset.lo_ns, "theta_hi_ns": hop.offset.hi_ns, "source": hop.offset.source.value}
    return {"ns": hop.ns, "bounds": bounds}


def _batch_json(batch: BatchView | None) -> dict[str, Any] | None:
    if batch is None:
        return None
    b = batch.record
    return {
        "id": batch.batch_id,
        "requests": batch.requests,
        "rows": batch.rows,
        "rows_max": b.rows_max if b is not None else None,
        "close_reason": batch.close_reason,
        "tokens_useful": batch.tokens_useful,
        "tokens_padded": batch.tokens_padded,
        "padding_ratio": batch.padding_ratio,
        "mates": list(batch.mates) if b is not None else None,
        "device": {"h2d_ns": b.h2d, "compute_ns": b.compute, "d2h_ns": b.d2h} if b is not None else None,
        "cpu_ns": b.cpu if b is not None else None,
        "runq_ns": b.runq if b is not None else None,
    }


def _piece_json(piece: Piece) -> dict[str, Any]:
    b = piece.batch
    return {
        "segment": piece.segment,
        "label": piece.doing.value,
        "ns": piece.ns,
        "start": piece.start_ns,
        "batch_id": b.batch_id if b is not None else None,
        "requests": b.requests if b is not None else None,
        "model": b.model if b is not None else None,
        "attrs": dict(piece.span.attrs) if piece.span is not None else {},
    }
