"""Redis is away, or hard to reach: what was accepted is answered in time, once, and new requests are told so."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from chaos_stack import ECHO, MODELS, Traffic, ask, breaches
from e2e import e2e_stack
from e2e.e2e_stack import Process
from support.proxy import Fault, Proxy

from shared import clock
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis, find_server
from tailrace.supervise import die_with_parent

LEASE_S = "1.5"
FAKETIME = "CHAOS_FAKETIME"
"""Path of libfaketime.so.1, if it is not where Debian puts it."""


@contextlib.asynccontextmanager
async def system(directory: Path, *, gateway_redis: str, worker_redis: str) -> AsyncIterator[str]:
    """A gateway and two workers, each on a Redis of its own; the gateway's URL. In the end the logs are audited."""
    repository = e2e_stack.make_repository(directory / "models", {"echo": MODELS / "echo"})
    common = ("--log-dir", directory / "logs", "--lease-s", LEASE_S)
    work = ("worker", *common, "--redis", worker_redis, "--model-repository", repository)
    workers = [Process(*work, directory=directory) for _ in range(2)]
    gateway = Process("gateway", *common, "--redis", gateway_redis, "--port", "0", directory=directory)
    try:
        await e2e_stack.soon(lambda: "url=http" in gateway.text, within_s=e2e_stack.START_S, what="the gateway listens")
        url = gateway.says(r"url=(http://\S+)")[1]
        for worker in workers:
            await e2e_stack.soon(lambda w=worker: "event=serving" in w.text, within_s=e2e_stack.START_S, what="serving")
        await e2e_stack.soon(lambda: serves(url), within_s=10, what="ready")
        yield url
    finally:
        await asyncio.gather(*(asyncio.to_thread(p.stop) for p in (*workers, gateway)))
    assert not breaches(directory / "logs")


async def serves(url: str) -> bool:
    """True when the gateway knows a worker."""
    return (await asyncio.to_thread(e2e_stack.ask, url, "/v2/health/ready")).status == 200


@contextlib.asynccontextmanager
async def redis_in(directory: Path, *, binary: str = "") -> AsyncIterator[EmbeddedRedis]:
    """A Redis with an append-only file."""
    server = EmbeddedRedis(directory, binary=binary, preexec=die_with_parent)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def is_quiet(server: EmbeddedRedis) -> bool:
    """True when nothing is live or queued."""
    async with Connection(server.url, "look", quiet=True) as c:
        await c.wait_connected()
        lengths = [await c.call("XLEN", lane) for lane in (*ECHO.lanes, ECHO.suspects)]
        return not any(lengths) and not await c.call("ZCARD", ECHO.deadlines)


async def test_redis_is_away_for_ten_seconds(short_dir: Path) -> None:
    """Requests that can wait are answered when it is back; one that cannot is told so in time (complaint 55)."""
    async with (
        redis_in(short_dir / "r") as server,
        system(short_dir, gateway_redis=server.url, worker_redis=server.url) as url,
    ):
        async with Traffic([url], 50) as traffic:
            await traffic.more(50)
            assert server.process is not None
            server.process.kill()
            await server.process.wait()
            gone_ns = clock.now_ns()
            async with e2e_stack.clients() as session:
                hasty = await ask(session, url, 7, timeout_ms=1000)
            held = len(traffic.told)
            await e2e_stack.soon(lambda: clock.now_ns() - gone_ns > 10e9, within_s=11, what="ten seconds have passed")
            held = len(traffic.told) - held
            await server.start()
            await traffic.more(50)
        await e2e_stack.soon(lambda: is_quiet(server), within_s=5, what="nothing is left")

    print(traffic)
    assert (hasty.status, 0.9 < hasty.took_s < 1.3) == (504, True), hasty
    assert held == 0, "answers without Redis"
    assert not traffic.bad
    assert not traffic.twice
    # How long that took is Redis' affair: on a busy machine it needs half a minute to come back.


async def test_hard_to_reach_is_not_lost(short_dir: Path) -> None:
    """Between Redis and the workers, and between Redis and the gateway: bytes vanish, are late, are torn, one way."""
    faults = (
        Fault.LOSE_REQUEST,
        Fault.LOSE_REPLY,
        Fault.CUT_MID_REQUEST,
        Fault.CUT_MID_REPLY,
        Fault.HALF_CLOSE,
        Fault.DELAY,
        Fault.DROP_REPLIES,
    )
    async with (
        redis_in(short_dir / "r") as server,
        Proxy(server.socket) as before_workers,
        Proxy(server.socket) as before_gateway,
        system(short_dir, gateway_redis=before_gateway.url, worker_redis=before_workers.url) as url,
    ):
        async with Traffic([url], 100) as traffic:
            for fault in faults:
                for proxy in (before_workers, before_gateway):
                    proxy.delay_s = 0.05
                    proxy.set(fault)
                    await asyncio.wait_for(proxy.struck.wait(), 10)
                    if fault is Fault.DROP_REPLIES:
                        await e2e_stack.soon(
                            lambda p=proxy, n=proxy.connections: p.connections > n, within_s=10, what="it is noticed"
                        )
                        proxy.set(Fault.NONE)
                    await traffic.more(25)
                    proxy.set(Fault.NONE)
            await traffic.more(50)
        await e2e_stack.soon(lambda: is_quiet(server), within_s=5, what="nothing is left")

    print(traffic)
    assert not traffic.bad
    assert not traffic.twice


def faketime() -> str:
    """The library that lies about the time; empty without one."""
    places = (os.environ.get(FAKETIME, ""), "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
    return next((place for place in places if os.path.exists(place)), "")


@pytest.mark.skipif(not faketime(), reason=f"no libfaketime: apt-get install faketime, or set {FAKETIME}")
async def test_steps_of_redis_clock_cost_nobody_an_answer(short_dir: Path) -> None:
    """Forward and back: leases, deadlines and entry ids are by it; a step shorter than the deadlines ends nothing."""
    offset = short_dir / "offset"
    offset.write_text("+0s")
    launcher = short_dir / "redis"
    launcher.write_text(
        f"#!/bin/sh\nLD_PRELOAD={faketime()} FAKETIME_TIMESTAMP_FILE={offset} FAKETIME_NO_CACHE=1 "
        f'FAKETIME_DONT_FAKE_MONOTONIC=1 exec {find_server()} "$@"\n'
    )
    launcher.chmod(0o700)
    async with (
        redis_in(short_dir / "r", binary=str(launcher)) as server,
        system(short_dir, gateway_redis=server.url, worker_redis=server.url) as url,
        Connection(server.url, "clock", quiet=True) as c,
    ):
        await c.wait_connected()
        async with Traffic([url], 100) as traffic:
            for step_s in (20, 0, -20):
                await traffic.more(50)
                traffic.burst(64, ms=200)
                offset.write_text(f"{step_s:+d}s")
                ahead_s = int((await c.call("TIME"))[0]) - clock.wall_us() / 1e6
                assert abs(ahead_s - step_s) < 2, "the clock did not step: this proves nothing"
                await traffic.more(100)
        await e2e_stack.soon(lambda: is_quiet(server), within_s=5, what="nothing is left")

    print(traffic)
    assert not traffic.bad
    assert not traffic.twice
