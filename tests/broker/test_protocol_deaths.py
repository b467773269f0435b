"""Workers die, freeze and come back, leaders change, and Redis itself stands still or is wiped: no request is lost."""

from pathlib import Path

from support.audit import leftovers, pending_of
from support.scene import MINUTE_US, TRACE, Scene, verdict

from shared.broker import housekeeping, requests, work
from shared.broker.connection import Connection
from shared.broker.housekeeping import TICK_LIMIT
from shared.broker.work import Beat
from shared.errors import ErrorKind
from shared.keys import GROUP, LOW, NORMAL, Queue
from shared.process import begin
from shared.settings import CommonSettings

# -- leases and deaths -------------------------------------------------------------------------------------------------


async def test_a_beat_tells_what_is_not_ours_any_more(scene: Scene) -> None:
    """Ended, cancelled, unknown, or run by another one: the worker need not compute it."""
    await scene.accept("mine", "ended", "cancelled")
    mine, ended, cancelled = await scene.fetch("w-1")
    await scene.accept("others")
    (others,) = await scene.fetch("w-2")
    await scene.complete(ended)
    await requests.cancel(scene.c, scene.queue, ["cancelled"])
    held = [(d.id, d.attempt) for d in (mine, ended, cancelled, others)]
    held += [("mine", 2), ("nobody", 1)]
    assert await work.beat(scene.c, scene.queue, "w-1", held, lease_us=MINUTE_US) == Beat(
        live=True, alone=False, ended=["ended", "cancelled", "others", "mine", "nobody"]
    )


async def test_work_of_a_dead_worker_is_handed_on(scene: Scene) -> None:
    """With its headers, as a new attempt, at once, and it is answered once, however far its deadline is
    (row 15: saq #127; row 17: arq #343, #407)."""
    await scene.accept("a", "running")
    first, running = await scene.fetch("w-1")
    tick = await scene.crash("w-1", running)
    assert (tick.requeued, tick.suspects, tick.dead, tick.lost) == (("a",), ("running",), (), ("w-1",))
    await scene.cancel("running")
    assert await scene.state("a") == "QUEUED"
    for lane in (*scene.queue.lanes, scene.queue.suspects):
        assert await scene.c.call("XINFO", "CONSUMERS", lane, GROUP) == [], "its name is forgotten"
    (second,) = await scene.fetch("w-2")
    assert (second.id, second.attempt, second.payload) == ("a", 2, first.payload)
    assert (second.traceparent, second.tracestate, second.sent_ns) == (TRACE, "vendor=1", 42)
    assert (second.schema, second.content_type, second.gateway) == (first.schema, first.content_type, first.gateway)
    assert second.lost_us > 0
    assert second.waited_us >= second.lost_us
    assert await scene.depth() == 1
    assert await scene.complete(second) == ["OK"]
    assert await scene.complete(first) == ["STALE"]
    assert await scene.rung() == ["a"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_worker_that_lives_keeps_its_work(scene: Scene) -> None:
    """Ticks take nothing from those whose lease is alive, however often they come and however long they hold it: idle
    time is no sign of death (row 5: redis #13956)."""
    await scene.accept("a", "b")
    held = await scene.fetch("w-1", want=1)
    given = await scene.block("w-1")
    for entry_id in (held[0].entry_id, given[0].id):
        await scene.c.call("XCLAIM", given[0].lane, GROUP, "w-1", 0, entry_id, "IDLE", 3_600_000, "JUSTID")
    for _ in range(3):
        tick = await scene.tick()
        assert (tick.requeued, tick.suspects, tick.dead, tick.lost) == ((), (), (), ())
    assert await scene.complete(*held) == ["OK"]
    assert [d.attempt for d in await scene.start(given)] == [1]


async def test_what_a_worker_never_started_is_not_counted_as_an_attempt(scene: Scene) -> None:
    """It died between the blocking read and the start: the request is as good as new (row 14: saq #277)."""
    await scene.fetch("w-1")
    await scene.accept("a")
    given = await scene.block("w-1")
    await scene.die("w-1")
    assert (await scene.tick()).requeued == ("a",)
    (delivery,) = await scene.fetch("w-2")
    assert (delivery.id, delivery.attempt) == ("a", 1)
    assert delivery.lost_us > 0, "but the time it lay with the dead worker is known, for the ledger"
    assert await scene.start(given, "w-1") == []
    assert await scene.complete(delivery) == ["OK"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_an_entry_delivered_to_a_worker_without_a_lease_is_handed_on(scene: Scene) -> None:
    """Redis gives entries to a blocked reader whether or not it lives: a worker that had been given up for dead, or
    died before its first beat, once kept such an entry until its deadline."""
    await scene.accept("a")
    await scene.block("frozen")
    first = await scene.tick()
    assert first.requeued == (), "it may be about to start it: it gets a lease, as everybody who holds something"
    assert await scene.c.call("ZSCORE", scene.queue.leases, "frozen") is not None
    await scene.die("frozen")
    assert (await scene.tick()).requeued == ("a",)
    assert [d.id for d in await scene.fetch("w-2")] == ["a"]


async def test_a_request_that_kills_its_workers_is_given_up(scene: Scene) -> None:
    """After so many crashes, the later ones alone, it ends as crashed, and takes no further worker with it."""
    await scene.accept("poison")
    for attempt in range(1, housekeeping.CRASHES_MAX + 1):
        worker = f"w-{attempt}"
        assert (await scene.beat(worker)).alone == (attempt > 1)
        (delivery,) = await (scene.fetch(worker) if attempt == 1 else scene.fetch_alone(worker))
        assert delivery.attempt == attempt
        tick = await scene.crash(worker, delivery)
    assert (tick.requeued, tick.suspects, tick.dead) == ((), (), ("poison",))
    ((rid, answer),) = (await scene.replies())[0]
    assert (rid, verdict(answer)) == ("poison", ErrorKind.CRASHED)
    assert await requests.peek(scene.c, scene.queue, ["poison"]) == [("DEAD", answer)]
    assert not (await scene.beat("w-4")).alone
    assert await scene.fetch("w-4") == await scene.fetch_alone("w-4") == []
    assert await scene.complete(delivery) == ["STALE"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_the_first_result_wins_until_the_restart(scene: Scene) -> None:
    """A worker that was only slow answers a request that nobody has started again: good, it need not run twice."""
    await scene.accept("a")
    (slow,) = await scene.fetch("slow")
    await scene.die("slow")
    await scene.tick()
    assert (await scene.beat("w-2")).alone
    assert await scene.complete(slow) == ["OK"]
    assert await scene.fetch_alone("w-2") == []
    assert await scene.rung() == ["a"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_after_the_restart_the_zombie_is_stale(scene: Scene) -> None:
    """The attempt number fences: an answer counts only for the attempt that runs now."""
    await scene.accept("a")
    (slow,) = await scene.fetch("slow")
    await scene.die("slow")
    await scene.tick()
    await scene.beat("w-2")
    (second,) = await scene.fetch_alone("w-2")
    assert await scene.complete(slow, answer=b"=zombie") == ["STALE"]
    assert await scene.beat("slow", slow) == Beat(live=False, alone=False, ended=["a"])
    assert await scene.complete(second, answer=b"=second") == ["OK"]
    assert await scene.replies() == [[("a", b"=second")]]
    assert await leftovers(scene.c, scene.queue) == []


async def test_only_the_entry_that_stands_for_a_request_starts_it(scene: Scene) -> None:
    """Handed on twice, it has had three entries: whoever still holds an old one starts nothing."""
    await scene.accept("a")
    given = {}
    for worker in ("w-1", "w-2", "w-3"):
        given[worker] = await scene.block(worker)
        if worker != "w-3":
            await scene.die(worker)
            await scene.tick()
    for worker, attempts in (("w-1", []), ("w-2", []), ("w-3", [1])):
        assert [d.attempt for d in await scene.start(given[worker], worker)] == attempts
    assert await scene.depth() == 1


async def test_a_pass_may_be_longer_than_the_lease(scene: Scene) -> None:
    """Beats renew it as often as they come: ten leases long, nothing is handed on (row 7: docket #250)."""
    await scene.accept("a")
    (a,) = await scene.fetch("w-1")
    for _ in range(10):
        await scene.die("w-1")
        assert await scene.beat("w-1", a) == Beat(live=True, alone=False, ended=[]), "just in time"
        tick = await scene.tick()
        assert (tick.requeued, tick.suspects, tick.lost) == ((), (), ())
    assert await scene.complete(a) == ["OK"]


def test_a_process_started_again_has_another_name(tmp_path: Path) -> None:
    """On the same host with the same pid, too: a name is used once (row 39: oban #862)."""
    names = set()
    for _ in range(3):
        name, log = begin("worker", CommonSettings(log_dir=str(tmp_path)))
        log.close("test")
        names.add(name)
    assert len(names) == 3


async def test_a_worker_started_again_does_not_hide_what_its_predecessor_held(scene: Scene) -> None:
    """Each has a name of its own, so the old one is missed though its successor beats (row 39: oban #862)."""
    old, new = "host-7-one", "host-7-other"
    await scene.accept("a", "b")
    await scene.fetch(old, want=1)
    await scene.die(old)
    await scene.fetch(new, want=1)
    tick = await scene.tick()
    assert (tick.lost, tick.suspects) == ((old,), ("a",))
    assert await scene.state("b") == "RUNNING"


async def test_an_answer_and_the_reaper_leave_one_verdict_whoever_comes_first(scene: Scene) -> None:
    """Reading and writing are one script: what was answered is not handed on (row 36: river #1302)."""
    await scene.accept("first", "second")
    first, second = await scene.fetch("w-1")
    await scene.die("w-1")
    assert await scene.complete(first) == ["OK"]
    tick = await scene.tick()
    assert tick.suspects == ("second",)
    assert await scene.complete(second) == ["OK"]
    assert await scene.states("first", "second") == ["DONE", "DONE"]
    assert await scene.rung() == ["first", "second"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_late_beat_says_that_the_lease_was_lost(scene: Scene) -> None:
    """A worker that was given up learns it once, and is back at work with the same beat."""
    await scene.accept("a")
    (a,) = await scene.fetch("w-1")
    await scene.die("w-1")
    await scene.tick()
    assert await scene.beat("w-1", a) == Beat(live=False, alone=True, ended=["a"])
    assert await scene.beat("w-1") == Beat(live=True, alone=True, ended=[])
    assert [d.attempt for d in await scene.fetch_alone("w-1")] == [2]


async def test_a_worker_that_held_much_is_taken_apart_in_portions(scene: Scene) -> None:
    """Its name stays known until the last entry is handed on, and it is reported once."""
    ids = [f"r-{i}" for i in range(2 * TICK_LIMIT + 50)]
    await scene.accept(*ids)
    first, *_ = await scene.fetch("w-1", want=len(ids))
    await scene.compute("w-1", first)
    await scene.complete(first)
    await scene.accept(first.id + "-again")
    await scene.compute("w-1", *await scene.fetch("w-1", want=1))
    await scene.die("w-1")
    ticks = [await scene.tick() for _ in range(4)]
    assert [len(t.requeued) + len(t.suspects) for t in ticks] == [
        TICK_LIMIT,
        TICK_LIMIT,
        50,
        0,
    ]
    assert [t.lost for t in ticks] == [(), (), ("w-1",), ()]
    assert [rid for t in ticks for rid in t.suspects] == [first.id + "-again"], "also when its turn comes last"
    assert [d.id for d in await scene.fetch("w-2", want=len(ids))] == ids[1:]


async def test_many_workers_may_die_at_once(scene: Scene) -> None:
    """A lost rack is handed on within a few ticks."""
    workers = [f"w-{i}" for i in range(20)]
    await scene.accept(*workers)
    for worker in workers:
        await scene.block(worker)
        await scene.beat(worker)
        await scene.die(worker)
    ticks = [await scene.tick() for _ in range(4)]
    assert sorted(w for t in ticks for w in t.lost) == sorted(workers)
    assert len(await scene.fetch("survivor")) == 20


async def test_entries_that_an_operator_deleted_block_nothing(scene: Scene) -> None:
    """What cannot be handed on must not hold up what can (row 37: river #1318)."""
    ids = [f"r-{i}" for i in range(TICK_LIMIT + 1)]
    await scene.accept(*ids)
    held = await scene.fetch("w-1", want=len(ids))
    for d in held[:-1]:
        await scene.c.call("XDEL", d.lane, d.entry_id)
    tick = await scene.crash("w-1", held[0])
    assert (tick.requeued, tick.lost) == ((), ())
    assert (await scene.tick()).requeued == (ids[-1],)
    assert [d.id for d in await scene.fetch("w-2")] == [ids[-1]]
    await scene.cancel(*ids)


async def test_a_worker_that_leaves_is_forgotten(scene: Scene) -> None:
    """In good order nothing remains of it, and nothing has to run out first."""
    await scene.accept("a")
    await scene.complete(*await scene.fetch("w-1"))
    assert await work.leave(scene.c, scene.queue, "w-1") == 0
    assert await scene.c.call("ZCARD", scene.queue.leases) == 0
    for lane in scene.queue.lanes:
        assert await scene.c.call("XINFO", "CONSUMERS", lane, GROUP) == []


async def test_a_worker_that_leaves_with_its_hands_full_hands_over_at_the_next_tick(scene: Scene) -> None:
    """Its lease ends at once, so nobody waits for it to run out."""
    await scene.accept("a", "b")
    a, _ = await scene.fetch("w-1")
    await scene.compute("w-1", a)
    assert await work.leave(scene.c, scene.queue, "w-1") > 0
    tick = await scene.tick()
    assert (tick.requeued, tick.suspects) == (("b",), ("a",))
    assert [d.id for d in await scene.fetch("w-2")] == ["b"]


# -- the leader --------------------------------------------------------------------------------------------------------


async def test_one_process_leads(scene: Scene) -> None:
    """Everybody ticks, one works. Whether it is killed or just stops, its turn ends by itself, and another one takes
    over (row 2: taskiq-redis #131; row 4: taskiq-redis #87)."""
    await scene.accept_overdue("late")
    assert await housekeeping.tick(scene.c, scene.queue, "one", grace_us=MINUTE_US) is not None
    assert await housekeeping.tick(scene.c, scene.queue, "two", grace_us=MINUTE_US) is None
    await scene.c.call("PEXPIRE", scene.queue.leader, 100)
    assert await housekeeping.tick(scene.c, scene.queue, "one", grace_us=MINUTE_US) is not None
    assert housekeeping.LEADER_TTL_MS / 2 < await scene.c.call("PTTL", scene.queue.leader) <= housekeeping.LEADER_TTL_MS
    await scene.c.call("PEXPIRE", scene.queue.leader, 0)
    assert await housekeeping.tick(scene.c, scene.queue, "two", grace_us=MINUTE_US) is not None
    assert await housekeeping.tick(scene.c, scene.queue, "one", grace_us=MINUTE_US) is None


# -- a Redis that stood still, or lost everything ----------------------------------------------------------------------


async def test_nobody_is_dead_because_redis_stood_still(scene: Scene) -> None:
    """Lease clocks stop while Redis does: nobody could beat. A real death is still seen afterwards."""
    await scene.accept("a", "b")
    await scene.fetch("w-1", want=1)
    await scene.fetch("w-2", want=1)
    await scene.tick()
    # Redis was frozen for ten minutes: the leases ran out, and the last tick is long ago.
    await scene.die("w-1")
    await scene.die("w-2")
    last = int(await scene.c.call("GET", scene.queue.tick))
    await scene.c.call("SET", scene.queue.tick, last - 10 * MINUTE_US, "KEEPTTL")
    tick = await scene.tick()
    assert tick.stood_still_us >= 10 * MINUTE_US
    assert (tick.requeued, tick.suspects, tick.lost) == ((), (), ())
    assert await scene.states("a", "b") == ["RUNNING", "RUNNING"]
    tick = await scene.tick()
    assert (tick.stood_still_us, tick.requeued, tick.suspects) == (0, (), ())
    assert (await scene.beat("w-1")).live
    await scene.die("w-2")
    assert (await scene.tick()).lost == ("w-2",)


async def test_the_first_tick_of_all_is_no_standstill(scene: Scene) -> None:
    """A queue that was never ticked has no gap."""
    await scene.accept("a")
    await scene.fetch("w-1")
    await scene.die("w-1")
    tick = await scene.tick()
    assert (tick.stood_still_us, tick.suspects) == (0, ("a",))


async def test_a_wiped_redis_is_set_up_again_by_whoever_comes_first(scene: Scene) -> None:
    """FLUSHALL under load costs what it deleted, and no worker hangs or spins (row 20: faststream #2611,
    #2945, #3106)."""
    await scene.accept("lost")
    await scene.fetch("w-1")
    for look in (scene.fetch, scene.block, lambda: work.own_entries(scene.c, scene.queue, "w-1")):
        await scene.c.call("FLUSHALL")
        assert await look() == []
        await scene.accept("a")
        assert [d.id for d in await scene.fetch("w-2")] == ["a"]
    await scene.c.call("FLUSHALL")
    assert (await scene.tick()).requeued == ()
    assert await work.leave(scene.c, scene.queue, "w-1") == 0


async def test_a_wiped_redis_answers_late_calls_without_harm(scene: Scene) -> None:
    """Answers, beats and withdrawals for what is gone are told so, and create nothing."""
    await scene.accept("a")
    held = await scene.fetch("w-1")
    await scene.c.call("FLUSHALL")
    assert await scene.complete(*held) == ["GONE"]
    assert await requests.cancel(scene.c, scene.queue, ["a"]) == ["GONE"]
    assert await scene.retry(*held) == ["GONE"]
    assert await scene.release("w-1", *held) == 0
    assert await scene.c.call("DBSIZE") == 0
    assert await scene.beat("w-1", *held) == Beat(live=False, alone=False, ended=["a"])


async def test_a_group_destroyed_by_an_operator_comes_back_with_its_backlog(scene: Scene) -> None:
    """XGROUP DESTROY on a live lane: what is in the stream is delivered again, nothing is skipped."""
    await scene.accept("a", "b")
    await scene.fetch("w-1", want=1)
    await scene.c.call("XGROUP", "DESTROY", scene.queue.lanes[NORMAL], GROUP)
    assert await scene.block("w-2") == []
    delivered = await scene.fetch("w-2")
    assert [(d.id, d.attempt) for d in delivered] == [("a", 2), ("b", 1)]
    assert await scene.complete(*delivered) == ["OK", "OK"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_lane_that_vanished_takes_nothing_of_the_other_one_along(scene: Scene) -> None:
    """A fetch that met a missing lane once forgot what it had started in the lane before it."""
    await scene.accept("a", "b")
    await scene.release("w-1", *await scene.fetch("w-1"))
    await scene.accept("low", priority=LOW)
    await scene.c.call("DEL", scene.queue.lanes[LOW])
    await scene.c.call("XADD", scene.queue.lanes[LOW], "*", "r", "anybody")
    delivered = await scene.fetch("w-2")
    assert [(d.id, d.attempt) for d in delivered] == [("a", 2), ("b", 2)]
    assert await scene.fetch("w-2") == []
    await scene.accept("c")
    assert [d.id for d in await scene.fetch("w-2")] == ["c"]
    assert await scene.audit() == ["low"]


async def test_a_worker_sees_only_its_own_entries(connection: Connection) -> None:
    """What Redis holds for a worker, after a reply was lost, is what was delivered to it and has not ended."""
    scene = Scene(connection, Queue("bert", "3"))
    await scene.open()
    await scene.accept("a", "b", "c", "d")
    mine = await scene.fetch("w-1", want=2)
    await scene.fetch("w-2", want=1)
    await scene.complete(mine[0])
    assert [e.request_id for e in await work.own_entries(scene.c, scene.queue, "w-1")] == ["b"]
    assert len(await pending_of(scene.c, scene.queue, "w-1")) == 1
