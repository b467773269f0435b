"""What became of the requests, counted as they end."""

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.connections import Exchange, Failure
from bench.discover import error_text
from bench.histogram import Histogram
from bench.ledger import Ledger, ledger_of
from bench.responses import Response
from forensics.report import visible

SLOWEST_MAX = 3


@dataclass(slots=True)
class Errors:
    """Requests that failed in one way, and what the first of them was told."""

    count: int
    first: str


class Slow(NamedTuple):
    """One of the slowest requests: latency, the server's id for it (empty without one) and its ledger."""

    latency_ns: int
    id: str
    ledger: Ledger | None


@dataclass(slots=True)
class Tally:
    """Counts of one run, of the requests that were due from `from_ns` on. All durations in ns.

    `latency` is from the intended instant to the last byte, of what was answered 2xx. `late` is how much later than
    intended a request was sent, `connecting` the part of that which went by until there was a connection for it. Of
    requests with a ledger: its parts, and `outside`, what the client waited beyond the server's total once it had sent.
    """

    from_ns: int = 0
    warm_up_count: int = 0
    ok_count: int = 0
    ok_rows: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    last_done_ns: int = 0
    latency: Histogram = field(default_factory=Histogram)
    late: Histogram = field(default_factory=Histogram)
    connecting: Histogram = field(default_factory=Histogram)
    parts: Mapping[str, Histogram] = field(default_factory=lambda: {name: Histogram() for name in Ledger._fields})
    outside: Histogram = field(default_factory=Histogram)
    errors: dict[str, Errors] = field(default_factory=dict)
    _slowest: list[tuple[int, int, Slow]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def failed_count(self) -> int:
        """Requests without a 2xx."""
        return sum(e.count for e in self.errors.values())

    @property
    def slowest(self) -> list[Slow]:
        """The slowest answered requests, the slowest first."""
        return [slow for _, _, slow in sorted(self._slowest, reverse=True)]

    def add(self, x: Exchange) -> None:
        """Count one request that has ended."""
        if x.intended_ns < self.from_ns:
            self.warm_up_count += 1
            return
        self.last_done_ns = max(self.last_done_ns, x.done_ns)
        if x.sent_ns:
            self.late.record(x.sent_ns - x.intended_ns)
            self.connecting.record(x.sent_ns - x.taken_ns)
            self.sent_bytes += len(x.message)
        match x.outcome:
            case Response(status=status) if 200 <= status < 300:
                self._add_answer(x, x.outcome)
            case Response(status=status):
                self._add_error(str(status), error_text(x.outcome))
            case Failure(kind, message):
                self._add_error(kind.value, visible(message))
            case None:
                raise AssertionError("this request has not ended")

    def _add_answer(self, x: Exchange, response: Response) -> None:
        latency_ns = x.done_ns - x.intended_ns
        self.ok_count += 1
        self.ok_rows += x.rows
        self.received_bytes += len(response.body)
        self.latency.record(latency_ns)
        ledger = ledger_of(response.header("server-timing"))
        if ledger is not None:
            for histogram, ns in zip(self.parts.values(), ledger, strict=True):
                histogram.record(ns)
            self.outside.record(x.done_ns - x.sent_ns - ledger.total)
        if len(self._slowest) < SLOWEST_MAX or latency_ns > self._slowest[0][0]:
            request_id = visible(response.header("x-tailrace-request-id") or "")
            entry = (latency_ns, next(self._order), Slow(latency_ns, request_id, ledger))
            if len(self._slowest) < SLOWEST_MAX:
                heapq.heappush(self._slowest, entry)
            else:
                heapq.heapreplace(self._slowest, entry)

    def _add_error(self, kind: str, message: str) -> None:
        known = self.errors.setdefault(kind, Errors(0, message))
        known.count += 1
