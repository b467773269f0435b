"""Gateways and workers as they are, in one process, on a real Redis that is killed under them.

HTTP is left out, and each process of a real system is an object here; all share one event loop, so that thousands of
requests meet dozens of faults within seconds. Every worker and every gateway talks through a proxy of its own.
"""

import asyncio
import dataclasses
import hashlib
import itertools
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_toy import CONFIG, QUEUE, Kind, Toy, is_right, question
from support.proxy import Proxy

from gateway import trace
from gateway.call import Call
from gateway.pending import Pending, SameRequest
from gateway.replies import Replies
from gateway.submit import Submitter
from gateway.tenants import ANYONE
from shared import clock, wire
from shared.broker import requests, scripts, work
from shared.broker.connection import BrokerError, Connection
from shared.broker.embedded import EmbeddedRedis
from shared.broker.housekeeping import keep_ticking
from shared.errors import ErrorKind, TailraceError
from shared.eventlog import EventLog
from shared.events import Evt
from shared.ids import RequestIds
from shared.keys import HIGH, LOW, NORMAL
from worker.device import Device
from worker.lease import Keeper
from worker.loop import WorkerLoop
from worker.pull import BLOCK_MS

PASS_S = 0.004
LONG_S = 60.0
"""A deadline that only a lost request meets."""
RESULT_KEPT_MS = 120_000
FILE_LAGS_NS = 250_000_000
TENANTS = tuple(dataclasses.replace(ANYONE, name=f"weight-{weight}", weight=weight) for weight in (1, 2, 4))


class Reconnects:
    """What a process' main connection tells, as both kinds of process write it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._down_since_ns = 0

    def __call__(self, up: bool) -> None:
        now = clock.now_ns()
        if not up:
            self._down_since_ns = now
        elif self._down_since_ns:
            self._log.write(Evt("reconnect", self._down_since_ns, now))


class WatchedReplies(Replies):
    """Remembers the different answers that came for each request. After a reconnection some are read once more."""

    came: dict[str, set[bytes]]

    def _deliver(self, queue: Any, answers: list[tuple[str, bytes]], ids: list[str], g5: int) -> None:
        for rid, data in answers:
            self.came.setdefault(rid, set()).add(hashlib.blake2b(data).digest())
        super()._deliver(queue, answers, ids, g5)


class Gateway:
    """What gateway/main.py puts together, less HTTP."""

    def __init__(self, name: str, world: "World") -> None:
        self.name = name
        self.proxy = Proxy(world.server.socket, world.server.directory / f"{name}.sock")
        self.log = EventLog(world.log_dir, "gateway", name)
        url = world.urls or self.proxy.url
        self.connection = Connection(url, name, on_connect=scripts.load_all, on_change=Reconnects(self.log), quiet=True)
        self._reading = Connection(url, f"{name}-read", read_limit_s=4, quiet=True)
        self.submitter = Submitter(
            self.connection, name, inflight_max=20_000, inflight_bytes_max=1 << 30, limits=requests.Limits()
        )
        self._replies = WatchedReplies(self.connection, self._reading, self.submitter)
        self._replies.came = world.came
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, lease_us: int) -> None:
        await self.proxy.__aenter__()
        self.connection.start()
        self._reading.start()
        await self.connection.wait_connected()
        await self._replies.add(QUEUE)
        works: list[Coroutine[Any, Any, None]] = [
            self._replies.run(),
            self._replies.keep_alive(),
            self.submitter.reconcile(),
            keep_ticking(self.connection, lambda: [QUEUE], self.name, self.log, lease_us=lease_us),
        ]
        self._tasks = [asyncio.create_task(work) for work in works]

    async def stop(self) -> None:
        """As SIGTERM does. Raises what one of its tasks failed with."""
        await self.submitter.drain(10)
        failed = [task.exception() for task in self._tasks if task.done()]
        await self._close()
        self.log.close("stopped")
        assert not failed, failed

    async def crash(self) -> None:
        """As kill -9 does."""
        await self.connection.close()
        await self._close()
        await self.submitter.drain(0)
        _silence(self.log)

    async def _close(self) -> None:
        await _end(self._tasks)
        await self.connection.close()
        await self._reading.close()
        await self.proxy.__aexit__()


class Worker:
    """What worker/main.py puts together."""

    def __init__(self, name: str, world: "World") -> None:
        lease_us = world.lease_us
        self.name = name
        self.proxy = Proxy(world.server.socket, world.server.directory / f"{name}.sock")
        self.log = EventLog(world.log_dir, "worker", name)
        url = world.urls or self.proxy.url
        tell = Reconnects(self.log)

        def changed(up: bool) -> None:
            tell(up)
            self.loop.connection_changed(up)

        self._connection = Connection(url, name, on_connect=scripts.load_all, on_change=changed, quiet=True)
        self._blocking = Connection(
            url,
            f"{name}-read",
            on_change=lambda up: self.loop.connection_changed(up),
            read_limit_s=BLOCK_MS / 1000 + 3,
            quiet=True,
        )
        self._bell = Connection(url, f"{name}-bell", quiet=True)
        self.loop = WorkerLoop(
            name=name,
            models=[(CONFIG, world.model)],
            device=Device("cpu", threads=1),
            connection=self._connection,
            blocking=self._blocking,
            bell=self._bell,
            log=self.log,
            lease_us=lease_us,
        )
        self._keeper = Keeper(self.loop, self._connection, self.log, b"toy", lease_us=lease_us, pass_max_s=30)
        self._lease_us = lease_us
        self._serving: asyncio.Task[None] | None = None
        self._beside: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.proxy.__aenter__()
        for connection in (self._connection, self._blocking, self._bell):
            connection.start()
        await self._connection.wait_connected()
        await self._make_groups()
        ticking = keep_ticking(self._connection, lambda: [QUEUE], self.name, self.log, lease_us=self._lease_us)
        self._beside = [asyncio.create_task(self._keeper.run()), asyncio.create_task(ticking)]
        self._serving = asyncio.create_task(self.loop.run())

    async def _make_groups(self) -> None:
        while True:
            try:
                await work.ensure_groups(self._connection, QUEUE)
                return
            except BrokerError:
                # The real one ends here, and `up` starts it again.
                await self._connection.wait_connected()
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """As SIGTERM does. Raises what one of its tasks failed with."""
        assert self._serving is not None
        await self.loop.stop()
        await asyncio.wait([self._serving], timeout=10)
        assert self._serving.done(), f"{self.name} does not finish {list(self.loop.held)}"
        self._serving.result()
        await self._keeper.leave()
        failed = [task.exception() for task in self._beside if task.done()]
        await self._close()
        self.log.close("stopped")
        assert not failed, failed

    def describe(self) -> str:
        """What it does now."""
        up = [c.connected for c in (self._connection, self._blocking, self._bell)]
        return f"connected {up}, holds {len(self.loop.held)}, fault {self.proxy.fault}"

    async def crash(self) -> None:
        """As kill -9 does: nothing is said, what was not sent is not sent, the last lines of the log are lost."""
        # A pass that ends after the death starts no other, and tells nobody.
        self.loop.step = lambda: None  # type: ignore[method-assign]
        self.loop._own = lambda work: work.close()  # type: ignore[method-assign]
        for connection in (self._connection, self._blocking, self._bell):
            await connection.close()
        await self._close()
        _silence(self.log)

    async def _close(self) -> None:
        await _end([task for task in (self._serving, *self._beside) if task])
        for connection in (self._connection, self._blocking, self._bell):
            await connection.close()
        await self.proxy.__aexit__()


async def _end(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _silence(log: EventLog) -> None:
    """End a log as a killed process does."""
    log._queue.clear()
    log._stop.set()
    log._thread.join()


@dataclass(slots=True)
class Asked:
    """One request and how it ended. `end` is empty while it has none."""

    id: str
    number: int
    kind: Kind
    patience_s: float
    is_job: bool = False
    cancelled: bool = False
    accepted: bool = False
    end: str = ""
    """answered, wrong, cancelled, accepted (a job), or the code of an error."""
    submits: int = 0
    accepted_at_ns: int = 0
    ended_at_ns: int = 0


@dataclass(slots=True)
class World:
    """The system and its clients."""

    server: EmbeddedRedis
    log_dir: Path
    lease_s: float
    urls: str = ""
    """Of several servers, which everybody then reaches without a proxy."""
    gateways: list[Gateway] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    came: dict[str, set[bytes]] = field(default_factory=dict)
    model: Toy = field(default_factory=lambda: Toy(PASS_S))
    defects: list[str] = field(default_factory=list)
    """What nobody caught."""
    redis_killed_at_ns: list[int] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _ids: RequestIds = field(default_factory=RequestIds)

    @property
    def lease_us(self) -> int:
        return int(self.lease_s * 1e6)

    async def start(self, *, gateways: int, workers: int) -> None:
        asyncio.get_running_loop().set_exception_handler(self._nobody_caught)
        for _ in range(gateways):
            gateway = Gateway(f"g-{next(self._names)}", self)
            await gateway.start(self.lease_us)
            self.gateways.append(gateway)
        for _ in range(workers):
            await self.add_worker()

    def _nobody_caught(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.defects.append(f"{context['message']}: {context.get('exception')!r}")

    async def add_worker(self) -> Worker:
        worker = Worker(f"w-{next(self._names)}", self)
        await worker.start()
        self.workers.append(worker)
        return worker

    async def stop(self) -> None:
        for worker in self.workers:
            await worker.stop()
        for gateway in self.gateways:
            await gateway.stop()

    async def describe(self, admin: Connection) -> str:
        """What waits, and where, after a failure."""
        lines = []
        for gateway in self.gateways:
            waiting = list(gateway.submitter.pending.values())
            lines.append(f"{gateway.name} {'up' if gateway.connection.connected else 'down'}, waiting {len(waiting)}")
            for p in waiting[:10]:
                (state, answer), *_ = await requests.peek(admin, QUEUE, [p.id])
                record = await admin.call("HGETALL", QUEUE.record(p.id))
                lines.append(f"  {p.id} g4={p.g4} submits={p.submits} {state} {answer[:20]!r} {record}")
        lines += [f"{worker.name} {worker.describe()}" for worker in self.workers]
        lines += [f"{lane}: {await admin.call('XLEN', lane)} entries" for lane in (*QUEUE.lanes, QUEUE.suspects)]
        return "\n".join(lines)

    async def abort(self) -> None:
        """End everything at once, after a failure."""
        for worker in self.workers:
            await worker.crash()
        for gateway in self.gateways:
            await gateway.crash()

    # -- clients -----------------------------------------------------------------------------------------------------

    async def ask(
        self,
        rng: random.Random,
        kind: Kind,
        *,
        patience_s: float = LONG_S,
        leaves_after_s: float | None = None,
        job_key: str = "",
    ) -> Asked:
        """What gateway/http.py and the handlers do with one request, its log record included."""
        gateway = rng.choice(self.gateways)
        begun_ns = clock.now_ns()
        call = Call(id=self._ids.next(), trace=trace.begin({}), g0=begun_ns, route="infer", g1=begun_ns, g2=begun_ns)
        asked = Asked(call.id, len(self.asked), kind, patience_s, is_job=bool(job_key))
        self.asked.append(asked)
        pending: Pending | None = None
        status = 499
        try:
            pending = gateway.submitter.submit(
                id=call.id,
                queue=QUEUE,
                payload=question(asked.number, kind),
                traceparent=call.trace.traceparent,
                tracestate="",
                deadline_at_ns=begun_ns + int(patience_s * 1e9),
                tenant=rng.choice(TENANTS),
                priority=rng.choice((HIGH, NORMAL, NORMAL, LOW)),
                job=requests.Job(RESULT_KEPT_MS, key=job_key, digest="d") if job_key else None,
            )
            call.parts = [pending]
            async with asyncio.timeout(leaves_after_s):
                reply = await pending.answer
            asked.end, status = self._judge(asked, reply), 202 if asked.is_job else 200
            if error := wire.error_of(reply.body):
                asked.end, status, call.error = error.kind.code, error.kind.status, error
        except TimeoutError:
            asked.end, asked.cancelled = "cancelled", True
        except SameRequest:
            asked.end, status = "same", 202
        except TailraceError as e:
            asked.end, status, call.error = e.kind.code, e.kind.status, e
        finally:
            if pending:
                gateway.submitter.abandon(pending)
                asked.accepted_at_ns = pending.g4
                asked.accepted, asked.submits = bool(pending.g4) and asked.end not in REFUSALS, pending.submits
            call.settle()
            call.g6 = call.g7 = call.g8 = asked.ended_at_ns = clock.now_ns()
            gateway.log.write(call.record(status))
        return asked

    def _judge(self, asked: Asked, reply: wire.Reply) -> str:
        if asked.is_job:
            return "accepted"
        if reply.body.error_code:
            return ""
        return "answered" if is_right(reply.body, asked.number, asked.kind) else "wrong"

    def may_be_forgotten(self, at_ns: int) -> bool:
        """True for what Redis confirmed just before it was killed.

        While its append-only file is being synced it puts its writes off, as long as the disk, or its thread, takes.
        """
        return any(0 <= killed_at_ns - at_ns < FILE_LAGS_NS for killed_at_ns in self.redis_killed_at_ns)

    def expected_end(self, asked: Asked) -> set[str]:
        """How a request may end."""
        if asked.is_job:
            return {"accepted", "same"}
        ends = {
            Kind.WRONG: {ErrorKind.BAD_REQUEST.code},
            Kind.RAISES: {ErrorKind.MODEL_ERROR.code},
        }.get(asked.kind, {"answered"})
        if asked.patience_s < LONG_S:
            ends = ends | {ErrorKind.DEADLINE.code, ErrorKind.OVERLOADED.code}
            if asked.kind is Kind.FLAKY:  # too late for another try
                ends = ends | {ErrorKind.MODEL_ERROR.code}
        return ends | {"cancelled"} if asked.cancelled else ends


REFUSALS = {kind.code for kind in (ErrorKind.QUEUE_FULL, ErrorKind.OVERLOADED, ErrorKind.UNAVAILABLE)}
