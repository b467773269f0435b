"""Everything goes wrong within ten seconds, under load: each request is answered, once, and nothing stays behind."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from chaos_load import Load, Verdict, judge_jobs, stuck_in
from chaos_toy import QUEUE
from chaos_trouble import ALWAYS, SOME, Deed, Trouble, seed
from chaos_world import World
from support.audit import leftovers
from support.servers import NAMES, binaries
from support.waiting import eventually, soon

from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from tailrace.supervise import die_with_parent
from worker import publish

ACCEPTED_MIN = 5_000
FORGETFUL_MIN = 2_500
LEASE_S = 0.6


@pytest.fixture(autouse=True)
def nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy fails on purpose, hundreds of times."""
    monkeypatch.setattr(publish, "_tell_failures", lambda *_: None)


@pytest.fixture(params=NAMES)
def binary(request: pytest.FixtureRequest) -> str:
    """A server's binary; the test runs once with each kind."""
    return binaries()[request.param]


async def run(
    server: EmbeddedRedis, log_dir: Path, number: int, *deeds: dict[Deed, int], jobs: bool, accepted_min: int
) -> Verdict:
    """Load and trouble until both the deeds are done and enough is accepted; then what is left."""
    rng = random.Random(number)
    world = World(server, log_dir, LEASE_S)
    async with Connection(server.url, "admin", quiet=True) as admin:
        await soon(admin.wait_connected())
        load = Load(world, rng, jobs=jobs)
        trouble = Trouble(world, random.Random(rng.random()), admin, load.burst)
        try:
            await world.start(gateways=2, workers=4)
            load.start()
            await trouble.run(*deeds)
            await eventually(lambda: sum(a.accepted for a in world.asked) > accepted_min, "enough is accepted")
            await load.stop()
            stuck = await stuck_in(admin)
            if jobs:
                await judge_jobs(admin, world)
        except BaseException:
            print("\n".join([*trouble.story, await world.describe(admin)]))
            await load.abort()
            await trouble.abort()
            await world.abort()
            raise
        await soon(world.stop())
        stuck += await leftovers(admin, QUEUE)
    verdict = Verdict(world, log_dir, stuck)
    print(verdict)
    bad = (verdict.lost, verdict.wrong, verdict.stuck, verdict.defects, verdict.audited.breaches)
    if any(bad):
        print("\n".join([*trouble.story, *map(str, bad)]))
    return verdict


@pytest_asyncio.fixture
async def server(binary: str, memory_dir: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis of the test's own, with an append-only file.

    The file is in memory if possible: while the disk is busy syncing Redis puts its writes off, and a kill then loses
    what it has confirmed already (`INFO persistence: aof_delayed_fsync`).
    """
    server = EmbeddedRedis(memory_dir, binary=binary, preexec=die_with_parent)
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def forgetful(binary: str, short_dir: Path) -> AsyncIterator[EmbeddedRedis]:
    """A Redis of the test's own that keeps nothing."""
    server = EmbeddedRedis(short_dir, appendonly=False, binary=binary, preexec=die_with_parent)
    await server.start()
    yield server
    await server.stop()


async def test_nothing_is_lost_doubled_or_stuck(server: EmbeddedRedis, tmp_path: Path) -> None:
    """Redis is killed three times, workers crash and freeze, connections break: every request ends once, and right."""
    deeds = (ALWAYS, {Deed.KILL_REDIS: 3})
    verdict = await run(server, tmp_path, seed(), *deeds, jobs=True, accepted_min=ACCEPTED_MIN)

    assert verdict.accepted >= ACCEPTED_MIN
    assert not verdict.lost
    assert not verdict.wrong
    assert not verdict.double
    assert not verdict.stuck
    assert not verdict.audited.breaches
    assert not verdict.defects


async def test_a_redis_that_loses_everything_costs_no_synchronous_request(
    forgetful: EmbeddedRedis, tmp_path: Path
) -> None:
    """Redis is flushed, and killed without a file to come back with: every client has one answer, the right one."""
    deeds = (SOME, {Deed.KILL_REDIS: 2, Deed.FLUSH: 2})
    verdict = await run(forgetful, tmp_path, seed(), *deeds, jobs=False, accepted_min=FORGETFUL_MIN)

    assert verdict.accepted >= FORGETFUL_MIN
    assert not verdict.lost
    assert not verdict.wrong
    assert not verdict.stuck
    assert not verdict.audited.breaches
    assert not verdict.defects
