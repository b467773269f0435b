"""What is said of every request of a pass, in its answer and in the log: made by position, held here by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from shared import wire
from shared.broker import work
from shared.broker.connection import Connection
from shared.eventlog import EventLog
from shared.events import Batch, Event, Wreq
from shared.keys import Queue
from shared.policy.batching import CloseReason, Waiting
from worker.device import Executed, Result
from worker.intake import Job, Member
from worker.models.interface import ModelConfig, ModelRequest
from worker.publish import Publisher, Run

DELIVERY = work.Delivery(
    "id-1", "lane", "1-2", 3, 60_000_000, 7, 11, "gw-1", 1, wire.CONTENT_TYPE, f"00-{'a' * 32}-{'b' * 16}-01", "", 90,
    b"payload",
)  # fmt: skip
MEMBER = Member("id-1", DELIVERY.traceparent, ModelRequest({}, rows=2), [], 5)
JOB = Job(DELIVERY, Waiting("id-1", 2, 5, None, 103, 1 << 60), [MEMBER], 101, 102, 103, bytes_in=len(DELIVERY.payload))
DONE = Executed(
    [Result(b"a body")], 105, 106, 107, [108], 0, 1, 0, 2, 3, 4, 5, 6, 7, tokens_useful=20, tokens_padded=24, splits=0
)


class Logged(list[Event]):
    """A log to look into."""

    def write(self, record: Event) -> None:
        self.append(record)


async def test_a_request_has_every_fact_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's stamps travel in the answer and stand in its own log, each where readers look for it."""
    handed_in: list[work.Answer] = []

    async def complete(_c: Any, _queue: Queue, answers: Sequence[work.Answer]) -> list[str]:
        handed_in.extend(answers)
        return ["OK"] * len(answers)

    async def count(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(work, "complete", complete)
    monkeypatch.setattr(work, "count", count)
    config = ModelConfig("m", "1", "pytorch_python", (), (), Path(), max_batch_size=8)
    run = Run("w-1.9", Queue("m", "1"), config, [JOB], [MEMBER], CloseReason.FULL, 104, 1, True, 0, 2, executed=DONE)
    log = Logged()
    await Publisher(cast(Connection, None), cast(EventLog, log), "w-1", "clock").publish(run)

    (answer,) = handed_in
    assert (answer.id, answer.attempt, answer.failed) == ("id-1", 3, False)
    head = int.from_bytes(answer.answer[1:5], "little")
    assert answer.answer[5 + head :] == b"a body"
    stamps = msgspec.structs.asdict(msgspec.msgpack.decode(answer.answer[5 : 5 + head], type=wire.WorkerStamps))
    sent_ns = stamps.pop("w8")
    assert stamps == {
        "w0": 101, "w1": 102, "w2": 103, "w3": 104, "w4": 105, "w5": 106, "w6": 107, "w7": 108,
        "worker": "w-1", "clock": "clock", "attempt": 3, "lost_us": 7, "batch_id": "w-1.9", "batch_rows": 2,
        "batch_requests": 1, "close_reason": "full", "tokens_useful": 20, "tokens_padded": 24,
    }  # fmt: skip

    wreq, batch = log
    assert isinstance(wreq, Wreq) and isinstance(batch, Batch)
    assert wreq.w9 >= wreq.w8 == sent_ns
    record = msgspec.structs.asdict(wreq)
    del record["w8"], record["w9"]
    assert record == {
        "id": "id-1", "trace_id": "a" * 32, "parent_span_id": "b" * 16, "model": "m", "version": "1", "attempt": 3,
        "outcome": "DONE", "w0": 101, "w1": 102, "w2": 103, "w3": 104, "w4": 105, "w5": 106, "w6": 107, "w7": 108,
        "g3": 90, "gateway": "gw-1", "entry_id": "1-2", "lost_us": 7, "batch_id": "w-1.9", "position": 0, "rows": 2,
        "cost": 5, "bytes_in": 7, "bytes_out": 6, "error_code": "", "error": "",
    }  # fmt: skip
