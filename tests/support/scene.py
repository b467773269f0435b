"""A queue with a gateway and its workers, in the words of the domain, on a real Redis."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from support.audit import counted

from shared import wire
from shared.broker import housekeeping, letters, requests, work
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from shared.broker.housekeeping import Tick
from shared.broker.letters import DeadLetter
from shared.broker.requests import Submission
from shared.broker.work import Answer, Delivery
from shared.errors import ErrorKind
from shared.keys import Queue

MINUTE_US = 60_000_000
AMPLE = requests.Limits()
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass(slots=True)
class Scene:
    """Everything that can happen to the requests of one queue. Times never pass by waiting: they are moved."""

    c: Connection
    queue: Queue = field(default_factory=lambda: Queue("resnet", "1"))
    gateway: str = "gw-1"

    async def open(self) -> None:
        """A worker and a gateway have started."""
        await work.ensure_groups(self.c, self.queue)
        await requests.listen(self.c, self.queue, self.gateway)

    def submission(self, rid: str, *, payload: bytes = b"", budget_us: int = MINUTE_US, **more: Any) -> Submission:
        """`more`: priority, tenant, weight, tenant_max, job."""
        return Submission(rid, budget_us, payload or f"payload of {rid}".encode(), TRACE, "vendor=1", 42, **more)

    async def accept(
        self,
        *ids: str,
        payload: bytes = b"",
        budget_us: int = MINUTE_US,
        gateway: str = "",
        limits: requests.Limits = AMPLE,
        **more: Any,
    ) -> list[tuple[str, str]]:
        submissions = [self.submission(rid, payload=payload, budget_us=budget_us, **more) for rid in ids]
        return await requests.accept(self.c, self.queue, submissions, gateway=gateway or self.gateway, limits=limits)

    async def accept_overdue(self, *ids: str) -> None:
        """Requests whose deadline passes before anyone can look."""
        assert {status for status, _ in await self.accept(*ids, budget_us=1)} == {"OK"}

    async def fetch(self, worker: str = "w-1", *, want: int = 64) -> list[Delivery]:
        return await work.fetch(self.c, self.queue, worker, want=want, lease_us=MINUTE_US)

    async def fetch_alone(self, worker: str = "w-1") -> list[Delivery]:
        """One of the suspects, if this worker is the one that runs them."""
        return await work.fetch(self.c, self.queue, worker, want=1, lease_us=MINUTE_US, alone=True)

    async def block(self, worker: str = "w-1") -> list[work.Entry]:
        """A taking read on an idle worker's connection: the entries are delivered, and nothing has started yet."""
        found = await work.wait_for_entries(self.c, [self.queue], worker, block_ms=1)
        return found.get(self.queue, [])

    async def start(self, entries: list[work.Entry], worker: str = "w-1", *, want: int = 0) -> list[Delivery]:
        return await work.fetch(
            self.c, self.queue, worker, want=max(want, len(entries)), lease_us=MINUTE_US, given=entries
        )

    async def compute(self, worker: str, *deliveries: Delivery) -> None:
        """The worker says what its device computes now."""
        work.note_running(self.c, self.queue, worker, [d.id for d in deliveries])
        await self.c.call("PING")

    async def complete(self, *deliveries: Delivery, failed: bool = False, answer: bytes = b"=answer") -> list[str]:
        answers = [Answer(d.id, d.attempt, failed, answer) for d in deliveries]
        return await work.complete(self.c, self.queue, answers)

    async def retry(
        self, *deliveries: Delivery, delay_us: int = MINUTE_US // 2, errors_max: int = work.ERRORS_MAX
    ) -> list[str]:
        """The attempts failed in a way that may pass."""
        again = [(Answer(d.id, d.attempt, True, b"=error"), delay_us) for d in deliveries]
        return await work.retry(self.c, self.queue, again, errors_max=errors_max)

    async def release(self, worker: str, *deliveries: Delivery) -> int:
        return await work.release(self.c, self.queue, worker, [(d.id, d.attempt) for d in deliveries])

    async def cancel(self, *ids: str, expired: bool = False) -> list[str]:
        return await requests.cancel(self.c, self.queue, ids, expired=expired)

    async def tick(self, me: str = "leader") -> Tick:
        tick = await housekeeping.tick(self.c, self.queue, me, grace_us=MINUTE_US)
        assert tick is not None, "somebody else leads"
        return tick

    async def audit(self) -> list[str]:
        """The leader has looked at every live request. Returns what it enqueued again."""
        start, mended = await housekeeping.audit(self.c, self.queue)
        while start:
            start, more = await housekeeping.audit(self.c, self.queue, start=start)
            mended += more
        return mended

    async def beat(self, worker: str, *held: Delivery) -> work.Beat:
        return await work.beat(self.c, self.queue, worker, [(d.id, d.attempt) for d in held], lease_us=MINUTE_US)

    async def die(self, worker: str = "w-1") -> None:
        """The worker's lease has run out."""
        await self._move_to_the_past(self.queue.leases, worker)

    async def crash(self, worker: str, *deliveries: Delivery) -> Tick:
        """The worker's process ends while it computes `deliveries`, and is missed."""
        await self.compute(worker, *deliveries)
        await self.die(worker)
        return await self.tick()

    async def come_due(self, *ids: str) -> Tick:
        """The delays of these requests are over."""
        for rid in ids:
            await self._move_to_the_past(f"{self.queue.tag}:delay", rid, "XX")
        return await self.tick()

    async def pass_deadline(self, rid: str) -> None:
        """The request's deadline has come."""
        await self._move_to_the_past(self.queue.deadlines, rid, "XX")

    async def _move_to_the_past(self, key: str, member: str, *flags: str) -> None:
        # Also in a full Redis, as a script whose first write needs no memory.
        text = "redis.call('DEL', KEYS[1] .. ':_') return redis.call('ZADD', KEYS[1], unpack(ARGV))"
        await self.c.call("EVAL", text, 1, key, *flags, 1, member)

    async def state(self, rid: str) -> str:
        return (await requests.peek(self.c, self.queue, [rid]))[0][0]

    async def states(self, *ids: str) -> list[str]:
        return [state for state, _ in await requests.peek(self.c, self.queue, ids)]

    async def replies(self, gateway: str = "") -> list[list[tuple[str, bytes]]]:
        """The entries of a gateway's reply stream but the greeting: answers by request."""
        entries = await self.c.call("XRANGE", self.queue.replies(gateway or self.gateway), "-", "+")
        found = [[(f[i].decode(), f[i + 1]) for i in range(0, len(f), 2)] for _, f in entries]
        return [answers for answers in found if answers[0][0] != "hello"]

    async def rung(self, gateway: str = "") -> list[str]:
        """The requests that a gateway was told the end of, in order."""
        return [rid for answers in await self.replies(gateway) for rid, _ in answers]

    async def of_record(self, rid: str, *fields: str) -> list[str]:
        """Fields of a request's record; empty where there is none."""
        values = await self.c.call("HMGET", self.queue.record(rid), *fields)
        return [(value or b"").decode() for value in values]

    async def letters(self) -> list[DeadLetter]:
        return await letters.dead_letters(self.c, self.queue)

    async def counted(self) -> dict[str, int]:
        """What counts against the limits: requests by priority (l1 l2 l3) and tenant (t:NAME), bytes (b)."""
        return await counted(self.c, self.queue)

    async def depth(self) -> int:
        return (await requests.depths(self.c, [self.queue]))[str(self.queue)]


def verdict(answer: bytes) -> ErrorKind:
    """What a gateway makes of the broker's own answer."""
    error = wire.error_of(wire.decode_reply(answer).body)
    assert error is not None
    return error.kind


async def blocked(c: Connection) -> bool:
    """True while a client waits in a blocking read."""
    return "blocked_clients:1" in (await c.call("INFO", "clients")).decode()


@contextlib.asynccontextmanager
async def config(c: Connection, **settings: str) -> AsyncIterator[None]:
    """Redis runs with other settings for a while. Underscores stand for dashes."""
    names = {name: name.replace("_", "-") for name in settings}
    before = {name: (await c.call("CONFIG", "GET", name))[1] for name in names.values()}
    for name, value in settings.items():
        await c.call("CONFIG", "SET", names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            await c.call("CONFIG", "SET", name, value)


@contextlib.contextmanager
def frozen(server: EmbeddedRedis) -> Iterator[None]:
    """The server stands still: it is there, and answers nothing."""
    assert server.process is not None
    pid = server.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # the test was about its death
            os.kill(pid, signal.SIGCONT)


async def lost(future: "asyncio.Future[object]") -> BaseException | None:
    """The exception that a call ends with."""
    await asyncio.wait([future])
    return future.exception()
