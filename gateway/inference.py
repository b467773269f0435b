"""The routes that ask a model: the Open Inference Protocol's infer, and OpenAI's embeddings."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from aiohttp import web

from gateway import oip_reply, openai
from gateway.bodies import BodyBudget, compress_if_asked, read_body
from gateway.call import Call
from gateway.directory import Directory
from gateway.door import Door
from gateway.headers import budget_of, priority_of
from gateway.oip_request import parse_infer
from gateway.refusals import late_error
from gateway.reply import HttpReply
from gateway.routes import MODEL, VERSION, Routes
from gateway.submit import Submitter
from gateway.tenants import ANYONE, Tenant
from shared import clock, wire
from shared.errors import BadRequest
from shared.keys import NORMAL, Queue
from shared.settings import GatewaySettings

queue_of = lru_cache(Queue)
"""The queue of a model's version; made once, since its names are put together from parts."""


class Inference:
    """Takes requests for models, and answers them through the queue."""

    def __init__(
        self, settings: GatewaySettings, directory: Directory, submitter: Submitter, door: Door, budget: BodyBudget
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._submitter = submitter
        self._door = door
        self._budget = budget

    def add_to(self, routes: Routes) -> None:
        """Mount the routes."""
        for base in (MODEL, VERSION):
            routes.add("POST", f"{base}/infer", self.infer, name="infer")
        routes.add("POST", "/v1/embeddings", self.embeddings, name="embeddings")

    async def infer(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/models/{model}[/versions/{version}]/infer."""
        headers = request.headers
        tenant = await self._enter(request, call)
        body = await self._read(request, call)
        model = self._directory.resolve(call.values["model"], call.values.get("version", ""))
        call.model = model
        asked = parse_infer(body, headers.get("Inference-Header-Content-Length"), model)
        call.client_id, call.rows = asked.client_id, asked.rows
        if asked.rows == 0:
            answer = oip_reply.empty_reply(model)
        else:
            answers = await self._ask(
                request, call, model, [asked.request], asked.timeout_us, tenant, priority_of(headers, asked.priority)
            )
            answer = answers[0]
        rendered = oip_reply.render_infer(asked, model, answer)
        extra: tuple[tuple[str, str], ...] = ()
        if rendered.json_length is not None:
            extra = (("Inference-Header-Content-Length", str(rendered.json_length)),)
        reply = HttpReply(rendered.body, content_type=rendered.content_type, headers=extra)
        return await compress_if_asked(request, reply)

    async def embeddings(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v1/embeddings."""
        tenant = await self._enter(request, call)
        body = await self._read(request, call)
        asked = openai.parse_embeddings(body)
        model = self._directory.resolve(asked.model)
        if model.task != "embedding":
            raise BadRequest(f"model '{model.name}' is no embedding model; ask POST /v2/models/{model.name}/infer")
        call.model, call.rows = model, len(asked.texts)
        answers = await self._ask(
            request, call, model, openai.to_requests(asked, model), None, tenant, priority_of(request.headers)
        )
        return HttpReply(openai.render_embeddings(asked, model, answers))

    async def _enter(self, request: web.BaseRequest, call: Call) -> Tenant:
        tenant = self._door.tenant_of(request.headers)
        if tenant is not ANYONE:
            call.tenant = tenant.name
            if tenant.rate_per_s:
                await self._door.pace(tenant)
        return tenant

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
        parts: Sequence[wire.RequestBody],
        timeout_us: int | None,
        tenant: Tenant = ANYONE,
        priority: int = NORMAL,
    ) -> list[wire.ReplyBody]:
        """Send the parts of a request and wait for all answers. If one fails the others are withdrawn."""
        budget_ns, late = budget_of(request.headers, timeout_us, self._settings.request_timeout_s)
        call.deadline_ms = budget_ns // 1_000_000
        payloads = [wire.encode_request(part) for part in parts]
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
                        priority=priority,
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
