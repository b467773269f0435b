"""A whole system in virtual time: gateways and workers as they are, a model of Redis, and a plan of what goes wrong."""

import asyncio
import contextlib
import itertools
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from simulation.auditor import ID_LENGTH, Auditor, Case, id_of, number_of
from simulation.direct import DirectConnection
from simulation.network import Network, Weather
from simulation.plan import LONG_S, Asked, Event, Plan, Trouble
from simulation.redis_model import Client, Saved
from simulation.toy import ToyDevice, ToyModel, config_of, payload_of
from simulation.trace import Trace
from simulation.virtual_time import START_NS, Process, VirtualLoop, current
from simulation.virtual_world import Log, believing_in, sha_of
from support.audit import disorder, leftovers

from gateway import parcels
from gateway.pending import Pending
from gateway.replies import Replies
from gateway.submit import Submitter
from gateway.tenants import ANYONE, Tenant
from shared.broker import requests, scripts, work
from shared.broker.connection import BrokerError, Connection
from shared.broker.housekeeping import keep_ticking
from shared.errors import TailraceError
from shared.keys import Queue
from shared.settings import WorkerSettings
from worker import main as worker_main
from worker.loop import WorkerLoop

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REPLACED_AFTER_S = (0.05, 0.8)
CLEAN_WITHIN_S = 70.0
"""After the last answer and the last trouble; the longest deadline of a request whose gateway died lies within."""
LOST_MAX_S = 1.0
"""Redis syncs its append-only file every second."""
RECORDS_LIVE_S = 100_000.0
"""Longer than anything in Redis that has a time to live."""

PAUSE_NS = 300_000_000
"""How long after a parcel that did not go well others are made: not so long that there would be no other."""
REQUEST_ID = re.compile(rb"\d{%d}(\.\d+)?" % ID_LENGTH)

_WAYS_TO_LEARN = ("drop", "withdraw")
"""Methods that tell a worker's loop of requests that it need not run."""


@dataclass(slots=True)
class Gateway:
    """A gateway's process, and what its HTTP handlers would use."""

    process: Process
    log: Log
    submitter: Submitter | None = None
    waiting: dict[int, Case] = field(default_factory=dict)
    frozen_until_s: float = 0.0


@dataclass(slots=True)
class Worker:
    """A worker's process."""

    process: Process
    log: Log
    serving: "asyncio.Task[bool] | None" = None
    leaving: bool = False


class World:
    """Runs one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = VirtualLoop()
        self.trace = Trace()
        self.auditor = Auditor(plan)
        self.network = Network(self.loop, random.Random(f"network {plan.seed}"), self._observe)
        self._rng = random.Random(f"world {plan.seed}")
        self.queue = Queue("toy", "1")
        self.gateways: list[Gateway] = []
        self.workers: list[Worker] = []
        self._numbers = itertools.count(1)
        self._shutting_down = False
        self._saved: dict[float, Saved] = {}
        self._told_of = {
            sha_of("accept", plan.ready_max).encode(): self.auditor.accepted,
            sha_of("complete", plan.ready_max).encode(): self.auditor.completed,
        }
        self._calm_at_s = plan.calm_at_s
        self._clients: list[asyncio.Task[None]] = []
        self.loop.service_time_s = lambda: self._rng.uniform(*plan.service_s)

    def run(self) -> None:
        """Run the plan to its end. What was not as it must be is in `auditor.violations` afterwards."""
        with believing_in(self.loop, seed=self.plan.seed, ready_max=self.plan.ready_max), self._watched():
            try:
                self.loop.run_until_complete(self._run())
            finally:
                self.loop.close()
        for context in self.loop.errors:
            self.auditor.violations.append(f"nobody caught: {context.get('exception') or context['message']!r}")

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return (self.loop.now_ns - START_NS) / 1e9

    def note(self, who: str, what: str, **details: Any) -> None:
        """Put a fact into the trace."""
        self.trace.note(self.loop.now_ns, who, what, **details)

    def _observe(self, client: Client, words: list[bytes], reply: bytes) -> None:
        self.trace.command(self.loop.now_ns, client.name, words, reply)
        if words[0] == b"EVALSHA" and words[1] in self._told_of and reply[:1] == b"*":
            at = [i for i, word in enumerate(words) if REQUEST_ID.fullmatch(word)]
            # *N, then a length and a text each.
            statuses = reply.decode().split("\r\n")[2::2]
            # What comes third after the id is the answer, where one is given.
            self._told_of[words[1]]([words[i].decode() for i in at], statuses, [words[i + 3] for i in at])

    # -- the story -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        plan = self.plan
        self.network.weather = replace(plan.weather)
        self.network.after(plan.bad_weather_s, self._clear_up)
        for i in range(plan.gateways):
            self._start_gateway(i)
        for _ in range(plan.workers):
            self._start_worker()
        for asked in plan.requests:
            self.network.after(asked.at_s, self._ask, asked)
        for event in plan.events:
            self.network.after(event.at_s, self._strike, event)
            if event.trouble is Trouble.ROLL_BACK:
                self.network.after(max(0.0, event.at_s - min(LOST_MAX_S, event.for_s)), self._save, event)
        last_s = max(r.at_s for r in plan.requests)
        await asyncio.sleep(max(last_s, plan.calm_at_s) - self.now_s + 0.01)
        horizon_s = max(last_s, plan.calm_at_s) + LONG_S + 5.0
        while waiting := [c for c in self._clients if not c.done()]:
            if self.now_s > horizon_s:
                break
            await asyncio.wait(waiting, timeout=horizon_s - self.now_s + 0.01)
        self.note("world", "every client has its answer")
        # What was sent while the weather was bad may still be on its way.
        await asyncio.sleep(plan.bad_weather_s + plan.weather.delay_max_s * (plan.weather.delay > 0) - self.now_s)
        await self._until_clean()
        await self._shut_down()
        excused = {i: g.frozen_until_s for i, g in enumerate(self.gateways)}
        self.auditor.judge(self._calm_at_s, excused)

    def _clear_up(self) -> None:
        self.network.weather = Weather()
        self._be_calm_at(self.now_s + 3.0)  # what vanished is noticed only now
        self.note("network", "the weather clears up")

    def _be_calm_at(self, at_s: float) -> None:
        self._calm_at_s = max(self._calm_at_s, at_s)

    async def _until_clean(self) -> None:
        c = DirectConnection(self.network.model)
        until_s = max(self.now_s, self._calm_at_s) + CLEAN_WITHIN_S
        while found := await leftovers(c, self.queue) or await disorder(c):
            if self.now_s > until_s:
                self.auditor.violations.append(f"left in Redis: {found}")
                return
            await asyncio.sleep(0.25)

    async def _shut_down(self) -> None:
        """End everybody in good order, and look what stays behind."""
        self._shutting_down = True
        for worker in self.workers:
            if worker.serving and not worker.serving.done() and worker.process.alive:
                self._tell_to_stop(worker)
        for worker in self.workers:
            if worker.serving and worker.process.alive:
                await asyncio.wait([worker.serving], timeout=60)
                if not worker.serving.done():
                    self.auditor.violations.append(f"{worker.process.name} does not stop")
        for gateway in self.gateways:
            if gateway.process.alive and gateway.submitter:
                await gateway.process.start(gateway.submitter.drain(30))
                self.auditor.expect(not gateway.submitter.pending, f"{gateway.process.name} still has requests")
        c = DirectConnection(self.network.model)
        if found := await leftovers(c, self.queue) + await disorder(c):
            self.auditor.violations.append(f"left in Redis after the end: {found}")
        for process in [w.process for w in self.workers] + [g.process for g in self.gateways]:
            await self._end(process)
        # Whatever has a time to live must go when it is over.
        self.loop.now_ns += int(RECORDS_LIVE_S * 1e9)
        stay = [key.decode() for key in c.now("KEYS", "*") if c.now("PTTL", key) != -1]
        self.auditor.expect(not stay, f"still in Redis after {RECORDS_LIVE_S} s: {stay}")

    async def _end(self, process: Process) -> None:
        process.kill()
        while process.tasks:
            await asyncio.gather(*process.tasks, return_exceptions=True)

    # -- gateways ------------------------------------------------------------------------------------------------------

    def _start_gateway(self, i: int) -> None:
        name = f"gw-{next(self._numbers)}"
        gateway = Gateway(Process(self.loop, name), Log())
        if i < len(self.gateways):
            gateway.frozen_until_s = self.gateways[i].frozen_until_s  # what its forerunner answered late
            self.gateways[i] = gateway
        else:
            self.gateways.append(gateway)
        gateway.process.start(self._serve(gateway, name))
        self.note(name, "starts")

    async def _serve(self, gateway: Gateway, name: str) -> None:
        """What gateway/main.py does, less HTTP."""
        connection = Connection("unix:///redis", name, on_connect=scripts.load_all)
        reading = Connection("unix:///redis", f"{name}-read", read_limit_s=4, quiet=True)
        limits = requests.Limits(self.plan.queue_max, 1 << 30, 10_000)
        submitter = Submitter(connection, name, inflight_max=1000, inflight_bytes_max=1 << 30, limits=limits)
        replies = Replies(connection, reading, submitter)
        gateway.submitter = submitter
        async with connection, reading:
            while True:
                await connection.wait_connected()
                try:
                    await replies.add(self.queue)
                    break
                except BrokerError:
                    await asyncio.sleep(0.05)
            lease_us = int(self.plan.lease_s * 1e6)
            await asyncio.gather(
                replies.run(),
                replies.keep_alive(),
                submitter.reconcile(),
                keep_ticking(connection, lambda: [self.queue], name, gateway.log, lease_us=lease_us),
            )

    def _ask(self, asked: Asked) -> None:
        gateway = self.gateways[asked.gateway]
        if gateway.submitter is None or not gateway.process.alive:
            return  # its clients cannot reach it
        case = self.auditor.cases[asked.number] = Case(asked)
        gateway.waiting[asked.number] = case
        client = gateway.process.start(self._await_answer(gateway, gateway.submitter, case))
        self._clients.append(client)
        if asked.cancel_after_s is not None:
            self.network.after(asked.cancel_after_s, self._withdraw, gateway, case, client)

    async def _await_answer(self, gateway: Gateway, submitter: Submitter, case: Case) -> None:
        """What gateway/handlers.py does with a request."""
        asked = case.asked
        pending = None
        try:
            pending = submitter.submit(
                id=id_of(asked.number),
                queue=self.queue,
                payload=payload_of(asked.number, asked.salt, asked.kind, asked.rows),
                traceparent=TRACEPARENT,
                tracestate="",
                deadline_at_ns=self.loop.now_ns + int(asked.deadline_s * 1e9),
                tenant=ANYONE if asked.tenant == "-" else Tenant(asked.tenant, weight=0.5 + len(asked.tenant)),
                priority=asked.priority,
                company=self.plan.max_batch_size if asked.rows == 1 else 1,
            )
            case.asked = replace(asked, at_s=self.now_s)
            case.outcome = await pending.answer
        except TailraceError as e:
            case.outcome = e
        finally:
            if pending is not None:
                submitter.abandon(pending)
            if gateway.process.alive:
                case.ended_at_s = self.now_s
                gateway.waiting.pop(asked.number, None)
                outcome = case.outcome
                error = outcome.kind.code if isinstance(outcome, TailraceError) else ""
                if outcome is not None and not isinstance(outcome, TailraceError):
                    error = outcome.body.error_code
                self.note(gateway.process.name, "answers", request=asked.number, error=error)

    def _withdraw(self, gateway: Gateway, case: Case, client: "asyncio.Task[None]") -> None:
        if not client.done():
            case.withdrawn = True
            client.cancel()
            self.note(gateway.process.name, "client goes away", request=case.asked.number)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        if self._shutting_down:
            return
        plan, name = self.plan, f"w-{next(self._numbers)}"
        worker = Worker(Process(self.loop, name), Log())
        self.workers.append(worker)
        device = ToyDevice(plan.slots, lambda numbers: self._computing(name, numbers))
        config = config_of(plan.max_batch_size, plan.linger_us)
        model = ToyModel(config, lambda: self.network.after(0.0, self._crash, worker), self._rng.random)
        settings = WorkerSettings(redis="unix:///redis", lease_s=plan.lease_s, drain_s=30.0)
        worker.serving = worker.process.start(
            worker_main._serve(settings, name, device, [(model.config, model)], worker.log)
        )
        worker.serving.add_done_callback(lambda _: self._worker_ended(worker))
        self.note(name, "starts")

    def _computing(self, name: str, numbers: list[int]) -> None:
        self.note(name, "computes", requests=numbers)
        self.auditor.computing(name, numbers, self.loop.now_ns)

    def _crash(self, worker: Worker) -> None:
        if worker.process.alive:
            self.note(worker.process.name, "crashes in a pass")
            self.auditor.deaths += 1
            worker.process.kill()

    def _worker_ended(self, worker: Worker) -> None:
        error = worker.serving.exception() if worker.serving and not worker.serving.cancelled() else None
        # A worker that cannot reach Redis while it starts gives up; it is started again.
        if error and not isinstance(error, BrokerError):
            self.auditor.violations.append(f"{worker.process.name} failed: {error!r}")
        self.note(worker.process.name, "has ended")
        worker.process.kill()
        if worker in self.workers and not self._shutting_down:
            self.workers.remove(worker)
            wait_s = self._rng.uniform(*REPLACED_AFTER_S)
            self.auditor.deaths += not worker.leaving
            self._be_calm_at(self.now_s + wait_s + self.plan.lease_s)
            self.network.after(wait_s, self._start_worker)

    def _tell_to_stop(self, worker: Worker) -> None:
        worker.leaving = True
        if signal.SIGTERM in worker.process.signal_handlers:
            worker.process.signal(signal.SIGTERM)
        else:
            worker.process.kill()

    # -- trouble -------------------------------------------------------------------------------------------------------

    def _strike(self, event: Event) -> None:
        trouble, network = event.trouble, self.network
        who = "redis"
        if trouble.value.endswith("worker"):
            if not self.workers:
                return
            worker = self.workers[event.target % len(self.workers)]
            who = worker.process.name
            self.auditor.deaths += 1
            if trouble is Trouble.STOP_WORKER:
                self._tell_to_stop(worker)
            else:
                self._strike_process(trouble, worker.process, event.for_s)
        elif trouble.value.endswith("gateway"):
            i = event.target % len(self.gateways)
            gateway = self.gateways[i]
            if not gateway.process.alive:
                return
            who = gateway.process.name
            if trouble is Trouble.KILL_GATEWAY:
                for case in gateway.waiting.values():
                    case.orphaned = True
                self.network.after(event.for_s, self._start_gateway, i)
            elif trouble is Trouble.FREEZE_GATEWAY:
                gateway.frozen_until_s = self.now_s + event.for_s
            self._strike_process(trouble, gateway.process, event.for_s)
        elif trouble is Trouble.STALL:
            network.stall(event.for_s)
        elif trouble is Trouble.RESTART:
            network.restart(event.for_s / 2)
        elif trouble is Trouble.ROLL_BACK:
            network.restart(event.for_s / 2, self._saved[event.at_s])
            self.auditor.forgotten(rolled_back=True)
        elif trouble is Trouble.FLUSH:
            DirectConnection(network.model).now("FLUSHALL")
            self.auditor.forgotten()
        elif trouble is Trouble.FORGET_SCRIPTS:
            DirectConnection(network.model).now("SCRIPT", "FLUSH")
        elif trouble is Trouble.OUT_OF_MEMORY:
            network.model.db.out_of_memory = True
            network.after(event.for_s, self._find_memory)
        self._be_calm_at(self.now_s + event.for_s)
        self.note(who, trouble.value, seconds=round(event.for_s, 3))

    def _save(self, event: Event) -> None:
        self._saved[event.at_s] = self.network.model.save()

    def _strike_process(self, trouble: Trouble, process: Process, for_s: float) -> None:
        if trouble in (Trouble.KILL_WORKER, Trouble.KILL_GATEWAY):
            process.kill()
        elif trouble in (Trouble.FREEZE_WORKER, Trouble.FREEZE_GATEWAY):
            process.freeze()
            self.network.after(for_s, self._thaw, process)
        elif trouble in (Trouble.CUT_WORKER, Trouble.CUT_GATEWAY):
            self.network.cut(process)
        else:
            self.network.vanish(process)
            self._be_calm_at(self.now_s + 5.0)

    def _thaw(self, process: Process) -> None:
        if process.frozen:
            self.note(process.name, "thaws")
            process.thaw()

    def _find_memory(self) -> None:
        self.network.model.db.out_of_memory = False

    # -- what the auditor hears ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        auditor, loop = self.auditor, self.loop
        fetch, pack = work.fetch, Submitter._pack

        async def watched_fetch(*args: Any, **kwargs: Any) -> Any:
            deliveries = await fetch(*args, **kwargs)
            auditor.delivered(_who(), deliveries, loop.now_ns)
            return deliveries

        def watched_pack(submitter: Submitter, ps: list[Pending]) -> Pending:
            parcel = pack(submitter, ps)
            auditor.parcels[parcel.id] = [number_of(p.id) for p in ps]
            return parcel

        def pays(pace: parcels.Pace, now_ns: int) -> bool:
            return self.plan.parcels and now_ns >= pace._not_before_ns

        def hearing(learn: Any) -> Any:
            def heard(worker: WorkerLoop, ended: Any) -> None:
                ids = [e if isinstance(e, str) else e[0] for e in ended]
                if ids:
                    self.note(_who(), "drops", requests=ids)
                    auditor.told(_who(), ids)
                learn(worker, ended)

            return heard

        ways = {name: hearing(way) for name in _WAYS_TO_LEARN if (way := getattr(WorkerLoop, name, None))}
        with (
            patch.object(work, "fetch", watched_fetch),
            patch.multiple(WorkerLoop, **ways),
            patch.object(Submitter, "_pack", watched_pack),
            patch.object(parcels.Pace, "pays", pays),
            patch.object(parcels, "PAUSE_NS", PAUSE_NS),
        ):
            yield


def _who() -> str:
    process = current()
    return process.name if process else "nobody"
