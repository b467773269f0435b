"""The routes that ask a model: the Open Inference Protocol's infer, at once or as a job, and OpenAI's embeddings."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
from aiohttp import web

from gateway import openai
from gateway.bodies import BodyBudget, compress_if_asked, read_body
from gateway.call import Call
from gateway.claims import Claims, Held
from gateway.directory import Directory
from gateway.door import Door
from gateway.headers import (
    IDEMPOTENCY_KEY,
    PREFER,
    budget_of,
    idempotency_key_of,
    preferences_of,
    priority_of,
)
from gateway.job_ask import digest_of, encode_ask
from gateway.jobs import Jobs, result_of
from gateway.oip_reply import empty_reply, render_infer
from gateway.oip_request import InferCall, parse_infer
from gateway.parcels import company_of
from gateway.pending import SameRequest
from gateway.refusals import late_error, stopping_error
from gateway.reply import HttpReply, infer_reply
from gateway.results import Results, has_ended, stands
from gateway.routes import MODEL, VERSION, Routes
from gateway.submit import Submitter
from gateway.tenants import ANYONE, Tenant
from gateway.webhooks import AllowedHosts
from shared import clock, wire
from shared.broker.requests import Job
from shared.errors import BadRequest
from shared.keys import Queue
from shared.settings import GatewaySettings

DIGEST_IN_THREAD = 1 << 20
"""A longer body is hashed in a thread: 64 MiB take a tenth of a second."""
queue_of = lru_cache(Queue)
"""The queue of a model's version; made once, since its names are put together from parts."""


class Inference:
    """Takes requests for models, and answers them through the queue."""

    def __init__(
        self,
        settings: GatewaySettings,
        directory: Directory,
        submitter: Submitter,
        door: Door,
        budget: BodyBudget,
        results: Results,
        jobs: Jobs,
        hosts: AllowedHosts,
        claims: Claims,
    ) -> None:
        self._claims = claims
        self._hosts = hosts
        self._settings = settings
        self._directory = directory
        self._submitter = submitter
        self._results = results
        self._jobs = jobs
        self._door = door
        self._companies: dict[Queue, tuple[wire.ModelDescriptor, int]] = {}
        self._budget = budget

    def add_to(self, routes: Routes) -> None:
        """Mount the routes."""
        for base in (MODEL, VERSION):
            routes.add("POST", f"{base}/infer", self.infer, name="infer")
            routes.add("POST", f"{base}/jobs", self.jobs, name="jobs")
        routes.add("POST", "/v1/embeddings", self.embeddings, name="embeddings")

    async def infer(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/models/{model}[/versions/{version}]/infer."""
        headers = request.headers
        tenant = self._door.tenant_of(headers)
        if tenant is not ANYONE:
            await self._admit(tenant, call)
        body = await self._read(request, call)
        model, asked = self._understand(headers, call, body)
        lane = priority_of(headers, asked.priority)
        if PREFER in headers and "respond-async" in preferences_of(headers):
            reply = await self._submit_job(request, call, model, asked, body, tenant, lane)
            return reply._replace(headers=(*reply.headers, ("Preference-Applied", "respond-async")))
        if asked.rows == 0:
            return await compress_if_asked(request, infer_reply(render_infer(asked, model, empty_reply(model))))
        if IDEMPOTENCY_KEY in headers:
            once = self._infer_once(request, call, model, asked, body, tenant, lane)
            del body, asked  # it keeps what it needs of them
            return await once
        payload, held = await self._claims.encode(asked.request, model)
        # While it waits the payload is all that is kept of a request: body and views would take the same again.
        asked, body = asked.without_request(), b""
        try:
            answers = await self._ask(request, call, model, [payload], asked.timeout_us, tenant, lane, held=held)
        finally:
            if held:
                asyncio.get_running_loop().run_in_executor(None, held.drop)  # which takes a ms for ten megabytes
        return await compress_if_asked(request, infer_reply(render_infer(asked, model, answers[0])))

    async def jobs(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/models/{model}[/versions/{version}]/jobs: infer, but the answer is asked for later."""
        tenant = self._door.tenant_of(request.headers)
        await self._admit(tenant, call)
        body = await self._read(request, call)
        model, asked = self._understand(request.headers, call, body)
        lane = priority_of(request.headers, asked.priority)
        return await self._submit_job(request, call, model, asked, body, tenant, lane)

    async def embeddings(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v1/embeddings."""
        tenant = self._door.tenant_of(request.headers)
        if tenant is not ANYONE:
            await self._admit(tenant, call)
        asked = openai.parse_embeddings(await self._read(request, call))
        model = self._directory.resolve(asked.model)
        if model.task != "embedding":
            raise BadRequest(f"model '{model.name}' is no embedding model; ask POST /v2/models/{model.name}/infer")
        call.model, call.rows = model, len(asked.texts)
        payloads = [wire.encode_request(part) for part in openai.to_requests(asked, model)]
        answers = await self._ask(request, call, model, payloads, None, tenant, priority_of(request.headers))
        return HttpReply(openai.render_embeddings(asked, model, answers))

    async def _admit(self, tenant: Tenant, call: Call) -> None:
        if tenant is not ANYONE:
            call.tenant = tenant.name
        if tenant.rate_per_s:
            await self._door.pace(tenant)

    def _understand(
        self, headers: Mapping[str, str], call: Call, body: bytes
    ) -> tuple[wire.ModelDescriptor, InferCall]:
        model = self._directory.resolve(call.values["model"], call.values.get("version", ""))
        call.model = model
        asked = parse_infer(body, headers.get("Inference-Header-Content-Length"), model)
        call.client_id, call.rows = asked.client_id, asked.rows
        return model, asked

    async def _job(
        self, request: web.BaseRequest, call: Call, model: wire.ModelDescriptor, asked: InferCall, body: bytes
    ) -> Job:
        """What makes a job of a request; its idempotency key, if it has one, covers route and body."""
        key = idempotency_key_of(request.headers)
        digest = ""
        if key:
            route = call.values["model"], call.values.get("version", "")
            covered = (*route, request.headers.get("Inference-Header-Content-Length"), body)
            digest = (
                await asyncio.to_thread(digest_of, *covered) if len(body) > DIGEST_IN_THREAD else digest_of(*covered)
            )
        return Job(int(self._settings.job_ttl_s * 1000), encode_ask(asked, model), key, digest)

    async def _submit_job(
        self,
        request: web.BaseRequest,
        call: Call,
        model: wire.ModelDescriptor,
        asked: InferCall,
        body: bytes,
        tenant: Tenant,
        lane: int,
    ) -> HttpReply:
        job = await self._job(request, call, model, asked, body)
        if hook := request.headers.get("x-webhook-url"):
            job = msgspec.structs.replace(job, hook=self._hosts.check(hook))
        return await self._jobs.submit(request, call, queue_of(model.name, model.version), asked, job, tenant, lane)

    async def _infer_once(
        self,
        request: web.BaseRequest,
        call: Call,
        model: wire.ModelDescriptor,
        asked: InferCall,
        body: bytes,
        tenant: Tenant,
        lane: int,
    ) -> HttpReply:
        """Infer with an idempotency key: run it once, and give everybody who sends it again that same answer."""
        job = await self._job(request, call, model, asked, body)
        job = msgspec.structs.replace(job, sync=True, ttl_ms=int(self._settings.idempotency_ttl_s * 1000))
        queue = queue_of(model.name, model.version)
        budget_ns, late = budget_of(request.headers, asked.timeout_us, self._settings.request_timeout_s)
        payloads, size = [wire.encode_request(asked.request)], len(body)
        asked, body = asked.without_request(), b""
        while True:
            try:
                answers = await self._ask(request, call, model, payloads, asked.timeout_us, tenant, lane, job)
                return await compress_if_asked(request, infer_reply(render_infer(asked, model, answers[0])))
            except SameRequest as same:
                first = same.request_id
            # Whoever waits holds its payload, and counts for that.
            with self._budget.holding(size):
                found = await self._results.until_end(queue, first, call.g0 + budget_ns)
            call.parts[0].g5 = call.g6 = clock.now_ns()
            if found is None or not has_ended(found):
                raise stopping_error() if self._results.stopping else late_error(late)
            if stands(found):
                reply = await compress_if_asked(request, result_of(queue, found))
                return reply._replace(headers=(*reply.headers, ("x-tailrace-first-request-id", first)))
            # It ended without an answer, by its deadline or by hand: now it is run anew.
            await self._results.forget(queue, first)
            call.parts.clear()

    def _company(self, model: wire.ModelDescriptor, queue: Queue) -> int:
        known = self._companies.get(queue)
        if known is None or known[0] is not model:
            known = self._companies[queue] = (model, company_of(model))
        return known[1]

    async def _read(self, request: web.BaseRequest, call: Call) -> bytes:
        body = await read_body(request, self._settings.body_bytes_max, self._budget)
        call.g1 = clock.now_ns()
        call.bytes_in = len(body)
        return body

    async def _ask(
        self,
        request: web.BaseRequest,
        call: Call,
        model: wire.ModelDescriptor,
        payloads: Sequence[bytes],
        timeout_us: int | None,
        tenant: Tenant,
        lane: int,
        job: Job | None = None,
        held: Held | None = None,
    ) -> list[wire.ReplyBody]:
        """Send the parts of a request and wait for all answers. If one fails the others are withdrawn."""
        budget_ns, late = budget_of(request.headers, timeout_us, self._settings.request_timeout_s)
        call.deadline_ms = budget_ns // 1_000_000
        call.g2 = clock.now_ns()
        if call.g2 - call.g0 >= budget_ns:
            raise late_error(late)
        queue = queue_of(model.name, model.version)
        try:
            for i, payload in enumerate(payloads):
                call.parts.append(
                    self._submitter.submit(
                        id=call.id if i == 0 else f"{call.id}-{i}",
                        queue=queue,
                        payload=payload,
                        traceparent=call.trace.traceparent,
                        tracestate=call.trace.tracestate,
                        deadline_at_ns=call.g0 + budget_ns,
                        late=late,
                        tenant=tenant,
                        priority=lane,
                        job=job,
                        company=self._company(model, queue) if call.rows == 1 else 1,
                        held=held,
                    )
                )
            if len(call.parts) == 1:
                replies = [await call.parts[0].answer]
            else:
                replies = await asyncio.gather(*(p.answer for p in call.parts))
        finally:
            for p in call.parts:
                self._submitter.abandon(p)  # no effect on those that have ended
            call.g6 = clock.now_ns()
            for p in call.parts:
                if p.answer.done() and not p.answer.cancelled():
                    p.answer.exception()  # seen, so that asyncio does not complain about the second of two failures
            call.settle()
        return [reply.body for reply in replies]
