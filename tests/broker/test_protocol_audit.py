"""What an operator's hand or lost data leaves behind: nothing that lives is lost sight of, nothing runs for nobody."""

import pytest
from support.audit import disorder, leftovers, snapshot
from support.scene import TRACE, Scene

from shared import wire
from shared.broker import housekeeping, requests, work
from shared.broker.requests import Job
from shared.broker.scripts import READY_MAX
from shared.keys import GROUP, NORMAL

# -- the audit ---------------------------------------------------------------------------------------------------------


async def answered(scene: Scene) -> list[str]:
    """Who is served when the workers have done all there is to do, in any order."""
    ids = []
    await scene.beat("w-9")
    while deliveries := await scene.fetch("w-9") or await scene.fetch_alone("w-9"):
        assert set(await scene.complete(*deliveries)) == {"OK"}
        ids += [d.id for d in deliveries]
    return sorted(ids)


async def test_a_queue_in_good_order_is_left_alone(scene: Scene) -> None:
    """In every state a request can be in, given to a worker or not, the audit changes nothing."""
    await scene.accept("suspect", "delayed", "running", "released", "given")
    suspect, delayed, _, released = await scene.fetch("w-1", want=4)
    await scene.retry(delayed)
    await scene.release("w-1", released)
    await scene.block("w-2")
    await scene.beat("w-2")
    await scene.fetch("w-3", want=1)
    await scene.crash("w-1", suspect)
    await scene.accept(*(f"r-{i}" for i in range(READY_MAX + 5)), tenant="T")
    assert set(await scene.states("suspect", "delayed", f"r-{READY_MAX + 4}")) == {"QUEUED", "DELAYED", "WAITING"}
    before = await snapshot(scene.c)
    assert await scene.audit() == []
    assert await snapshot(scene.c) == before


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "given"])
async def test_a_deleted_entry_comes_back(scene: Scene, state: str) -> None:
    """XDEL on a lane: the request is enqueued again, with the trace that its record knows."""
    await scene.accept("a", "b")
    if state == "RUNNING":
        await scene.fetch("w-1")
    elif state == "given":
        await scene.block("w-1")
    (entry_id,) = await scene.of_record("a", "sid")
    await scene.c.call("XDEL", scene.queue.lanes[NORMAL], entry_id)
    if state == "RUNNING":  # a delivered entry may be answered without being there: only its list matters
        assert await scene.audit() == []
        await scene.c.call("XACK", scene.queue.lanes[NORMAL], GROUP, entry_id)
    assert await scene.audit() == ["a"]
    assert await disorder(scene.c) == []
    (a,) = await scene.fetch("w-2", want=1)
    assert (a.id, a.traceparent, a.payload) == ("a", TRACE, b"payload of a")
    assert (a.schema, a.content_type) == (wire.SCHEMA_VERSION, wire.CONTENT_TYPE)
    await scene.complete(a)
    await scene.die("w-1")
    await scene.tick()
    assert await answered(scene) == ["b"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_deleted_lane_comes_back_with_all_that_was_in_it(scene: Scene) -> None:
    """DEL on a lane takes the group along, and what it had given out."""
    await scene.accept("a", "b", "c")
    (a,) = await scene.fetch("w-1", want=1)
    await scene.c.call("DEL", scene.queue.lanes[NORMAL])
    assert await scene.audit() == ["a", "b", "c"]
    assert await scene.complete(a) == ["OK"], "it had been computed after all"
    assert await answered(scene) == ["b", "c"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_destroyed_group_loses_nothing(scene: Scene) -> None:
    """XGROUP DESTROY: what was running is enqueued again, what was queued is still there; all keep their headers."""
    await scene.accept("a", "b")
    await scene.fetch("w-1", want=1)
    await scene.c.call("XGROUP", "DESTROY", scene.queue.lanes[NORMAL], GROUP)
    assert await scene.audit() == ["a"]
    delivered = [*await scene.fetch("w-2"), *await scene.fetch("w-2")]
    assert [(d.id, d.attempt, d.tracestate) for d in delivered] == [("a", 2, "vendor=1"), ("b", 1, "vendor=1")]
    await scene.complete(*delivered)
    assert await leftovers(scene.c, scene.queue) == []


@pytest.mark.parametrize("started", [True, False])
async def test_a_deleted_consumer_loses_nothing(scene: Scene, started: bool) -> None:
    """XGROUP DELCONSUMER forgets in silence what it had: the entry is there, and would never be delivered again."""
    await scene.accept("a", "b")
    given = await scene.block("w-1")
    if started:
        await scene.start(given)
    await scene.c.call("XGROUP", "DELCONSUMER", scene.queue.lanes[NORMAL], GROUP, "w-1")
    assert await scene.audit() == ["a"]
    assert await answered(scene) == ["a", "b"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_deleted_delays_come_back_at_once(scene: Scene) -> None:
    """When they were due is not known any more; their headers are."""
    await scene.accept("a")
    await scene.retry(*await scene.fetch())
    await scene.c.call("DEL", f"{scene.queue.tag}:delay")
    assert await scene.audit() == ["a"]
    (a,) = await scene.fetch("w-2")
    assert (a.id, a.attempt, a.tracestate) == ("a", 2, "vendor=1")


async def test_those_who_waited_in_a_deleted_ring_come_back(scene: Scene) -> None:
    """Without a ring nobody would ever call them."""
    ids = [f"r-{i}" for i in range(READY_MAX + 3)]
    await scene.accept(*ids, tenant="T")
    await scene.c.call("DEL", f"{scene.queue.tag}:ring:{NORMAL}")
    assert await scene.audit() == ids[READY_MAX:]
    assert await answered(scene) == sorted(ids)
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_suspect_that_was_lost_sight_of_is_still_one(scene: Scene) -> None:
    """Also after an accident of the queue it runs alone."""
    await scene.accept("a")
    await scene.crash("w-1", *await scene.fetch("w-1"))
    await scene.c.call("DEL", scene.queue.suspects)
    assert await scene.audit() == ["a"]
    assert await scene.fetch("w-2") == []
    assert (await scene.beat("w-2")).alone
    await work.ensure_groups(scene.c, scene.queue)
    assert [d.id for d in await scene.fetch_alone("w-2")] == ["a"]


async def test_the_audit_sees_everybody_slice_by_slice(scene: Scene) -> None:
    """Each call is short, and the last one says so."""
    ids = [f"r-{i:02}" for i in range(25)]
    await scene.accept(*ids)
    await scene.c.call("DEL", scene.queue.lanes[NORMAL])
    seen, start = [], 0
    for expected in (10, 20, 0):
        start, mended = await housekeeping.audit(scene.c, scene.queue, start=start, limit=10)
        seen += mended
        assert start == expected
    assert seen == ids
    assert await scene.audit() == []


async def test_what_a_worker_said_after_it_was_given_up_is_forgotten(scene: Scene) -> None:
    """A name is used once: notes of one that never came back would stay for ever."""
    await scene.accept("a")
    (a,) = await scene.fetch("w-1")
    await scene.die("w-1")
    await scene.tick()
    await scene.compute("w-1", a)
    await scene.fetch("w-2")
    await scene.compute("w-2")
    await scene.audit()
    assert await scene.c.call("HKEYS", scene.queue.running) == [b"w-2"]


# -- requests of a gateway that is gone --------------------------------------------------------------------------------


async def test_a_request_whose_gateway_is_gone_is_not_run(scene: Scene) -> None:
    """Nobody would get the answer: it is dropped where a worker meets it, counted, and leaves nothing."""
    await scene.accept("orphan", "also", gateway="gone")
    await scene.accept("a")
    await scene.c.call("DEL", scene.queue.replies("gone"))
    assert [d.id for d in await scene.fetch()] == ["a"]
    assert await scene.states("orphan", "also") == ["GONE", "GONE"]
    assert (await requests.counters(scene.c, scene.queue))["orphan_count"] == 2
    assert await scene.c.call("EXISTS", scene.queue.payload("orphan")) == 0


async def test_an_orphan_is_not_started_by_whom_it_was_delivered_to(scene: Scene) -> None:
    """The same between a blocking read and the start; and in the waiting room."""
    ids = [f"r-{i}" for i in range(READY_MAX + 5)]
    await scene.accept(*ids, gateway="gone")
    given = await scene.block()
    await scene.c.call("DEL", scene.queue.replies("gone"))
    assert await scene.start(given, want=len(ids)) == []
    assert await scene.fetch(want=len(ids)) == []
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_gateway_that_was_only_frozen_asks_again(scene: Scene) -> None:
    """Its stream ran out and its requests were dropped; it finds them gone, hands them over again, and gets answers."""
    await scene.accept("a", gateway="frozen")
    await scene.c.call("DEL", scene.queue.replies("frozen"))
    assert await scene.fetch() == []
    assert await scene.state("a") == "GONE"
    assert (await scene.accept("a", gateway="frozen"))[0][0] == "OK"
    await scene.complete(*await scene.fetch())
    assert await scene.rung("frozen") == ["a"]


async def test_a_gateway_whose_stream_is_not_there_yet_is_not_dead(scene: Scene) -> None:
    """Handing over opens the stream: the first request of a queue once raced the listening."""
    await scene.accept("a", gateway="new")
    assert 0 < await scene.c.call("PTTL", scene.queue.replies("new")) <= requests.REPLY_STREAM_TTL_MS
    await scene.complete(*await scene.fetch())
    assert await scene.rung("new") == ["a"]


async def test_an_answer_whose_payload_is_gone_goes_too(scene: Scene) -> None:
    """The answer takes the payload's place and its time to live; once, without a payload, it stayed for ever."""
    await scene.accept("a")
    await scene.accept("job", job=Job(ttl_ms=1000))
    delivered = await scene.fetch()
    await scene.c.call("DEL", scene.queue.payload("a"), scene.queue.payload("job"))
    await scene.complete(*delivered)
    assert await scene.rung() == ["a"]
    assert await leftovers(scene.c, scene.queue) == []
