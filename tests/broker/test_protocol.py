"""From accepted to delivered: what `accept` and `fetch` promise while nothing goes wrong."""

import asyncio
import random

import pytest
from support.audit import leftovers, pending_of
from support.scene import MINUTE_US, TRACE, Scene, blocked, config
from support.waiting import eventually, soon

from shared import wire
from shared.broker import fleet, requests, work
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from shared.broker.work import Beat
from shared.keys import NORMAL, RETRY, Queue

# -- accept ------------------------------------------------------------------------------------------------------------


async def test_a_request_is_accepted_once(scene: Scene) -> None:
    """A gateway that does not know whether it was heard says it again: one entry, and the state it has reached."""
    ((status, entry_id),) = await scene.accept("a")
    assert status == "OK"
    assert await scene.accept("a", payload=b"another") == [("DUP", "QUEUED")]
    (delivery,) = await scene.fetch()
    assert (delivery.id, delivery.entry_id, delivery.payload) == ("a", entry_id, b"payload of a")
    assert await scene.accept("a") == [("DUP", "RUNNING")]
    await scene.complete(delivery, answer=b"=done")
    assert await scene.accept("a") == [("DUP", "DONE")]
    assert await requests.peek(scene.c, scene.queue, ["a"]) == [("DONE", b"=done")]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_request_named_twice_in_one_call_is_accepted_once(scene: Scene) -> None:
    """Also within a call the record decides."""
    (first, _), second = await scene.accept("a", "a")
    assert (first, second) == ("OK", ("DUP", "QUEUED"))
    assert await scene.depth() == 1


async def test_a_full_queue_refuses_and_leaves_nothing_behind(scene: Scene) -> None:
    """FULL tells how many there are; those within the limit are taken, those beyond leave no key."""
    await scene.accept("a")
    outcomes = await scene.accept("b", "c", "a", limits=requests.Limits(2))
    assert [outcomes[0][0], *outcomes[1:]] == ["OK", ("FULL", "2"), ("DUP", "QUEUED")]
    assert await scene.depth() == 2
    assert await scene.states("b", "c") == ["QUEUED", "GONE"]
    assert await scene.c.call("EXISTS", scene.queue.record("c"), scene.queue.payload("c")) == 0
    assert await scene.counted() == {"l2": 2, "t:-": 2, "b": 2 * len(b"payload of a")}


async def test_running_requests_count_as_queued_ones_do(scene: Scene) -> None:
    """Work that a worker holds is work that is not done: the limit is on both together."""
    await scene.accept("a", "b")
    delivered = await scene.fetch()
    assert await scene.accept("c", limits=requests.Limits(2)) == [("FULL", "2")]
    await scene.complete(*delivered)
    assert (await scene.accept("c", limits=requests.Limits(2)))[0][0] == "OK"


async def test_a_full_redis_refuses_only_new_work(scene: Scene) -> None:
    """Without memory the queue must still drain, or it could never recover: everything else keeps working."""
    c, queue = scene.c, scene.queue
    await scene.accept("a", "b", "c", "d", "late")
    await scene.pass_deadline("late")
    (held,) = await scene.fetch("w-1", want=1)
    given = await scene.block("w-2")
    assert [e.request_id for e in given] == ["b"]
    await scene.fetch("w-2", want=0)
    await scene.die("w-2")
    async with config(c, maxmemory="1"):
        assert await scene.accept("new", "newer") == [("OOM", ""), ("OOM", "")]
        assert (await scene.accept("a"))[0][0] == "DUP"
        assert await scene.beat("w-1", held) == Beat(True, False, [])
        assert await scene.complete(held) == ["OK"]
        tick = await scene.tick()
        assert (tick.requeued, tick.overdue) == (("b",), ("late",))
        assert [d.id for d in await scene.fetch("w-3", want=2)] == ["b", "c"]
        assert await requests.cancel(c, queue, ["d"]) == ["QUEUED"]
        await requests.listen(c, queue, "gw-2")
        await fleet.announce(c, "w-3", b"{}", lease_us=MINUTE_US)
        assert await fleet.survey(c, "") is not None
        assert await work.leave(c, queue, "w-1") == 0
        assert await scene.rung() == ["a", "late"]
    assert await scene.state("new") == "GONE"
    assert (await scene.accept("new"))[0][0] == "OK"


async def test_anything_that_speaks_redis_can_read_the_message_headers(scene: Scene) -> None:
    """XRANGE shows id, schema version, content type, trace context and hand-over stamp of what is queued."""
    await scene.accept("a")
    ((_, fields),) = await scene.c.call("XRANGE", scene.queue.lanes[NORMAL], "-", "+")
    assert dict(zip(fields[::2], fields[1::2], strict=True)) == {
        b"r": b"a",
        b"v": str(wire.SCHEMA_VERSION).encode(),
        b"ct": wire.CONTENT_TYPE.encode(),
        b"tp": TRACE.encode(),
        b"ts": b"vendor=1",
        b"g3": b"42",
    }


async def test_what_was_accepted_is_what_is_delivered(scene: Scene) -> None:
    """Payload and headers arrive as they were sent, whatever bytes they are made of."""
    payload = random.Random(3).randbytes(1 << 20)
    await scene.accept("a", payload=payload)
    (d,) = await scene.fetch()
    assert d.payload == payload
    assert (d.id, d.gateway, d.lane, d.attempt) == ("a", "gw-1", scene.queue.lanes[NORMAL], 1)
    assert (d.schema, d.content_type) == (wire.SCHEMA_VERSION, wire.CONTENT_TYPE)
    assert (d.traceparent, d.tracestate, d.sent_ns) == (TRACE, "vendor=1", 42)
    assert 0 < d.left_us <= MINUTE_US
    assert 0 <= d.waited_us < MINUTE_US
    assert d.lost_us == 0


async def test_the_most_that_a_gateway_hands_over_at_once_is_taken_whole(scene: Scene) -> None:
    """A call of many requests is one script, and its lists do not run into a limit of Lua."""
    ids = [f"r-{i}" for i in range(1024)]
    assert {status for status, _ in await scene.accept(*ids)} == {"OK"}
    assert await scene.depth() == 1024
    fetched = [d for _ in range(2) for d in await scene.fetch(want=512)]
    assert [d.id for d in fetched] == ids
    assert set(await scene.complete(*fetched)) == {"OK"}
    assert await scene.rung() == ids
    assert await leftovers(scene.c, scene.queue) == []


# -- fetch -------------------------------------------------------------------------------------------------------------


async def test_requests_are_delivered_in_the_order_they_came(scene: Scene) -> None:
    """First come, first served, over any number of calls and workers."""
    for rid in "abcdef":
        await scene.accept(rid)
    order = []
    for worker, want in (("w-1", 2), ("w-2", 1), ("w-1", 3)):
        order += [d.id for d in await scene.fetch(worker, want=want)]
    assert order == list("abcdef")


async def test_what_a_dead_worker_left_goes_first(scene: Scene) -> None:
    """What was held by it, and not running: the retry lane is read before all others."""
    await scene.accept("a")
    await scene.block("w-1")
    await scene.accept("b")
    await scene.die("w-1")
    await scene.tick()
    assert [(d.id, d.lane) for d in await scene.fetch("w-2")] == [
        ("a", scene.queue.lanes[RETRY]),
        ("b", scene.queue.lanes[NORMAL]),
    ]


async def test_a_backlog_from_before_the_first_worker_is_served(connection: Connection) -> None:
    """The consumer group begins at the first entry, not at the moment of its creation (row 21: faststream #2694)."""
    scene = Scene(connection)
    await scene.accept("a", "b")
    assert [d.id for d in await scene.fetch()] == ["a", "b"]


async def test_a_fetch_from_an_empty_queue_is_empty(scene: Scene) -> None:
    """Nothing queued, nothing delivered; the worker's lease is registered all the same."""
    assert await scene.fetch("w-1") == []
    assert await scene.c.call("ZRANGE", scene.queue.leases, 0, -1) == [b"w-1"]


async def test_one_request_is_seen_before_any_worker_exists(connection: Connection) -> None:
    """Whoever scales from nothing asks for the depth: of a queue that is not there, of one request, of none left
    (row 45: keda #6478)."""
    scene = Scene(connection)
    depths = [await scene.depth()]
    await scene.accept("a")
    depths.append(await scene.depth())
    await scene.complete(*await scene.fetch())
    depths.append(await scene.depth())
    assert depths == [0, 1, 0]


async def test_no_request_is_delivered_to_two_workers(scene: Scene) -> None:
    """Eight workers grab at once: each request is started once (row 1: taskiq-redis #123)."""
    ids = [f"r-{i}" for i in range(200)]
    await scene.accept(*ids)

    async def work(worker: str) -> list[str]:
        mine: list[str] = []
        while got := await scene.fetch(worker, want=3):
            mine += [d.id for d in got]
            assert {d.attempt for d in got} == {1}
        return mine

    shares = await asyncio.gather(*(work(f"w-{i}") for i in range(8)))
    assert sorted(rid for share in shares for rid in share) == sorted(ids)


async def test_queues_do_not_mix(scene: Scene) -> None:
    """Versions, models and shards have nothing in common but the server."""
    others = [Scene(scene.c, q) for q in (Queue("resnet", "2"), Queue("bert", "1"), Queue("resnet", "1", shard=1))]
    for other in others:
        await other.accept("a", payload=other.queue.tag.encode())
    assert await scene.fetch() == []
    for other in others:
        (delivery,) = await other.fetch()
        assert delivery.payload == other.queue.tag.encode()


async def test_a_fetch_stops_when_it_has_enough_bytes(scene: Scene) -> None:
    """A worker that wants many small requests is not buried under many large ones; the rest stays for others."""
    ids = [f"r-{i}" for i in range(40)]
    await scene.accept(*ids, payload=b"x" * 1000)
    first = await work.fetch(scene.c, scene.queue, "w-1", want=40, lease_us=MINUTE_US, bytes_max=2500)
    assert 3 <= len(first) < 40
    assert len(await pending_of(scene.c, scene.queue, "w-1")) == len(first)
    rest = await scene.fetch("w-2", want=40)
    assert [d.id for d in first + rest] == ids


async def test_a_request_larger_than_the_budget_is_delivered_alone(scene: Scene) -> None:
    """The budget must not make a large request wait for ever."""
    await scene.accept("large", payload=b"x" * 10_000)
    (delivery,) = await work.fetch(scene.c, scene.queue, "w-1", want=4, lease_us=MINUTE_US, bytes_max=100)
    assert delivery.id == "large"


async def test_a_blocking_read_is_followed_by_a_fetch_that_fills_up_around_it(scene: Scene) -> None:
    """An idle worker is woken with one entry; the fetch that follows starts it, and takes what else there is."""
    await scene.accept("a", "b", "c", "d")
    given = await scene.block()
    assert [e.request_id for e in given] == ["a"]
    assert await scene.state("a") == "QUEUED"
    delivered = await scene.start(given, want=3)
    assert [d.id for d in delivered] == ["a", "b", "c"]
    assert {d.attempt for d in delivered} == {1}
    assert (delivered[0].traceparent, delivered[0].sent_ns, delivered[0].payload) == (TRACE, 42, b"payload of a")
    assert await scene.states("a", "b", "c", "d") == ["RUNNING"] * 3 + ["QUEUED"]


@pytest.mark.parametrize("end", ["cancelled", "expired", "answered by a zombie", "forgotten"])
async def test_a_given_entry_that_has_ended_meanwhile_is_dropped(scene: Scene, end: str) -> None:
    """Between delivery and start anything may happen: it does not run then, and nothing of it stays pending."""
    await scene.accept("a")
    zombies = await scene.fetch("zombie")
    await scene.release("zombie", *zombies)
    await scene.accept("b")
    given = await scene.block()
    assert [e.request_id for e in given] == ["a", "b"]
    if end == "expired":
        await scene.pass_deadline("a")
        await scene.tick()
    elif end == "answered by a zombie":
        await scene.complete(*zombies)
    else:
        await requests.cancel(scene.c, scene.queue, ["a"])
    if end == "forgotten":
        await requests.forget(scene.c, scene.queue, scene.gateway, ["a"])
    assert [d.id for d in await scene.start(given)] == ["b"]
    await scene.tick()
    assert len(await pending_of(scene.c, scene.queue, "w-1")) == 1


async def test_an_entry_without_a_record_is_dropped_when_met(scene: Scene) -> None:
    """The record is the truth: an entry that an operator or a failover left alone wakes a reader, and no more."""
    await scene.accept("a", "b")
    await requests.forget(scene.c, scene.queue, scene.gateway, ["a"])
    (delivery,) = await scene.fetch()
    assert delivery.id == "b"
    await scene.complete(delivery)
    await scene.pass_deadline("a")
    await scene.tick()
    assert await leftovers(scene.c, scene.queue) == []
    assert await pending_of(scene.c, scene.queue, "w-1") == []


async def test_an_idle_worker_is_woken_by_a_request_of_any_of_its_queues(
    scene: Scene, redis_server: EmbeddedRedis
) -> None:
    """One blocking read covers all models that a worker serves."""
    other = Scene(scene.c, Queue("bert", "1"))
    await other.open()
    async with Connection(redis_server.url, "blocking") as blocking:
        await soon(blocking.wait_connected())
        reading = asyncio.create_task(
            work.wait_for_entries(blocking, [scene.queue, other.queue], "w-1", block_ms=20_000)
        )
        await eventually(lambda: blocked(scene.c), "the worker blocks")
        await other.accept("a")
        found = await soon(reading)
    assert [(queue, [e.request_id for e in entries]) for queue, entries in found.items()] == [(other.queue, ["a"])]


async def test_a_busy_worker_hears_the_bell_and_takes_nothing(scene: Scene, redis_server: EmbeddedRedis) -> None:
    """Who has work already only listens, so that an idle worker goes first."""
    async with Connection(redis_server.url, "bell") as bell:
        await soon(bell.wait_connected())
        ringing = asyncio.create_task(work.ring(bell, [scene.queue], "busy", block_ms=20_000, listen=True, controls={}))
        await eventually(lambda: blocked(scene.c), "the worker listens")
        await scene.accept("a")
        assert await soon(ringing) == ([], True)
    assert [d.id for d in await scene.fetch("idle")] == ["a"]


async def test_a_blocked_reader_can_be_let_go(scene: Scene, redis_server: EmbeddedRedis) -> None:
    """A worker that stops does not wait for its own blocking read, and no entry is lost to it."""
    async with Connection(redis_server.url, "blocking") as blocking:
        await soon(blocking.wait_connected())
        reading = asyncio.create_task(work.wait_for_entries(blocking, [scene.queue], "w-1", block_ms=20_000))
        await eventually(lambda: blocked(scene.c), "the worker blocks")
        await scene.c.call("CLIENT", "UNBLOCK", blocking.client_id)
        assert await soon(reading) == {}
    await scene.accept("a")
    assert [d.id for d in await scene.fetch("w-2")] == ["a"]


async def test_a_read_with_nothing_to_read_ends_in_time(scene: Scene) -> None:
    """Blocking is bounded."""
    assert await scene.block() == []
    for listen in (True, False):
        assert await work.ring(scene.c, [scene.queue], "w-1", block_ms=1, listen=listen, controls={}) == ([], False)
