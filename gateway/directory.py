"""Which models the fleet serves. A model once seen stays known: without workers its requests queue."""

import asyncio
from collections.abc import Awaitable, Callable

from shared import clock, wire
from shared.broker import fleet
from shared.broker.connection import BrokerError, Connection
from shared.errors import ErrorKind, TailraceError
from shared.eventlog import EventLog
from shared.events import Evt
from shared.keys import Queue

SURVEY_INTERVAL_S = 0.25


class Directory:
    """Follows the workers' announcements. `on_queue` is awaited before a new model is offered to clients."""

    def __init__(self, connection: Connection, log: EventLog, on_queue: Callable[[Queue], Awaitable[None]]) -> None:
        self._connection = connection
        self._log = log
        self._on_queue = on_queue
        self._version = ""
        self.workers: dict[str, wire.WorkerDescriptor] = {}
        self._known: dict[str, dict[str, wire.ModelDescriptor]] = {}
        self._live: set[tuple[str, str]] = set()
        self._unloaded: frozenset[str] = frozenset()
        self._default: dict[str, wire.ModelDescriptor] = {}

    async def run(self) -> None:
        """Follow for ever."""
        while True:
            try:
                await self.survey()
            except BrokerError:
                pass  # the last picture stands; requests are held until Redis is back
            await asyncio.sleep(SURVEY_INTERVAL_S)

    async def survey(self) -> None:
        """Look once."""
        found = await fleet.survey(self._connection, self._version)
        if found is None:
            return
        workers = {}
        for name, data in found.workers.items():
            try:
                workers[name] = wire.decode_worker(data)
            except wire.WireError:
                continue  # a newer worker's descriptor: it serves gateways that know it
        await self._adopt(workers)
        self._unloaded = found.unloaded
        # Nearly every request names no version: what that means is worked out here, once.
        self._default = {name: self._highest(name) for name in self._known if name not in self._unloaded}
        self._version = found.version

    async def offer(self, name: str, *, offered: bool) -> None:
        """Withdraw a model from the clients of all gateways, or offer it again. Raises NOT_FOUND, BrokerError."""
        self.versions(name)
        await fleet.offer(self._connection, name, offered=offered)
        await self.survey()

    async def _adopt(self, workers: dict[str, wire.WorkerDescriptor]) -> None:
        now = clock.now_ns()
        for name in workers.keys() - self.workers.keys():
            models = [f"{m.name}/{m.version}" for m in workers[name].models]
            self._log.write(Evt("worker_found", now, now, {"worker": name, "models": models}))
        for name in self.workers.keys() - workers.keys():
            self._log.write(Evt("worker_lost", now, now, {"worker": name}))
        live = set()
        for worker in workers.values():
            for model in worker.models:
                live.add((model.name, model.version))
                if model.version not in self._known.get(model.name, {}):
                    await self._on_queue(Queue(model.name, model.version))
                self._known.setdefault(model.name, {})[model.version] = model
        self.workers, self._live = workers, live

    @property
    def ready(self) -> bool:
        """True while some worker is alive; a worker announces itself only when its models are warm."""
        return bool(self.workers)

    def is_live(self, model: wire.ModelDescriptor) -> bool:
        """True while a worker serves this version and clients may use it."""
        return (model.name, model.version) in self._live and model.name not in self._unloaded

    def bulk_tokens(self, model: wire.ModelDescriptor) -> set[str]:
        """The folders that the live workers of this version read claims from; empty text: one that reads none."""
        key = model.name, model.version
        return {w.bulk for w in self.workers.values() if any((m.name, m.version) == key for m in w.models)}

    def models(self) -> list[wire.ModelDescriptor]:
        """Every version known."""
        return [m for versions in self._known.values() for m in versions.values()]

    def queues(self) -> list[Queue]:
        """The queues of every version known."""
        return [Queue(m.name, m.version) for m in self.models()]

    def versions(self, name: str) -> list[wire.ModelDescriptor]:
        """All versions of a model, lowest first. Raises NOT_FOUND, and UNAVAILABLE while no worker was ever seen."""
        if not self._known:
            text = (
                "no worker has announced itself yet, so no model is known; start one with `tailrace worker`, or retry"
            )
            raise TailraceError(ErrorKind.UNAVAILABLE, f"{text} after 1 s", retry_after_s=1)
        if name not in self._known:
            known = ", ".join(sorted(self._known))
            raise TailraceError(ErrorKind.NOT_FOUND, f"unknown model '{name}'; the models served here are: {known}")
        return sorted(self._known[name].values(), key=lambda m: (len(m.version), m.version))

    def resolve(self, name: str, version: str = "") -> wire.ModelDescriptor:
        """A version of a model; without one, the highest that a worker serves. Raises NOT_FOUND."""
        if not version and (default := self._default.get(name)):
            return default
        versions = self.versions(name)
        if name in self._unloaded:
            raise TailraceError(
                ErrorKind.UNAVAILABLE,
                f"model '{name}' is unloaded; POST /v2/repository/models/{name}/load offers it again",
            )
        if version:
            for model in versions:
                if model.version == version:
                    return model
            have = ", ".join(m.version for m in versions)
            raise TailraceError(ErrorKind.NOT_FOUND, f"unknown version '{version}' of model '{name}'; it has: {have}")
        return self._highest(name)

    def _highest(self, name: str) -> wire.ModelDescriptor:
        versions = self.versions(name)
        live = [m for m in versions if self.is_live(m)]
        return (live or versions)[-1]
