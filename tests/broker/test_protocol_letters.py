"""Dead letters: what was given up is kept whole, within bounds, and an operator may run it again or throw it away."""

from support.audit import leftovers
from support.scene import MINUTE_US, TRACE, Scene

from shared.broker import letters, requests
from shared.broker.housekeeping import CRASHES_MAX
from shared.broker.letters import DeadLetter
from shared.broker.scripts import DEAD_LETTERS_BYTES_MAX, DEAD_LETTERS_MAX

TTL_MS = 600_000


async def bury(scene: Scene, rid: str, *, payload: bytes = b"", **more: str) -> DeadLetter:
    """A request that its workers did not survive."""
    await scene.accept(rid, payload=payload, **more)
    await scene.c.call("HSET", scene.queue.record(rid), "cr", CRASHES_MAX - 1)
    (delivery,) = await scene.fetch("victim")
    assert (await scene.crash("victim", delivery)).dead == (rid,)
    return (await scene.letters())[-1]


async def replay(scene: Scene, letter: DeadLetter, *, alone: bool = True) -> tuple[str, str]:
    return await letters.replay(scene.c, scene.queue, letter.entry_id, budget_us=MINUTE_US, ttl_ms=TTL_MS, alone=alone)


async def dead_bytes(scene: Scene) -> int:
    return (await requests.counters(scene.c, scene.queue)).get("dlq_bytes", 0)


async def test_a_dead_letter_is_the_whole_request(scene: Scene) -> None:
    """Payload, trace, tenant, who ran it last and why it was given up: its record may go."""
    letter = await bury(scene, "a", payload=b"\x00\xffbytes", tenant="T")
    assert (letter.id, letter.why, letter.attempts, letter.crashes) == ("a", "crashed", 1, CRASHES_MAX)
    assert (letter.worker, letter.tenant, letter.traceparent) == ("victim", "T", TRACE)
    assert letter.payload == b"\x00\xffbytes"
    assert -1_000 < letter.buried_ms * 1000 - letter.accepted_us < MINUTE_US, "the entry's id is in whole ms"
    assert await dead_bytes(scene) == len(letter.payload)
    assert await leftovers(scene.c, scene.queue) == []


async def test_letters_are_read_page_by_page(scene: Scene) -> None:
    """From after an entry on, the oldest first."""
    for rid in "abc":
        await bury(scene, rid)
    first = await letters.dead_letters(scene.c, scene.queue, count=2)
    rest = await letters.dead_letters(scene.c, scene.queue, after=first[-1].entry_id)
    assert [[letter.id for letter in page] for page in (first, rest)] == [["a", "b"], ["c"]]


async def test_the_oldest_letters_go_when_there_are_too_many(scene: Scene) -> None:
    """Bounded in number."""
    await bury(scene, "oldest")
    filler = [
        scene.c.call("XADD", scene.queue.dead_letters, "*", "r", "x", "p", "") for _ in range(DEAD_LETTERS_MAX - 1)
    ]
    for added in filler:
        await added
    await bury_newest(scene)
    assert await scene.c.call("XLEN", scene.queue.dead_letters) == DEAD_LETTERS_MAX
    oldest, *_ = await scene.c.call("XRANGE", scene.queue.dead_letters, "-", "+", "COUNT", 1)
    assert oldest[1] == [b"r", b"x", b"p", b""]


async def bury_newest(scene: Scene) -> None:
    await scene.accept("newest")
    await scene.retry(*await scene.fetch(), errors_max=1)


async def test_the_oldest_letters_go_when_they_are_too_large(scene: Scene) -> None:
    """Bounded in bytes; but the last one is always kept."""
    for rid in "abc":
        await bury(scene, rid, payload=b"x" * 1000)
    await scene.c.call("HINCRBY", scene.queue.stats, "dlq_bytes", DEAD_LETTERS_BYTES_MAX - 3_500)
    await bury(scene, "d", payload=b"x" * 1500)
    assert [letter.id for letter in await scene.letters()] == ["b", "c", "d"]
    assert await dead_bytes(scene) == DEAD_LETTERS_BYTES_MAX - 500 + 1500 - 1000
    await scene.c.call("HINCRBY", scene.queue.stats, "dlq_bytes", DEAD_LETTERS_BYTES_MAX)
    await bury(scene, "e", payload=b"x" * 1000)
    assert [letter.id for letter in await scene.letters()] == ["e"]


async def test_the_bytes_of_letters_heal(scene: Scene) -> None:
    """An operator deleted the whole stream: the next letter is counted from nothing."""
    await bury(scene, "a", payload=b"x" * 1000)
    await scene.c.call("DEL", scene.queue.dead_letters)
    await bury(scene, "b", payload=b"x" * 10)
    assert await dead_bytes(scene) == 10


async def test_a_letter_is_run_again_alone_under_its_old_id(scene: Scene) -> None:
    """As a job, with a fresh count of crashes and a new deadline; its client, or anybody, asks by the id it knows."""
    letter = await bury(scene, "a", tenant="T")
    assert await replay(scene, letter) == ("OK", "a")
    assert await scene.letters() == []
    assert await dead_bytes(scene) == 0
    assert await scene.counted() == {"l2": 1, "t:T": 1, "b": len(letter.payload)}
    assert await scene.fetch("w-2") == []
    assert (await scene.beat("w-2")).alone
    (delivery,) = await scene.fetch_alone("w-2")
    assert (delivery.id, delivery.attempt, delivery.payload) == ("a", 2, letter.payload)
    assert delivery.traceparent == TRACE
    assert 0 < delivery.left_us <= MINUTE_US
    assert await scene.of_record("a", "cr") == [""]
    await scene.complete(delivery)
    found = await requests.attach(scene.c, scene.queue, "a")
    assert (found.state, found.answer, found.tenant) == ("DONE", b"=answer", "T")
    assert 0 < await scene.c.call("PTTL", scene.queue.record("a")) <= TTL_MS
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_letter_may_be_run_again_in_company(scene: Scene) -> None:
    """If what was wrong has been mended."""
    letter = await bury(scene, "a")
    assert await replay(scene, letter, alone=False) == ("OK", "a")
    assert [d.id for d in await scene.fetch("w-2")] == ["a"]


async def test_a_letter_that_fails_again_is_a_letter_again(scene: Scene) -> None:
    """With what happened since."""
    letter = await bury(scene, "a")
    await replay(scene, letter, alone=False)
    await scene.retry(*await scene.fetch("w-2"), errors_max=1)
    (again,) = await scene.letters()
    assert (again.id, again.why, again.attempts, again.payload) == ("a", "errors", 2, letter.payload)


async def test_a_letter_whose_request_lives_is_not_run_twice(scene: Scene) -> None:
    """Somebody has handed the same id over again: the letter stays."""
    letter = await bury(scene, "a")
    await requests.forget(scene.c, scene.queue, scene.gateway, ["a"])
    await scene.accept("a")
    assert await replay(scene, letter) == ("LIVE", "a")
    assert len(await scene.letters()) == 1
    assert await scene.depth() == 1


async def test_a_letter_is_run_again_once(scene: Scene) -> None:
    """Whoever comes second finds it gone, as whoever names one that never was."""
    letter = await bury(scene, "a")
    assert await replay(scene, letter) == ("OK", "a")
    assert await replay(scene, letter) == ("GONE", "")
    assert await scene.depth() == 1


async def test_letters_are_thrown_away_by_name(scene: Scene) -> None:
    """Those that are there are counted; throwing away twice is throwing away once."""
    kept, *thrown = [await bury(scene, rid, payload=b"x" * 100) for rid in "abc"]
    names = [letter.entry_id for letter in thrown]
    assert await letters.purge(scene.c, scene.queue, [*names, "1-1"]) == 2
    assert await letters.purge(scene.c, scene.queue, names) == 0
    assert await scene.letters() == [kept]
    assert await dead_bytes(scene) == 100
