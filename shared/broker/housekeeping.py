"""Every process ticks every queue it knows; one of them leads and does the work."""

import asyncio
from collections.abc import Callable, Iterable

from shared import clock
from shared.broker import calls
from shared.broker.connection import BrokerError, Connection
from shared.eventlog import EventLog
from shared.events import Evt
from shared.keys import Queue

TICK_INTERVAL_S = 0.25


AUDIT_INTERVAL_S = 30.0


async def keep_ticking(
    connection: Connection, queues: Callable[[], Iterable[Queue]], me: str, log: EventLog, *, lease_us: int
) -> None:
    """Tick for ever, and log what a tick changed."""
    audits: dict[Queue, _Audit] = {}
    while True:
        for queue in list(queues()):
            started_ns = clock.now_ns()
            try:
                tick = await calls.tick(connection, queue, me, grace_us=lease_us)
                if tick is None:
                    continue
                _tell(log, queue, tick, started_ns)
                await audits.setdefault(queue, _Audit(queue)).step(connection, log)
            except BrokerError:
                continue
        await asyncio.sleep(TICK_INTERVAL_S)


def _tell(log: EventLog, queue: Queue, tick: calls.Tick, started_ns: int) -> None:
    now = clock.now_ns()
    for worker in tick.lost:
        log.write(Evt("worker_lost", started_ns, now, {"queue": str(queue), "worker": worker}))
    done = {name: list(getattr(tick, name)) for name in ("overdue", "due", "requeued", "suspects", "dead")}
    if any(done.values()):
        log.write(Evt("reclaim", started_ns, now, {"queue": str(queue)} | {k: ids for k, ids in done.items() if ids}))
    if tick.stood_still_us:
        log.write(Evt("redis_stood_still", now - tick.stood_still_us * 1000, now, {"queue": str(queue)}))


class _Audit:
    """The leader's look at all live requests of a queue, a slice a tick, every AUDIT_INTERVAL_S anew."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._rank = 0
        self._due_ns = 0

    async def step(self, connection: Connection, log: EventLog) -> None:
        now = clock.now_ns()
        if now < self._due_ns:
            return
        self._rank, mended = await calls.audit(connection, self._queue, start=self._rank)
        if not self._rank:
            self._due_ns = now + int(AUDIT_INTERVAL_S * 1e9)
        if mended:
            log.write(Evt("audit", now, clock.now_ns(), {"queue": str(self._queue), "requeued": mended}))
