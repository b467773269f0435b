"""The same on a Redis in a container, over TCP, where there is Docker and the image."""

import asyncio
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_load import Load, Verdict, stuck_in
from chaos_toy import QUEUE
from chaos_trouble import seed
from chaos_world import World
from support.audit import leftovers
from support.waiting import eventually, soon
from testcontainers.core.container import DockerContainer

from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from worker import publish

IMAGE = "redis:7-bookworm"
LEASE_S = 0.6
PAUSED_S = 1.0


def has_image() -> bool:
    """True when the image is here; it is not fetched."""
    try:
        return subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerContainer]:
    """A Redis in a container."""
    if not has_image():
        pytest.skip(f"no Docker, or no image {IMAGE}")
    # The reaper would be another image; this container is removed below.
    monkeypatch.setattr("testcontainers.core.config.testcontainers_config.ryuk_disabled", True)
    container = DockerContainer(IMAGE).with_exposed_ports(6379)
    container.start()
    yield container
    container.stop()


async def test_a_container_that_is_paused_and_flushed_costs_nobody_an_answer(
    container: DockerContainer, short_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host stops it for longer than a lease, and an operator empties it, under load."""
    monkeypatch.setattr(publish, "_tell_failures", lambda *_: None)
    url = f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
    rng = random.Random(seed())
    world = World(EmbeddedRedis(short_dir), tmp_path, LEASE_S, urls=url)
    load = Load(world, rng, jobs=False)
    async with Connection(url, "admin", quiet=True) as admin:
        await soon(admin.wait_connected())
        try:
            await world.start(gateways=2, workers=2)
            load.start()
            await eventually(lambda: len(world.asked) > 300, "there is load")
            await asyncio.to_thread(container.get_wrapped_container().pause)
            await asyncio.sleep(PAUSED_S)
            await asyncio.to_thread(container.get_wrapped_container().unpause)
            await eventually(lambda: len(world.asked) > 600, "there is load")
            await admin.call("FLUSHALL")
            await eventually(lambda: len(world.asked) > 900, "there is load")
            await load.stop()
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
