"""Every process ticks every queue it knows; one of them leads and does the work."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shared import clock
from shared.broker import scripts
from shared.broker.connection import BrokerError, Connection
from shared.eventlog import EventLog
from shared.events import Evt
from shared.keys import Queue

TICK_INTERVAL_S = 0.25
AUDIT_INTERVAL_S = 30.0
TICK_LIMIT = 100
LEADER_TTL_MS = 2_000
CRASHES_MAX = 3
"""A request whose worker ended so often while it ran is dead: once in company, then alone."""
LOSSES_MAX = 10
"""A request that so many lost workers held without running it is dead: something is wrong with the fleet."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What a tick did: ids of requests, but `lost` are the workers whose lease ran out.

    `due`: tried again after a delay; `requeued`: a lost worker held them; `suspects`: a lost worker was running them.
    """

    stood_still_us: int
    overdue: tuple[str, ...]
    due: tuple[str, ...]
    requeued: tuple[str, ...]
    suspects: tuple[str, ...]
    dead: tuple[str, ...]
    lost: tuple[str, ...]


async def tick(c: Connection, queue: Queue, me: str, *, grace_us: int) -> Tick | None:
    """Run the housekeeping of a queue, if this process leads. None: another one does."""
    keys = (queue.leases, queue.deadlines, queue.tick, queue.leader)
    args = (queue.tag, me, LEADER_TTL_MS, grace_us, TICK_LIMIT, CRASHES_MAX, LOSSES_MAX)
    reply = await scripts.run(c, "tick", keys, args)
    if reply[0] != b"LEAD":
        return None
    return Tick(int(reply[1]), *(tuple(rid.decode() for rid in ids) for ids in reply[2:]))


async def audit(c: Connection, queue: Queue, *, start: int = 0, limit: int = 200) -> tuple[int, list[str]]:
    """Look at live requests from a rank on for such that nothing leads to any more, and enqueue those again.

    Returns (the next rank, or 0 after the last; ids that were enqueued).
    """
    following, mended = await scripts.run(c, "audit", (queue.deadlines, queue.leases), (queue.tag, start, limit))
    return int(following), [rid.decode() for rid in mended]


async def keep_ticking(
    connection: Connection, queues: Callable[[], Iterable[Queue]], me: str, log: EventLog, *, lease_us: int
) -> None:
    """Tick for ever, and log what a tick changed."""
    audits: dict[Queue, _Audit] = {}
    while True:
        for queue in list(queues()):
            started_ns = clock.now_ns()
            try:
                done = await tick(connection, queue, me, grace_us=lease_us)
                if done is None:
                    continue
                _tell(log, queue, done, started_ns)
                await audits.setdefault(queue, _Audit(queue)).step(connection, log)
            except BrokerError:
                continue
        await asyncio.sleep(TICK_INTERVAL_S)


def _tell(log: EventLog, queue: Queue, tick: Tick, started_ns: int) -> None:
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
        self._rank, mended = await audit(connection, self._queue, start=self._rank)
        if not self._rank:
            self._due_ns = now + int(AUDIT_INTERVAL_S * 1e9)
        if mended:
            log.write(Evt("audit", now, clock.now_ns(), {"queue": str(self._queue), "requeued": mended}))
