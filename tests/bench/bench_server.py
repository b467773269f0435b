"""A small server of the Open Inference Protocol within the test's own loop, which answers as the test says."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from bench.connections import Exchange, Target, target_of
from bench.load import Progress
from bench.responses import request_bytes
from bench.tally import Tally
from bench.workload import Request
from shared import clock

SERVER_TIMING = "queue;dur=1.000, compute;dur=2.000, transfer;dur=0.250, overhead;dur=0.500, total;dur=3.750"
X = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
REPLY = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]}
FAR_NS = 3_600_000_000_000

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def well(request: web.Request) -> web.StreamResponse:
    """What a server in good health says."""
    return web.json_response(REPLY, headers={"Server-Timing": SERVER_TIMING, "x-tailrace-request-id": "id-1"})


class FakeServer:
    """Serves models by name; every infer request is kept, and answered by `answer`."""

    def __init__(self, answer: Answer = well, models: dict[str, list[dict[str, Any]]] | None = None) -> None:
        self.answer = answer
        self.models = {"m": [X]} if models is None else models
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.peers: set[Any] = set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "FakeServer":
        app = web.Application()
        app.router.add_get("/v2", self._server)
        app.router.add_get("/v2/models/{model}", self._model)
        app.router.add_post("/v2/models/{model}/infer", self._infer)
        app.router.add_post("/v2/repository/index", self._index)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def target(self) -> Target:
        return target_of(self.url)

    async def _server(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "fake", "version": "7", "extensions": []})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name not in self.models:
            return web.json_response({"error": f"unknown model '{name}'"}, status=404)
        return web.json_response({"name": name, "versions": ["1"], "inputs": self.models[name], "outputs": []})

    async def _index(self, request: web.Request) -> web.Response:
        return web.json_response([{"name": name, "version": "1", "state": "READY"} for name in self.models])

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        return await self.answer(request)


class KeepingTally(Tally):
    """A tally that also keeps what it counted."""

    def __init__(self, from_ns: int = 0) -> None:
        super().__init__(from_ns)
        self.exchanges: list[Exchange] = []

    def add(self, x: Exchange) -> None:
        self.exchanges.append(x)
        super().add(x)


def infer_request(target: Target, number: int = 0) -> Request:
    """A valid request for the model `m`."""
    tensor = {**X, "shape": [1, 4], "data": [number, 0, 0, 0]}
    headers = {"Host": target.authority, "Content-Type": "application/json"}
    return Request(request_bytes("POST", "/v2/models/m/infer", headers, json.dumps({"inputs": [tensor]}).encode()), 1)


def endless() -> Progress:
    """A run that ends by other means than its time."""
    return Progress(clock.now_ns(), clock.now_ns() + FAR_NS)
