"""The worker's loop: pull, batch, run, publish, without ever letting a free device wait while work is queued.

Theory of operation. One event loop does everything but the models, which run in the device's threads. `_pull` keeps
up to one batch of decoded requests ahead of the device (`policy.prefetch`). While the device computes it takes only
what nobody else wants: it listens for new entries without taking them (`work.ring`), so an idle worker, which blocks
in a taking read, always goes first. When the device is idle it blocks in a taking read itself. `_step` is called after
every change (requests came, a batch ended, a timer fired): it asks `policy.composing.decide` and starts what it says.
A finished batch first frees the device for the next one and then is published; its answers and the next fetch leave
in the same write. `Keeper` (lease.py) renews the lease beside all this and tells which requests are not ours any more.

What must stay true: each delivered request is in `held` until its answer is handed in or it is dropped because another
verdict stands; `slots_used` passes are in the device; whatever fails on the way to Redis is repeated or re-read
(`_adopt`), because Redis may have done it.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shared import clock
from shared.broker import work
from shared.broker.connection import BrokerError, Connection
from shared.bulk import BulkFolder
from shared.eventlog import EventLog
from shared.events import Evt
from shared.keys import Queue
from shared.policy import batching, composing, ordering
from worker.device import Device, Executed
from worker.intake import Job, receive
from worker.learned import Learned
from worker.models.interface import Model, ModelConfig
from worker.publish import Publisher, Run
from worker.served import Served, form_of, limits_of

BLOCK_MS = 1_000
RING_MS = 50
RING_AFTER_S = 0.002
"""A pass that is over sooner is not listened beside: listening costs Redis more than it brings."""
RETRY_S = 0.05


class WorkerLoop:
    """Serves `models` until `stop`, then finishes what it holds."""

    def __init__(
        self,
        *,
        name: str,
        models: Sequence[tuple[ModelConfig, Model]],
        device: Device,
        connection: Connection,
        blocking: Connection,
        bell: Connection,
        log: EventLog,
        lease_us: int,
        learned: Learned | None = None,
        bulk: BulkFolder | None = None,
    ) -> None:
        self.name = name
        self._bulk = bulk
        self._learned = learned or Learned("", device=device.name, threads=device.threads)
        self.served = {s.queue: s for s in (self._serving(config, model) for config, model in models)}
        self.held: dict[str, Job] = {}
        self._device = device
        self._connection = connection
        self._blocking = blocking
        self._bell = bell
        self._log = log
        self._lease_us = lease_us
        self._publisher = Publisher(connection, log, name, clock.clock_id())
        self._executor = ThreadPoolExecutor(device.slots, "device", initializer=device.prepare_thread)
        self._slots_used = 0
        self._batch_numbers = itertools.count(1)
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._publishing: set[asyncio.Task[None]] = set()
        self._controls: dict[Queue, str] = {}
        self._suspects: set[Queue] = set()
        self._started_ns: dict[str, int] = {}
        self._adopt_due = False
        self._look = False
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()
        self._broken: asyncio.Future[None]
        self.stopping = False

    def _serving(self, config: ModelConfig, model: Model) -> Served:
        queue, limits = Queue(config.name, config.version), limits_of(config)
        service_time = self._learned.load(queue, form_of(config))
        return Served(queue, config, model, limits, service_time, law=service_time.law(limits.rows_max))

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pull until `stop`; then return once nothing is held (the caller bounds the wait).

        Raises what broke the worker beyond repair (`DeviceLost`, a defect); its requests are then handed on.
        """
        self._broken = asyncio.get_running_loop().create_future()
        working = asyncio.create_task(self._pull_and_finish(), name="pull")
        try:
            await asyncio.wait([working, self._broken], return_when=asyncio.FIRST_COMPLETED)
            await (working if working.done() else self._broken)
        finally:
            working.cancel()
            if self._timer:
                self._timer.cancel()
            owned = [t for t in (working, self._ringing, *self._publishing) if t]
            for task in owned:
                task.cancel()
            await asyncio.gather(*owned, return_exceptions=True)
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _pull_and_finish(self) -> None:
        await self._pull()
        await self._hand_back()
        self._step()
        await self._empty.wait()

    async def stop(self) -> None:
        """Take nothing more, hand back what has not begun, and finish what has."""
        self.stopping = True
        self._wake.set()
        await self._unblock()

    async def run_suspects(self, queue: Queue) -> None:
        """This worker is the one that runs the suspects of a queue, until there are none left."""
        if queue not in self._suspects:
            self._suspects.add(queue)
            self._wake.set()
            await self._unblock()

    async def _unblock(self) -> None:
        try:
            # The taking read would otherwise end only after BLOCK_MS.
            await self._connection.call("CLIENT", "UNBLOCK", self._blocking.client_id)
        except BrokerError:
            pass

    async def _hand_back(self) -> None:
        for served in self.served.values():
            waiting = list(served.jobs.values())
            if not waiting:
                continue
            served.jobs.clear()  # none may begin while it is being handed back
            try:
                held = [(job.delivery.id, job.delivery.attempt) for job in waiting]
                released = await work.release(self._connection, served.queue, self.name, held)
            except BrokerError:
                served.jobs.update((job.delivery.id, job) for job in waiting)  # then they are finished here
                continue
            now = clock.now_ns()
            self._log.write(Evt("release", now, now, {"queue": str(served.queue), "requests": released}))
            for job in waiting:
                self._release(job)

    def longest_pass_ns(self) -> int:
        """How long the oldest pass has been in the device; 0 when it is idle."""
        return clock.now_ns() - min(self._started_ns.values()) if self._started_ns else 0

    def connection_changed(self, up: bool) -> None:
        """After a reconnection: a delivery may have been lost with the old connection, so look at what is ours."""
        if up:
            self.adopt_soon()

    def adopt_soon(self) -> None:
        """Look at what Redis says is ours, at the next chance."""
        self._adopt_due = True
        self._wake.set()

    def drop(self, ids: Sequence[str]) -> None:
        """Forget requests that wait here but are not ours any more: handed on."""
        for rid in ids:
            self._pop(rid)

    def withdraw(self, ended: Sequence[work.Withdrawn]) -> None:
        """Forget requests that wait here and were cancelled or expired; what they would have cost is saved."""
        for rid, expired in ended:
            if found := self._pop(rid):
                served, job = found
                self._publisher.note_saved(served.queue, len(job.members), expired=expired)

    def _pop(self, rid: str) -> tuple[Served, Job] | None:
        for served in self.served.values():
            if job := served.jobs.pop(rid, None):
                self._release(job)
                return served, job
        return None

    async def flush_counts(self) -> None:
        """Say what was counted since."""
        await self._publisher.flush_counts()

    def keep_learned(self) -> None:
        """Write down what was learned of the models."""
        for served in self.served.values():
            if served.law:
                self._learned.keep(served.queue, served.service_time)

    # -- pull ----------------------------------------------------------------------------------------------------

    async def _pull(self) -> None:
        while not self.stopping:
            self._wake.clear()
            try:
                if self._adopt_due:
                    self._adopt_due = False
                    await self._adopt()
                if self._suspects:
                    await self._fetch_suspect(next(iter(self._suspects)))
                elif self._look:
                    self._look = False  # first: what happens while we fetch is a reason to look again
                    await self._fetch([s for s in self.served.values() if s.want() > 0])
                elif self._slots_used or any(s.jobs for s in self.served.values()):
                    await self._wait_busy(listen=any(s.want() > 0 for s in self.served.values()))
                else:
                    await self._wait_idle()
            except BrokerError:
                self._adopt_due = True
                await asyncio.sleep(RETRY_S)

    async def _fetch(self, asked: Sequence[Served]) -> None:
        """Ask for new work, without blocking. If as much comes as was asked for there may be more: look again."""
        w0 = clock.now_ns()
        wants = [s.want() for s in asked]
        fetches = [
            work.fetch(self._connection, s.queue, self.name, want=want, lease_us=self._lease_us)
            for s, want in zip(asked, wants, strict=True)
        ]
        for served, want, deliveries in zip(asked, wants, await _all(fetches), strict=True):
            self._look |= len(deliveries) >= want
            self._take(served, deliveries, w0)
        self._step()

    async def _fetch_suspect(self, queue: Queue) -> None:
        if self.held:
            await self._wake.wait()
            return
        w0 = clock.now_ns()
        deliveries = await work.fetch(self._connection, queue, self.name, want=1, lease_us=self._lease_us, alone=True)
        if not deliveries:
            self._suspects.discard(queue)
        self._take(self.served[queue], deliveries, w0)
        self._step()

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
                self._bell, list(self.served), self.name, block_ms=RING_MS, listen=listen, controls=self._controls
            )
            self.withdraw(ended)
        except BrokerError:
            await asyncio.sleep(RETRY_S)
        self._look |= listen
        self._wake.set()

    async def _wait_idle(self) -> None:
        """Block in a taking read; then fill up around what came."""
        w0 = clock.now_ns()
        entries = await work.wait_for_entries(self._blocking, list(self.served), self.name, block_ms=BLOCK_MS)
        for queue, given in entries.items():
            await self._fetch_given(self.served[queue], given, w0)

    async def _fetch_given(self, served: Served, given: Sequence[work.Entry], w0: int) -> None:
        asked_ns = clock.now_ns()
        want = max(len(given), served.want())
        begins = not self._slots_used
        deliveries = await work.fetch(
            self._connection,
            served.queue,
            self.name,
            want=want,
            lease_us=self._lease_us,
            given=given,
            begins=begins,
        )
        if begins:
            served.noted = [d.id for d in deliveries]
        self._look |= len(deliveries) >= want
        mine = {entry.request_id for entry in given}
        self._take(served, [d for d in deliveries if d.id in mine], w0)
        self._take(served, [d for d in deliveries if d.id not in mine], asked_ns)
        self._step()

    async def _adopt(self) -> None:
        """Take what Redis delivered to us but we never saw."""
        for served in self.served.values():
            w0 = clock.now_ns()
            entries = await work.own_entries(self._connection, served.queue, self.name)
            news = [e for e in entries if e.request_id not in self.held]
            if news:
                self._log.write(Evt("adopt", w0, clock.now_ns(), {"queue": str(served.queue), "entries": len(news)}))
                await self._fetch_given(served, news, w0)

    def _take(self, served: Served, deliveries: Sequence[work.Delivery], w0: int) -> None:
        if not deliveries:
            return
        w1 = clock.now_ns()
        refused = []
        for delivery in deliveries:
            job = receive(delivery, served.model, served.config, w0=w0, w1=w1, bulk=self._bulk)
            self.held[delivery.id] = job
            if job.error:
                refused.append(job)
            else:
                served.learn(job)
                served.jobs[delivery.id] = job
        served.arrivals.observe(len(deliveries), w1)
        self._empty.clear()
        if refused:
            self._own(self._reject(served.queue, refused))

    # -- run -----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Start every pass that the policy wants started now."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._slots_used < self._device.slots:
            started, wake_at_ns = self._start_one()
            if started:
                continue
            if wake_at_ns:
                delay_s = max(0.0, (wake_at_ns - clock.now_ns()) / 1e9)
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._step)
            return

    def _start_one(self) -> tuple[bool, int]:
        """Start the next pass. Returns (one was started, when to look again or 0)."""
        now = clock.now_ns()
        for served in self.served.values():
            # Checked here and not only by the tick: overdue work must not reach the model.
            for late in batching.overdue(served.waiting(), now):
                job = served.jobs.pop(late.id)
                self._release(job)
                self._publisher.note_saved(served.queue, len(job.members), expired=True)
        wake_at_ns = 0
        waiting = {queue: s.waiting() for queue, s in self.served.items()}
        for queue in ordering.oldest_first(waiting):
            served = self.served[queue]
            match composing.decide(
                waiting[queue],
                device_free=True,
                now_ns=now,
                limits=served.limits,
                draining=self.stopping,
                law=served.law,
                arrivals_per_s=served.arrivals.per_s(now),
            ):
                case batching.Dispatch() as dispatch:
                    self._start(served, dispatch, now)
                    return True, 0
                case batching.WaitUntil(at_ns):
                    wake_at_ns = min(wake_at_ns or at_ns, at_ns)
                case batching.Idle():
                    pass
        return False, wake_at_ns

    def _start(self, served: Served, dispatch: batching.Dispatch, sealed_ns: int) -> None:
        batch = dispatch.batch
        jobs = [served.jobs.pop(w.id) for w in batch]
        members = [member for job in jobs for member in job.members]
        served.passes += 1
        run = Run(
            batch_id=f"{self.name}.{next(self._batch_numbers)}",
            queue=served.queue,
            config=served.config,
            jobs=jobs,
            members=members,
            reason=dispatch.reason,
            predicted_ns=dispatch.predicted_ns,
            alone=not self._slots_used,
            sealed_ns=sealed_ns,
            nth=served.passes,
            shape_seen=len(members) in served.shapes,
            waiting_after=len(served.jobs),
            rows=sum(w.rows for w in batch),
        )
        served.shapes.add(len(members))
        self._slots_used += 1
        self._started_ns[run.batch_id] = sealed_ns
        served.running[run.batch_id] = [job.delivery.id for job in jobs]
        running = list(itertools.chain(*served.running.values()))
        if running != served.noted:
            work.note_running(self._connection, served.queue, self.name, running)
            served.noted = running
        future = asyncio.get_running_loop().run_in_executor(
            self._executor,
            self._device.execute,
            served.model,
            served.config,
            [m.request for m in members],
            [m.wanted for m in members],
        )
        future.add_done_callback(self._when_done(run))

    def _when_done(self, run: Run) -> Callable[["asyncio.Future[Executed]"], None]:
        def finished(future: "asyncio.Future[Executed]") -> None:
            self._slots_used -= 1
            served = self.served[run.queue]
            del self._started_ns[run.batch_id], served.running[run.batch_id]
            if future.cancelled():
                return
            if error := future.exception():
                # `execute` turns the model's exceptions into results; what it raises means that the device is lost.
                self.break_off(error)
                return
            run.executed = done = future.result()
            if run.alone and not self._slots_used and run.shape_seen and not done.splits:
                served.learn_pass([job.waiting for job in run.jobs], done.busy_ns)
            served.paces_us.append(
                (done.encoded_ns[-1] - run.sealed_ns) // (1000 * len(run.members) * self._device.slots)
            )
            self._step()  # first the device, then the paperwork
            self._own(self._publish(run))
            self._look |= self._slots_used > 0  # the next batch has begun: fill up behind it
            self._wake.set()

        return finished

    async def _publish(self, run: Run) -> None:
        await self._publisher.publish(run)
        for job in run.jobs:
            self._release(job)

    async def _reject(self, queue: Queue, jobs: Sequence[Job]) -> None:
        await self._publisher.reject(queue, jobs)
        for job in jobs:
            self._release(job)

    def _release(self, job: Job) -> None:
        # A later attempt of the same request may be here already.
        if self.held.get(job.delivery.id) is job:
            del self.held[job.delivery.id]
        if not self.held:
            self._empty.set()
            if self._suspects:
                self._wake.set()

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="publish")
        self._publishing.add(task)
        task.add_done_callback(self._published)

    def _published(self, task: "asyncio.Task[None]") -> None:
        self._publishing.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.break_off(error)

    def break_off(self, error: BaseException) -> None:
        """End the process: whatever is held here would otherwise be held for ever."""
        if not self._broken.done():
            self._broken.set_exception(error)


async def _all(fetches: Sequence[Coroutine[Any, Any, list[work.Delivery]]]) -> list[list[work.Delivery]]:
    """Run the calls together, so that they leave in one write."""
    if len(fetches) == 1:
        return [await fetches[0]]
    return await asyncio.gather(*fetches)
