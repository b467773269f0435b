"""Another try after a while, and what a worker hands back: a request has one entry at a time, and keeps its limits."""

import asyncio

import pytest
from support.audit import leftovers, snapshot
from support.scene import MINUTE_US, TRACE, Scene

from shared.broker.housekeeping import TICK_LIMIT
from shared.broker.work import ERRORS_MAX, Beat
from shared.keys import RETRY

# -- another try -------------------------------------------------------------------------------------------------------


async def entries(scene: Scene) -> int:
    """How many stream entries and delays there are."""
    lanes = [int(await scene.c.call("XLEN", lane)) for lane in (*scene.queue.lanes, scene.queue.suspects)]
    return sum(lanes) + int(await scene.c.call("ZCARD", f"{scene.queue.tag}:delay"))


async def test_a_delayed_request_runs_again_at_the_first_tick_after_its_delay(scene: Scene) -> None:
    """Not before; then first of all, with its headers, as a new attempt."""
    await scene.accept("a")
    (a,) = await scene.fetch("w-1")
    assert await scene.retry(a) == ["RETRY"]
    assert await scene.state("a") == "DELAYED"
    assert await scene.beat("w-1", a) == Beat(True, False, ["a"])
    assert (await scene.tick()).due == ()
    await scene.accept("b")
    assert [d.id for d in await scene.fetch("w-2")] == ["b"]
    assert (await scene.come_due("a")).due == ("a",)
    (again,) = await scene.fetch("w-2")
    assert (again.id, again.attempt, again.lane, again.payload) == ("a", 2, scene.queue.lanes[RETRY], a.payload)
    assert (again.traceparent, again.tracestate, again.sent_ns, again.gateway) == (TRACE, "vendor=1", 42, "gw-1")
    assert again.lost_us > 0
    assert await scene.complete(again) == ["OK"]
    assert await scene.complete(a) == ["STALE"]
    assert await scene.rung() == ["a"]


async def test_there_is_no_try_after_the_deadline(scene: Scene) -> None:
    """A delay that ends too late is not begun: the client hears of the failure now, and nothing is kept for it."""
    await scene.accept("a")
    (a,) = await scene.fetch()
    assert await scene.retry(a, delay_us=MINUTE_US + 1) == ["OK"]
    assert await scene.state("a") == "FAILED"
    assert await scene.replies() == [[("a", b"=error")]]
    assert await scene.letters() == []
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_deadline_ends_a_delay(scene: Scene) -> None:
    """What waits for its next try is overdue like everything else."""
    await scene.accept("a", "b")
    await scene.retry(*await scene.fetch())
    await scene.pass_deadline("a")
    assert (await scene.tick()).overdue == ("a",)
    assert await scene.cancel("b") == ["DELAYED"]
    assert await scene.rung() == ["a"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_the_last_failure_is_the_answer_and_a_dead_letter(scene: Scene) -> None:
    """After so many tries the client gets the error, and an operator the request."""
    await scene.accept("a")
    for attempt in range(1, ERRORS_MAX + 1):
        (a,) = await scene.fetch()
        assert a.attempt == attempt
        assert await scene.retry(a) == ["OK" if attempt == ERRORS_MAX else "RETRY"]
        await scene.come_due("a")
    assert await scene.state("a") == "FAILED"
    assert await scene.replies() == [[("a", b"=error")]]
    (letter,) = await scene.letters()
    assert (letter.id, letter.why, letter.errors, letter.attempts) == ("a", "errors", ERRORS_MAX, ERRORS_MAX)
    assert await scene.retry(a) == ["OKDUP"]
    assert len(await scene.letters()) == 1
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_try_that_is_asked_for_twice_counts_once(scene: Scene) -> None:
    """The worker does not know whether it was heard."""
    await scene.accept("a")
    (a,) = await scene.fetch()
    assert await scene.retry(a) == ["RETRY"]
    before = await snapshot(scene.c)
    assert await scene.retry(a, delay_us=5) == ["RETRY"]
    assert await snapshot(scene.c) == before
    assert await scene.of_record("a", "er") == ["1"]
    await scene.come_due("a")
    assert await scene.retry(a) == ["STALE"], "its time has come meanwhile"
    await scene.fetch("w-2")
    assert await scene.retry(a) == ["STALE"]
    assert await scene.of_record("a", "er") == ["1"]


async def test_a_retry_and_the_reaper_leave_one_entry_whoever_comes_first(scene: Scene) -> None:
    """Redelivered and retried at once, the request must not run twice (row 6: docket #245)."""
    await scene.accept("a", "b")
    a, b = await scene.fetch("w-1")
    await scene.retry(a)
    await scene.die("w-1")
    tick = await scene.tick()
    assert (tick.requeued, tick.suspects, tick.lost) == ((), ("b",), ("w-1",))
    assert await scene.retry(b) == ["STALE"]
    assert await scene.states("a", "b") == ["DELAYED", "QUEUED"]
    assert await entries(scene) == 2
    await scene.come_due("a")
    assert await entries(scene) == 2


@pytest.mark.parametrize("end", ["DONE", "FAILED", "CANCELLED"])
async def test_there_is_no_try_after_the_end(scene: Scene, end: str) -> None:
    """The first verdict stands; a failure that was handed in is the same verdict."""
    await scene.accept("a")
    (a,) = await scene.fetch()
    if end == "CANCELLED":
        await scene.cancel("a")
    else:
        await scene.complete(a, failed=end == "FAILED")
    assert await scene.retry(a) == ["OKDUP" if end == "FAILED" else "STALE"]
    assert await scene.state("a") == end
    assert await leftovers(scene.c, scene.queue) == []


async def test_what_waits_for_another_try_has_no_answer_yet(scene: Scene) -> None:
    """A late answer of the failed attempt is stale: there will be another attempt."""
    await scene.accept("a")
    (a,) = await scene.fetch()
    await scene.retry(a)
    assert await scene.complete(a) == ["STALE"]
    assert await scene.rung() == []


async def test_a_delay_longer_than_the_lease_is_one_delay(scene: Scene) -> None:
    """Delayed work is not held by anybody, so no lease can run out for it (row 31: kombu #337,
    celery #2599)."""
    await scene.accept("a", budget_us=10 * MINUTE_US)
    (a,) = await scene.fetch("w-1")
    await scene.retry(a, delay_us=5 * MINUTE_US)
    await scene.die("w-1")
    for _ in range(3):
        tick = await scene.tick()
        assert (tick.due, tick.requeued, tick.suspects) == ((), (), ())
    assert await scene.of_record("a", "a") == ["1"]
    assert await entries(scene) == 1


async def test_delays_that_end_together_are_moved_in_portions_each_once(scene: Scene) -> None:
    """Moved whole or not at all, by whoever leads (row 25: dramatiq #431)."""
    ids = [f"r-{i}" for i in range(TICK_LIMIT + 20)]
    await scene.accept(*ids)
    await scene.retry(*await scene.fetch(want=len(ids)))
    ticks = [await scene.come_due(*ids)]
    await scene.c.call("DEL", scene.queue.leader)
    ticks += [await scene.tick("another leader") for _ in range(2)]
    assert [len(t.due) for t in ticks] == [TICK_LIMIT, 20, 0]
    assert sorted(d.id for d in await scene.fetch(want=len(ids))) == sorted(ids)
    assert await entries(scene) == len(ids)


# -- handing back ------------------------------------------------------------------------------------------------------


async def test_what_is_handed_back_is_at_once_available_and_nothing_is_counted(scene: Scene) -> None:
    """A worker that stops gives back what it has not begun, and the next one begins (row 22: faststream #2462)."""
    await scene.accept("a", "b", "c")
    held = await scene.fetch("w-1", want=2)
    assert await scene.release("w-1", *held) == 2
    assert await scene.states("a", "b") == ["QUEUED", "QUEUED"]
    taken = await scene.fetch("w-2")
    assert [(d.id, d.attempt) for d in taken] == [("a", 2), ("b", 2), ("c", 1)]
    assert (taken[0].traceparent, taken[0].payload) == (TRACE, b"payload of a")
    assert await scene.of_record("a", "er", "cr", "lo") == ["", "", ""]


async def test_handing_back_twice_is_harmless(scene: Scene) -> None:
    """Repeated after a lost reply, or long afterwards: only what is still this worker's goes back."""
    await scene.accept("a")
    (a,) = await scene.fetch("w-1")
    assert await scene.release("w-1", a) == 1
    before = await snapshot(scene.c)
    assert await scene.release("w-1", a) == 0
    assert await snapshot(scene.c) == before
    (second,) = await scene.fetch("w-2")
    assert await scene.release("w-1", a) == await scene.release("w-1", second) == 0
    assert await scene.state("a") == "RUNNING"
    assert await entries(scene) == 1


async def test_what_has_ended_is_not_handed_back(scene: Scene) -> None:
    """Cancelled, answered or unknown: there is nothing to give."""
    await scene.accept("cancelled", "done", "delayed")
    cancelled, done, delayed = await scene.fetch("w-1")
    await scene.cancel("cancelled")
    await scene.complete(done)
    await scene.retry(delayed)
    assert await scene.release("w-1", cancelled, done, delayed) == 0
    assert await scene.states("cancelled", "done", "delayed") == ["CANCELLED", "DONE", "DELAYED"]


async def test_what_is_handed_back_may_still_be_answered_by_whom_had_it(scene: Scene) -> None:
    """Until somebody begins it again: it had been computed after all."""
    await scene.accept("a")
    (a,) = await scene.fetch("w-1")
    await scene.release("w-1", a)
    assert await scene.complete(a) == ["OK"]
    assert await scene.fetch("w-2") == []
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_reaped_request_is_started_once_however_many_want_it(scene: Scene) -> None:
    """Eight workers grab at what one left, a hundred times: each attempt has one owner (row 1: taskiq-redis #123)."""
    await scene.accept("a")
    attempts = []
    for _ in range(100):
        taken = await asyncio.gather(*(scene.fetch(f"w-{i}") for i in range(8)))
        (winner,) = [i for i, deliveries in enumerate(taken) if deliveries]
        attempts.append(taken[winner][0].attempt)
        await scene.release(f"w-{winner}", taken[winner][0])
    assert attempts == list(range(1, 101))


async def test_an_entry_that_was_given_long_ago_does_not_cut_a_delay_short(scene: Scene) -> None:
    """A worker starts what it was given, again and too late: the request waits for its next try, and is not both."""
    await scene.accept("a")
    given = await scene.block("w-1")
    (a,) = await scene.start(given, "w-1")
    await scene.retry(a)
    assert await scene.start(given, "w-1") == []
    assert await scene.state("a") == "DELAYED"
    assert await entries(scene) == 1
