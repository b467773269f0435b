"""Failover: of several servers the primary is used, whoever that is now, and no request pays with its answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from support.proxy import Proxy
from support.scene import Scene, config, lost
from support.servers import NAMES, binaries
from support.waiting import eventually, soon

from shared import clock
from shared.broker import connection as connecting
from shared.broker import fitness, scripts, work
from shared.broker.connection import BrokerError, Connection, NotConnected, ReplyError
from shared.broker.embedded import EmbeddedRedis
from shared.errors import SettingsError
from shared.keys import GROUP, Queue

LANE = Queue("resnet", "1").lanes[1]


@dataclass(slots=True)
class Pair:
    """Two servers that replicate over TCP, each reached through a proxy of its own."""

    first: EmbeddedRedis
    second: EmbeddedRedis
    proxies: dict[str, Proxy]

    @property
    def urls(self) -> str:
        """What a process is given."""
        return f"{self.first.url},{self.second.url}"

    async def ask(self, server: EmbeddedRedis, *command: str | int) -> Any:
        """An operator's command to one server, whatever its role."""
        reader, writer = await asyncio.open_unix_connection(server.socket)
        writer.write(" ".join(map(str, command)).encode() + b"\r\n")
        answer = await soon(reader.read(1 << 16))
        writer.close()
        return answer.decode()

    async def replicate(self, replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
        """Make one the replica of the other, and wait until it has everything."""
        port = self.proxies[primary.url].url.rpartition(":")[2]
        assert "OK" in await self.ask(replica, "REPLICAOF", "127.0.0.1", port)

        async def has_everything() -> bool:
            return "master_link_status:up" in await self.ask(replica, "INFO", "replication")

        await eventually(has_everything, "the replica has caught up")

    async def promote(self, server: EmbeddedRedis) -> None:
        """Make it a primary."""
        assert "OK" in await self.ask(server, "REPLICAOF", "NO", "ONE")

    async def kill(self, server: EmbeddedRedis) -> None:
        """kill -9."""
        assert server.process is not None
        server.process.kill()
        await soon(server.process.wait())


@pytest_asyncio.fixture(params=NAMES)
async def pair(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Pair]:
    """A primary and its replica, of each kind of server."""
    binary = binaries()[request.param]
    first, second = (EmbeddedRedis(short_dir / name, appendonly=False, binary=binary) for name in ("1", "2"))
    async with contextlib.AsyncExitStack() as stack:
        for server in (first, second):
            await server.start()
            stack.push_async_callback(server.stop)
        pair = Pair(first, second, {})
        for server in (first, second):  # else the first copy waits 5 s for more replicas
            await pair.ask(server, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
        pair.proxies = {s.url: await stack.enter_async_context(Proxy(s.socket)) for s in (first, second)}
        await pair.replicate(second, first)
        yield pair


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every attempt of a connection to reach a server, as it happens."""
    made: list[str] = []
    really_connect = Connection._connect

    async def connect(self: Connection, server: Any) -> Any:
        made.append(server.url)
        return await really_connect(self, server)

    monkeypatch.setattr(Connection, "_connect", connect)
    return made


async def until_done(ask: Callable[[], Any]) -> Any:
    """What a caller does: repeat until Redis has said what became of it."""
    while True:
        try:
            return await ask()
        except BrokerError:
            await asyncio.sleep(0.01)


# -- the primary dies ------------------------------------------------------------------------------------------------


async def test_under_load_the_promoted_replica_takes_over(pair: Pair, attempts: list[str]) -> None:
    """kill -9 of the primary: callers repeat until the new one is found, a blocked reader goes on there, and nobody
    asks in a hot loop meanwhile."""
    accepted: list[str] = []
    delivered: set[str] = set()
    reads = 0
    stop = asyncio.Event()
    async with (
        Connection(pair.urls, "gateway", on_connect=scripts.load_all) as c,
        Connection(pair.urls, "worker", quiet=True) as blocking,
    ):
        await soon(asyncio.gather(c.wait_connected(), blocking.wait_connected()))
        scene = Scene(c)
        await scene.open()

        async def submit(client: int) -> None:
            for i in range(100_000):
                if stop.is_set():
                    return
                rid = f"{client}-{i}"
                status, _ = (await until_done(lambda rid=rid: scene.accept(rid)))[0]
                assert status in ("OK", "DUP")
                accepted.append(rid)
                await asyncio.sleep(0.001)

        async def take() -> None:
            nonlocal reads
            while True:
                reads += 1
                try:
                    found = await work.wait_for_entries(blocking, [scene.queue], "w-1", block_ms=200)
                    delivered.update(entry.request_id for entries in found.values() for entry in entries)
                except BrokerError:
                    await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            taking = group.create_task(take())
            for client in range(4):
                group.create_task(submit(client))
            await eventually(lambda: len(accepted) > 100 and delivered, "traffic flows")
            await pair.kill(pair.first)
            await eventually(lambda: not c.connected, "the loss is noticed")
            assert isinstance(await lost(c.call("ECHO", "1")), NotConnected)
            attempts.clear()
            reads_before, waited_ns = reads, clock.now_ns()
            await eventually(lambda: len(attempts) >= 12, "both servers are asked again and again")
            waited_s = (clock.now_ns() - waited_ns) / 1e9
            assert set(attempts) == {pair.first.url, pair.second.url}
            assert waited_s > 0.1, "a hot loop of connections"
            assert reads - reads_before < 4 + waited_s / 0.05, "a hot loop of reads"
            await pair.promote(pair.second)
            await soon(asyncio.gather(c.wait_connected(), blocking.wait_connected()))
            assert c.server == blocking.server == pair.second.url
            before, seen = len(accepted), set(delivered)
            await eventually(lambda: len(accepted) > before + 50, "callers go on")
            await eventually(lambda: delivered - seen, "the blocked reader goes on")
            assert await c.call("SCRIPT", "EXISTS", *map(scripts.sha, scripts.NAMES)) == [1] * len(scripts.NAMES)
            stop.set()
            taking.cancel()


async def test_an_old_primary_that_comes_back_as_a_replica_is_not_used(pair: Pair, attempts: list[str]) -> None:
    """It stands first in the list, it is alive, and it answers reads: none of that makes it the primary."""
    await pair.kill(pair.first)
    await pair.promote(pair.second)
    await pair.first.start()
    await pair.replicate(pair.first, pair.second)
    async with Connection(pair.urls, "test") as c:
        await soon(c.wait_connected())
        assert attempts == [pair.first.url, pair.second.url]
        assert c.server == pair.second.url
        await c.call("SET", "k", "v", "PX", 60_000)


# -- the primary is demoted ------------------------------------------------------------------------------------------


async def flip(pair: Pair) -> None:
    """A failover on purpose: the replica becomes the primary of its old one."""
    await pair.promote(pair.second)
    await pair.replicate(pair.first, pair.second)


async def test_a_demoted_primary_is_left_at_its_first_refusal(pair: Pair) -> None:
    """READONLY fails the command with an error that callers repeat after; scripts are known to the next server."""
    async with Connection(pair.urls, "test", on_connect=scripts.load_all, read_limit_s=60) as c:
        await soon(c.wait_connected())
        scene = Scene(c)
        await scene.open()
        with structlog.testing.capture_logs() as logs:
            await flip(pair)
            outcome = await until_done(lambda: scene.accept("a"))
        assert outcome[0][0] == "OK"
        assert c.server == pair.second.url
        told = [line for line in logs if line["event"] == "this Redis is no primary; looking for it"]
        assert [line["url"] for line in told] == [pair.first.url]


async def test_a_refusal_within_a_script_is_one_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 7.0 the error stands in the middle of a text."""
    monkeypatch.setattr(connecting, "PROBE_AFTER_S", 60.0)
    async with Connection(pair.urls, "test", on_connect=scripts.load_all) as c:
        await soon(c.wait_connected())
        await flip(pair)
        failed = await lost(asyncio.ensure_future(Scene(c).accept("a")))
        assert isinstance(failed, ReplyError)
        assert failed.code == "READONLY"
        assert not c.connected
        await soon(c.wait_connected())
        assert c.server == pair.second.url


async def test_a_replica_that_lost_its_primary_is_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """MASTERDOWN: it would not even answer reads."""
    monkeypatch.setattr(connecting, "PROBE_AFTER_S", 60.0)
    async with Connection(pair.urls, "test") as c:
        await soon(c.wait_connected())
        await pair.promote(pair.second)
        await pair.ask(pair.first, "CONFIG", "SET", "replica-serve-stale-data", "no")
        await pair.ask(pair.first, "REPLICAOF", "127.0.0.1", 1)
        failed = await lost(c.call("GET", "k"))
        assert isinstance(failed, ReplyError)
        assert failed.code == "MASTERDOWN"
        await soon(c.wait_connected())
        assert c.server == pair.second.url


async def test_a_blocked_reader_follows_the_primary(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demotion unblocks it (UNBLOCKED), and it goes on at the new primary, where its group is (row 27: bullmq
    #648)."""
    monkeypatch.setattr(connecting, "PROBE_AFTER_S", 60.0)
    queue = Queue("resnet", "1")
    async with (
        Connection(pair.urls, "test") as c,
        Connection(pair.urls, "blocking", read_limit_s=60, quiet=True) as blocking,
    ):
        await soon(asyncio.gather(c.wait_connected(), blocking.wait_connected()))
        await work.ensure_groups(c, queue)
        await soon(c.call("WAIT", 1, 5_000))

        async def take() -> list[str]:
            while True:
                found = await until_done(lambda: work.wait_for_entries(blocking, [queue], "w-1", block_ms=30_000))
                if found:
                    return [entry.request_id for entry in found[queue]]

        taking = asyncio.create_task(take())

        async def is_blocked() -> bool:
            return "blocked_clients:1" in await pair.ask(pair.first, "INFO", "clients")

        await eventually(is_blocked, "the reader is blocked")
        await flip(pair)
        await eventually(lambda: blocking.connected and blocking.server == pair.second.url, "the reader has moved")
        scene = Scene(c)
        await until_done(lambda: scene.accept("a"))
        assert await soon(taking) == ["a"]


async def test_a_reader_that_only_reads_follows_the_primary_too(pair: Pair, impatient: float) -> None:
    """A replica answers reads for ever, and no demotion ends a connection: so its role is asked for, time and again."""
    async with Connection(pair.urls, "test", read_limit_s=60, quiet=True) as c:
        await soon(c.wait_connected())
        await flip(pair)
        await eventually(lambda: c.connected and c.server == pair.second.url, "it has moved")


# -- servers that will not do ----------------------------------------------------------------------------------------


async def test_a_replica_alone_is_refused_by_name(pair: Pair, attempts: list[str]) -> None:
    """With one URL, too: the log says what it is and whose, and it is used as soon as it is promoted."""
    with structlog.testing.capture_logs() as logs:
        async with Connection(pair.second.url, "test") as c:
            await eventually(lambda: len(attempts) >= 3, "it is asked again")
            assert not c.connected
            assert isinstance(await lost(c.call("ECHO", "1")), NotConnected)
            await pair.promote(pair.second)
            await soon(c.wait_connected())
    (line,) = logs
    port = pair.proxies[pair.first.url].url.rpartition(":")[2]
    assert line["url"] == pair.second.url
    assert f"it is a replica of 127.0.0.1:{port}" in line["reason"]


async def test_what_is_wrong_with_each_server_is_told_in_one_line(pair: Pair, tmp_path: Path) -> None:
    """One is down, the other a replica: both reasons, once."""
    nowhere = f"unix://bob:s3cret@{tmp_path}/nowhere"
    with structlog.testing.capture_logs() as logs:
        async with Connection(f"{nowhere},{pair.second.url}?password=s3cret", "test"):
            await eventually(lambda: logs, "the trouble is told")
    assert f"unix://{tmp_path}/nowhere: " in logs[0]["reason"]
    assert "it is a replica of" in logs[0]["reason"] or "AUTH" in logs[0]["reason"]
    assert "s3cret" not in str(logs)


def test_a_sentinel_is_no_server_of_ours() -> None:
    """It knows where the primary is, but we do not ask."""
    assert "it is a Sentinel" in fitness.why_not_primary([b"sentinel", [b"mymaster"]])
    assert fitness.why_not_primary([b"master", 0, []]) == ""


async def test_a_user_that_may_not_ask_for_the_role_is_served_all_the_same(pair: Pair) -> None:
    """Then READONLY tells, and a replica that is listed first costs refusals, but no hot loop."""
    for server in (pair.first, pair.second):
        await pair.ask(server, "ACL", "SETUSER", "bob", "on", ">s3cret", "~*", "+@all", "-role", "-info")
    urls = ",".join(s.url.replace("unix://", "unix://bob:s3cret@") for s in (pair.second, pair.first))
    with structlog.testing.capture_logs() as logs:
        async with Connection(urls, "test", on_connect=scripts.load_all) as c:
            await soon(c.wait_connected())
            await until_done(lambda: c.call("SET", "k", "v", "PX", 60_000))
            assert c.server == pair.first.url
    assert "s3cret" not in str(logs)
    assert sum("may evict" in line["event"] for line in logs) == 1, "what cannot be seen is told once"


# -- errors that are not about the role ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["NOREPLICAS", "NOPERM"])
async def test_trouble_of_the_right_server_keeps_the_connection_and_is_told_now_and_then(
    connection: Connection, error: str
) -> None:
    """Callers repeat in silence, so the connection tells: once for a heap of refusals."""
    user = [] if error == "NOREPLICAS" else ["bob"]
    await connection.call("ACL", "SETUSER", "bob", "on", "nopass", "~*", "+@all", "-set")
    settings = {"min_replicas_to_write": "1"} if error == "NOREPLICAS" else {}
    try:
        async with config(connection, **settings):
            c = connection
            if user:
                await c.call("AUTH", "bob", "x")
            with structlog.testing.capture_logs() as logs:
                for _ in range(20):
                    failed = await lost(c.call("SET", "k", "v", "PX", 60_000))
                    assert isinstance(failed, ReplyError)
                    assert failed.code == error
            if user:
                await lost(c.call("AUTH", "default", ""))
            assert c.connected
        assert [line["event"] for line in logs] == ["Redis refuses a command"]
        assert error in logs[0]["reason"]
    finally:
        await until_done(lambda: connection.call("AUTH", "default", ""))
        await connection.call("ACL", "DELUSER", "bob")


async def test_routine_errors_are_told_to_nobody(connection: Connection) -> None:
    """Who gets them knows what to do."""
    with structlog.testing.capture_logs() as logs:
        await lost(connection.call("XREADGROUP", "GROUP", GROUP, "w-1", "STREAMS", LANE, ">"))
        await lost(connection.call("EVALSHA", "0" * 40, 0))
    assert logs == []


async def test_a_stream_that_vanishes_under_a_blocked_reader_is_no_failover(connection: Connection) -> None:
    """UNBLOCKED or NOGROUP, by the server's version: the connection stays."""
    queue = Queue("resnet", "1")
    await work.ensure_groups(connection, queue)
    taking = asyncio.ensure_future(work.wait_for_entries(connection, [queue], "w-1", block_ms=300))
    async with Connection(connection._servers[0].url, "other") as other:
        await soon(other.wait_connected())
        await other.call("FLUSHALL")
    assert await soon(taking) == {}
    assert connection.connected


# -- servers that evict ----------------------------------------------------------------------------------------------


async def test_a_server_that_may_evict_is_refused_at_the_start(
    connection: Connection, redis_server: EmbeddedRedis
) -> None:
    """It would delete requests in silence; the error says what to set."""
    async with config(connection, maxmemory="100mb", maxmemory_policy="allkeys-lru"):
        with pytest.raises(SettingsError) as raised:
            async with Connection(redis_server.url, "test") as c:
                await soon(c.wait_connected())
        assert "maxmemory-policy allkeys-lru with maxmemory 104857600" in str(raised.value)
        assert "Set `maxmemory-policy noeviction`" in str(raised.value)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "the test itself was not cancelled"


@pytest.mark.parametrize(("maxmemory", "policy"), [("0", "allkeys-lru"), ("100mb", "noeviction")])
async def test_a_server_that_does_not_evict_is_taken(
    connection: Connection, redis_server: EmbeddedRedis, maxmemory: str, policy: str
) -> None:
    """Without a limit the policy has nothing to do; with noeviction the limit only refuses."""
    async with config(connection, maxmemory=maxmemory, maxmemory_policy=policy), Connection(redis_server.url, "t") as c:
        await soon(c.wait_connected())


async def test_a_server_that_begins_to_evict_is_only_told(connection: Connection, proxy: Proxy) -> None:
    """A running process does not stop for that: whoever reconnects says it, once in a while."""
    with structlog.testing.capture_logs() as logs:
        async with Connection(proxy.url, "test") as c:
            await soon(c.wait_connected())
            async with config(connection, maxmemory="100mb", maxmemory_policy="volatile-ttl"):
                for _ in range(2):
                    proxy.cut()
                    await eventually(lambda: not c.connected, "the loss is noticed")
                    await soon(c.wait_connected())
    told = [line for line in logs if line["event"] == "Redis is not fit for a queue"]
    assert len(told) == 1
    assert "volatile-ttl" in told[0]["reason"]


async def test_a_body_that_was_cancelled_by_others_stays_cancelled(redis_server: EmbeddedRedis) -> None:
    """The connection cancels its body only for a reason of its own."""

    async def body() -> None:
        async with Connection(redis_server.url, "test") as c:
            await c.wait_connected()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
