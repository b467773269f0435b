"""A process that never ran, and its log: what `bench/make_logs.py` lets happen to it is written as a real one does."""

import heapq
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shared.events import Event

S = 1_000_000_000
WALL_US = 1_796_029_200_000_000
"""The wall clock when the story begins: 2026-11-30 09:00:00 UTC."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's monotonic clock: `at` gives what it shows at an instant of true time, ns."""

    name: str
    host: str
    offset_ns: int
    drift_ppb: int

    def at(self, true_ns: int) -> int:
        """What the clock shows."""
        return self.offset_ns + true_ns + true_ns * self.drift_ppb // S


@dataclass(slots=True)
class Process:
    """One process and its log. Lines wait in a heap until no earlier one can come."""

    folder: Path
    proc: str
    inst: str
    pid: int
    clock: HostClock
    file_bytes_max: int
    seq: int = 0
    rotations: int = 0
    size: int = 0
    nth: int = 0
    held: list[int] = field(default_factory=list)
    """When it begins to hold a request, and (negative) when that ends: what a sample counts."""
    inflight: int = 0
    _pending: list[tuple[int, int, Event]] = field(default_factory=list)
    _count: int = 0

    def write(self, true_ns: int, record: Event) -> None:
        """Note a record of this instant."""
        self._count += 1
        heapq.heappush(self._pending, (true_ns, self._count, record))

    def holds(self, at_ns: int) -> int:
        """How many requests it holds; to be asked in the order of time."""
        past = [t for t in self.held if abs(t) <= at_ns]
        self.held = [t for t in self.held if abs(t) > at_ns]
        self.inflight += sum(1 if t > 0 else -1 for t in past)
        return self.inflight

    def flush(self, until_ns: int) -> None:
        """Write what is older than this."""
        c = self.clock
        lines: list[bytes] = []
        head = {"v": 1, "host": c.host, "clock": c.name, "pid": self.pid, "proc": self.proc, "inst": self.inst}
        prefix = _encode(head)[:-1]
        while self._pending and self._pending[0][0] <= until_ns:
            true_ns, _, record = heapq.heappop(self._pending)
            self.seq += 1
            stamps = b',"seq":%d,"mono":%d,"wall_us":%d,' % (self.seq, c.at(true_ns), WALL_US + true_ns // 1_000)
            lines += (prefix, stamps, _encode(record)[1:], b"\n")
        block = b"".join(lines)
        path = self.folder / f"{self.proc}-{self.inst}.jsonl"
        with path.open("ab") as file:
            file.write(block)
        self.size += len(block)
        if self.size >= self.file_bytes_max:
            self.rotations += 1
            path.rename(path.with_name(f"{path.stem}.{self.rotations:06d}.jsonl"))
            self.size = 0
