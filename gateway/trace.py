"""W3C trace context: take up the client's trace or begin one, and give the gateway's own span its id."""

from collections.abc import Mapping
from random import getrandbits
from typing import NamedTuple

from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_propagator = TraceContextTextMapPropagator()


class Trace(NamedTuple):
    """Where a request stands in its trace; hex digits as in the header."""

    trace_id: str
    span_id: str
    parent_span_id: str
    flags: str
    tracestate: str

    @property
    def traceparent(self) -> str:
        """The header for whoever comes next: the gateway's span is the parent."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def begin(headers: Mapping[str, str]) -> Trace:
    """Continue the trace of `headers`; without a valid traceparent, begin one (sampled)."""
    # Both ids in one go. That one of them is all zeros, which the standard forbids, happens once in 2^64 requests.
    digits = f"{getrandbits(192):048x}"
    span_id = digits[32:]
    if "traceparent" in headers:
        carrier = {"traceparent": headers["traceparent"], "tracestate": headers.get("tracestate", "")}
        parent = get_current_span(_propagator.extract(carrier)).get_span_context()
        if parent.is_valid:
            return Trace(
                f"{parent.trace_id:032x}",
                span_id,
                f"{parent.span_id:016x}",
                f"{parent.trace_flags:02x}",
                parent.trace_state.to_header(),
            )
    return Trace(digits[:32], span_id, "", "01", "")
