"""The stream of ends that webhooks must hear of: each is due once at a time, and again later, until it is settled."""

import pytest
from support.audit import leftovers
from support.scene import Scene

from shared.broker import hooks
from shared.broker.hooks import CLAIM_IDLE_MS, Due, Ended
from shared.broker.requests import Job
from shared.keys import Queue

URL = "https://hooks.example.com/x"


async def end(scene: Scene, *ids: str) -> None:
    """Jobs that a webhook must hear of come to their ends."""
    await scene.accept(*ids, job=Job(60_000, ask=b"how", hook=URL))
    await scene.complete(*await scene.fetch())


async def wait(scene: Scene, *more: Queue) -> list[Due]:
    return await hooks.wait_for_ends(scene.c, [scene.queue, *more], count=10, block_ms=1)


async def claim(scene: Scene) -> list[Due]:
    return (await hooks.claim(scene.c, scene.queue, after="0-0", count=10))[1]


def told(found: list[Due]) -> list[tuple[str, int]]:
    """Who, and for which time."""
    return [(due.request_id, due.tries) for due in found]


@pytest.fixture
async def due(scene: Scene) -> Due:
    """The end of `a`, taken."""
    await end(scene, "a")
    assert await wait(scene) == []  # there was no group; from now on there is one, and nothing was missed
    (due,) = await wait(scene)
    return due


async def test_an_end_is_taken_once(scene: Scene, due: Due) -> None:
    """By whoever comes first; the others find nothing, of any queue."""
    assert (due.queue, due.request_id, due.tries) == (scene.queue, "a", 1)
    other = Queue("bert", "1")
    assert await wait(scene, other) == []
    assert await wait(scene, other) == []
    assert await claim(scene) == []


async def test_the_job_says_how_it_ended_and_who_wants_to_hear(scene: Scene, due: Due) -> None:
    """Until it is forgotten."""
    assert await hooks.look(scene.c, due) == Ended("DONE", b"=answer", URL)
    await scene.c.call("DEL", scene.queue.record("a"), scene.queue.payload("a"))
    assert await hooks.look(scene.c, due) is None


async def test_what_was_put_off_is_due_again_after_a_while(scene: Scene, due: Due) -> None:
    """As if it had been taken so often before; the longest pause is bounded."""
    await hooks.put_off(scene.c, due, delay_ms=10 * CLAIM_IDLE_MS, taken=1)
    assert await claim(scene) == []
    await hooks.put_off(scene.c, due, delay_ms=0, taken=1)
    assert told(await claim(scene)) == [("a", 2)]
    assert await claim(scene) == [], "whoever took it has it"
    await hooks.put_off(scene.c, due, delay_ms=0, taken=7)
    assert told(await claim(scene)) == [("a", 8)]


async def test_what_a_dead_gateway_held_is_taken_by_another(scene: Scene, due: Due) -> None:
    """Once it has been silent for long; that counts as a try."""
    await scene.c.call(
        "XCLAIM", scene.queue.hooks, hooks.GROUP, hooks.CONSUMER, 0, due.entry_id, "IDLE", CLAIM_IDLE_MS, "JUSTID"
    )
    assert told(await claim(scene)) == [("a", 2)]


async def test_a_settled_end_is_gone(scene: Scene, due: Due) -> None:
    """And cannot be put off any more."""
    await hooks.settle(scene.c, due)
    await hooks.put_off(scene.c, due, delay_ms=0, taken=1)
    assert await claim(scene) == []
    assert await scene.c.call("XLEN", scene.queue.hooks) == 0
    assert await leftovers(scene.c, scene.queue) == []


async def test_many_are_claimed_in_steps(scene: Scene) -> None:
    """Each call goes on where the last one ended, and the last one says so."""
    await end(scene, *(f"r{i}" for i in range(5)))
    await wait(scene)
    for found in await wait(scene):
        await hooks.put_off(scene.c, found, delay_ms=0, taken=1)
    after, first = await hooks.claim(scene.c, scene.queue, after="0-0", count=3)
    end_of_list, rest = await hooks.claim(scene.c, scene.queue, after=after, count=3)
    assert sorted(due.request_id for due in first + rest) == [f"r{i}" for i in range(5)]
    assert end_of_list == "0-0"


async def test_an_entry_that_was_trimmed_away_does_no_harm(scene: Scene, due: Due) -> None:
    """The stream is bounded; what fell out of it is not told any more."""
    await scene.c.call("XDEL", scene.queue.hooks, due.entry_id)
    await hooks.put_off(scene.c, due, delay_ms=0, taken=1)
    assert await claim(scene) == []


async def test_nobody_has_waited_yet(scene: Scene) -> None:
    """Claiming before the first read finds nothing, and is no error."""
    assert await hooks.claim(scene.c, Queue("bert", "1"), after="0-0", count=3) == ("0-0", [])
