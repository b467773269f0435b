"""Dead letters: requests that were given up, kept whole for an operator to read, run again or throw away."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.broker import scripts
from shared.broker.connection import Connection
from shared.keys import RETRY, SUSPECTS, Queue


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A request that was given up. `why`: crashed, lost, errors; `buried_ms` by Redis' clock."""

    entry_id: str
    id: str
    why: str
    attempts: int
    errors: int
    crashes: int
    losses: int
    worker: str
    tenant: str
    traceparent: str
    accepted_us: int
    answer: bytes
    """What its client was told."""
    payload: bytes

    @property
    def buried_ms(self) -> int:
        """When it was given up, by Redis' clock (Unix, ms)."""
        return int(self.entry_id.partition("-")[0])


async def dead_letters(c: Connection, queue: Queue, *, after: str = "-", count: int = 100) -> list[DeadLetter]:
    """Dead letters, the oldest first, from after an entry id on."""
    start = after if after == "-" else f"({after}"
    found = []
    for entry_id, flat in await c.call("XRANGE", queue.dead_letters, start, "+", "COUNT", count):
        f = dict(zip(flat[::2], flat[1::2], strict=True))
        found.append(
            DeadLetter(
                entry_id=entry_id.decode(),
                id=f[b"r"].decode(),
                why=f[b"why"].decode(),
                attempts=int(f[b"a"]),
                errors=int(f[b"er"]),
                crashes=int(f[b"cr"]),
                losses=int(f[b"lo"]),
                worker=f[b"own"].decode(),
                tenant=f[b"tn"].decode(),
                traceparent=f[b"tp"].decode(),
                accepted_us=int(f[b"enq"]),
                answer=f[b"end"],
                payload=f[b"p"],
            )
        )
    return found


async def replay(
    c: Connection, queue: Queue, entry_id: str, *, budget_us: int, ttl_ms: int, ask: bytes = b"", alone: bool = True
) -> tuple[str, str]:
    """Run a dead letter again, as a job with its old id. Returns OK, LIVE (it is in the queue) or GONE, and the id.

    `ask` is how to render the result if it was no job before.
    """
    lane = SUSPECTS if alone else RETRY
    reply = await scripts.run(c, "replay", (queue.deadlines,), (queue.tag, entry_id, budget_us, ttl_ms, lane, ask))
    return reply[0].decode(), reply[1].decode()


async def purge(c: Connection, queue: Queue, entry_ids: Sequence[str]) -> int:
    """Throw dead letters away. Returns how many there were."""
    return int(await scripts.run(c, "purge", (queue.dead_letters, queue.stats), entry_ids))
