"""The connection: one write a tick, replies that never shift, and honesty about what may have happened."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvloop
from support.proxy import Fault, Proxy
from support.scene import config, frozen, lost
from support.waiting import eventually, soon

from shared import clock
from shared.broker import connection, pipe, requests, scripts, work
from shared.broker.connection import Busy, Connection, NotConnected, OutcomeUnknown, ReplyError
from shared.broker.embedded import EmbeddedRedis
from shared.keys import Queue

# -- one write, in order -------------------------------------------------------------------------------------------


async def test_commands_of_one_tick_leave_in_one_write(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many coroutines ask in a turn of the event loop, the kernel is called once."""
    writes: list[int] = []
    loop = asyncio.get_running_loop()
    really_connect = loop.create_unix_connection

    async def connect(factory: Any, path: str) -> Any:
        transport, protocol = await really_connect(factory, path)
        really_write = transport.write

        def write(data: bytes) -> None:
            writes.append(len(data))
            really_write(data)

        def writelines(parts: list[bytes]) -> None:
            writes.append(sum(map(len, parts)))
            really_write(b"".join(parts))

        monkeypatch.setattr(transport, "write", write)
        monkeypatch.setattr(transport, "writelines", writelines)
        return transport, protocol

    monkeypatch.setattr(loop, "create_unix_connection", connect)

    async def ask(i: int) -> bytes:
        answer: bytes = await c.call("ECHO", str(i))
        return answer

    async with Connection(redis_server.url, "test") as c:
        await soon(c.wait_connected())
        writes.clear()
        answers = await soon(asyncio.gather(*(ask(i) for i in range(500))))
        assert answers == [str(i).encode() for i in range(500)]
        assert len(writes) == 1
        await asyncio.gather(ask(1), ask(2))
        assert len(writes) == 2


async def _storm(c: Connection) -> tuple[int, int]:
    """Ask 4000 times, and lose interest in about half at a random moment. Returns (answered right, cancelled)."""
    dice = random.Random(7)
    right = cancelled = 0
    for _ in range(40):
        asked = {i: c.call("ECHO", f"{i}-" + "x" * dice.choice((0, 10, 3000))) for i in range(100)}
        doomed = dice.sample(list(asked), 50)
        for n, i in enumerate(doomed):
            if n in (10, 30):
                await asyncio.sleep(0)  # before, during and after the write
            cancelled += asked[i].cancel()
        for i, future in asked.items():
            if not future.cancelled():
                right += (await future).startswith(f"{i}-".encode())
    assert await c.call("ECHO", "last") == b"last"
    return right, cancelled


async def test_replies_stay_matched_in_a_storm_of_cancellations(connection: Connection) -> None:
    """A cancelled caller never shifts the replies of others (row 42: redis-py #2624, CVE-2023-28858)."""
    right, cancelled = await soon(_storm(connection))
    assert right + cancelled == 4000
    assert cancelled >= 1000


def test_replies_stay_matched_on_uvloop_too(oldest_server: EmbeddedRedis) -> None:
    """The processes run on uvloop, whose transports are other ones."""

    async def storm() -> tuple[int, int]:
        async with Connection(oldest_server.url, "test") as c:
            await soon(c.wait_connected())
            return await soon(_storm(c))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        right, cancelled = runner.run(storm())
    assert right + cancelled == 4000


async def test_a_cancelled_waiter_of_a_script_leaves_the_connection_intact(connection: Connection) -> None:
    """The command of a cancelled task may be executed all the same; the next one gets its own reply."""
    waiter = asyncio.create_task(requests.peek(connection, Queue("m", "1"), ["a", "b"]))
    await asyncio.sleep(0)
    waiter.cancel()
    assert await connection.call("ECHO", "mine") == b"mine"
    await asyncio.gather(waiter, return_exceptions=True)


async def test_large_and_odd_arguments_arrive_as_they_are(connection: Connection) -> None:
    """Any bytes are an argument: binary, empty, megabytes, views and numbers."""
    blob = random.Random(1).randbytes(3 << 20)
    for value, read in ((blob, blob), (memoryview(blob), blob), (b"", b""), (7, b"7"), ("ü", "ü".encode())):
        for in_place in (False, True):
            await connection.call("SET", "k", value, "PX", 60_000, in_place=in_place)
            assert await connection.call("GET", "k") == read


async def test_an_error_of_redis_is_the_error_of_its_own_command(connection: Connection) -> None:
    """A ReplyError carries the code to branch on, and the neighbours in the same write are not touched."""
    before, wrong, after = (
        connection.call("ECHO", "1"),
        connection.call("XREADGROUP", "GROUP", "w", "me", "STREAMS", "nowhere", ">"),
        connection.call("ECHO", "2"),
    )
    with pytest.raises(ReplyError) as raised:
        await wrong
    assert raised.value.code == "NOGROUP"
    assert (await before, await after) == (b"1", b"2")


# -- when the connection breaks --------------------------------------------------------------------------------------


async def test_in_flight_commands_of_a_lost_connection_have_an_unknown_outcome(
    through: Connection, proxy: Proxy
) -> None:
    """What was on its way may have been executed; what comes later certainly was not; and it heals by itself."""
    proxy.set(Fault.DROP_REPLIES)
    in_flight = [through.call("ECHO", str(i)) for i in range(3)]
    await soon(proxy.struck.wait())
    proxy.set(Fault.NONE)
    proxy.cut()
    assert [type(await lost(f)) for f in in_flight] == [OutcomeUnknown] * 3
    assert not through.connected
    assert isinstance(await lost(through.call("ECHO", "later")), NotConnected)
    await soon(through.wait_connected())
    assert await through.call("ECHO", "healed") == b"healed"


async def test_a_command_is_never_sent_twice(through: Connection, proxy: Proxy) -> None:
    """Only the caller knows whether repeating is safe, so only the caller repeats."""
    proxy.set(Fault.LOSE_REPLY)
    assert isinstance(await lost(through.call("INCR", "executed")), OutcomeUnknown)
    await soon(through.wait_connected())
    proxy.set(Fault.LOSE_REQUEST)
    assert isinstance(await lost(through.call("INCR", "never-heard-of")), OutcomeUnknown)
    await soon(through.wait_connected())
    assert await through.call("MGET", "executed", "never-heard-of") == [b"1", None]
    await through.call("DEL", "executed")


@pytest.mark.parametrize("fault", [Fault.CUT_MID_REPLY, Fault.CUT_MID_REQUEST])
async def test_half_a_message_is_no_message(through: Connection, proxy: Proxy, fault: Fault) -> None:
    """A connection that breaks within a reply or a command leaves nothing of it behind in the next one."""
    proxy.set(fault)
    assert isinstance(await lost(through.call("ECHO", "x" * 1000)), OutcomeUnknown)
    await soon(through.wait_connected())
    assert await through.call("ECHO", "whole") == b"whole"


async def test_a_slow_network_is_not_a_broken_one(through: Connection, proxy: Proxy, impatient: float) -> None:
    """Replies that come late, but within the limit, are replies; order is kept."""
    proxy.delay_s = impatient / 5
    proxy.set(Fault.DELAY)
    assert await soon(asyncio.gather(*(through.call("ECHO", str(i)) for i in range(50)))) == [
        str(i).encode() for i in range(50)
    ]
    assert proxy.connections == 1


@pytest.mark.parametrize("fault", [Fault.BLACKHOLE, Fault.DROP_REPLIES, Fault.DROP_REQUESTS])
async def test_a_silent_network_is_noticed_while_idle(through: Connection, proxy: Proxy, fault: Fault) -> None:
    """Nobody has to send a command into the void to find out: the connection probes itself."""
    proxy.set(fault)
    await eventually(lambda: not through.connected, "the silent connection is given up")
    proxy.set(Fault.NONE)
    proxy.cut()
    await soon(through.wait_connected())
    assert await through.call("ECHO", "healed") == b"healed"


async def test_a_frozen_server_is_declared_dead(redis_server: EmbeddedRedis, impatient: float) -> None:
    """A call to a server that stands still fails within the limit, and works again when the server does."""
    async with Connection(redis_server.url, "test", read_limit_s=impatient) as c:
        await soon(c.wait_connected())
        with frozen(redis_server):
            asked_ns = clock.now_ns()
            assert isinstance(await lost(c.call("ECHO", "1")), OutcomeUnknown)
            assert (clock.now_ns() - asked_ns) / 1e9 < 10 * impatient
            assert isinstance(await lost(c.call("ECHO", "2")), NotConnected)
        await soon(c.wait_connected())
        assert await c.call("ECHO", "3") == b"3"


def test_a_dead_server_is_noticed_within_seconds_by_default() -> None:
    """The limits that the processes run with: a client hears of a frozen Redis before it loses patience."""
    assert connection.PROBE_AFTER_S + connection.DEAD_AFTER_S <= 5


async def test_a_blocking_read_may_be_silent_for_as_long_as_it_was_allowed(
    redis_server: EmbeddedRedis, impatient: float
) -> None:
    """A read that blocks longer than the usual limit is no dead connection (row 43: redis-py #2807, #3138;
    row 12: vibetuner #2035)."""
    async with Connection(redis_server.url, "test", read_limit_s=impatient + 1.0) as c:
        await soon(c.wait_connected())
        assert await c.call("BLPOP", "nothing", 2 * impatient) is None


async def test_commands_are_refused_when_too_many_are_unanswered(
    through: Connection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of unanswered commands is bounded, and a refused command is certainly not executed."""
    monkeypatch.setattr(pipe, "UNANSWERED_MAX", 100)
    proxy.set(Fault.DROP_REPLIES)
    within = [through.call("INCR", "within") for _ in range(100)]
    assert isinstance(await lost(through.call("INCR", "beyond")), Busy)
    await soon(proxy.struck.wait())
    proxy.set(Fault.NONE)
    proxy.cut()
    for future in within:
        assert isinstance(await lost(future), OutcomeUnknown)
    await soon(through.wait_connected())
    assert await through.call("MGET", "within", "beyond") == [b"100", None]
    await through.call("DEL", "within")


async def test_a_closed_connection_leaves_no_caller_waiting(redis_server: EmbeddedRedis) -> None:
    """Closing ends what is unanswered, and later commands are told so."""
    async with Connection(redis_server.url, "test") as c:
        await soon(c.wait_connected())
        blocked = c.call("BLPOP", "nothing", 0)
        await asyncio.sleep(0)  # it leaves at the end of this turn
    assert isinstance(await lost(blocked), OutcomeUnknown)
    assert isinstance(await lost(c.call("ECHO", "1")), NotConnected)


async def test_loss_and_return_are_told_once_each(proxy: Proxy, impatient: float) -> None:
    """The listener hears of every change, and of nothing else."""
    news: list[bool] = []
    async with Connection(proxy.url, "test", on_change=news.append, read_limit_s=impatient) as c:
        await soon(c.wait_connected())
        await eventually(lambda: news == [True], "the first connection is told")
        proxy.cut()
        await eventually(lambda: news == [True, False, True], "loss and return are told")


async def test_what_was_lost_on_the_way_up_is_tried_again(proxy: Proxy, impatient: float) -> None:
    """A connection that breaks before it was ready is no connection; the next attempt is."""
    proxy.set(Fault.CUT_MID_REPLY)
    async with Connection(proxy.url, "test", on_connect=scripts.load_all, read_limit_s=impatient) as c:
        await soon(c.wait_connected())
        assert proxy.connections == 2
        assert await c.call("ECHO", "1") == b"1"


async def test_a_connection_counts_only_when_its_preparations_are_done(redis_server: EmbeddedRedis) -> None:
    """`wait_connected` once returned while the scripts were still being loaded, so the connection it promised could
    still fail."""
    prepared = asyncio.Event()

    async def prepare(c: Connection) -> None:
        assert not c.connected
        await c.call("ECHO", "prepared")
        prepared.set()

    async with Connection(redis_server.url, "test", on_connect=prepare) as c:
        await soon(c.wait_connected())
        assert prepared.is_set()
        assert c.connected


async def test_a_server_that_is_not_there_yet_is_waited_for(
    connection: Connection, redis_server: EmbeddedRedis
) -> None:
    """The order in which processes start does not matter; until then, commands certainly are not executed."""
    path = redis_server.directory / "later.sock"
    async with Connection(f"unix://{path}", "test") as c:
        assert isinstance(await lost(c.call("ECHO", "1")), NotConnected)
        async with Proxy(redis_server.socket, path):
            await soon(c.wait_connected())
            assert await c.call("ECHO", "1") == b"1"


# -- scripts -----------------------------------------------------------------------------------------------------------


async def test_scripts_come_back_after_redis_forgot_them(connection: Connection) -> None:
    """SCRIPT FLUSH, a restart or a failover costs one more round trip, never an error."""
    await connection.call("SCRIPT", "FLUSH")
    assert await requests.peek(connection, Queue("m", "1"), ["a"]) == [("GONE", b"")]
    assert await connection.call("SCRIPT", "EXISTS", scripts.sha("peek")) == [1]


async def test_every_script_is_loaded_with_the_connection(connection: Connection) -> None:
    """No request pays for the loading of a script."""
    assert await connection.call("SCRIPT", "EXISTS", *map(scripts.sha, scripts.NAMES)) == [1] * len(scripts.NAMES)


def test_every_script_file_is_known() -> None:
    """A script that is not listed would be loaded by its first caller, at the caller's expense."""
    folder = Path(scripts.__file__).parent
    assert {p.stem for p in folder.glob("*.lua")} - {"common"} == set(scripts.NAMES)


async def test_a_script_error_that_is_not_about_loading_is_raised(connection: Connection) -> None:
    """Sending a script again is right only when it certainly did not run."""
    queue = Queue("m", "1")
    await connection.call("SET", queue.leases, "not a sorted set", "PX", 60_000)
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        await work.beat(connection, queue, "w-1", [], lease_us=1)


# -- urls --------------------------------------------------------------------------------------------------------------


async def _database_and_user(url: str) -> tuple[str, str]:
    """Where a connection made from the URL ends up."""
    async with Connection(url, "test") as c:
        await soon(c.wait_connected())
        listed = (await c.call("CLIENT", "LIST")).decode().splitlines()
        ours = next(line for line in listed if line.startswith(f"id={c.client_id} "))
        mine = dict(part.partition("=")[::2] for part in ours.split())
        return mine["db"], mine["user"]


async def test_the_url_says_where_and_as_whom(connection: Connection, redis_server: EmbeddedRedis) -> None:
    """Unix sockets and TCP, a database, a password, a user: as redis-py reads them."""
    socket = redis_server.socket
    async with Proxy(socket) as proxy:
        host = proxy.url.removeprefix("redis://")
        assert await _database_and_user(f"unix://{socket}") == ("0", "default")
        assert await _database_and_user(f"unix://{socket}?db=3") == ("3", "default")
        assert await _database_and_user(f"redis://{host}/5") == ("5", "default")
        async with config(connection, requirepass="s3cret"):
            assert await _database_and_user(f"redis://:s3cret@{host}/5") == ("5", "default")
            assert await _database_and_user(f"unix://{socket}?db=3&password=s3cret") == ("3", "default")
        await connection.call("ACL", "SETUSER", "bob", "on", ">s3cret", "~*", "+@all")
        try:
            assert await _database_and_user(f"redis://bob:s3cret@{host}") == ("0", "bob")
        finally:
            await connection.call("ACL", "DELUSER", "bob")


async def test_a_wrong_password_is_told_without_telling_it(connection: Connection, redis_server: EmbeddedRedis) -> None:
    """The person who reads the log learns the reason and the place, not the secret; mended, it connects."""
    async with Proxy(redis_server.socket) as proxy, config(connection, requirepass="right"):
        url = proxy.url.replace("//", "//:wr0ng@")
        with structlog.testing.capture_logs() as logs:
            async with Connection(url, "test") as c:
                await eventually(lambda: logs, "the trouble is told")
                failed = await lost(c.call("ECHO", "1"))
                assert isinstance(failed, NotConnected)
                await connection.call("CONFIG", "SET", "requirepass", "wr0ng")
                await soon(c.wait_connected())
        assert "WRONGPASS" in logs[0]["reason"]
        assert "wr0ng" not in str(failed) + str(logs)
        assert proxy.url in logs[0]["url"]


async def test_trouble_is_told_once_and_not_at_every_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is away for an hour does not fill the log."""
    loop = asyncio.get_running_loop()
    attempts = 0

    async def refuse(*_: Any) -> Any:
        nonlocal attempts
        attempts += 1
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(loop, "create_unix_connection", refuse)
    monkeypatch.setattr(connection, "BACKOFF_MAX_S", 0.02)
    with structlog.testing.capture_logs() as logs:
        async with Connection(f"unix://{tmp_path}/nowhere", "test"):
            await eventually(lambda: attempts >= 5, "it tries again and again")
    assert len(logs) == 1
