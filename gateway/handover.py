"""What a gateway says to Redis of its requests: that they are there, and that nobody waits for them any more.

Theory of operation. Requests of one event-loop tick leave in one script call per queue, or sooner when they are many.
Accepting is idempotent by id: whatever happened to the connection, the same request is handed over again until Redis
has said what became of it, or nobody waits any more. Every call is a task that this module owns.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from gateway.pending import Pending
from shared import clock
from shared.broker import requests
from shared.broker.connection import BrokerError, Busy, Connection
from shared.errors import ErrorKind, TailraceError
from shared.keys import Queue

RETRY_S = 0.05
CALL_BYTES_MAX = 1 << 20
CALL_REQUESTS_MAX = 256
HAND_OVER_AT = 32
"""So many requests leave before their tick ends: the workers begin while this loop still reads the others."""
CANCEL_TRIES_S = 30.0
LAST_WORDS_S = 1.0
"""A gateway that stops and gives requests up takes so long to say so to Redis."""


class HandOver:
    """The way out.

    `is_open` tells whether somebody waits for a request, `pack` who travels with whom; `accepted` and `failed` hear
    what became of it.
    """

    def __init__(
        self,
        connection: Connection,
        gateway: str,
        limits: requests.Limits,
        *,
        is_open: Callable[[Pending], bool],
        pack: Callable[[Queue, list[Pending]], list[Pending]],
        accepted: Callable[[Queue, list[Pending], list[tuple[str, str]]], None],
        failed: Callable[[Pending, Exception], None],
    ) -> None:
        self._connection = connection
        self._gateway = gateway
        self._limits = limits
        self._is_open = is_open
        self._pack = pack
        self._accepted = accepted
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._outbox: dict[Queue, list[Pending]] = {}
        self._cancels: dict[tuple[Queue, bool, bool], list[str]] = {}
        self._flush_due = False
        self._tasks: set[asyncio.Task[None]] = set()

    def hand_over(self, p: Pending) -> None:
        """Tell Redis of a request with this tick's others."""
        waiting = self._outbox.setdefault(p.queue, [])
        waiting.append(p)
        if len(waiting) >= HAND_OVER_AT:
            del self._outbox[p.queue]
            self._send(p.queue, waiting)
        else:
            self._schedule_flush()

    def withdraw(self, p: Pending, *, expired: bool) -> None:
        """Tell Redis that nobody waits for a request, if it may have heard of it."""
        if p.g3:
            p.withdrawn = "EXPIRED" if expired else "CANCELLED"
            self._cancels.setdefault((p.queue, expired, p.job is not None), []).append(p.id)
            self._schedule_flush()

    def own(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that ends with this gateway."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def is_quiet(self) -> bool:
        """All is said."""
        return not (self._tasks or self._flush_due)

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        """What is under way."""
        return list(self._tasks)

    async def close(self) -> None:
        """Say what there is to say, in a moment, and stop."""
        self._flush()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_WORDS_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- inside --------------------------------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what this tick collected."""
        self._flush_due = False
        outbox, self._outbox = self._outbox, {}
        for queue, ps in outbox.items():
            self._send(queue, ps)
        cancels, self._cancels = self._cancels, {}
        for (queue, expired, kept), ids in cancels.items():
            self.own(self._cancel_all(queue, ids, expired=expired, kept=kept))

    def _send(self, queue: Queue, ps: list[Pending]) -> None:
        """In slices that do not hold Redis up."""
        for part in _slices(self._pack(queue, ps)):
            self.own(self._accept(queue, part))

    async def _accept(self, queue: Queue, ps: list[Pending]) -> None:
        """Hand requests over, again and again until Redis has said what became of them or nobody waits any more."""
        while ps := [p for p in ps if self._is_open(p)]:
            now = clock.now_ns()
            for p in ps:
                p.g3 = p.g3 or now
                p.submits += 1
            submissions = [
                requests.Submission(
                    p.id,
                    max(1, (p.deadline_at_ns - now) // 1000),
                    p.payload,
                    p.traceparent,
                    p.tracestate,
                    p.g3,
                    p.priority,
                    p.tenant.name,
                    p.tenant.weight,
                    p.tenant.live_max,
                    p.job,
                    len(p.members) or 1,
                )
                for p in ps
            ]
            try:
                outcomes = await requests.accept(
                    self._connection, queue, submissions, gateway=self._gateway, limits=self._limits
                )
            except Busy as e:
                for p in ps:
                    self._failed(p, TailraceError(ErrorKind.UNAVAILABLE, f"{e}; retry after 1 s", retry_after_s=1))
                return
            except BrokerError:
                await asyncio.sleep(RETRY_S)
                continue
            self._accepted(queue, ps, outcomes)
            return

    async def _cancel_all(self, queue: Queue, ids: list[str], *, expired: bool, kept: bool) -> None:
        until_ns = clock.now_ns() + int(CANCEL_TRIES_S * 1e9)
        while clock.now_ns() < until_ns:
            try:
                states = await requests.cancel(self._connection, queue, ids, expired=expired)
                if not kept:  # of a job, others may still ask for the end
                    # Without a record it may be about to get one: forgotten then it would count as live for long.
                    ended = [id for id, state in zip(ids, states, strict=True) if state != "GONE"]
                    await requests.forget(self._connection, queue, self._gateway, ended)
                return
            except BrokerError:
                await asyncio.sleep(RETRY_S)


def _slices(ps: Iterable[Pending]) -> list[list[Pending]]:
    slices: list[list[Pending]] = []
    size = CALL_BYTES_MAX
    for p in ps:
        if size + len(p.payload) > CALL_BYTES_MAX or len(slices[-1]) >= CALL_REQUESTS_MAX:
            slices.append([])
            size = 0
        slices[-1].append(p)
        size += len(p.payload)
    return slices
