"""A request's log record: made by position, since it is made for every request, and held here by name."""

import msgspec

from gateway import trace
from gateway.call import Call
from shared.errors import BadRequest
from shared.events import Req
from shared.wire import ModelDescriptor, WorkerStamps

STAMPS = WorkerStamps(*range(100, 109), "w-1", "clock", 2, 7, "b-1", 8, 3, "full", 10, 12)


def test_a_record_has_every_fact_under_its_name() -> None:
    """What the call knows stands where readers look for it."""
    call = Call("id-1", trace.begin({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}), g0=1, label="mine", route="infer")
    call.g1, call.g2, call.g6, call.g7, call.g8, call.g0_lag = 2, 3, 7, 8, 9, 10
    call.model = ModelDescriptor("m", "3", "p", 8, [], [])
    call.client_id, call.rows, call.bytes_in, call.bytes_out, call.deadline_ms = "theirs", 11, 12, 13, 14
    call.inflight, call.stamps, call.error, call.tenant = 15, STAMPS, BadRequest("no"), "us"
    record = msgspec.structs.asdict(call.record(400))
    stamps = msgspec.structs.asdict(STAMPS)
    stamps["worker_clock"] = stamps.pop("clock")
    assert {name: record[name] for name in stamps} == stamps
    assert {name: value for name, value in record.items() if name not in stamps} == {
        "id": "id-1", "trace_id": "a" * 32, "span_id": call.trace.span_id, "parent_span_id": "b" * 16,
        "route": "infer", "status": 400, "label": "mine", "client_id": "theirs", "model": "m", "version": "3",
        "g0": 1, "g1": 2, "g2": 3, "g3": 0, "g4": 0, "g5": 0, "g6": 7, "g7": 8, "g8": 9, "g0_lag": 10,
        "rows": 11, "bytes_in": 12, "bytes_out": 13, "deadline_ms": 14, "entry_id": "", "submits": 0, "inflight": 15,
        "parts": 0, "part": "", "error_code": "bad_request", "error": "no",
        "tenant": "us", "priority": 2,
    }  # fmt: skip


def test_a_request_without_a_worker_has_a_record_too() -> None:
    """Refused at the door: only what was reached is there."""
    call = Call("id-1", trace.begin({}), g0=1, g8=5)
    expected = Req("id-1", call.trace.trace_id, call.trace.span_id, "unknown", 404, g0=1, g8=5)
    assert call.record(404) == expected
