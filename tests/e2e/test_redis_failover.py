"""The primary dies under load and its replica takes over: everybody is answered, and the logs prove it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import e2e_stack
import pytest
import redis.asyncio
from e2e_stack import Process, Reply
from support.proxy import Proxy

from shared.broker.embedded import EmbeddedRedis

CLIENTS = 64


@pytest.fixture
async def servers(short_directory: Path) -> AsyncIterator[tuple[EmbeddedRedis, EmbeddedRedis]]:
    """A primary and its replica."""
    primary, replica = (EmbeddedRedis(short_directory / name) for name in ("1", "2"))
    async with contextlib.AsyncExitStack() as stack:
        for server in (primary, replica):
            await server.start()
            stack.push_async_callback(server.stop)
        proxy = await stack.enter_async_context(Proxy(primary.socket))
        async with redis.asyncio.from_url(replica.url) as client:
            await client.replicaof("127.0.0.1", proxy.url.rpartition(":")[2])

            async def has_everything() -> bool:
                return (await client.info("replication"))["master_link_status"] == "up"

            await e2e_stack.soon(has_everything, within_s=20, what="the replica has caught up")
        yield primary, replica


async def test_a_failover_under_load_costs_no_answer(
    servers: tuple[EmbeddedRedis, EmbeddedRedis], slow_repository: Path, short_directory: Path
) -> None:
    """kill -9 of the primary with requests queued, running and answered; the replica is promoted a second later. All
    256 get the right answer within seconds, each ends once, and both processes are where the primary is."""
    primary, replica = servers
    logs = short_directory / "logs"
    common = ("--redis", f"{primary.url},{replica.url}", "--log-dir", logs)
    gateway = Process("gateway", *common, "--port", "0", directory=short_directory)
    worker = Process("worker", *common, "--model-repository", slow_repository, directory=short_directory)
    try:
        url = await asyncio.to_thread(lambda: gateway.says(r"url=(http://\S+)")[1])
        await asyncio.to_thread(worker.says, "event=serving")
        await e2e_stack.soon(
            lambda: e2e_stack.ask(url, "/v2/health/ready").status == 200, within_s=10, what="the gateway is ready"
        )
        replies: list[Reply] = []
        asking = asyncio.create_task(e2e_stack.ask_many(url, range(256), at_once=CLIENTS, replies=replies))
        await e2e_stack.soon(lambda: len(replies) >= 24, within_s=20, what="some answers")
        assert primary.process is not None
        primary.process.kill()
        await primary.process.wait()
        await e2e_stack.soon(lambda: "is a replica of" in gateway.text, within_s=10, what="the replica was refused")
        async with redis.asyncio.from_url(replica.url) as client:
            await client.replicaof("NO", "ONE")
            await asyncio.wait_for(asking, 60)
            names = {c["name"] for c in await client.client_list()}

        assert len(replies) == 256
        assert not e2e_stack.wrong(replies)
        assert sum("-read" in name for name in names) == 2, "the blocking reads of both are here, too"
        assert gateway.stop() == worker.stop() == 0, gateway.text + worker.text
        audited = e2e_stack.run_tailrace("audit", logs, "--json")
        assert audited.returncode == 0, audited.stdout
        assert json.loads(audited.stdout)["ends"] == {"answered": 256}
    finally:
        for process in (gateway, worker):
            process.stop()
