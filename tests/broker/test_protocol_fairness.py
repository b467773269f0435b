"""Whose turn it is: tenants share a backlog by weight, priorities go first without starving the rest."""

from support.audit import leftovers
from support.scene import Scene

from shared.broker.scripts import LOWER_TURN, READY_MAX
from shared.keys import HIGH, LOW, NORMAL

# -- the waiting room --------------------------------------------------------------------------------------------------


async def served(scene: Scene, worker: str = "w-1", *, want: int = 64) -> list[str]:
    """Ids in the order in which a worker gets and answers them, until there are none."""
    order = []
    while delivered := await scene.fetch(worker, want=want):
        order += [d.id for d in delivered]
        await scene.complete(*delivered)
    return order


async def backlog(scene: Scene, tenant: str, count: int, **more: float) -> list[str]:
    ids = [f"{tenant}-{i}" for i in range(count)]
    for i in range(0, count, 500):
        assert {status for status, _ in await scene.accept(*ids[i : i + 500], tenant=tenant, **more)} == {"OK"}
    return ids


async def test_tenants_take_turns_by_weight_however_long_their_queues_are(scene: Scene) -> None:
    """A has 1000 waiting, B 20, C 40 with weight 2: once the backlog begins the order is A B C C."""
    a = await backlog(scene, "A", READY_MAX + 1000)
    b = await backlog(scene, "B", 20)
    c = await backlog(scene, "C", 40, weight=2)
    assert await scene.states(a[0], a[-1], b[0], c[0]) == ["QUEUED", "WAITING", "WAITING", "WAITING"]
    order = await served(scene)
    assert order[:READY_MAX] == a[:READY_MAX]
    turns = "".join(rid[0] for rid in order[READY_MAX:])
    assert turns == "ABCC" * 20 + "A" * 980
    assert [rid for rid in order if rid[0] == "A"] == a
    assert [rid for rid in order if rid[0] == "B"] == b
    assert [rid for rid in order if rid[0] == "C"] == c
    assert await leftovers(scene.c, scene.queue) == []


async def test_without_a_backlog_the_order_is_that_of_arrival(scene: Scene) -> None:
    """Nobody waits for turns while the workers keep up."""
    ids = [f"r-{i}" for i in range(READY_MAX)]
    for i, rid in enumerate(ids):
        await scene.accept(rid, tenant="ABC"[i % 3], weight=1 + i % 3)
    assert set(await scene.states(*ids)) == {"QUEUED"}
    assert await served(scene) == ids


async def test_a_tenant_that_comes_late_gets_its_turn_and_not_its_past(scene: Scene) -> None:
    """It begins where the others are now: time in which it asked for nothing is not owed to it."""
    await backlog(scene, "A", READY_MAX + 300)
    await scene.complete(*await scene.fetch(want=READY_MAX))
    await scene.complete(*await scene.fetch(want=100))
    await backlog(scene, "B", 20)
    ahead = 300 + READY_MAX - READY_MAX - 100
    turns = "".join(rid[0] for rid in await served(scene))
    assert turns.index("B") <= READY_MAX + 2
    assert turns.count("A") == ahead
    from_b_on = turns[turns.index("B") :]
    assert from_b_on.startswith("BA" * 15)


async def test_a_backlog_of_one_priority_does_not_hold_up_another(scene: Scene) -> None:
    """Each priority has a waiting room of its own."""
    await backlog(scene, "A", READY_MAX + 50)
    await scene.accept("urgent", tenant="A", priority=HIGH)
    assert await scene.states("urgent", f"A-{READY_MAX}") == ["QUEUED", "WAITING"]
    (first,) = await scene.fetch(want=1)
    assert first.id == "urgent"


async def test_who_waits_can_be_cancelled_and_expires(scene: Scene) -> None:
    """Their places are gone at once, in the lists, the ring and the counters."""
    ids = await backlog(scene, "A", READY_MAX + 4)
    cancelled, expired, withdrawn, stays = ids[READY_MAX:]
    assert await scene.accept(stays) == [("DUP", "WAITING")]
    assert await scene.cancel(cancelled) == ["WAITING"]
    assert await scene.cancel(withdrawn, expired=True) == ["WAITING"]
    await scene.pass_deadline(expired)
    assert (await scene.tick()).overdue == (expired,)
    left = [*ids[:READY_MAX], stays]
    assert await scene.counted() == {"l2": len(left), "t:A": len(left), "b": sum(len(f"payload of {i}") for i in left)}
    assert await served(scene) == left
    assert await scene.rung() == [expired, *left]
    assert await leftovers(scene.c, scene.queue) == []


async def test_no_worker_is_idle_while_somebody_waits(scene: Scene) -> None:
    """Whatever leaves the lane, those who wait move up within the same call: a blocking read always finds something."""
    ids = await backlog(scene, "A", 6 * READY_MAX)

    async def ready() -> int:
        return READY_MAX if await scene.block("idle") else 0

    await scene.fetch(want=3 * READY_MAX)
    assert await ready(), "a worker took more at once than the lane holds"
    await scene.cancel(*ids[3 * READY_MAX + 1 : 5 * READY_MAX])
    assert await ready(), "all that was ready was cancelled"
    await scene.cancel(*ids)
    await scene.accept("new", tenant="B")
    assert await scene.state("new") == "QUEUED", "nobody waits any more, so nobody stands before it"
    assert [e.request_id for e in await scene.block("idle")] == ["new"]


async def test_a_worker_that_stays_away_leaves_the_backlog_in_order(scene: Scene) -> None:
    """The tick moves up as many as a lane holds, and no more; the rest goes on to wait."""
    ids = await backlog(scene, "A", READY_MAX + 10)
    await scene.cancel(*ids[:5])
    for _ in range(3):
        await scene.tick()
    assert (await scene.states(*ids)).count("QUEUED") == READY_MAX
    assert await served(scene) == ids[5:]


# -- priorities --------------------------------------------------------------------------------------------------------


async def lane_of_each(scene: Scene, count: int, *, want: int) -> list[int]:
    """Which lanes the next deliveries come from."""
    lanes: list[int] = []
    while len(lanes) < count:
        delivered = await scene.fetch(want=want)
        lanes += [int(d.lane[-1]) for d in delivered]
        await scene.complete(*delivered)
    return lanes[:count]


async def mixed(scene: Scene, *priorities: int, count: int = 100) -> None:
    for priority in priorities:
        await scene.accept(*(f"{priority}-{i}" for i in range(count)), priority=priority)


async def test_high_goes_first_and_the_lowest_gets_one_turn_in_eight(scene: Scene) -> None:
    """With one slot and with many, high priority first, and nobody is starved (row 11: streaq #65)."""
    for want in (1, 8, 32):
        await mixed(scene, LOW, HIGH)
        lanes = await lane_of_each(scene, 64, want=want)
        assert lanes[: LOWER_TURN - 1] == [HIGH] * (LOWER_TURN - 1)
        assert lanes.count(LOW) == 64 // LOWER_TURN
        await scene.cancel(*(f"{p}-{i}" for p in (LOW, HIGH) for i in range(100)))
        await scene.c.call("FLUSHALL")
        await scene.open()


async def test_the_lanes_below_take_turns_so_that_none_overtakes_a_better_one(scene: Scene) -> None:
    """Under a stream of high priority, normal requests once got nothing while low ones got an eighth."""
    await mixed(scene, HIGH, NORMAL, LOW)
    lanes = await lane_of_each(scene, 96, want=4)
    assert [lanes.count(p) for p in (HIGH, NORMAL, LOW)] == [84, 6, 6]


async def test_one_priority_alone_is_served_in_order(scene: Scene) -> None:
    """Nobody gives way when there is nobody to give way to."""
    await scene.accept(*(f"r-{i}" for i in range(50)), priority=LOW)
    assert await served(scene, want=3) == [f"r-{i}" for i in range(50)]


async def test_what_is_tried_again_goes_before_all_priorities(scene: Scene) -> None:
    """It has waited already."""
    await scene.accept("again", priority=LOW)
    await scene.release("w-1", *await scene.fetch("w-1"))
    await scene.accept("urgent", priority=HIGH)
    assert [d.id for d in await scene.fetch("w-2", want=2)] == ["again", "urgent"]


async def test_a_blocked_worker_hears_of_every_priority(scene: Scene) -> None:
    """Its taking read covers all lanes but that of the suspects."""
    for priority in (LOW, NORMAL, HIGH):
        await scene.accept(f"p-{priority}", priority=priority)
    given = await scene.block()
    assert [e.request_id for e in given] == ["p-1", "p-2", "p-3"]
    assert [(d.id, d.payload) for d in await scene.start(given)] == [
        (rid, f"payload of {rid}".encode()) for rid in ("p-1", "p-2", "p-3")
    ]
