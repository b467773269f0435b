"""Writes logs as gateways and workers do, for the tests of the forensics."""

from pathlib import Path
from typing import Any

import msgspec

from shared.events import Batch, Envelope, Event, Evt, Hello, Req, Wreq

MS = 1_000_000
T0_NS = 5_000_000 * MS
"""The monotonic clock when the tests' story begins."""
T0_WALL_US = 1_796_029_200_000_000
"""The wall clock then: 2026-11-30 09:00:00 UTC."""


class Logbook:
    """A log directory being written. Times are ms since the story began, on the one clock of its host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._seq: dict[str, int] = {}

    def line(self, proc: str, inst: str, record: Event, *, at_ms: float, clock: str = "clock-a", pid: int = 1) -> bytes:
        """One line as its writer would make it."""
        seq = self._seq[inst] = self._seq.get(inst, -1) + 1
        at_ns = round(at_ms * MS)
        envelope = Envelope(
            v=1,
            t=str(record.__struct_config__.tag),
            host="host-a",
            clock=clock,
            pid=pid,
            proc=proc,
            inst=inst,
            seq=seq,
            mono=T0_NS + at_ns,
            wall_us=T0_WALL_US + at_ns // 1_000,
        )
        head: dict[str, Any] = msgspec.to_builtins(envelope)
        del head["t"]  # the record begins with it
        return msgspec.json.encode(head | msgspec.to_builtins(record)) + b"\n"

    def write(self, proc: str, inst: str, record: Event, *, at_ms: float, clock: str = "clock-a") -> None:
        """Append one line to the log of its process."""
        with (self.folder / f"{proc}-{inst}.jsonl").open("ab") as file:
            file.write(self.line(proc, inst, record, at_ms=at_ms, clock=clock))

    def lose(self, inst: str, count: int) -> None:
        """So many lines of this process never reach its file."""
        self._seq[inst] = self._seq.get(inst, -1) + count


def ns(at_ms: float) -> int:
    """An instant of the story on the host's clock."""
    return T0_NS + round(at_ms * MS)


HELLO = Hello(tailrace="0.1.0", python="3.11.7", redis_py="6.4.0")


def req(request_id: str, *, begun_ms: float = 0.0, stretch: float = 1.0, **fields: Any) -> Req:
    """A request that took 100 ms: 60 ms behind a batch, 4 ms for its own batch to fill, 30 ms of work."""
    at = {
        "g0": 0,
        "g1": 0.3,
        "g2": 1.2,
        "g3": 1.4,
        "g4": 1.8,
        "w0": 61.6,
        "w1": 62.0,
        "w2": 62.1,
        "w3": 66.1,
        "w4": 66.2,
        "w5": 67.2,
        "w6": 96.2,
        "w7": 97.0,
        "w8": 97.1,
        "g5": 97.6,
        "g6": 97.7,
        "g7": 98.0,
        "g8": 100.000123,
    }
    stamps = {name: ns(begun_ms + ms * stretch) for name, ms in at.items()}
    told: dict[str, Any] = {
        "id": request_id,
        "trace_id": "f" * 32,
        "span_id": "a" * 16,
        "route": "/v2/models/{model}/infer",
        "status": 200,
        "model": "minilm",
        "version": "1",
        "worker": "w-1",
        "worker_clock": "clock-a",
        "attempt": 1,
        "batch_id": "b-2",
        "batch_rows": 2,
        "batch_requests": 2,
        "close_reason": "linger",
        "tokens_useful": 60,
        "tokens_padded": 80,
        "rows": 1,
    }
    return Req(**(told | stamps | fields))


def wreq(r: Req, **fields: Any) -> Wreq:
    """The worker's line about the same request."""
    told = {name: getattr(r, name) for name in ("id", "trace_id", "model", "version", "batch_id", "rows", "g3")}
    stamps = {f"w{i}": getattr(r, f"w{i}") for i in range(9)}
    more = {
        "parent_span_id": r.span_id,
        "attempt": r.attempt,
        "outcome": "done",
        "w9": r.w8 + MS,
        "gateway": "gw-1",
    }
    return Wreq(**(told | stamps | more | fields))


def batch(batch_id: str, *, start_ms: float, end_ms: float, members: list[str], **fields: Any) -> Batch:
    """A pass through the device."""
    told: dict[str, Any] = {
        "batch_id": batch_id,
        "model": "minilm",
        "version": "1",
        "close_reason": "full",
        "w3": ns(start_ms),
        "w4": ns(start_ms),
        "w5": ns(start_ms),
        "w6": ns(end_ms),
        "w7": ns(end_ms),
        "requests": len(members),
        "rows": len(members),
        "rows_max": 8,
        "cost": len(members),
        "members": members,
        "costs": [1] * len(members),
    }
    return Batch(**(told | fields))


def write_gateway(book: Logbook, *requests: Req) -> None:
    """The gateway's log: it started, and these requests ended."""
    book.write("gateway", "gw-1", HELLO, at_ms=-5_000)
    for r in requests:
        book.write("gateway", "gw-1", r, at_ms=(r.g8 - T0_NS) / MS)


def write_worker(book: Logbook, *requests: Req) -> None:
    """The worker's log: batch b-1 ran from 0 to 60 ms with a pause for garbage in it, then b-2 with the requests."""
    book.write("worker", "w-1", HELLO, at_ms=-5_000)
    book.write("worker", "w-1", Evt("gc", ns(10), ns(35), {"generation": 2}), at_ms=35)
    book.write("worker", "w-1", batch("b-1", start_ms=0, end_ms=60, members=["other-1", "other-2"]), at_ms=60.1)
    mates = [*(r.id for r in requests), "mate-0001"]
    own = batch("b-2", start_ms=66.2, end_ms=97, members=mates, tokens_useful=60, tokens_padded=80, compute=28 * MS)
    book.write("worker", "w-1", own, at_ms=97.2)
    for r in requests:
        book.write("worker", "w-1", wreq(r), at_ms=98.1)
