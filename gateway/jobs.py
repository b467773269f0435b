"""Asynchronous jobs: take a request on and answer at once, then tell how far it is, give its result, or end it.

A job is a request whose record outlives its end, and whose gateway does not wait. Its address names the queue, so any
gateway of the fleet finds it in Redis, and `Job.ask` says how to render the result as infer would have.
"""

import asyncio
import re

import orjson
from aiohttp import web

from gateway.bodies import compress_if_asked
from gateway.call import Call
from gateway.door import Door
from gateway.durability import Confirmations, durability_of
from gateway.headers import budget_of, preferences_of
from gateway.job_ask import render_result
from gateway.oip_request import InferCall
from gateway.pending import SameRequest
from gateway.reply import HttpReply, infer_reply
from gateway.results import Results, has_ended, stands
from gateway.routes import VERSION, Routes
from gateway.submit import Submitter
from gateway.tenants import Tenant
from shared import clock, wire
from shared.broker.requests import Attached, Job
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.keys import SAFE_NAME, Queue
from shared.lifecycle import State
from shared.settings import GatewaySettings

JOB_ID = re.compile(r"[0-9a-f]{32}(-\d{1,4})?")
RETRY_AFTER = ("Retry-After", "1")
_QUEUED = frozenset({State.WAITING, State.QUEUED, State.DELAYED})


class Jobs:
    """What a gateway does with jobs."""

    def __init__(
        self,
        settings: GatewaySettings,
        submitter: Submitter,
        results: Results,
        door: Door,
        confirmations: Confirmations,
    ) -> None:
        self._settings = settings
        self._confirmations = confirmations
        self._submitter = submitter
        self._results = results
        self._door = door

    def add_to(self, routes: Routes) -> None:
        """Mount the routes of jobs that are there; `inference.Inference` takes new ones on."""
        path = f"{VERSION}/jobs/{{job}}"
        routes.add("GET", path, self.get)
        routes.add("DELETE", path, self.delete)

    async def submit(
        self, request: web.BaseRequest, call: Call, queue: Queue, asked: InferCall, job: Job, tenant: Tenant, lane: int
    ) -> HttpReply:
        """Take a job on: 202 once it is in Redis. An idempotency key that was used leads to the job it was used for."""
        if asked.rows == 0:
            raise BadRequest("a job needs at least one row; ask infer, which answers an empty batch at once")
        want = durability_of(request.headers, self._settings.job_durability)
        if want:
            await self._confirmations.check(want)
        budget_ns, late = budget_of(request.headers, asked.timeout_us, self._settings.job_timeout_s)
        call.deadline_ms = budget_ns // 1_000_000
        payload = wire.encode_request(asked.request)
        call.g2 = clock.now_ns()
        while True:
            p = self._submitter.submit(
                id=call.id,
                queue=queue,
                payload=payload,
                traceparent=call.trace.traceparent,
                tracestate=call.trace.tracestate,
                deadline_at_ns=call.g0 + budget_ns,
                late=late,
                tenant=tenant,
                priority=lane,
                job=job,
            )
            call.parts[:] = [p]
            job_id, state = call.id, State.QUEUED
            try:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    await p.answer
                break
            except TimeoutError as e:
                text = (
                    f"Redis has not confirmed job {call.id} within {self._settings.request_timeout_s:g} s, "
                    f"but may have it; the same Idempotency-Key finds it; retry after 1 s"
                )
                raise TailraceError(ErrorKind.UNAVAILABLE, text, retry_after_s=1) from e
            except SameRequest as same:
                job_id = same.request_id
                found = await self._results.look(queue, job_id)
                if not has_ended(found) or stands(found):
                    state = State(found.state)
                    break
                await self._results.forget(queue, job_id)  # it ended without an answer: now it is run anew
            finally:
                self._submitter.abandon(p)
                call.g6 = clock.now_ns()
                call.settle()
        if want and not await self._confirmations.is_safe(queue.record(job_id), want):
            text = (
                f"job {job_id} is taken on, but {want} did not confirm to have it within "
                f"{self._settings.durable_wait_s:g} s; "
                f"GET {location_of(queue, job_id)} follows it, the same Idempotency-Key finds it; retry after 1 s"
            )
            raise TailraceError(ErrorKind.UNAVAILABLE, text, retry_after_s=1)
        return _told(queue, job_id, state, 202, ("Location", location_of(queue, job_id)))

    async def get(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/models/{model}/versions/{version}/jobs/{job}[?wait=SECONDS]: the result; 202 while there is none."""
        tenant = self._door.tenant_of(request.headers)
        queue, job_id = _place(call)
        wait_s = min(_wait_of(request), self._settings.job_wait_s)
        found = await self._results.find(queue, job_id, tenant)
        if wait_s and not has_ended(found):
            await self._results.until_end(queue, job_id, clock.now_ns() + int(wait_s * 1e9))
            found = await self._results.find(queue, job_id, tenant)
        if not has_ended(found):
            return _told(queue, job_id, State(found.state), 202, RETRY_AFTER)
        return await compress_if_asked(request, result_of(queue, found))

    async def delete(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """DELETE v2/models/{model}/versions/{version}/jobs/{job}: cancel it, or forget its result."""
        tenant = self._door.tenant_of(request.headers)
        queue, job_id = _place(call)
        found = await self._results.find(queue, job_id, tenant)
        if not has_ended(found) and await self._results.cancel(queue, job_id):
            return _told(queue, job_id, State.CANCELLED, 200)
        await self._results.forget(queue, job_id)
        return HttpReply(status=204)


def location_of(queue: Queue, job_id: str) -> str:
    """Where a job is asked for."""
    return f"/v2/models/{queue.model}/versions/{queue.version}/jobs/{job_id}"


def result_of(queue: Queue, found: Attached) -> HttpReply:
    """What infer would have answered. Raises the error that the job ended with."""
    if found.state == State.CANCELLED:
        return HttpReply(orjson.dumps({"error": "the job was cancelled; submit it again if you need it"}), 410)
    try:
        body = wire.decode_reply(found.answer).body
    except wire.WireError as e:
        raise TailraceError(ErrorKind.INTERNAL, f"the result cannot be read: {e}") from e
    return infer_reply(render_result(found.ask, queue, body))


def status_of(state: State) -> str:
    """What clients call a state."""
    return "queued" if state in _QUEUED else state.lower()


def _told(queue: Queue, job_id: str, state: State, status: int, *headers: tuple[str, str]) -> HttpReply:
    told = {"id": job_id, "status": status_of(state), "location": location_of(queue, job_id)}
    return HttpReply(orjson.dumps(told), status, headers=headers)


def _place(call: Call) -> tuple[Queue, str]:
    model, version, job_id = call.values["model"], call.values["version"], call.values["job"]
    if not (SAFE_NAME.fullmatch(model) and SAFE_NAME.fullmatch(version) and JOB_ID.fullmatch(job_id)):
        raise TailraceError(ErrorKind.NOT_FOUND, f"there is no job '{job_id[:40]}' of {model[:40]}/{version[:40]}")
    return Queue(model, version), job_id


def _wait_of(request: web.BaseRequest) -> float:
    """The seconds that the client would wait: ?wait=SECONDS, or Prefer: wait=SECONDS."""
    text = request.query.get("wait") or preferences_of(request.headers).get("wait") or "0"
    try:
        wait_s = float(text)
        if not 0 <= wait_s < 1e9:
            raise ValueError
    except ValueError:
        raise BadRequest(f"wait is '{text[:40]}'; send seconds, a number from 0") from None
    return wait_s
