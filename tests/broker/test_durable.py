"""Durability: what counts as confirmed, by a replica and by the disk, and what is never taken for it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import redis.asyncio
from support.proxy import Proxy
from support.servers import NAMES, binaries
from support.waiting import eventually, soon

from shared.broker.connection import Connection
from shared.broker.durable import Durability, NotSupported, confirm
from shared.broker.embedded import EmbeddedRedis

REPLICA, DISK, BOTH = Durability(replicas=1), Durability(disk=True), Durability(replicas=1, disk=True)


@dataclass
class Server:
    """A primary with an append-only file and its replica, which our own connections would refuse."""

    c: Connection
    replica: redis.asyncio.Redis
    address: tuple[str, str]
    knows_waitaof: bool

    async def replicate(self) -> None:
        """The replica follows."""
        await self.replica.replicaof(*self.address)
        await eventually(self._has_caught_up, "the replica has everything")

    async def _has_caught_up(self) -> bool:
        return (await self.replica.info("replication"))["master_link_status"] == "up"


@pytest_asyncio.fixture(params=NAMES)
async def server(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Server]:
    """Each kind of server; the replica does not follow yet."""
    binary = binaries()[request.param]
    primary = EmbeddedRedis(short_dir / "1", appendonly=True, binary=binary)
    other = EmbeddedRedis(short_dir / "2", appendonly=False, binary=binary)
    async with contextlib.AsyncExitStack() as stack:
        for one in (primary, other):
            await one.start()
            stack.push_async_callback(one.stop)
        proxy = await stack.enter_async_context(Proxy(primary.socket))
        c = await stack.enter_async_context(Connection(primary.url, "test", read_limit_s=10))
        replica = await stack.enter_async_context(redis.asyncio.from_url(other.url))
        await soon(c.wait_connected())
        await c.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        host, _, port = proxy.url.rpartition("/")[2].rpartition(":")
        known = await c.call("COMMAND", "INFO", "WAITAOF")
        yield Server(c, replica, (host, port), bool(known[0]))


async def test_without_a_replica_nothing_is_confirmed(server: Server) -> None:
    """In time, and the record stays."""
    await server.c.call("SET", "record", "x", "PX", 60_000)
    assert await confirm(server.c, ["record"], REPLICA, within_ms=50) == [False]
    assert await server.c.call("EXISTS", "record") == 1


async def test_a_replica_confirms_what_it_has(server: Server) -> None:
    """Records that another connection wrote; but not one that is not there."""
    await server.replicate()
    async with Connection(server.c.server, "writer") as writer:
        await soon(writer.wait_connected())
        await writer.call("SET", "record", "x", "PX", 60_000)
    assert await confirm(server.c, ["record", "lost"], REPLICA, within_ms=3_000) == [True, False]


async def test_the_disk_confirms_where_the_server_can_say_so(server: Server) -> None:
    """From 7.2 on; an older server is found out, and so is one without an append-only file."""
    await server.c.call("SET", "record", "x", "PX", 60_000)
    if not server.knows_waitaof:
        for want in (DISK, BOTH):
            with pytest.raises(NotSupported, match="unknown command"):
                await confirm(server.c, ["record"], want, within_ms=50)
        return
    assert await confirm(server.c, ["record"], DISK, within_ms=5_000) == [True]
    assert await confirm(server.c, ["record"], BOTH, within_ms=50) == [False]
    await server.replicate()
    assert await confirm(server.c, ["record"], REPLICA, within_ms=3_000) == [True]
    await server.c.call("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(NotSupported, match="appendonly"):
        await confirm(server.c, ["record"], DISK, within_ms=50)
