"""Processes are killed and frozen one at a time, under load: nothing is lost, and nothing is answered twice."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import redis.asyncio
from chaos_stack import ECHO, MODELS, Traffic, ask, breaches, pid_of, process_of
from e2e import e2e_stack
from e2e.e2e_stack import Stack

from shared import clock
from shared.events import Wreq
from shared.keys import GROUP

LEASE_S = 1.5
RATE = 200.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`up` with two workers, and one more gateway. Whoever hurts it waits until it is well again."""
    repository = e2e_stack.make_repository(tmp_path_factory.mktemp("echo"), {"echo": MODELS / "echo"})
    running = e2e_stack.start_up(repository, "--workers", "2", env={"TAILRACE_LEASE_S": str(LEASE_S)})
    try:
        running.start_gateway("--lease-s", str(LEASE_S))
        yield running
        assert not breaches(running.log_dir)
    finally:
        e2e_stack.stop_all(running)


@pytest_asyncio.fixture
async def broker(pair: Stack) -> AsyncIterator[redis.asyncio.Redis]:
    """Its Redis, once two workers serve."""
    async with redis.asyncio.from_url(pair.redis_url, decode_responses=True) as client:
        await e2e_stack.soon(lambda: two_live(pair, client), within_s=e2e_stack.START_S, what="two workers serve")
        yield client
        await e2e_stack.soon(lambda: is_empty(client), within_s=10, what="nothing is left in the queue")


async def two_live(pair: Stack, client: redis.asyncio.Redis) -> bool:
    """True when the leases are those of the two living workers."""
    return {pid_of(name) for name in await client.zrange(ECHO.leases, 0, -1)} == {
        worker.pid for worker in pair.main.children_like("worker")
    } and len(pair.main.children_like("worker")) == 2


async def is_empty(client: redis.asyncio.Redis) -> bool:
    """True when nothing is live, and nothing pending."""
    lanes = (*ECHO.lanes, ECHO.suspects)
    return not await client.zcard(ECHO.deadlines) and not any([await client.xlen(lane) for lane in lanes])


@pytest.fixture
def urls(pair: Stack) -> list[str]:
    """Where the two gateways are."""
    return [pair.url, pair.started[0].says(r"url=(http://\S+)")[1]]


async def test_each_worker_is_killed_in_turn(pair: Stack, broker: redis.asyncio.Redis, urls: list[str]) -> None:
    """kill -9 of one worker after the other under 200 requests a second: all are answered, once (complaint 51)."""
    async with Traffic(urls, RATE) as traffic:
        for victim in pair.main.children_like("worker"):
            await traffic.more(100)
            victim.kill()
            await e2e_stack.soon(
                lambda: two_live(pair, broker), within_s=e2e_stack.START_S, what="another took its place"
            )
        await traffic.more(100)

    print(traffic)
    assert not traffic.bad
    assert not traffic.twice


async def test_a_long_job_with_a_beating_worker_runs_once(
    pair: Stack, broker: redis.asyncio.Redis, urls: list[str]
) -> None:
    """Three leases long: it is not handed on while its worker lives (complaints 48, 53)."""
    async with e2e_stack.clients() as session:
        told = await ask(session, urls[0], 77, ms=int(3 * LEASE_S * 1000))

    assert told.is_right
    (only,) = pair.logged(Wreq, lambda w: w.id == told.request_id)
    assert only.attempt == 1


async def test_a_zombies_late_answer_is_refused(pair: Stack, broker: redis.asyncio.Redis, urls: list[str]) -> None:
    """SIGSTOP past the lease, in the middle of a pass: the request runs once more, alone (complaint 48)."""
    async with e2e_stack.clients() as session:
        asking = asyncio.create_task(ask(session, urls[0], 78, ms=400))
        computing = await e2e_stack.soon(lambda: computed_by(broker), within_s=5, what="a worker computes it")
        zombie = process_of(computing)
        zombie.send_signal(signal.SIGSTOP)
        try:
            told = await asking
        finally:
            zombie.send_signal(signal.SIGCONT)

    assert told.is_right
    assert LEASE_S < told.took_s < 2 * LEASE_S + 2
    attempts = pair.logged(Wreq, lambda w: w.id == told.request_id, count=2)
    (first, refused), second = sorted((w.attempt, w.outcome) for w in attempts)
    assert (first, second) == (1, (2, "DONE"))
    assert refused in ("STALE", "GONE"), "the record is forgotten soon after the answer"


async def computed_by(broker: redis.asyncio.Redis) -> str:
    """A worker whose device computes something."""
    for worker, ids in (await broker.hgetall(ECHO.running)).items():
        for rid in ids.split():
            # A record outlives its answer by a moment.
            if await broker.hmget(ECHO.record(rid), "st", "own") == ["RUNNING", str(worker)]:
                return str(worker)
    return ""


async def test_a_killed_leader_is_succeeded_within_two_leases(
    pair: Stack, broker: redis.asyncio.Redis, urls: list[str]
) -> None:
    """SIGKILL of the process that ticks: the next tick is another's, soon (complaint 45)."""
    leader = (await broker.zrange(ECHO.leases, 0, 0))[0]
    await broker.set(ECHO.leader, leader, px=2000)
    ticked = await broker.get(ECHO.tick)
    await e2e_stack.soon(lambda: has_ticked(broker, ticked, ""), within_s=2, what="it leads")

    async with Traffic(urls, 50) as traffic:
        await traffic.more(20)
        process_of(leader).kill()
        killed_ns = clock.now_ns()
        ticked = await broker.get(ECHO.tick)
        await e2e_stack.soon(lambda: has_ticked(broker, ticked, leader), within_s=10, what="somebody else ticks")
        after_s = (clock.now_ns() - killed_ns) / 1e9
        await traffic.more(50)

    print(f"the next tick came after {after_s:.2f} s; {traffic}")
    assert after_s < 2 * LEASE_S
    assert not traffic.bad


async def has_ticked(broker: redis.asyncio.Redis, before: str, not_by: str) -> bool:
    """True when there was another tick."""
    leader = await broker.get(ECHO.leader)
    return bool(await broker.get(ECHO.tick) != before and leader and leader != not_by)


@pytest.mark.parametrize("deed", ["FLUSHALL", "XGROUP DESTROY", "CLIENT PAUSE", "DEL lanes", "CLIENT KILL"])
async def test_an_operators_hand_costs_nobody_an_answer(
    pair: Stack, broker: redis.asyncio.Redis, urls: list[str], deed: str
) -> None:
    """Under load, while both workers compute and others queue."""
    async with Traffic(urls, 100) as traffic:
        await traffic.more(50)
        if deed != "DEL lanes":  # what is queued then is found by the audit, up to half a minute later
            traffic.burst(96, ms=100)
            await e2e_stack.soon(lambda: is_backed_up(broker), within_s=5, what="some are queued")
        match deed:
            case "FLUSHALL":
                await broker.flushall()
            case "XGROUP DESTROY":
                for lane in (*ECHO.lanes, ECHO.suspects):
                    await broker.xgroup_destroy(lane, GROUP)
            case "CLIENT PAUSE":
                await broker.client_pause(1000)
            case "DEL lanes":
                await broker.delete(*ECHO.lanes)
            case "CLIENT KILL":
                await broker.client_kill_filter(_type="normal", skipme=True)
        await traffic.more(100)

    print(traffic)
    assert not traffic.bad
    assert not traffic.twice


async def is_backed_up(broker: redis.asyncio.Redis) -> bool:
    """True when more is live than two workers compute at once."""
    return bool(await broker.zcard(ECHO.deadlines) > 40)


async def test_a_full_redis_refuses_the_new_and_finishes_the_old(
    pair: Stack, broker: redis.asyncio.Redis, urls: list[str]
) -> None:
    """Out of memory: what is accepted is answered, new requests get 503 at once; with memory again all is well."""
    async with e2e_stack.clients() as session:
        old = [asyncio.create_task(ask(session, url, 100 + i, ms=700)) for i, url in enumerate(urls * 4)]
        await e2e_stack.soon(lambda: computed_by(broker), within_s=5, what="some are computed")
        await e2e_stack.soon(lambda: is_full(broker, len(old)), within_s=5, what="all are accepted")
        before = (await broker.config_get("maxmemory"))["maxmemory"]
        await broker.config_set("maxmemory", 1)
        try:
            refused = await ask(session, urls[0], 1)
            answered = await asyncio.gather(*old)
        finally:
            await broker.config_set("maxmemory", before)
        again = await ask(session, urls[0], 2)

    assert refused.status == 503
    assert "out of memory" in refused.text
    assert refused.took_s < 0.5
    assert all(told.is_right for told in answered), answered
    assert again.is_right


async def is_full(broker: redis.asyncio.Redis, count: int) -> bool:
    """True when so many requests are live."""
    return bool(await broker.zcard(ECHO.deadlines) == count)
