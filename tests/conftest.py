"""What the tests share: real servers, clean connections, and the promise that nothing is left behind."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest_asyncio
from support.audit import disorder, leftovers
from support.proxy import Proxy
from support.scene import Scene
from support.servers import NAMES, binaries
from support.waiting import soon

from shared.broker import connection as connecting
from shared.broker import scripts
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from tailrace.supervise import die_with_parent

# A busy machine is not a failure. The same examples every time: new ones are for those who look for them, no surprise
# to a change that has nothing to do with them.
explore = bool(os.environ.get("TAILRACE_TEST_EXPLORE"))
hypothesis.settings.register_profile("tailrace", deadline=None, derandomize=not explore)
hypothesis.settings.load_profile("tailrace")


@pytest.fixture(autouse=True)
def every_task_has_ended(request: pytest.FixtureRequest) -> None:
    """A task has an owner, who ends it: fail the test that leaves one running."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("_no_task_outlives_the_test")


@pytest_asyncio.fixture
async def _no_task_outlives_the_test() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0)  # a task cancelled just now ends in this turn
    leaked = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    assert not leaked, f"still running after the test: {leaked}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis_servers() -> AsyncIterator[dict[str, EmbeddedRedis]]:
    """One running server of each kind, for the whole run; those of a killed run end with it."""
    with tempfile.TemporaryDirectory(prefix="tr-") as folder:
        servers = {
            name: EmbeddedRedis(Path(folder, str(i)), appendonly=False, binary=path, preexec=die_with_parent)
            for i, (name, path) in enumerate(binaries().items())
        }
        await asyncio.gather(*(server.start() for server in servers.values()))
        yield servers
        await asyncio.gather(*(server.stop() for server in servers.values()))


@pytest.fixture(params=NAMES)
def redis_server(request: pytest.FixtureRequest, redis_servers: dict[str, EmbeddedRedis]) -> EmbeddedRedis:
    """A running server; the test runs once with each kind. It may hold what other tests left."""
    return redis_servers[request.param]


@pytest.fixture
def oldest_server(redis_servers: dict[str, EmbeddedRedis]) -> EmbeddedRedis:
    """The running server of the oldest kind, where one is enough."""
    return redis_servers[NAMES[0]]


@pytest_asyncio.fixture
async def connection(redis_server: EmbeddedRedis) -> AsyncIterator[Connection]:
    """A connection to an empty Redis. Afterwards every key must have a time to live, or belong to a queue for good;
    and what is live must be reachable and counted."""
    async with Connection(redis_server.url, "test", on_connect=scripts.load_all) as c:
        await soon(c.wait_connected())
        await c.call("FLUSHALL")
        yield c
        await soon(c.wait_connected())
        assert await leftovers(c) + await disorder(c) == []


@pytest_asyncio.fixture
async def scene(connection: Connection) -> Scene:
    """A queue with a gateway that listens, and its workers."""
    scene = Scene(connection)
    await scene.open()
    return scene


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Silence is noticed after a tenth of the usual time. Returns the limit for what is unanswered, in seconds."""
    monkeypatch.setattr(connecting, "PROBE_AFTER_S", 0.05)
    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT_S", 0.5)
    return 0.3


@pytest_asyncio.fixture
async def proxy(connection: Connection, redis_server: EmbeddedRedis) -> AsyncIterator[Proxy]:
    """A proxy before an empty Redis."""
    async with Proxy(redis_server.socket, redis_server.directory / "proxy.sock") as proxy:
        yield proxy


@pytest_asyncio.fixture
async def through(proxy: Proxy, impatient: float) -> AsyncIterator[Connection]:
    """A connection through the proxy."""
    async with Connection(proxy.url, "through", on_connect=scripts.load_all, read_limit_s=impatient) as c:
        await soon(c.wait_connected())
        yield c


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory of the test's own with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="tr-") as folder:
        yield Path(folder)


@pytest.fixture
def memory_dir() -> Iterator[Path]:
    """The same on no disk, where there is such a thing.

    While a disk is busy syncing, Redis puts its writes off, and a kill then loses what it has confirmed already (`INFO
    persistence: aof_delayed_fsync`).
    """
    shared_memory = "/dev/shm"
    where = shared_memory if os.access(shared_memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tr-", dir=where) as folder:
        yield Path(folder)
