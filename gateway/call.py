"""One HTTP request from its first line to its last byte: identity, stamps, and the log record made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.submit import Pending
from gateway.trace import Trace
from shared import timeline, wire
from shared.errors import ErrorKind, TailraceError
from shared.events import Req
from shared.timeline import Class, Timeline

NO_STAMPS = (0,) * 9
SERVER_TIMING = ", ".join(f"{name};dur=%.3f" for name in (*(c.value for c in Class), "total"))


@dataclass(slots=True)
class Call:
    """Stamps g* in monotonic ns, 0 = not reached. `deciding` is the part of the request that was answered last."""

    id: str
    trace: Trace
    g0: int
    label: str = ""
    route: str = "unknown"
    values: Mapping[str, str] = field(default_factory=dict)
    g0_lag: int = 0
    g1: int = 0
    g2: int = 0
    g6: int = 0
    g7: int = 0
    g8: int = 0
    model: wire.ModelDescriptor | None = None
    client_id: str = ""
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    deadline_ms: int = 0
    inflight: int = 0
    parts: list[Pending] = field(default_factory=list)
    deciding: Pending | None = None
    stamps: wire.WorkerStamps | None = None
    error: TailraceError | None = None

    @property
    def is_logged(self) -> bool:
        """True for requests that ask a model, and for failures; but probes fail by the second while nobody is ready."""
        return self.route in INFERENCE_ROUTES or (self.error is not None and not self.route.endswith("/ready"))

    def settle(self) -> None:
        """Take the stamps of the part that decided when the whole was done."""
        if not self.parts:
            return
        self.deciding = max(self.parts, key=lambda p: p.g5)
        future = self.deciding.answer
        if future.done() and not future.cancelled() and future.exception() is None:
            self.stamps = future.result().stamps

    def timeline(self, theta_lo_ns: int = 0, theta_hi_ns: int = 0) -> Timeline:
        """The request's stamps so far."""
        p, s = self.deciding, self.stamps
        g = (self.g0, self.g1, self.g2, *((p.g3, p.g4, p.g5) if p else (0, 0, 0)), self.g6, self.g7, self.g8)
        w = (s.w0, s.w1, s.w2, s.w3, s.w4, s.w5, s.w6, s.w7, s.w8) if s else NO_STAMPS
        return Timeline(g, w, theta_lo_ns, theta_hi_ns, s.lost_us * 1000 if s else 0)

    def server_timing(self, own_clock: str) -> str:
        """The Server-Timing header: ms of each class up to now (g7), and their sum."""
        # Another host's clock is bounded by causality alone here; `explain` knows more.
        far = 0 if self.stamps is None or self.stamps.clock == own_clock else 1 << 62
        t = self.timeline(-far, far)
        queue, compute, transfer, overhead = timeline.class_sums(t)
        return SERVER_TIMING % (queue / 1e6, compute / 1e6, transfer / 1e6, overhead / 1e6, t.e2e_ns / 1e6)

    def record(self, status: int) -> Req:
        """The log record of the finished request."""
        p, s, e = self.deciding, self.stamps, self.error
        return Req(
            id=self.id,
            trace_id=self.trace.trace_id,
            span_id=self.trace.span_id,
            parent_span_id=self.trace.parent_span_id,
            route=self.route,
            status=status,
            label=self.label,
            client_id=self.client_id,
            model=self.model.name if self.model else "",
            version=self.model.version if self.model else "",
            g0=self.g0,
            g1=self.g1,
            g2=self.g2,
            g3=p.g3 if p else 0,
            g4=p.g4 if p else 0,
            g5=p.g5 if p else 0,
            g6=self.g6,
            g7=self.g7,
            g8=self.g8,
            g0_lag=self.g0_lag,
            w0=s.w0 if s else 0,
            w1=s.w1 if s else 0,
            w2=s.w2 if s else 0,
            w3=s.w3 if s else 0,
            w4=s.w4 if s else 0,
            w5=s.w5 if s else 0,
            w6=s.w6 if s else 0,
            w7=s.w7 if s else 0,
            w8=s.w8 if s else 0,
            worker=s.worker if s else "",
            worker_clock=s.clock if s else "",
            attempt=s.attempt if s else 0,
            lost_us=s.lost_us if s else 0,
            batch_id=s.batch_id if s else "",
            batch_rows=s.batch_rows if s else 0,
            batch_requests=s.batch_requests if s else 0,
            close_reason=s.close_reason if s else "",
            tokens_useful=s.tokens_useful if s else 0,
            tokens_padded=s.tokens_padded if s else 0,
            rows=self.rows,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            deadline_ms=self.deadline_ms,
            entry_id=p.entry_id if p else "",
            submits=p.submits if p else 0,
            inflight=self.inflight,
            parts=len(self.parts) if len(self.parts) > 1 else 0,
            part=p.id if p and len(self.parts) > 1 else "",
            error_code=e.kind.code if e else "",
            error=e.message if e else "",
        )


INFERENCE_ROUTES = frozenset({"infer", "embeddings"})
CLIENT_GONE = TailraceError(ErrorKind.CANCELLED, "the client closed its connection before the answer was ready")
