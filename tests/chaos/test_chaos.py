"""Everything goes wrong within ten seconds, under load: each request is answered, once, and nothing stays behind."""

import asyncio
import os
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from chaos_toy import QUEUE, Kind
from chaos_trouble import ALWAYS, SOME, Deed, Trouble, seed
from chaos_world import LONG_S, Asked, World
from support.audit import leftovers
from support.servers import NAMES, binaries
from support.waiting import eventually, soon

from forensics.audit import audit
from forensics.load import Logs
from shared import clock
from shared.broker import requests
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from shared.events import Wreq
from shared.wire import decode_reply
from tailrace.supervise import die_with_parent
from worker import publish

ACCEPTED_MIN = 5_000
FORGETFUL_MIN = 2_500
CLIENTS = 64
THINK_S = 0.06
BURST = 250
LEASE_S = 0.6


@pytest.fixture(autouse=True)
def nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy fails on purpose, hundreds of times."""
    monkeypatch.setattr(publish, "_tell_failures", lambda *_: None)


@pytest.fixture(params=NAMES)
def binary(request: pytest.FixtureRequest) -> str:
    """A server's binary; the test runs once with each kind."""
    return binaries()[request.param]


class Load:
    """Clients that ask, and what they remember."""

    def __init__(self, world: World, rng: random.Random, *, jobs: bool) -> None:
        self.world = world
        self.jobs = jobs
        self._rng = rng
        self._stopped = False
        self._asking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for _ in range(CLIENTS):
            self._own(self._client(random.Random(self._rng.random())))

    def burst(self) -> None:
        """Many more at once: a backlog."""
        for _ in range(BURST):
            self._own(self._ask(random.Random(self._rng.random())))

    async def stop(self) -> None:
        """Ask no more, and wait for the ends of what was asked."""
        self._stopped = True
        await eventually(lambda: not self._asking, "every client has its answer")

    async def abort(self) -> None:
        """Everybody leaves."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _own(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asked)

    def _asked(self, task: "asyncio.Task[None]") -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.result()  # what it raised goes to the loop's handler

    async def _client(self, rng: random.Random) -> None:
        while not self._stopped:
            await self._ask(rng)
            await asyncio.sleep(rng.uniform(0, 2 * THINK_S))

    async def _ask(self, rng: random.Random) -> None:
        kinds = (Kind.PLAIN, Kind.LARGE, Kind.FLAKY, Kind.WRONG, Kind.RAISES)
        (kind,) = rng.choices(kinds, (90, 4, 3, 1, 1))
        (manner,) = rng.choices(("patient", "impatient", "leaves", "job"), (85, 5, 5, 5 if self.jobs else 0))
        await self.world.ask(
            rng,
            kind,
            patience_s=rng.uniform(0.001, 0.5) if manner == "impatient" else LONG_S,
            leaves_after_s=rng.uniform(0, 0.1) if manner == "leaves" else None,
            job_key=f"key {rng.getrandbits(64)}" if manner == "job" else "",
        )


class Verdict:
    """What a run came to."""

    def __init__(self, world: World, log_dir: Path, stuck: list[str]) -> None:
        asked = world.asked
        self.accepted = sum(a.accepted for a in asked)
        self.ends = Counter(a.end or "none" for a in asked)
        self.lost = [a for a in asked if not a.end or (a.patience_s == LONG_S and a.end == "deadline")]
        self.wrong = [a for a in asked if a not in self.lost and a.end not in world.expected_end(a)]
        self.double = [rid for rid, answers in world.came.items() if len(answers) > 1 and rid != "hello"]
        self.again = sum(a.submits > 1 for a in asked)
        self.audited = audit([log_dir], now_us=clock.wall_us())
        self.fenced = sum(line.record.outcome == "STALE" for line in Logs.load([log_dir], (Wreq,)).of(Wreq))
        self.stuck = stuck
        self.defects = world.defects

    def __str__(self) -> str:
        breaches = Counter(b.kind.value for b in self.audited.breaches)
        return (
            f"asked {self.ends.total()}, accepted {self.accepted}, lost {len(self.lost)}, not as expected "
            f"{len(self.wrong)}, double {len(self.double)}, stuck {len(self.stuck)}; ends {dict(self.ends)}; "
            f"handed over again {self.again}; attempts {self.audited.attempts}, more than one of "
            f"{self.audited.retried} requests, computed again "
            f"{self.audited.computed_again}, late answers refused {self.fenced}; breaches {dict(breaches)}"
        )


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
            stuck = await _stuck(admin)
            if jobs:
                await _judge_jobs(admin, world)
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


async def _stuck(admin: Connection) -> list[str]:
    """What is still queued, running, delayed or counted though all clients have their answers and ticks went on."""
    found: list[str] = []

    async def nothing() -> bool:
        found[:] = await leftovers(admin, QUEUE)
        counted = [f"{QUEUE.tag}:c", f"{QUEUE.tag}:delay"]
        found.extend([f"{key} is still there" for key in counted if await admin.call("EXISTS", key)])
        return not found

    try:
        await eventually(nothing, "nothing is stuck")
    except TimeoutError:
        pass
    return found


async def _judge_jobs(admin: Connection, world: World) -> None:
    """Nobody waited for them, but their results are kept."""
    for asked in world.asked:
        if asked.end == "accepted":
            found = await requests.attach(admin, QUEUE, asked.id)
            if not found.answer:
                asked.end = ""
                continue
            body = decode_reply(found.answer).body
            right = body.error_code if body.error_code else "answered"
            kind = Asked(asked.id, asked.number, asked.kind, LONG_S)
            if right in world.expected_end(kind):
                continue
            asked.end = f"job {right}"


@pytest.fixture
def memory_dir() -> Iterator[Path]:
    """A directory that no disk slows down, where there is such a thing."""
    shared_memory = "/dev/shm"
    with tempfile.TemporaryDirectory(
        prefix="tr-", dir=shared_memory if os.access(shared_memory, os.W_OK) else None
    ) as d:
        yield Path(d)


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
