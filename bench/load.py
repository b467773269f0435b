"""Drives the requests: a closed loop of clients that wait for their answers, or an open loop that keeps a schedule.

The open loop sends when a request is due, whatever became of those before it, and counts its latency from that instant.
A server that stands still for a second is thus seen by every request of that second. A closed loop cannot see that: its
clients wait, and ask less (coordinated omission).
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.alarm import Alarm
from bench.connections import Exchange, Failure, FailureKind, Pool, Target
from bench.tally import Tally
from bench.workload import Request
from shared import clock

SENT_AT_ONCE = 32
"""So many overdue requests are sent before answers are read again."""
LIVE_MAX = 100_000
"""So many requests may be on their way or wait for a connection; what is due beyond that is not sent."""
PAUSE_S = 0.1
"""A closed client whose connection failed waits so long: a server that is gone must not be asked in a busy loop."""
LEAVE_S = 1.0
"""When the run is broken off, requests in flight have so long to end."""


@dataclass(slots=True)
class Progress:
    """How far a run is, for whoever shows it."""

    from_ns: int
    until_ns: int
    taken_count: int = 0
    ended_count: int = 0


class Driver:
    """What both loops share: the pool, the count of what is on its way, and the end."""

    def __init__(
        self, target: Target, connections_max: int, timeout_s: float, tally: Tally, progress: Progress
    ) -> None:
        self._tally = tally
        self._timeout_ns = int(timeout_s * 1e9)
        self._pool = Pool(target, connections_max, self._timeout_ns, self._end)
        self.progress = progress
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopped = False

    @property
    def connections_most(self) -> int:
        """How many connections were open at once, at the most."""
        return self._pool.open_most

    async def finish(self, stop: asyncio.Event) -> int:
        """Wait for the end; how many requests had not ended when `stop` broke the run off."""
        stopping = asyncio.create_task(stop.wait())
        try:
            either: list[asyncio.Future[Any]] = [self.over, stopping]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self.over.done():
                self._stopped = True
                self._look_if_over()
                await asyncio.wait([self.over], timeout=LEAVE_S)
            return self._pool.live_count
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            self._close()
            await self._pool.close()

    def _take(self, request: Request, intended_ns: int) -> None:
        self.progress.taken_count += 1
        self._pool.start(Exchange(intended_ns, request.message, request.rows))

    def _end(self, exchange: Exchange) -> None:
        self.progress.ended_count += 1
        self._tally.add(exchange)
        self._ended(exchange)
        self._look_if_over()

    def _look_if_over(self) -> None:
        if self._is_exhausted() and not self._pool.live_count and not self.over.done():
            self.over.set_result(None)

    def _ended(self, exchange: Exchange) -> None:
        """Go on after the end of a request."""

    def _is_exhausted(self) -> bool:
        """True when no more requests will be sent."""
        raise NotImplementedError

    def _close(self) -> None:
        """Let go of what the loop holds beside the pool."""


class ClosedLoop(Driver):
    """`connections` clients, each sending its next request when the last is answered, until `progress.until_ns`."""

    def __init__(
        self,
        target: Target,
        requests: Iterator[Request],
        tally: Tally,
        progress: Progress,
        *,
        connections: int,
        timeout_s: float,
    ) -> None:
        super().__init__(target, connections, timeout_s, tally, progress)
        self._requests = requests
        self._pauses: set[asyncio.TimerHandle] = set()
        for _ in range(connections):
            self._next()
        self._look_if_over()

    def _next(self) -> None:
        now_ns = clock.now_ns()
        if not self._stopped and now_ns < self.progress.until_ns:
            self._take(next(self._requests), now_ns)

    def _ended(self, exchange: Exchange) -> None:
        if isinstance(exchange.outcome, Failure):
            self._pause()
        else:
            self._next()

    def _pause(self) -> None:
        def go_on() -> None:
            self._pauses.discard(handle)
            self._next()
            self._look_if_over()

        handle = asyncio.get_running_loop().call_later(PAUSE_S, go_on)
        self._pauses.add(handle)

    def _is_exhausted(self) -> bool:
        return not self._pauses and (self._stopped or clock.now_ns() >= self.progress.until_ns)

    def _close(self) -> None:
        for handle in self._pauses:
            handle.cancel()


class OpenLoop(Driver):
    """Sends each request of `plan`, (ns after `begin_ns`, request) in this order, when it is due.

    What could not be sent within the limit of time of a request, or would be too much at once, is not sent, and failed.
    """

    def __init__(
        self,
        target: Target,
        plan: Iterator[tuple[int, Request]],
        tally: Tally,
        progress: Progress,
        *,
        begin_ns: int,
        connections_max: int,
        timeout_s: float,
        alarm: Callable[[Callable[[], None]], Alarm] = Alarm,
    ) -> None:
        super().__init__(target, connections_max, timeout_s, tally, progress)
        self._plan = plan
        self._begin_ns = begin_ns
        self._following: tuple[int, Request] | None = next(plan, None)
        self._alarm = alarm(self._send_due)
        self._handle: asyncio.Handle | None = None
        self._set()

    def _send_due(self) -> None:
        for _ in range(SENT_AT_ONCE):
            if self._following is None or self._stopped:
                break
            at_ns, request = self._following
            intended_ns = self._begin_ns + at_ns
            now_ns = clock.now_ns()
            if intended_ns > now_ns:
                break
            self._following = next(self._plan, None)
            if now_ns - intended_ns > self._timeout_ns:
                late_s = (now_ns - intended_ns) / 1e9
                self._give_up(request, intended_ns, now_ns, f"the generator was {late_s:.1f} s late")
            elif self._pool.live_count >= LIVE_MAX:
                self._give_up(request, intended_ns, now_ns, f"{LIVE_MAX} requests were on their way")
            else:
                self._take(request, intended_ns)
        self._set()

    def _set(self) -> None:
        """Come back when the next request is due; when that is now, after what else the event loop has to do."""
        if self._following is None or self._stopped:
            self._look_if_over()
        elif (at_ns := self._begin_ns + self._following[0]) <= clock.now_ns():
            self._handle = asyncio.get_running_loop().call_soon(self._send_due)
        else:
            self._alarm.set(at_ns)

    def _give_up(self, request: Request, intended_ns: int, now_ns: int, why: str) -> None:
        self.progress.taken_count += 1
        exchange = Exchange(intended_ns, request.message, request.rows, done_ns=now_ns)
        exchange.outcome = Failure(FailureKind.UNSENT, why)
        self._end(exchange)

    def _is_exhausted(self) -> bool:
        return self._following is None or self._stopped

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._alarm.close()
