"""What may be taken up: requests, bytes, a tenant's share, hope and rate; and a full Redis, which must still drain."""

import pytest
from support.audit import leftovers
from support.scene import MINUTE_US, Scene, config

from shared.broker import fleet, housekeeping, letters, requests, work
from shared.broker.requests import Limits
from shared.broker.scripts import READY_MAX
from shared.broker.work import Beat
from shared.keys import HIGH, LOW, NORMAL, rate_limit

# -- limits ------------------------------------------------------------------------------------------------------------


async def test_payloads_are_limited_by_their_bytes(scene: Scene) -> None:
    """Live ones count, whatever state they are in; what ends makes room."""
    limits = Limits(bytes_max=1000)
    await scene.accept("a", "b", payload=b"x" * 400)
    assert await scene.accept("c", payload=b"x" * 201, limits=limits) == [("BYTES", "800")]
    assert (await scene.accept("c", payload=b"x" * 200, limits=limits))[0][0] == "OK"
    a, *_ = await scene.fetch()
    assert await scene.accept("d", payload=b"x", limits=limits) == [("BYTES", "1000")]
    await scene.complete(a, answer=b"=" + b"y" * 5000)
    assert (await scene.accept("d", payload=b"x", limits=limits))[0][0] == "OK"


async def test_a_tenant_has_a_share_of_the_queue(scene: Scene) -> None:
    """By default, or its own; others are not concerned, and within a call it counts too."""
    limits = Limits(tenant_max=2)
    outcomes = await scene.accept("a", "b", "c", tenant="T", limits=limits)
    assert [outcomes[0][0], outcomes[1][0], outcomes[2]] == ["OK", "OK", ("TENANT", "2")]
    assert (await scene.accept("c", tenant="U", limits=limits))[0][0] == "OK"
    assert (await scene.accept("d", tenant="T", tenant_max=3, limits=limits))[0][0] == "OK"
    assert await scene.accept("e", tenant="T", tenant_max=3, limits=limits) == [("TENANT", "3")]
    assert await scene.accept("f", tenant="U", tenant_max=1, limits=limits) == [("TENANT", "1")]


async def pace(scene: Scene, worker: str, us: int) -> None:
    await work.beat(scene.c, scene.queue, worker, [], lease_us=MINUTE_US, pace_us=us)


async def test_a_request_that_cannot_be_in_time_is_refused_at_once(scene: Scene) -> None:
    """Ten ahead of it, at 100 ms each by two workers: half a second, before which no answer can come."""
    await scene.accept(*(f"r-{i}" for i in range(10)))
    assert (await scene.accept("unknown", budget_us=1000))[0][0] == "OK", "nobody has said how fast it is"
    await scene.cancel("unknown")
    for worker in ("w-1", "w-2"):
        await pace(scene, worker, 100_000)
    assert await scene.accept("a", budget_us=499_000) == [("HOPELESS", "500000")]
    assert (await scene.accept("a", budget_us=501_000))[0][0] == "OK"
    await pace(scene, "w-2", 25_000)
    assert await scene.accept("b", budget_us=219_000) == [("HOPELESS", "220000")]


async def test_only_what_goes_before_it_makes_a_request_hopeless(scene: Scene) -> None:
    """A backlog of low priority does not refuse a high one; the reverse does."""
    await pace(scene, "w-1", 100_000)
    await scene.accept(*(f"r-{i}" for i in range(10)), priority=LOW)
    for priority, status in ((HIGH, "OK"), (NORMAL, "OK"), (LOW, "HOPELESS")):
        assert (await scene.accept(f"p-{priority}", priority=priority, budget_us=300_000))[0][0] == status


async def test_the_backlog_of_one_tenant_makes_no_other_one_hopeless(scene: Scene) -> None:
    """Tenants take turns: of another's backlog no more is before a request than may be ready."""
    await pace(scene, "w-1", 100_000)
    for i in range(10):
        await scene.accept(*(f"flood-{i}-{n}" for n in range(50)), tenant="flood")
    in_s = (READY_MAX + 5) / 10
    assert (await scene.accept("a", tenant="small", budget_us=int(in_s * 1e6)))[0][0] == "OK"
    assert (await scene.accept("b", tenant="flood", budget_us=int(in_s * 1e6)))[0][0] == "HOPELESS"


@pytest.mark.parametrize("goes", ["lost", "leaves"])
async def test_a_worker_that_is_gone_promises_nothing(scene: Scene, goes: str) -> None:
    """Its pace goes with it: with nobody there, nothing can be foreseen and requests wait for somebody to come."""
    await scene.accept("a", "b")
    await pace(scene, "w-1", MINUTE_US)
    assert (await scene.accept("c"))[0][0] == "HOPELESS"
    if goes == "lost":
        await scene.die("w-1")
        await scene.tick()
    else:
        await work.leave(scene.c, scene.queue, "w-1")
    assert (await scene.accept("c"))[0][0] == "OK"


@pytest.mark.parametrize(
    "end", ["done", "failed", "cancelled", "expired", "overdue", "given up", "crashed", "orphan", "zombie", "delayed"]
)
async def test_counters_return_to_nothing(scene: Scene, end: str) -> None:
    """However a request ends, it is counted no more; whatever happens before that, it is counted once."""
    await scene.accept("a", tenant="T", priority=HIGH, payload=b"x" * 77)
    books = {"l1": 1, "t:T": 1, "b": 77}
    assert await scene.counted() == books
    if end == "orphan":
        await scene.c.call("DEL", scene.queue.replies("gw-1"))
        assert await scene.fetch() == []
    else:
        (a,) = await scene.fetch()
        assert await scene.counted() == books
        match end:
            case "done" | "failed":
                await scene.complete(a, failed=end == "failed", answer=b"=" + b"y" * 999)
            case "cancelled" | "expired":
                await scene.cancel("a", expired=end == "expired")
            case "overdue":
                await scene.pass_deadline("a")
                await scene.tick()
            case "given up":
                await scene.retry(a, errors_max=1)
            case "crashed":
                await scene.c.call("HSET", scene.queue.record("a"), "cr", housekeeping.CRASHES_MAX - 1)
                await scene.crash("w-1", a)
            case "zombie":
                await scene.crash("w-1", a)
                assert await scene.counted() == books
                await scene.complete(a)
            case "delayed":
                await scene.retry(a)
                assert await scene.counted() == books
                await scene.come_due("a")
                await scene.complete(*await scene.fetch())
    assert await scene.counted() == {}
    assert await leftovers(scene.c, scene.queue) == []


async def test_counters_heal(scene: Scene) -> None:
    """An operator deleted a record, or the counters: with an empty queue they start anew, and never below nothing."""
    await scene.accept("deleted", "a")
    await scene.c.call("DEL", scene.queue.record("deleted"))
    await scene.complete(*await scene.fetch())
    assert await scene.counted() != {}
    await scene.pass_deadline("deleted")
    await scene.tick()
    assert await scene.counted() == {}
    await scene.accept("b", "c")
    await scene.c.call("DEL", f"{scene.queue.tag}:c")
    await scene.complete(*await scene.fetch())
    assert await scene.counted() == {}


# -- rates -------------------------------------------------------------------------------------------------------------


async def throttled(scene: Scene, tenant: str = "T", *, requests_count: int = 1, burst: int = 3) -> float:
    """ms until a tenant of one request in 10 s may ask for so many more."""
    us = await requests.throttle(scene.c, tenant, interval_us=10_000_000, burst=burst, requests=requests_count)
    return us / 1000


async def test_a_burst_passes_and_then_the_rate_holds(scene: Scene) -> None:
    """Three at once at one in 10 s give 0, 0, 0, 10, 10 s: a refused request uses nothing up."""
    waits = [await throttled(scene) for _ in range(5)]
    assert waits[:3] == [0, 0, 0]
    assert all(9_000 < wait <= 10_000 for wait in waits[3:]), waits
    assert await throttled(scene, "another tenant") == 0
    await later(scene, 10_000)
    assert await throttled(scene) == 0
    assert 9_000 < await throttled(scene) <= 10_000


async def later(scene: Scene, ms: int, tenant: str = "T") -> None:
    """So much time has passed for a tenant's rate."""
    used_up_to = int(await scene.c.call("GET", rate_limit(tenant)))
    await scene.c.call("SET", rate_limit(tenant), used_up_to - ms * 1000, "KEEPTTL")


async def test_a_call_of_many_counts_as_many(scene: Scene) -> None:
    """All of them pass or none; more than a burst may pass only when nothing was used."""
    assert await throttled(scene, requests_count=2) == 0
    assert 9_000 < await throttled(scene, requests_count=2) <= 10_000
    assert await throttled(scene, requests_count=1) == 0
    assert await throttled(scene, "fresh", requests_count=10) == 0
    assert 97_000 < await throttled(scene, "fresh", requests_count=3) <= 100_000


async def test_a_rate_is_forgotten_when_it_is_used_no_more(scene: Scene) -> None:
    """One short string a tenant, gone once its rate has recovered."""
    await throttled(scene)
    assert 0 < await scene.c.call("PTTL", rate_limit("T")) <= 10_001


# -- a full Redis ------------------------------------------------------------------------------------------------------


async def test_everything_but_accept_goes_on_in_a_full_redis(scene: Scene) -> None:
    """Retries, suspects, waiting rooms and dead letters drain too, or the queue could never recover (row 30: bullmq
    #2215, bull #416)."""
    c, queue = scene.c, scene.queue
    await scene.accept(*(f"r-{i}" for i in range(READY_MAX + 40)), tenant="T")
    await scene.accept("job", job=requests.Job(ttl_ms=60_000, key="k", digest="d", hook="http://there"))
    suspect, delayed, released, dead = await scene.fetch("w-1", want=4)
    await scene.c.call("HSET", queue.record(dead.id), "cr", housekeeping.CRASHES_MAX - 1)
    async with config(c, maxmemory="1"):
        assert await scene.accept("new", "newer") == [("OOM", "")] * 2
        assert await scene.state(f"r-{READY_MAX + 39}") == "WAITING"
        assert (await requests.attach(c, queue, "job", "gw-2")).state in ("WAITING", "QUEUED")
        assert await scene.retry(delayed) == ["RETRY"]
        assert await scene.release("w-1", released) == 1
        tick = await scene.crash("w-1", suspect, dead)
        assert (tick.suspects, tick.dead) == ((suspect.id,), (dead.id,))
        assert (await scene.come_due(delayed.id)).due == (delayed.id,)
        assert (await scene.beat("w-2")).alone
        assert await scene.complete(*await scene.fetch_alone("w-2")) == ["OK"]
        while held := await scene.fetch("w-2"):
            assert set(await scene.complete(*held)) == {"OK"}
        assert await requests.throttle(c, "T", interval_us=1000, burst=1, requests=1) == 0
        (letter,) = await scene.letters()
        assert await letters.replay(c, queue, letter.entry_id, budget_us=MINUTE_US, ttl_ms=1000) == ("OK", dead.id)
        await scene.beat("w-2")
        await scene.crash("w-2", *await scene.fetch_alone("w-2"))
        assert await scene.audit() == []
        await scene.cancel(dead.id)
        assert await letters.purge(c, queue, [letter.entry_id]) == 0
        await fleet.offer(c, "m", offered=False)
        await fleet.offer(c, "m", offered=True)
        assert await scene.beat("w-3") == Beat(False, False, [])
    assert await leftovers(c, queue) == []
    assert await scene.state("job") == "DONE"
