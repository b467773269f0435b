"""From an encoded request to its answer: hand it over, wait, and make sure that it ends.

Theory of operation. `pending` holds each request, body included, until its answer is final; the body is the
retransmission buffer, so a request survives even a Redis that lost everything: it is handed over until Redis has said
yes (`handover.py`). Answers arrive on this gateway's reply streams (`replies.py`); a request that heard nothing for a
while is looked up (`reconcile`) and handed over again if its record is gone. The deadline is kept here, by a timer, so
a client is answered on time whatever Redis and the workers do.

Requests for a cheap model travel together (`parcels.py`). A parcel is handed over, looked up and answered like a
request; its members stay pending, each with its own deadline, and what ends the parcel otherwise than by an answer
hands them over one by one.

What must stay true: a request leaves `pending` exactly once, and whoever removes it sets its future.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from gateway.claims import Held
from gateway.handover import CALL_REQUESTS_MAX, HandOver
from gateway.parcels import Pace, grouped
from gateway.pending import ACCEPTED, Pending, SameRequest
from gateway.refusals import late_error, refusal
from gateway.tenants import ANYONE, Tenant
from shared import clock, wire
from shared.broker import requests
from shared.broker.connection import BrokerError, Connection
from shared.errors import ErrorKind, TailraceError
from shared.keys import NORMAL, Queue

RECONCILE_INTERVAL_S = 1.0
DEADLINE_STEP_NS = 2_000_000
"""A deadline is kept to this precision."""
RETRY_S = 0.05
QUIET_NS = 2_000_000_000
"""A request that heard nothing for this long is looked up."""


class Submitter:
    """The requests that this gateway has in flight."""

    def __init__(
        self,
        connection: Connection,
        gateway: str,
        *,
        inflight_max: int,
        inflight_bytes_max: int,
        limits: requests.Limits,
    ) -> None:
        self.gateway = gateway
        self.pending: dict[str, Pending] = {}
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._inflight_max = inflight_max
        self._inflight_bytes_max = inflight_bytes_max
        self._bytes = 0
        self._parcels: dict[str, Pending] = {}
        self._paces: dict[Queue, Pace] = {}
        self._watches: dict[int, tuple[asyncio.TimerHandle, set[Pending]]] = {}
        self._hand_over = HandOver(
            connection,
            gateway,
            limits,
            is_open=self.is_open,
            pack=self._bundle,
            accepted=self._accepted,
            failed=self._fail,
        )

    def submit(
        self,
        *,
        id: str,
        queue: Queue,
        payload: bytes,
        traceparent: str,
        tracestate: str,
        deadline_at_ns: int,
        late: ErrorKind = ErrorKind.DEADLINE,
        tenant: Tenant = ANYONE,
        priority: int = NORMAL,
        job: requests.Job | None = None,
        company: int = 1,
        held: Held | None = None,
    ) -> Pending:
        """Take a request on; await its `answer`. Raises QUEUE_FULL when this gateway holds too much already.

        `company`: so many such requests fit a pass of the model, and may travel together. `held`: what the payload is a
        claim for; it must stay until the request has ended.

        `late` is the kind of error that the request ends with at its deadline. The answer of a `job` that is not `sync`
        comes as soon as Redis has it; a job whose idempotency key was used before ends with SameRequest.
        """
        size = len(payload) + (held.size if held else 0)
        if len(self.pending) >= self._inflight_max or self._bytes + size > self._inflight_bytes_max:
            raise TailraceError(
                ErrorKind.QUEUE_FULL,
                f"this gateway holds {len(self.pending)} requests of {self._bytes} bytes already; retry after 1 s",
                retry_after_s=1,
            )
        answer: asyncio.Future[wire.Reply] = self._loop.create_future()
        p = Pending(
            id, queue, payload, traceparent, tracestate, deadline_at_ns, late, answer, tenant, priority, job,
            company if job is None else 1, held=held,
        )  # fmt: skip
        self.pending[id] = p
        self._bytes += size
        now = clock.now_ns()
        self._pace(queue).begin(now)
        self._watch(p, now)
        self._hand_over.hand_over(p)
        return p

    def find(self, id: str) -> Pending | None:
        """A request, or a parcel, that waits for its answer."""
        return self.pending.get(id) or self._parcels.get(id)

    def resolve(self, p: Pending, data: bytes, g5: int) -> wire.WorkerStamps | None:
        """Give a request, or the members of a parcel, the answer. Returns the worker's stamps if it came from one."""
        if not self.is_open(p):
            return None
        p.g5 = g5
        try:
            if p.members:
                self._remove(p)
                return self._resolve_members(p, wire.decode_parcel_reply(data))
            file = wire.file_of_reply(data) if p.held else ""
            reply = wire.decode_reply(data, p.held.take(file) if p.held and file else None)
            if p.held and reply.body.error_code == wire.AGAIN:
                raise FileNotFoundError("no worker sees the file of its tensors")
        except OSError:
            p.g4 = 0  # it is not looked up meanwhile
            self.own(self._hand_over_whole(p))
            return None
        except wire.WireError as e:
            if p.members:
                self._unpack(p)
            else:
                self._fail(p, TailraceError(ErrorKind.INTERNAL, f"the worker's answer cannot be read: {e}"))
            return None
        self._remove(p)
        if reply.stamps:
            self._pace(p.queue).learn(reply.stamps, g5)
        if not p.answer.done():
            if reply.body.error_code == ErrorKind.DEADLINE.code:
                p.answer.set_exception(late_error(p.late))  # the tick was faster than our timer
            else:
                p.answer.set_result(reply)
        return reply.stamps

    def _resolve_members(self, parcel: Pending, replies: list[wire.Reply]) -> wire.WorkerStamps | None:
        if len(replies) != len(parcel.members):
            raise wire.WireError(f"{len(replies)} answers to {len(parcel.members)} requests")
        stamps = replies[0].stamps
        if stamps:
            self._pace(parcel.queue).learn(stamps, parcel.g5)
        for p, reply in zip(parcel.members, replies, strict=True):
            if reply.body.error_code == wire.AGAIN:
                self._hand_over_alone(p)
            elif self._remove(p):
                p.g5 = parcel.g5
                if not p.answer.done():
                    p.answer.set_result(reply)
        return stamps

    def abandon(self, p: Pending) -> None:
        """The client has gone: end its request wherever it is. A job goes on: somebody may ask for its result."""
        if self._remove(p):
            p.g5 = clock.now_ns()
            if p.job is None:
                self._cancel(p, expired=False)

    async def reconcile(self) -> None:
        """Look up quiet requests, for ever: the answer may have been missed, or the record lost."""
        while True:
            await asyncio.sleep(RECONCILE_INTERVAL_S)
            now = clock.now_ns()
            quiet: dict[Queue, list[Pending]] = {}
            for p in (*self.pending.values(), *self._parcels.values()):
                if p.g4 and now - max(p.g4, p.looked_up_at_ns) > QUIET_NS:
                    p.looked_up_at_ns = now
                    quiet.setdefault(p.queue, []).append(p)
            for queue, ps in quiet.items():
                for i in range(0, len(ps), CALL_REQUESTS_MAX):
                    try:
                        await self.look_up(queue, ps[i : i + CALL_REQUESTS_MAX])
                    except BrokerError:
                        break

    async def look_up(self, queue: Queue, ps: list[Pending]) -> None:
        """Ask Redis for the truth about requests, and act on it. Raises BrokerError."""
        states = await requests.peek(self._connection, queue, [p.id for p in ps])
        now = clock.now_ns()
        answered = []
        for p, (state, answer) in zip(ps, states, strict=True):
            if not self.is_open(p):
                continue  # it was answered while we asked
            if state == "GONE" and p.members:
                self._remove(p)
                self._unpack(p)
            elif state == "GONE":
                p.g4 = 0
                self._hand_over.hand_over(p)
            elif answer:
                self.resolve(p, answer, now)
                if p.job is None and not self.is_open(p):
                    answered.append(p.id)
            elif state == "CANCELLED":  # by another hand
                self._fail(p, TailraceError(ErrorKind.CANCELLED, "the request was cancelled"))
        if answered:
            await requests.forget(self._connection, queue, self.gateway, answered)

    def is_open(self, p: Pending) -> bool:
        """Whether a request, or a parcel, still waits for its answer."""
        return (self._parcels if p.members else self.pending).get(p.id) is p

    def own(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of the submitter."""
        self._hand_over.own(work)

    @property
    def is_quiet(self) -> bool:
        """All is said to Redis."""
        return self._hand_over.is_quiet

    async def drain(self, timeout_s: float) -> None:
        """Wait until every answer is given and everything is said to Redis, at most `timeout_s`."""
        until_ns = clock.now_ns() + int(timeout_s * 1e9)
        while (self.pending or not self.is_quiet) and clock.now_ns() < until_ns:
            waited_for = [p.answer for p in self.pending.values()] + self._hand_over.tasks
            if not waited_for:
                await asyncio.sleep(0)  # a flush is due
                continue
            await asyncio.wait(waited_for, timeout=(until_ns - clock.now_ns()) / 1e9)
        self._give_up()
        await self._hand_over.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """Answer all that is pending with an error, and withdraw it."""
        for p in list(self.pending.values()):
            text = "the gateway is stopping and did not get the answer in time; retry after 1 s"
            self._fail(p, TailraceError(ErrorKind.UNAVAILABLE, text, retry_after_s=1))
            if p.job is None:
                self._cancel(p, expired=False)

    def _remove(self, p: Pending) -> bool:
        """True for the one who removes it, and must see to its end."""
        if not self.is_open(p):
            return False
        if p.members:
            del self._parcels[p.id]
            for member in p.members:
                if member.parcel is p:
                    member.parcel = None
                    member.take_stamps_of(p)
            return True
        del self.pending[p.id]
        self._pace(p.queue).pending -= 1
        self._bytes -= p.size
        self._unwatch(p)
        return True

    def _watch(self, p: Pending, now_ns: int) -> None:
        """One timer for all requests whose deadlines are within a few ms of each other: a timer each costs 1.5 us."""
        due = p.due = -(-p.deadline_at_ns // DEADLINE_STEP_NS)
        watch = self._watches.get(due)
        if watch is None:
            delay_s = max(0.0, (due * DEADLINE_STEP_NS - now_ns) / 1e9)
            watch = self._watches[due] = (self._loop.call_later(delay_s, self._expire_all, due), set())
        watch[1].add(p)

    def _unwatch(self, p: Pending) -> None:
        watch = self._watches.get(p.due)
        if watch is None:
            return
        timer, pending = watch
        pending.discard(p)
        if not pending:
            timer.cancel()
            del self._watches[p.due]

    def _expire_all(self, due: int) -> None:
        watch = self._watches.get(due)
        for p in list(watch[1]) if watch else ():
            self._expire(p)

    def _pace(self, queue: Queue) -> Pace:
        pace = self._paces.get(queue)
        if pace is None:
            pace = self._paces[queue] = Pace()
        return pace

    def _expire(self, p: Pending) -> None:
        if not self._remove(p):
            return
        p.g5 = clock.now_ns()
        self._cancel(p, expired=True)
        if not p.answer.done():
            p.answer.set_exception(late_error(p.late))

    def _fail(self, p: Pending, error: Exception) -> None:
        if not self._remove(p):
            return
        for member in p.members:
            self._fail(member, error)
        p.g5 = clock.now_ns()
        if not p.members and not p.answer.done():
            p.answer.set_exception(error)

    def _unpack(self, parcel: Pending) -> None:
        """A parcel that was removed did not go well: each of its members by itself."""
        self._pace(parcel.queue).pause(clock.now_ns())
        for p in parcel.members:
            self._hand_over_alone(p)

    def _hand_over_alone(self, p: Pending) -> None:
        if self.is_open(p):
            p.company, p.g4 = 1, 0
            self._hand_over.hand_over(p)

    async def _hand_over_whole(self, p: Pending) -> None:
        """What one side put in the host's memory the other one did not find: now by way of Redis."""
        while self.is_open(p) and p.held:
            try:
                payload = await asyncio.to_thread(p.held.whole, p.payload)
                await requests.forget(self._connection, p.queue, self.gateway, [p.id])
            except (OSError, wire.WireError) as e:
                self._fail(p, TailraceError(ErrorKind.UNAVAILABLE, f"its tensors are gone: {e}; retry after 1 s"))
                return
            except BrokerError:
                await asyncio.sleep(RETRY_S)
                continue
            if self.is_open(p):
                self._bytes -= p.size
                p.payload, p.held = payload, None
                self._bytes += p.size
                self._hand_over.hand_over(p)

    def _bundle(self, queue: Queue, ps: list[Pending]) -> list[Pending]:
        """What travels: requests, or parcels of them."""
        now = clock.now_ns()
        if len(ps) < 2 or not self._pace(queue).pays(now):
            return ps
        return [group[0] if len(group) == 1 else self._pack(group) for group in grouped(ps, now)]

    def _pack(self, ps: list[Pending]) -> Pending:
        first = ps[0]
        parcel = Pending(
            id=f"{first.id}.{len(ps)}",
            queue=first.queue,
            payload=wire.encode_parcel([(p.id, p.traceparent, p.tracestate, p.payload) for p in ps]),
            traceparent=",".join([p.traceparent for p in ps]),
            tracestate="",
            deadline_at_ns=min(p.deadline_at_ns for p in ps),
            late=first.late,
            answer=first.answer,  # nobody waits for a parcel itself
            tenant=first.tenant,
            priority=first.priority,
            members=ps,
        )
        for p in ps:
            p.parcel = parcel
        self._parcels[parcel.id] = parcel
        return parcel

    def _cancel(self, p: Pending, *, expired: bool) -> None:
        parcel = p.parcel
        if parcel is not None:
            p.take_stamps_of(parcel)
            if any(self.is_open(member) for member in parcel.members) or not self._remove(parcel):
                return
            p = parcel
        self._hand_over.withdraw(p, expired=expired)

    def _accepted(self, queue: Queue, ps: list[Pending], outcomes: list[tuple[str, str]]) -> None:
        now = clock.now_ns()
        for p, (status, detail) in zip(ps, outcomes, strict=True):
            p.g4 = now
            for member in p.members:
                if member.parcel is None:  # the answer was faster; while it is in the parcel it is not looked up itself
                    member.g4 = member.g4 or now
            if status in ("OK", "DUP"):
                if status == "OK":
                    p.entry_id = detail
                if p.withdrawn:  # meanwhile; a hand-over that had to load its script first comes after the cancel
                    self._cancel(p, expired=p.withdrawn == "EXPIRED")
                if p.job and not p.job.sync and self._remove(p) and not p.answer.done():
                    p.g5 = now
                    p.answer.set_result(ACCEPTED)
            elif p.members:
                if self._remove(p):
                    self._unpack(p)  # some of it may be taken
            elif status == "SAME":
                self._fail(p, SameRequest(detail))
            else:
                left_s = max(0.0, (p.deadline_at_ns - now) / 1e9)
                self._fail(p, refusal(queue, p.tenant, status, detail, left_s=left_s))
