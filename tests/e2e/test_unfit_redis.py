"""A Redis that will not do is refused at the start, with the reason, and the secret in its URL is told to nobody."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import e2e_stack
import pytest
import redis.asyncio

from shared.broker.embedded import EmbeddedRedis, find_server

SECRET = "s3cret-pa55"


@pytest.fixture
async def server(short_directory: Path) -> AsyncIterator[EmbeddedRedis]:
    """A running Redis."""
    server = EmbeddedRedis(short_directory / "r", appendonly=False)
    await server.start()
    yield server
    await server.stop()


async def configure(server: EmbeddedRedis, **settings: str) -> None:
    """CONFIG SET; underscores stand for dashes."""
    async with redis.asyncio.from_url(server.url) as client:
        for name, value in settings.items():
            await client.config_set(name.replace("_", "-"), value)


def everything_logged(directory: Path) -> str:
    """Every event log there."""
    return "".join(path.read_text() for path in directory.glob("*.jsonl"))


@pytest.mark.parametrize("kind", ["gateway", "worker"])
async def test_a_redis_that_may_evict_is_refused_with_status_2(
    server: EmbeddedRedis, slow_repository: Path, short_directory: Path, kind: str
) -> None:
    """It would delete requests in silence when it is full; the message says what to set, and a supervisor gives up."""
    await configure(server, maxmemory="100mb", maxmemory_policy="allkeys-lru", requirepass=SECRET)
    own = ("--port", "0") if kind == "gateway" else ("--model-repository", slow_repository)
    url = server.url.replace("unix://", f"unix://:{SECRET}@")
    several = f"unix://:{SECRET}@{short_directory}/nowhere.sock,{url}"
    logs = short_directory / "logs"

    ended = e2e_stack.run_tailrace(kind, "--log-dir", logs, *own, env={"TAILRACE_REDIS": several})

    assert ended.returncode == 2, ended.stderr
    assert f"Redis at {server.url} cannot be used" in ended.stderr
    assert "maxmemory-policy allkeys-lru" in ended.stderr
    assert "Set `maxmemory-policy noeviction`" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert SECRET not in ended.stderr + ended.stdout + everything_logged(logs)
    assert server.url in everything_logged(logs)


def test_a_cluster_is_refused_with_status_2(slow_repository: Path, short_directory: Path, unused_tcp_port: int) -> None:
    """complaints 46: a mode in which requests could not be handed on is refused at the start."""
    port = str(unused_tcp_port % 50_000 + 1024)  # its bus listens 10,000 above
    options = ["--cluster-enabled", "yes", "--bind", "127.0.0.1", "--dir", str(short_directory), "--save", ""]
    with subprocess.Popen([find_server(), "--port", port, *options], stdout=subprocess.DEVNULL) as node:
        try:
            command = ("worker", "--redis", f"redis://127.0.0.1:{port}", "--model-repository", slow_repository)
            ended = e2e_stack.run_tailrace(*command, "--log-dir", short_directory / "logs")
        finally:
            node.terminate()
    assert ended.returncode == 2, ended.stderr
    assert "node of a Redis Cluster" in ended.stderr


async def test_up_says_so_and_stops(server: EmbeddedRedis, slow_repository: Path, short_directory: Path) -> None:
    """Trying again cannot help."""
    await configure(server, maxmemory="100mb", maxmemory_policy="volatile-lru")
    models = ("--model-repository", slow_repository)

    ended = e2e_stack.run_tailrace(
        "up", "--redis", server.url, "--port", "0", "--data-dir", short_directory / "d", *models
    )

    assert ended.returncode == 1, ended.stderr
    assert "maxmemory-policy volatile-lru" in ended.stderr
    assert "could not start; its reason is above" in ended.stderr
