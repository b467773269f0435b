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


async def keep_ticking(
    connection: Connection, queues: Callable[[], Iterable[Queue]], me: str, log: EventLog, *, lease_us: int
) -> None:
    """Tick for ever, and log what a tick changed."""
    while True:
        for queue in list(queues()):
            started_ns = clock.now_ns()
            try:
                tick = await calls.tick(connection, queue, me, grace_us=lease_us)
            except BrokerError:
                continue
            if tick is None:
                continue
            now = clock.now_ns()
            for worker in tick.lost:
                log.write(Evt("worker_lost", started_ns, now, {"queue": str(queue), "worker": worker}))
            if tick.requeued or tick.dead or tick.overdue:
                attrs = {"queue": str(queue), "requeued": tick.requeued, "dead": tick.dead, "overdue": tick.overdue}
                log.write(Evt("reclaim", started_ns, now, attrs))
            if tick.stood_still_us:
                log.write(Evt("redis_stood_still", now - tick.stood_still_us * 1000, now, {"queue": str(queue)}))
        await asyncio.sleep(TICK_INTERVAL_S)
