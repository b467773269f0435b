"""The gateway's process: HTTP on one side, Redis on the other, until told to stop."""

import asyncio
import signal
import sys
from importlib import metadata
from typing import Any

import uvloop
from aiohttp import web

from gateway.bodies import BodyBudget
from gateway.claims import Claims
from gateway.directory import Directory
from gateway.door import Door
from gateway.drain import LAST_REQUEST_S, close_the_door, know_the_fleet, let_clients_leave
from gateway.durability import Confirmations
from gateway.handlers import Handlers
from gateway.http import Http, Server
from gateway.inference import Inference
from gateway.jobs import Jobs
from gateway.listen import Listener
from gateway.replies import Replies
from gateway.results import Results
from gateway.routes import Routes
from gateway.submit import Submitter
from gateway.tenants import Tenants, load_tenants
from gateway.webhooks import AllowedHosts, Webhooks, allowed_hosts
from shared import clock, humanlog, vitals
from shared.broker import requests, scripts
from shared.broker.connection import BrokerError, Connection
from shared.broker.housekeeping import keep_ticking
from shared.broker.probe import RedisWatch
from shared.bulk import BulkFolder, open_bulk
from shared.errors import SettingsError
from shared.eventlog import EventLog
from shared.events import Evt
from shared.process import begin, shown_command, tell_ready
from shared.settings import GatewaySettings

CLEANUP_S = 1.5
"""What connections may still take when every answer has been given, or given up."""


def main(settings: GatewaySettings) -> int:
    """Run a gateway; returns the exit status."""
    try:
        name, log = begin("gateway", settings)
    except SettingsError as e:
        humanlog.get().error(f"cannot start: {e}")
        return 2
    try:
        tenants, hosts = load_tenants(settings.tenants), allowed_hosts(settings)
        bulk = open_bulk(settings.bulk_dir)
    except SettingsError as e:
        humanlog.get().error(f"cannot start: {e}")
        log.close("wrong settings")
        return 2
    log.write(vitals.hello(shown_command(sys.argv, settings)))
    with vitals.GcWatch(log):
        vitals.calm_gc()
        try:
            status = uvloop.run(serve(settings, name, log, tenants, hosts, bulk))
        except SettingsError as e:  # a Redis that is not fit for a queue
            humanlog.get().error(f"cannot start: {e}")
            log.close("error")
            return 2
    log.close("stopped")
    return status


async def serve(
    settings: GatewaySettings,
    name: str,
    log: EventLog,
    tenants: Tenants,
    hosts: AllowedHosts,
    bulk: BulkFolder | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain."""
    human = humanlog.get()
    down_since_ns = 0

    def changed(up: bool) -> None:
        nonlocal down_since_ns
        now = clock.now_ns()
        if not up:
            down_since_ns = now
            human.warning("lost the connection to Redis; requests are held until their deadlines")
        elif down_since_ns:
            log.write(Evt("reconnect", down_since_ns, now))
            human.info("reconnected to Redis", seconds=round((now - down_since_ns) / 1e9, 2))

    connection = Connection(settings.redis, name, on_connect=scripts.load_all, on_change=changed)
    reading = Connection(settings.redis, f"{name}-read", read_limit_s=4, quiet=True)
    submitter = Submitter(
        connection,
        name,
        inflight_max=settings.inflight_max,
        inflight_bytes_max=settings.inflight_bytes_max,
        limits=requests.Limits(settings.queue_max, settings.queue_bytes_max, settings.tenant_max),
    )
    replies = Replies(connection, reading, submitter)
    directory = Directory(connection, log, replies.add)
    door, budget = Door(tenants, connection), BodyBudget(settings.inflight_bytes_max)
    handlers = Handlers(settings, directory, connection, door, budget, metadata.version("tailrace"))
    results = Results(connection, replies, name)
    confirmations = Confirmations(settings.redis, name, settings.durable_wait_s)
    jobs = Jobs(settings, submitter, results, door, confirmations)
    claims = Claims(bulk, directory.bulk_tokens, longest_s=settings.request_timeout_s)
    inference = Inference(settings, directory, submitter, door, budget, results, jobs, hosts, claims)
    watch = vitals.LoopWatch(log)
    # A connection of its own: behind a write that Redis delays, a PING would be late too.
    pinging = Connection(settings.redis, f"{name}-ping", quiet=True)
    redis_watch = RedisWatch(pinging, log)
    depths: dict[str, int] = {}

    def extra() -> dict[str, Any]:
        pinged = redis_watch.take_longest_ns()
        return {"inflight": len(submitter.pending), "queued": dict(depths), "redis_ping_max": pinged}

    routes = Routes()
    inference.add_to(routes)
    jobs.add_to(routes)
    handlers.add_to(routes)
    http = Http(routes, log, watch, clock.clock_id(), lambda: len(submitter.pending))
    server = Server(http.serve, handler_cancellation=True, auto_decompress=False, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=CLEANUP_S)

    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    async with connection, reading, pinging:
        await runner.setup()
        await know_the_fleet(connection, directory)
        try:
            listener = Listener(server, settings.host, settings.port, reuse_port=settings.gateways > 1)
            port = await listener.start()
        except OSError as e:
            human.error("cannot listen", host=settings.host, port=settings.port, reason=e.strerror or str(e))
            await runner.cleanup()
            return 2
        human.info("listening", url=f"http://{settings.host}:{port}", gateway=name)
        tell_ready()
        lease_us = int(settings.lease_s * 1e6)
        webhooks = Webhooks(settings, hosts, connection, name, directory.queues, log)
        beside = [
            asyncio.create_task(work, name=title)
            for title, work in {
                **({"webhooks": webhooks.run()} if hosts else {}),
                "directory": directory.run(),
                "replies": replies.run(),
                "reply streams": replies.keep_alive(),
                "reconcile": submitter.reconcile(),
                "tick": keep_ticking(connection, directory.queues, name, log, lease_us=lease_us),
                "loop watch": watch.run(),
                "redis watch": redis_watch.run(),
                "sampler": vitals.Sampler(log, watch, extra).run(),
                "sweep": claims.sweep(),
                "depths": _follow_depths(connection, directory, depths),
                "clock watch": vitals.ClockWatch(log, replies.take_offsets).run(),
            }.items()
        ]
        waiting_to_stop = asyncio.create_task(told_to_stop.wait())
        await asyncio.wait([waiting_to_stop, *beside], return_when=asyncio.FIRST_COMPLETED)
        handlers.draining = http.draining = results.stopping = True
        human.info("stopping: finishing what is held", requests=len(submitter.pending))
        await close_the_door(listener)
        await let_clients_leave(server)
        await submitter.drain(max(0.0, settings.drain_s - LAST_REQUEST_S))
        await runner.cleanup()
        await confirmations.close()
        status = 0
        for task in (waiting_to_stop, *beside):
            task.cancel()
        for result in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(result, Exception):
                human.error("a task failed", exc_info=result)
                status = 1
    human.info("stopped")
    return status


async def _follow_depths(connection: Connection, directory: Directory, depths: dict[str, int]) -> None:
    while True:
        try:
            depths.update(await requests.depths(connection, directory.queues()))
        except BrokerError:
            depths.clear()
        await asyncio.sleep(vitals.SAMPLE_INTERVAL_S)
