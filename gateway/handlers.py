"""The routes of the Open Inference Protocol, Triton's extensions and OpenAI's embeddings, on the submitter."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from aiohttp import web

from gateway import metadata, oip_reply, openai
from gateway.bodies import BodyBudget, compress_if_asked, read_body
from gateway.call import Call
from gateway.directory import Directory
from gateway.oip_request import parse_infer
from gateway.refusals import late_error
from gateway.reply import HttpReply, json_reply
from gateway.routes import Routes
from gateway.submit import Submitter
from shared import clock, wire
from shared.broker import requests
from shared.broker.connection import BrokerError, Connection
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.keys import Queue
from shared.settings import GatewaySettings

MODEL = "/v2/models/{model}"
VERSION = "/v2/models/{model}/versions/{version}"
queue_of = lru_cache(Queue)
"""The queue of a model's version; made once, since its names are put together from parts."""


class Handlers:
    """One gateway's routes."""

    def __init__(
        self,
        settings: GatewaySettings,
        directory: Directory,
        submitter: Submitter,
        connection: Connection,
        version: str,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._submitter = submitter
        self._connection = connection
        self._server_version = version
        self._budget = BodyBudget(settings.inflight_bytes_max)
        self.draining = False

    def add_to(self, routes: Routes) -> None:
        """Mount everything."""
        add = routes.add
        for base in (MODEL, VERSION):
            add("POST", f"{base}/infer", self.infer, name="infer")
        add("POST", "/v1/embeddings", self.embeddings, name="embeddings")
        add("GET", "/v1/models", self.openai_models)
        add("GET", "/v2", self.server)
        add("GET", "/v2/", self.server)
        add("GET", "/v2/health/live", self.live)
        add("GET", "/v2/health/ready", self.ready)
        add("GET", "/v2/models/stats", self.all_statistics)
        for base in (MODEL, VERSION):
            add("GET", base, self.model)
            add("GET", f"{base}/ready", self.model_ready)
            add("GET", f"{base}/config", self.config)
            add("GET", f"{base}/stats", self.statistics)
        add("POST", "/v2/repository/index", self.index)
        add("POST", "/v2/repository/models/{model}/load", self.load)
        add("POST", "/v2/repository/models/{model}/unload", self.unload)
        for path in ("/v2/trace/setting", f"{MODEL}/trace/setting"):
            add("GET", path, self.trace_setting)
            add("POST", path, self.not_here)
        add("GET", "/v2/logging", self.logging)
        add("POST", "/v2/logging", self.not_here)
        for kind in ("systemsharedmemory", "cudasharedmemory"):
            add("GET", f"/v2/{kind}/status", self.no_shared_memory)
            add("GET", f"/v2/{kind}/region/{{region}}/status", self.no_shared_memory)
            add("POST", f"/v2/{kind}/*", self.not_here)

    # -- inference -----------------------------------------------------------------------------------------------

    async def infer(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/models/{model}[/versions/{version}]/infer."""
        body = await self._read(request, call)
        model = self._directory.resolve(call.values["model"], call.values.get("version", ""))
        call.model = model
        asked = parse_infer(body, request.headers.get("Inference-Header-Content-Length"), model)
        call.client_id, call.rows = asked.client_id, asked.rows
        if asked.rows == 0:
            answer = oip_reply.empty_reply(model)
        else:
            answers = await self._ask(request, call, model, [asked.request], asked.timeout_us)
            answer = answers[0]
        rendered = oip_reply.render_infer(asked, model, answer)
        headers: tuple[tuple[str, str], ...] = ()
        if rendered.json_length is not None:
            headers = (("Inference-Header-Content-Length", str(rendered.json_length)),)
        reply = HttpReply(rendered.body, content_type=rendered.content_type, headers=headers)
        return await compress_if_asked(request, reply)

    async def embeddings(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v1/embeddings."""
        body = await self._read(request, call)
        asked = openai.parse_embeddings(body)
        model = self._directory.resolve(asked.model)
        if model.task != "embedding":
            raise BadRequest(f"model '{model.name}' is no embedding model; ask POST /v2/models/{model.name}/infer")
        call.model, call.rows = model, len(asked.texts)
        answers = await self._ask(request, call, model, openai.to_requests(asked, model), None)
        return HttpReply(openai.render_embeddings(asked, model, answers))

    async def _body(self, request: web.BaseRequest) -> bytes:
        return await read_body(request, self._settings.body_bytes_max, self._budget)

    async def _read(self, request: web.BaseRequest, call: Call) -> bytes:
        body = await self._body(request)
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
    ) -> list[wire.ReplyBody]:
        """Send the parts of a request and wait for all answers. If one fails the others are withdrawn."""
        budget_ns, late = _budget(request, timeout_us, self._settings.request_timeout_s)
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

    # -- what is there -------------------------------------------------------------------------------------------

    async def server(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2."""
        return json_reply(metadata.server_metadata(self._server_version))

    async def live(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/health/live."""
        return HttpReply()

    async def ready(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/health/ready: 400 until a worker is there with its models warm, and while draining."""
        if self.draining:
            raise BadRequest("the gateway is stopping")
        if not self._directory.ready:
            raise BadRequest("no worker is ready; start one with `tailrace worker`")
        return HttpReply()

    async def model(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/models/{model}[/versions/{version}]."""
        name, version = call.values["model"], call.values.get("version")
        self._directory.resolve(name, version or "")
        return json_reply(metadata.model_metadata(self._directory.versions(name), version))

    async def model_ready(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/models/{model}[/versions/{version}]/ready: 400 while no worker serves it."""
        model = self._directory.resolve(call.values["model"], call.values.get("version", ""))
        if not self._directory.is_live(model):
            raise BadRequest(f"no worker serves model '{model.name}' version {model.version} now")
        return HttpReply()

    async def config(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/models/{model}[/versions/{version}]/config."""
        model = self._directory.resolve(call.values["model"], call.values.get("version", ""))
        return json_reply(metadata.model_config(model))

    async def statistics(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/models/{model}[/versions/{version}]/stats."""
        name, version = call.values["model"], call.values.get("version")
        models = [self._directory.resolve(name, version)] if version else self._directory.versions(name)
        return await self._statistics(models)

    async def all_statistics(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/models/stats."""
        return await self._statistics(self._directory.models())

    async def _statistics(self, models: Sequence[wire.ModelDescriptor]) -> HttpReply:
        entries = []
        for model in models:
            try:
                counters = await requests.counters(self._connection, Queue(model.name, model.version))
            except BrokerError as e:
                text = f"the statistics are in Redis, which does not answer: {e}; retry after 1 s"
                raise TailraceError(ErrorKind.UNAVAILABLE, text, retry_after_s=1) from e
            entries.append(metadata.statistics(model.name, model.version, counters))
        return json_reply({"model_stats": entries})

    async def index(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/repository/index."""
        models = self._directory.models()
        entries = metadata.repository_index(models)
        live = {(m.name, m.version) for m in models if self._directory.is_live(m)}
        for entry in entries:
            if (entry["name"], entry["version"]) not in live:
                entry["state"], entry["reason"] = "UNAVAILABLE", "unloaded, or no worker serves it now"
        return json_reply(entries)

    async def load(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/repository/models/{model}/load: offer a model that the workers have."""
        await self._body(request)
        await self._offer(call, offered=True)
        return HttpReply()

    async def unload(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/repository/models/{model}/unload: withdraw a model from clients; the workers keep it in memory."""
        await self._body(request)
        await self._offer(call, offered=False)
        return HttpReply()

    async def _offer(self, call: Call, *, offered: bool) -> None:
        try:
            await self._directory.offer(call.values["model"], offered=offered)
        except BrokerError as e:
            raise TailraceError(
                ErrorKind.UNAVAILABLE, f"Redis does not answer: {e}; retry after 1 s", retry_after_s=1
            ) from e

    async def openai_models(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v1/models: what the embeddings route can be asked for."""
        names = sorted({m.name for m in self._directory.models() if m.task == "embedding"})
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "tailrace"} for name in names]
        return json_reply({"object": "list", "data": models})

    async def trace_setting(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/trace/setting: every request's timeline is in the event log, always."""
        always = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1", "log_frequency": "0"}
        return json_reply({**always, "trace_file": self._settings.log_dir, "trace_mode": "tailrace"})

    async def logging(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/logging."""
        level = self._settings.log_level
        shown = {"log_info": level in ("debug", "info"), "log_warning": level != "error", "log_error": True}
        return json_reply(
            {"log_file": "", **shown, "log_verbose_level": int(level == "debug"), "log_format": "default"}
        )

    async def no_shared_memory(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """GET v2/*sharedmemory/status: no region is ever registered."""
        return json_reply([])

    async def not_here(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """What Triton has and we refuse cleanly."""
        raise TailraceError(ErrorKind.UNSUPPORTED, f"{request.method} {request.path} is not supported by this server")


def _budget(request: web.BaseRequest, timeout_us: int | None, longest_s: float) -> tuple[int, ErrorKind]:
    """Nanoseconds until the deadline, and the error it ends with: the shortest of the three limits decides."""
    budget_ns, late = int(longest_s * 1e9), ErrorKind.DEADLINE
    if timeout_us is not None and timeout_us * 1000 < budget_ns:
        budget_ns, late = timeout_us * 1000, ErrorKind.QUEUE_TIMEOUT
    header = request.headers.get("x-request-timeout-ms")
    if header is not None:
        try:
            timeout_ms = float(header)
            if not 0 < timeout_ms < 1e12:
                raise ValueError
        except ValueError:
            raise BadRequest(f"x-request-timeout-ms is '{header[:40]}'; send milliseconds, a number above 0") from None
        if timeout_ms * 1e6 < budget_ns:
            budget_ns, late = int(timeout_ms * 1e6), ErrorKind.DEADLINE
    return budget_ns, late
