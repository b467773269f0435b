"""The clients of a run: the open loop of `tailrace bench`, which remembers every request, and may have impatient users.

An impatient client that has no answer in time sends its request again, with the same label and no pause, and lets the
old one run on: it gave up in its own code, and its connection does not tell the server. Retry storms are made of that.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from bench.connections import Exchange, Target
from bench.lineup.traffic import Sent, Traffic
from bench.load import OpenLoop, Progress
from bench.responses import Response
from bench.tally import Tally
from bench.workload import Request
from shared import clock

CONNECTIONS_MAX = 4096
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits before it tries again, and how often it tries in all."""

    timeout_s: float
    tries: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has ended. Instants in ns of `clock.now_ns`; `id` is the server's, empty without an answer."""

    sent: Sent
    intended_ns: int
    sent_ns: int
    done_ns: int
    status: int
    id: str


class Clients(OpenLoop):
    """Sends the plan of `traffic`, and what a scenario sends besides."""

    def __init__(
        self, target: Target, traffic: Traffic, tally: Tally, progress: Progress, *, begin_ns: int, length_ns: int
    ) -> None:
        self.ended: list[Ended] = []
        self.patience: Patience | None = None
        self.tries_count = 0
        self._traffic = traffic
        self._again: set[asyncio.TimerHandle] = set()
        plan: Iterator[tuple[int, Request]] = traffic.plan(length_ns)
        super().__init__(
            target, plan, tally, progress, begin_ns=begin_ns, connections_max=CONNECTIONS_MAX, timeout_s=TIMEOUT_S
        )

    def send(self, request: Request, now_ns: int) -> None:
        """Send a request beside the plan."""
        self._take(request, now_ns)

    def _take(self, request: Request, intended_ns: int) -> None:
        super()._take(request, intended_ns)
        if self.patience is not None:
            self._watch(request, self.patience, 1)

    def _watch(self, request: Request, patience: Patience, tried: int) -> None:
        """Try again when there is no answer in time; `sent` forgets what has been answered."""

        def look() -> None:
            self._again.discard(handle)
            if id(request.message) not in self._traffic.sent or self.patience is None or tried >= patience.tries:
                return
            # Not by our own `_take`, which would begin to count anew.
            self.tries_count += 1
            copy = Request(bytes(bytearray(request.message)), request.rows)
            self._traffic.sent[id(copy.message)] = self._traffic.sent[id(request.message)]
            OpenLoop._take(self, copy, clock.now_ns())
            self._watch(copy, patience, tried + 1)

        handle = asyncio.get_running_loop().call_later(patience.timeout_s, look)
        self._again.add(handle)

    def _ended(self, exchange: Exchange) -> None:
        sent = self._traffic.sent.pop(id(exchange.message))
        status, rid = 0, ""
        if isinstance(exchange.outcome, Response):
            status = exchange.outcome.status
            rid = exchange.outcome.header("x-tailrace-request-id") or ""
        self.ended.append(Ended(sent, exchange.intended_ns, exchange.sent_ns, exchange.done_ns, status, rid))

    def _close(self) -> None:
        for handle in self._again:
            handle.cancel()
        super()._close()
