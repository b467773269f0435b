"""The worker's loop: batch, run, publish, without ever letting a free device wait while work is queued.

Theory of operation. One event loop does everything but the models, which run in the device's threads. `Puller`
(pull.py) brings requests. `step` is called after every change (requests came, a batch ended, a timer fired): it asks
`policy.composing.decide` and starts what it says. A finished batch first frees the device for the next one and then is
published; its answers and the next fetch leave in the same write. `Keeper` (lease.py) renews the lease beside all this
and tells which requests are not ours any more.

What must stay true: each delivered request is in `held` until its answer is handed in or it is dropped because another
verdict stands; `slots_used` passes are in the device.
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
from worker.pull import Puller
from worker.served import Served, form_of, limits_of


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
        self._log = log
        self._publisher = Publisher(connection, log, name, clock.clock_id())
        self._executor = ThreadPoolExecutor(device.slots, "device", initializer=device.prepare_thread)
        self._slots_used = 0
        self._batch_numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._publishing: set[asyncio.Task[None]] = set()
        self._started_ns: dict[str, int] = {}
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()
        self._broken: asyncio.Future[None]
        self.stopping = False
        self.puller = Puller(self, connection=connection, blocking=blocking, bell=bell, log=log, lease_us=lease_us)

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
            owned = [working, *self._publishing]
            for task in owned:
                task.cancel()
            await asyncio.gather(*owned, self.puller.close(), return_exceptions=True)
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _pull_and_finish(self) -> None:
        await self.puller.run()
        await self._hand_back()
        self.step()
        await self._empty.wait()

    async def stop(self) -> None:
        """Take nothing more, hand back what has not begun, and finish what has."""
        self.stopping = True
        await self.puller.unblock()

    @property
    def is_computing(self) -> bool:
        """The device is busy."""
        return self._slots_used > 0

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
            self.puller.adopt_soon()

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

    def take(self, served: Served, deliveries: Sequence[work.Delivery], w0: int) -> None:
        """Hold deliveries that were asked for at `w0`; what cannot be understood is answered so."""
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

    def step(self) -> None:
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
                self._timer = asyncio.get_running_loop().call_later(delay_s, self.step)
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
            self.step()  # first the device, then the paperwork
            self._own(self._publish(run))
            self.puller.pass_ended()

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
            self.puller.nothing_held()

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
