"""Two failovers under load, each to a replica that is behind: what it lost is done again, and answered once."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from chaos_load import Load, Verdict, stuck_in
from chaos_toy import QUEUE
from chaos_trouble import seed
from chaos_world import World
from support.audit import leftovers
from support.proxy import Fault, Proxy
from support.servers import NAMES, binaries
from support.waiting import eventually, soon

from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from tailrace.supervise import die_with_parent
from worker import publish

LEASE_S = 0.6
LAG_S = 0.15


@dataclass(slots=True)
class Pair:
    """Two servers; the second one follows the first through a proxy, which can hold the replication up."""

    primary: EmbeddedRedis
    replica: EmbeddedRedis
    link: Proxy
    back: Proxy

    async def ask(self, server: EmbeddedRedis, *words: str) -> str:
        """An operator's command to one of them."""
        reader, writer = await asyncio.open_unix_connection(server.socket)
        writer.write(" ".join(words).encode() + b"\r\n")
        answer = await soon(reader.read(1 << 16))
        writer.close()
        return answer.decode(errors="replace")

    async def follow(self) -> None:
        """The replica copies the primary, and has caught up."""
        port = self.link.url.rpartition(":")[2]
        assert "OK" in await self.ask(self.replica, "REPLICAOF", "127.0.0.1", port)

        async def has_everything() -> bool:
            return "master_link_status:up" in await self.ask(self.replica, "INFO", "replication")

        await eventually(has_everything, "the replica has caught up")

    async def fail_over(self) -> None:
        """The primary dies while the replica lags; the replica takes over, and the other comes back as its replica."""
        self.link.set(Fault.DROP_REPLIES)
        await asyncio.sleep(LAG_S)
        assert self.primary.process is not None
        self.primary.process.kill()
        await self.primary.process.wait()
        self.link.cut()
        self.link.set(Fault.NONE)
        assert "OK" in await self.ask(self.replica, "REPLICAOF", "NO", "ONE")
        self.primary, self.replica, self.link, self.back = self.replica, self.primary, self.back, self.link
        await self.replica.start()
        await self.follow()


@pytest_asyncio.fixture(params=dict.fromkeys((NAMES[0], NAMES[-1])))
async def pair(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Pair]:
    """A primary and a replica, of the oldest and of the newest kind."""
    binary = binaries()[request.param]
    servers = [EmbeddedRedis(short_dir / n, False, binary, preexec=die_with_parent) for n in ("1", "2")]
    async with contextlib.AsyncExitStack() as stack:
        links = []
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
            links.append(await stack.enter_async_context(Proxy(server.socket)))
        pair = Pair(servers[0], servers[1], links[0], links[1])
        await pair.follow()
        yield pair


async def test_failovers_under_load_cost_no_synchronous_request(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepted requests vanish with the primary, finished ones come back to life: each client has its one answer."""
    monkeypatch.setattr(publish, "_tell_failures", lambda *_: None)
    rng = random.Random(seed())
    world = World(pair.primary, tmp_path, LEASE_S, urls=f"{pair.primary.url},{pair.replica.url}")
    load = Load(world, rng, jobs=False)
    try:
        await world.start(gateways=2, workers=3)
        load.start()
        for _ in range(2):
            before = len(world.asked)
            await eventually(lambda n=before: len(world.asked) > n + 500, "there is load")  # type: ignore[misc]
            await pair.fail_over()
        before = len(world.asked)
        await eventually(lambda: len(world.asked) > before + 500, "there is load")
        await load.stop()
        async with Connection(pair.primary.url, "admin", quiet=True) as admin:
            await soon(admin.wait_connected())
            stuck = await stuck_in(admin)
            await soon(world.stop())
            stuck += await leftovers(admin, QUEUE)
    except BaseException:
        await load.abort()
        await world.abort()
        raise
    verdict = Verdict(world, tmp_path, stuck)
    print(verdict)

    assert not verdict.lost
    assert not verdict.wrong
    assert not verdict.stuck
    assert not verdict.audited.breaches
    assert not verdict.defects
