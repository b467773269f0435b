"""The worker's process: load and warm the models, then serve until told to stop."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from shared import clock, humanlog, vitals, wire
from shared.broker import scripts, work
from shared.broker.connection import BrokerError, Connection
from shared.broker.housekeeping import keep_ticking
from shared.broker.probe import RedisWatch
from shared.bulk import BulkFolder, open_bulk
from shared.errors import SettingsError
from shared.eventlog import EventLog
from shared.events import Evt
from shared.keys import Queue
from shared.process import begin, tell_ready
from shared.settings import WorkerSettings
from worker import device as devices
from worker.learned import Learned
from worker.lease import Keeper
from worker.loop import WorkerLoop
from worker.models import repository
from worker.models.interface import Model, ModelConfig
from worker.pull import BLOCK_MS, RETRY_S

SWITCH_INTERVAL_S = 0.0005
BROKEN_DRAIN_S = 1.0
"""What a worker that broke may still take to hand back what it holds."""


def main(settings: WorkerSettings) -> int:
    """Run a worker; returns the exit status."""
    try:
        name, log = begin("worker", settings)
    except SettingsError as e:
        humanlog.get().error(f"cannot start: {e}")
        return 2
    with vitals.GcWatch(log):
        try:
            device = devices.open_device(settings.device, threads=settings.threads)
            log.write(vitals.hello(sys.argv, torch=devices.torch_version(), torch_threads=settings.threads))
            bulk = open_bulk(settings.bulk_dir)
            models = _load(settings, device, log)
        except SettingsError as e:
            humanlog.get().error(f"cannot start: {e}")
            log.close("error")
            return 2
        vitals.calm_gc()
        # The device's thread and the event loop hand the interpreter to each other at every pass; a switch that may
        # take 5 ms, the default, shows as that much `dispatch`.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            in_good_order = uvloop.run(_serve(settings, name, device, models, log, bulk))
        except SettingsError as e:  # a Redis that is not fit for a queue
            humanlog.get().error(f"cannot start: {e}")
            log.close("error")
            return 2
    log.close("stopped" if in_good_order else "broken")
    if not in_good_order:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # the device's thread may never come back, and the interpreter would wait for it
    return 0


def _load(settings: WorkerSettings, device: devices.Device, log: EventLog) -> list[tuple[ModelConfig, Model]]:
    directory = Path(settings.model_repository) if settings.model_repository else repository.demo_repository()
    configs = repository.scan(directory)
    wanted = {m.strip() for m in settings.models.split(",") if m.strip()}
    if unknown := wanted - {c.name for c in configs}:
        held = ", ".join(sorted({c.name for c in configs}))
        raise SettingsError(f"--models: {', '.join(sorted(unknown))} not found in {directory}; it holds: {held}")
    models = []
    for config in configs:
        if wanted and config.name not in wanted:
            continue
        start = clock.now_ns()
        model = repository.load(config, device.name)
        device.prepare_model(model, config)
        end = clock.now_ns()
        log.write(Evt("model_load", start, end, {"model": config.name, "version": config.version}))
        humanlog.get().info(
            "model ready", model=config.name, version=config.version, seconds=round((end - start) / 1e9, 2)
        )
        models.append((config, model))
    return models


async def _serve(
    settings: WorkerSettings,
    name: str,
    device: devices.Device,
    models: list[tuple[ModelConfig, Model]],
    log: EventLog,
    bulk: BulkFolder | None = None,
) -> bool:
    """Serve until told to stop. False: something broke."""
    human = humanlog.get()
    lease_us = int(settings.lease_s * 1e6)
    queues = [Queue(config.name, config.version) for config, _ in models]
    descriptor = wire.encode_worker(
        wire.WorkerDescriptor(
            worker=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            clock=clock.clock_id(),
            device=device.name,
            models=[config.descriptor() for config, _ in models],
            bulk=bulk.token if bulk else "",
        )
    )
    down_since_ns = 0

    def changed(up: bool) -> None:
        nonlocal down_since_ns
        now = clock.now_ns()
        if up:
            loop.connection_changed(True)
            if down_since_ns:
                log.write(Evt("reconnect", down_since_ns, now))
                human.info("reconnected to Redis", seconds=round((now - down_since_ns) / 1e9, 2))
        else:
            down_since_ns = now
            human.warning("lost the connection to Redis")

    connection = Connection(settings.redis, f"{name}", on_connect=scripts.load_all, on_change=changed)
    blocking = Connection(
        settings.redis,
        f"{name}-read",
        on_change=lambda up: loop.connection_changed(up),
        read_limit_s=BLOCK_MS / 1000 + 3,
        quiet=True,
    )
    bell = Connection(settings.redis, f"{name}-bell", quiet=True)
    loop = WorkerLoop(
        name=name,
        models=models,
        device=device,
        connection=connection,
        blocking=blocking,
        bell=bell,
        log=log,
        lease_us=lease_us,
        learned=Learned(settings.learned_dir, device=device.name, threads=device.threads),
        bulk=bulk,
    )
    keeper = Keeper(loop, connection, log, descriptor, lease_us=lease_us, pass_max_s=settings.pass_max_s)
    watch = vitals.LoopWatch(log)
    # A connection of its own: behind a write that Redis delays, a PING would be late too.
    pinging = Connection(settings.redis, f"{name}-ping", quiet=True)
    redis_watch = RedisWatch(pinging, log)

    def extra() -> dict[str, int]:
        return {"inflight": len(loop.held), "redis_ping_max": redis_watch.take_longest_ns()}

    sampler = vitals.Sampler(log, watch, extra)
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)

    async with connection, blocking, bell, pinging:
        waiting_to_stop = asyncio.create_task(told_to_stop.wait())
        connecting = asyncio.create_task(_open(connection, queues))
        await asyncio.wait([waiting_to_stop, connecting], return_when=asyncio.FIRST_COMPLETED)
        beside: list[asyncio.Task[None]] = []
        if not told_to_stop.is_set():
            human.info("serving", worker=name, device=device.name, models=",".join(str(q) for q in queues))
            tell_ready()
            beside = [
                asyncio.create_task(keeper.run(), name="beat"),
                asyncio.create_task(
                    keep_ticking(connection, lambda: queues, name, log, lease_us=lease_us), name="tick"
                ),
                asyncio.create_task(watch.run(), name="loop watch"),
                asyncio.create_task(redis_watch.run(), name="redis watch"),
                asyncio.create_task(sampler.run(), name="sampler"),
                asyncio.create_task(vitals.ClockWatch(log).run(), name="clock watch"),
            ]
            serving = asyncio.create_task(loop.run(), name="loop")
            # Any of these ending by itself is a defect: leave, so that the lease runs out and others take over.
            await asyncio.wait([waiting_to_stop, serving, *beside], return_when=asyncio.FIRST_COMPLETED)
            human.info("stopping: finishing what is running", requests=len(loop.held))
            await loop.stop()
            patience_s = settings.drain_s if told_to_stop.is_set() else min(BROKEN_DRAIN_S, settings.drain_s)
            _, late = await asyncio.wait([serving], timeout=patience_s)
            if late:
                human.warning("gave up waiting", requests=len(loop.held))
            serving.cancel()
            await keeper.leave()
            loop.keep_learned()
            beside.append(serving)
        for task in (waiting_to_stop, connecting, *beside):
            task.cancel()
        ended = await asyncio.gather(*beside, return_exceptions=True)
        broken = [result for result in ended if isinstance(result, Exception)]
        for error in broken:
            human.error("a task failed", exc_info=error)
    human.info("stopped")
    return not broken


async def _open(connection: Connection, queues: Sequence[Queue]) -> None:
    """Return once Redis is there and has the lanes, however often it goes away meanwhile."""
    while True:
        try:
            await connection.wait_connected()
            for queue in queues:
                await work.ensure_groups(connection, queue)
            return
        except BrokerError:
            await asyncio.sleep(RETRY_S)
