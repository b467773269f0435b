"""One HTTP request from its first line to its last byte: identity, stamps, and the log record made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.pending import Pending
from gateway.trace import Trace
from shared import timeline, wire
from shared.errors import ErrorKind, TailraceError
from shared.events import Req
from shared.keys import NORMAL
from shared.timeline import Class, Timeline

NO_STAMPS = wire.WorkerStamps(0, 0, 0, 0, 0, 0, 0, 0, 0, "", "", 0, 0, "", 0, 0, "", 0, 0)
"""Of a request that no worker answered."""
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
    tenant: str = ""
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
        self.deciding = self.parts[0] if len(self.parts) == 1 else max(self.parts, key=lambda p: p.g5)
        future = self.deciding.answer
        if future.done() and not future.cancelled() and future.exception() is None:
            self.stamps = future.result().stamps

    def timeline(self, theta_lo_ns: int = 0, theta_hi_ns: int = 0) -> Timeline:
        """The request's stamps so far."""
        p, s = self.deciding, self.stamps or NO_STAMPS
        g3, g4, g5 = (p.g3, p.g4, p.g5) if p else (0, 0, 0)
        return Timeline(
            (self.g0, self.g1, self.g2, g3, g4, g5, self.g6, self.g7, self.g8),
            (s.w0, s.w1, s.w2, s.w3, s.w4, s.w5, s.w6, s.w7, s.w8),
            theta_lo_ns,
            theta_hi_ns,
            s.lost_us * 1000,
        )

    def server_timing(self, own_clock: str) -> str:
        """The Server-Timing header: ms of each class up to now (g7), and their sum."""
        # Another host's clock is bounded by causality alone here; `explain` knows more.
        far = 0 if self.stamps is None or self.stamps.clock == own_clock else 1 << 62
        queue, compute, transfer, overhead = timeline.class_sums(self.timeline(-far, far))
        total = queue + compute + transfer + overhead
        return SERVER_TIMING % (queue / 1e6, compute / 1e6, transfer / 1e6, overhead / 1e6, total / 1e6)

    def record(self, status: int) -> Req:
        """The log record of the finished request."""
        p, e = self.deciding, self.error
        g3, g4, g5, entry_id, submits = (p.g3, p.g4, p.g5, p.entry_id, p.submits) if p else (0, 0, 0, "", 0)
        split = len(self.parts) > 1
        # By position, since a request pays 3 us more for fifty names; a test holds the order.
        return Req(  # type: ignore[call-arg]  # how long `astuple` is
            self.id, self.trace.trace_id, self.trace.span_id, self.route, status, self.g0, self.g8,
            self.label, self.client_id, self.trace.parent_span_id,
            self.model.name if self.model else "", self.model.version if self.model else "",
            self.g1, self.g2, g3, g4, g5, self.g6, self.g7, self.g0_lag,
            # w0 to tokens_padded: the record has the worker's stamps as they travel.
            *msgspec.structs.astuple(self.stamps or NO_STAMPS),
            self.rows, self.bytes_in, self.bytes_out, self.deadline_ms, entry_id, submits, self.inflight,
            len(self.parts) if split else 0, p.id if p and split else "",
            e.kind.code if e else "", e.message if e else "", self.tenant, p.priority if p else NORMAL,
        )  # fmt: skip


INFERENCE_ROUTES = frozenset({"infer", "embeddings", "jobs"})
CLIENT_GONE = TailraceError(ErrorKind.CANCELLED, "the client closed its connection before the answer was ready")
