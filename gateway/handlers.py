"""The routes that tell what the server and its models are, and those that offer and withdraw models."""

from collections.abc import Sequence

from aiohttp import web

from gateway import metadata
from gateway.bodies import BodyBudget, read_body
from gateway.call import Call
from gateway.directory import Directory
from gateway.door import Door
from gateway.reply import HttpReply, json_reply
from gateway.routes import MODEL, VERSION, Routes
from shared import wire
from shared.broker import requests
from shared.broker.connection import BrokerError, Connection
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.keys import Queue
from shared.settings import GatewaySettings


class Handlers:
    """One gateway's routes that ask no model."""

    def __init__(
        self,
        settings: GatewaySettings,
        directory: Directory,
        connection: Connection,
        door: Door,
        budget: BodyBudget,
        version: str,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._connection = connection
        self._door = door
        self._budget = budget
        self._server_version = version
        self.draining = False

    def add_to(self, routes: Routes) -> None:
        """Mount the routes."""
        add = routes.add
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
        await self._door.enter(request.headers)
        models = self._directory.models()
        entries = metadata.repository_index(models)
        live = {(m.name, m.version) for m in models if self._directory.is_live(m)}
        for entry in entries:
            if (entry["name"], entry["version"]) not in live:
                entry["state"], entry["reason"] = "UNAVAILABLE", "unloaded, or no worker serves it now"
        return json_reply(entries)

    async def load(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/repository/models/{model}/load: offer a model that the workers have."""
        await self._offer(request, call, offered=True)
        return HttpReply()

    async def unload(self, request: web.BaseRequest, call: Call) -> HttpReply:
        """POST v2/repository/models/{model}/unload: withdraw a model from clients; the workers keep it in memory."""
        await self._offer(request, call, offered=False)
        return HttpReply()

    async def _offer(self, request: web.BaseRequest, call: Call, *, offered: bool) -> None:
        await self._door.enter(request.headers)
        await read_body(request, self._settings.body_bytes_max, self._budget)
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
