"""Every request ends once: by its deadline, by its client, and never twice."""

import pytest
from support.audit import leftovers
from support.scene import Scene, verdict

from shared.broker import requests, work
from shared.broker.housekeeping import TICK_LIMIT
from shared.errors import ErrorKind
from shared.keys import Queue

# -- deadlines ---------------------------------------------------------------------------------------------------------


async def test_an_overdue_request_is_never_delivered(scene: Scene) -> None:
    """Nobody computes what nobody waits for; the tick ends it and tells its gateway so."""
    await scene.accept_overdue("late")
    await scene.accept("a")
    (delivery,) = await scene.fetch()
    assert delivery.id == "a"
    assert (await scene.tick()).overdue == ("late",)
    ((rid, answer),) = (await scene.replies())[0]
    assert (rid, verdict(answer)) == ("late", ErrorKind.DEADLINE)
    assert await requests.peek(scene.c, scene.queue, ["late"]) == [("EXPIRED", answer)]
    await scene.complete(delivery)
    assert await leftovers(scene.c, scene.queue) == []


async def test_an_overdue_request_is_not_started_by_whom_it_was_delivered_to(scene: Scene) -> None:
    """Also between a blocking read and the start the deadline holds."""
    await scene.accept_overdue("late")
    given = await scene.block()
    assert await scene.start(given) == []
    assert (await scene.tick()).overdue == ("late",)
    assert await scene.rung() == ["late"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_deadline_ends_a_running_request(scene: Scene) -> None:
    """The worker learns that it is not its own any more, and its answer comes too late."""
    await scene.accept("a")
    (a,) = await scene.fetch()
    await scene.pass_deadline("a")
    await scene.tick()
    assert await scene.state("a") == "EXPIRED"
    assert (await scene.beat("w-1", a)).ended == ["a"]
    assert await scene.complete(a) == ["STALE"]
    assert await scene.rung() == ["a"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_deadlines_end_in_portions(scene: Scene) -> None:
    """A mass of overdue requests does not hold Redis up, and the ticks that follow finish it."""
    ids = [f"r-{i}" for i in range(2 * TICK_LIMIT + 50)]
    await scene.accept_overdue(*ids)
    assert [len((await scene.tick()).overdue) for _ in range(4)] == [
        TICK_LIMIT,
        TICK_LIMIT,
        50,
        0,
    ]
    assert sorted(await scene.rung()) == sorted(ids)
    assert await leftovers(scene.c, scene.queue) == []


async def test_the_verdict_on_a_request_whose_payload_is_gone_goes_too(scene: Scene) -> None:
    """The verdict takes the payload's place and its time to live; once, without a payload, it stayed for ever."""
    await scene.accept("a", "b")
    await scene.c.call("DEL", scene.queue.payload("a"), scene.queue.payload("b"))
    assert await scene.fetch("w-1") == []
    await scene.pass_deadline("a")
    await scene.tick()
    await requests.cancel(scene.c, scene.queue, ["b"], expired=True)
    assert await scene.rung() == ["a"]
    assert await leftovers(scene.c, scene.queue) == []


# -- cancelling --------------------------------------------------------------------------------------------------------


async def test_a_cancelled_request_is_never_delivered(scene: Scene) -> None:
    """It leaves the queue at once, with its payload."""
    await scene.accept("a", "b")
    assert await requests.cancel(scene.c, scene.queue, ["a"]) == ["QUEUED"]
    assert await scene.depth() == 1
    assert await scene.c.call("EXISTS", scene.queue.payload("a")) == 0
    assert [d.id for d in await scene.fetch()] == ["b"]
    assert await requests.peek(scene.c, scene.queue, ["a"]) == [("CANCELLED", b"")]
    assert await scene.accept("a") == [("DUP", "CANCELLED")]


async def test_cancelling_frees_the_worker_at_its_next_beat(scene: Scene) -> None:
    """A running request leaves the queue, its worker is told, and nobody hears of its answer."""
    await scene.accept("a", "b")
    a, b = await scene.fetch()
    assert await requests.cancel(scene.c, scene.queue, ["a"]) == ["RUNNING"]
    assert (await scene.beat("w-1", a, b)).ended == ["a"]
    assert await scene.complete(a, b) == ["STALE", "OK"]
    assert await scene.rung() == ["b"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_cancelling_an_unknown_request_leaves_nothing_behind(scene: Scene) -> None:
    """A withdrawal that overtakes its request must not poison it (row 18: arq #485)."""
    before = await scene.c.call("KEYS", "*")
    assert await requests.cancel(scene.c, scene.queue, ["a"]) == ["GONE"]
    assert sorted(await scene.c.call("KEYS", "*")) == sorted(before)
    assert (await scene.accept("a"))[0][0] == "OK"
    assert [d.id for d in await scene.fetch()] == ["a"]


async def test_cancelling_what_has_ended_changes_nothing(scene: Scene) -> None:
    """The first verdict stands."""
    await scene.accept("a")
    await scene.complete(*await scene.fetch())
    assert await requests.cancel(scene.c, scene.queue, ["a"]) == ["DONE"]
    assert await requests.peek(scene.c, scene.queue, ["a"]) == [("DONE", b"=answer")]


async def test_a_gateway_can_end_a_request_at_its_deadline(scene: Scene) -> None:
    """The gateway keeps the deadline too, and calls its end by its name."""
    await scene.accept("a")
    assert await requests.cancel(scene.c, scene.queue, ["a"], expired=True) == ["QUEUED"]
    assert await scene.state("a") == "EXPIRED"
    assert await leftovers(scene.c, scene.queue) == []


# -- whichever end it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["complete", "cancel", "deadline", "dead"])
async def test_the_end_is_final(scene: Scene, ends: str) -> None:
    """After each kind of end, no call of anybody changes the state or rings again."""
    await scene.accept("a")
    (a,) = await scene.fetch("w-1")
    if ends == "complete":
        await scene.complete(a)
    elif ends == "cancel":
        await requests.cancel(scene.c, scene.queue, ["a"])
    elif ends == "deadline":
        await scene.pass_deadline("a")
        await scene.tick()
    else:
        await scene.crash("w-1", a)
        for worker in ("w-2", "w-3"):
            await scene.beat(worker)
            await scene.crash(worker, *await scene.fetch_alone(worker))
        assert await scene.state("a") == "DEAD"
    end, rung = await requests.peek(scene.c, scene.queue, ["a"]), await scene.rung()
    await scene.complete(a, failed=True, answer=b"=late")
    await requests.cancel(scene.c, scene.queue, ["a"], expired=True)
    await scene.c.call("ZADD", scene.queue.deadlines, 1, "a")
    await scene.die("w-1")
    await scene.tick()
    assert await scene.fetch("w-9") == []
    assert (await scene.accept("a"))[0][0] == "DUP"
    assert await requests.peek(scene.c, scene.queue, ["a"]) == end
    assert await scene.rung() == rung
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_worker_hears_what_it_need_not_run_and_why(scene: Scene) -> None:
    """Of what it holds, once; of what was still queued nothing, since that will never come to it."""
    await scene.accept("left", "late", "runs")
    await scene.fetch("w-1")
    await scene.accept("queued")
    await requests.cancel(scene.c, scene.queue, ["left", "queued"])
    await requests.cancel(scene.c, scene.queue, ["late"], expired=True)
    controls: dict[Queue, str] = {}
    heard, _ = await work.ring(scene.c, [scene.queue], "w-1", block_ms=1, listen=False, controls=controls)
    assert heard == [("left", False), ("late", True)]
    assert await work.ring(scene.c, [scene.queue], "w-1", block_ms=1, listen=False, controls=controls) == ([], False)
