"""How a worker comes by its work: as much as it has room for, and nothing that another could begin sooner.

Theory of operation. Up to one batch of decoded requests is kept ahead of the device (`policy.prefetch`). While the
device computes only what nobody else wants is taken: the worker listens for new entries without taking them
(`work.ring`), so an idle worker, which blocks in a taking read, always goes first. When the device is idle this one
blocks in a taking read itself. Whatever fails on the way to Redis is read again (`_adopt`), because Redis may have
done it.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Protocol

from shared import clock
from shared.broker import work
from shared.broker.connection import BrokerError, Connection
from shared.eventlog import EventLog
from shared.events import Evt
from shared.keys import Queue
from worker.intake import Job
from worker.served import Served

BLOCK_MS = 1_000
RING_MS = 50
RING_AFTER_S = 0.002
"""A pass that is over sooner is not listened beside: listening costs Redis more than it brings."""
RETRY_S = 0.05


class Holder(Protocol):
    """Who holds what was pulled."""

    @property
    def name(self) -> str:
        """As Redis knows this worker."""

    @property
    def served(self) -> Mapping[Queue, Served]:
        """The models."""

    @property
    def held(self) -> Mapping[str, Job]:
        """What it holds, by request id."""

    @property
    def stopping(self) -> bool:
        """Nothing more is to be pulled."""

    @property
    def is_computing(self) -> bool:
        """The device is busy."""

    def take(self, served: Served, deliveries: Sequence[work.Delivery], w0: int) -> None:
        """Here is work; it was asked for at `w0`."""

    def step(self) -> None:
        """What was taken may begin."""

    def withdraw(self, ended: Sequence[work.Withdrawn]) -> None:
        """These need not run any more."""


class Puller:
    """Pulls work for `holder` until that stops."""

    def __init__(
        self,
        holder: Holder,
        *,
        connection: Connection,
        blocking: Connection,
        bell: Connection,
        log: EventLog,
        lease_us: int,
    ) -> None:
        self._holder = holder
        self._served = holder.served
        self._connection = connection
        self._blocking = blocking
        self._bell = bell
        self._log = log
        self._lease_us = lease_us
        self._wake = asyncio.Event()
        self._look = False
        self._adopt_due = False
        self._suspects: set[Queue] = set()
        self._controls: dict[Queue, str] = {}
        self._ringing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Pull until the holder stops."""
        while not self._holder.stopping:
            self._wake.clear()
            try:
                if self._adopt_due:
                    self._adopt_due = False
                    await self._adopt()
                if self._suspects:
                    await self._fetch_suspect(next(iter(self._suspects)))
                elif self._look:
                    self._look = False  # first: what happens while we fetch is a reason to look again
                    await self._fetch([s for s in self._served.values() if s.want() > 0])
                elif self._holder.is_computing or any(s.jobs for s in self._served.values()):
                    await self._wait_busy(listen=any(s.want() > 0 for s in self._served.values()))
                else:
                    await self._wait_idle()
            except BrokerError:
                self._adopt_due = True
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """End what still listens."""
        if self._ringing:
            self._ringing.cancel()
            await asyncio.gather(self._ringing, return_exceptions=True)

    async def unblock(self) -> None:
        """Let it look at once what has changed."""
        self._wake.set()
        try:
            # The taking read would otherwise end only after BLOCK_MS.
            await self._connection.call("CLIENT", "UNBLOCK", self._blocking.client_id)
        except BrokerError:
            pass

    async def run_suspects(self, queue: Queue) -> None:
        """This worker is the one that runs the suspects of a queue, until there are none left."""
        if queue not in self._suspects:
            self._suspects.add(queue)
            await self.unblock()

    def adopt_soon(self) -> None:
        """Look at what Redis says is ours, at the next chance."""
        self._adopt_due = True
        self._wake.set()

    def pass_ended(self) -> None:
        """There may be room. If the next pass has begun already: fill up behind it."""
        self._look |= self._holder.is_computing
        self._wake.set()

    def nothing_held(self) -> None:
        """A suspect, which wants to be alone, may be fetched."""
        if self._suspects:
            self._wake.set()

    # -- inside --------------------------------------------------------------------------------------------------

    async def _fetch(self, asked: Sequence[Served]) -> None:
        """Ask for new work, without blocking. If as much comes as was asked for there may be more: look again."""
        w0 = clock.now_ns()
        wants = [s.want() for s in asked]
        fetches = [
            work.fetch(self._connection, s.queue, self._holder.name, want=want, lease_us=self._lease_us)
            for s, want in zip(asked, wants, strict=True)
        ]
        for served, want, deliveries in zip(asked, wants, await _all(fetches), strict=True):
            self._look |= len(deliveries) >= want
            self._holder.take(served, deliveries, w0)
        self._holder.step()

    async def _fetch_suspect(self, queue: Queue) -> None:
        if self._holder.held:
            await self._wake.wait()
            return
        w0 = clock.now_ns()
        deliveries = await work.fetch(
            self._connection, queue, self._holder.name, want=1, lease_us=self._lease_us, alone=True
        )
        if not deliveries:
            self._suspects.discard(queue)
        self._holder.take(self._served[queue], deliveries, w0)
        self._holder.step()

    async def _wait_busy(self, *, listen: bool) -> None:
        """Until a batch ends, or work arrives that we have room for and nobody else takes."""
        if self._ringing is None or self._ringing.done():
            try:
                async with asyncio.timeout(RING_AFTER_S):
                    await self._wake.wait()
                return
            except TimeoutError:
                pass
            self._ringing = asyncio.create_task(self._ring(listen=listen), name="listen for entries")
        await self._wake.wait()

    async def _ring(self, *, listen: bool) -> None:
        try:
            ended, _ = await work.ring(
                self._bell,
                list(self._served),
                self._holder.name,
                block_ms=RING_MS,
                listen=listen,
                controls=self._controls,
            )
            self._holder.withdraw(ended)
        except BrokerError:
            await asyncio.sleep(RETRY_S)
        self._look |= listen
        self._wake.set()

    async def _wait_idle(self) -> None:
        """Block in a taking read; then fill up around what came."""
        w0 = clock.now_ns()
        entries = await work.wait_for_entries(self._blocking, list(self._served), self._holder.name, block_ms=BLOCK_MS)
        for queue, given in entries.items():
            await self._fetch_given(self._served[queue], given, w0)

    async def _fetch_given(self, served: Served, given: Sequence[work.Entry], w0: int) -> None:
        asked_ns = clock.now_ns()
        want = max(len(given), served.want())
        begins = not self._holder.is_computing
        deliveries = await work.fetch(
            self._connection,
            served.queue,
            self._holder.name,
            want=want,
            lease_us=self._lease_us,
            given=given,
            begins=begins,
        )
        if begins:
            served.noted = [d.id for d in deliveries]
        self._look |= len(deliveries) >= want
        mine = {entry.request_id for entry in given}
        self._holder.take(served, [d for d in deliveries if d.id in mine], w0)
        self._holder.take(served, [d for d in deliveries if d.id not in mine], asked_ns)
        self._holder.step()

    async def _adopt(self) -> None:
        """Take what Redis delivered to us but we never saw."""
        for served in self._served.values():
            w0 = clock.now_ns()
            entries = await work.own_entries(self._connection, served.queue, self._holder.name)
            news = [e for e in entries if e.request_id not in self._holder.held]
            if news:
                self._log.write(Evt("adopt", w0, clock.now_ns(), {"queue": str(served.queue), "entries": len(news)}))
                await self._fetch_given(served, news, w0)


async def _all(fetches: Sequence[Coroutine[None, None, list[work.Delivery]]]) -> list[list[work.Delivery]]:
    """Run the calls together, so that they leave in one write."""
    if len(fetches) == 1:
        return [await fetches[0]]
    return await asyncio.gather(*fetches)
