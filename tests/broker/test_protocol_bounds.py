"""Nothing grows without end, and no script stops the others for long."""

import pytest
from support.audit import leftovers
from support.scene import Scene, config
from support.servers import NAMES

from shared.broker import letters, requests, scripts, work
from shared.broker.requests import Job
from shared.keys import GROUP, NORMAL

HELD_BY_OTHERS = 100_000
SLOW_US = 2_000
"""A script that walked over all that is pending would always take longer; the best of its calls is what a machine that
does other things too can tell."""


LENGTH_OF = {"stream": "XLEN", "hash": "HLEN", "zset": "ZCARD", "list": "LLEN", "set": "SCARD", "string": "STRLEN"}


async def a_day(scene: Scene, day: int) -> None:
    """Requests end in every way there is, and workers and gateways come and go."""
    worker, gateway = f"w-{day}", f"gw-{day}"
    await requests.listen(scene.c, scene.queue, gateway)
    ids = [f"{day}-{i}" for i in range(8)]
    await scene.accept(*ids, gateway=gateway)
    await scene.accept(f"{day}-job", job=Job(ttl_ms=60_000, key=f"{day}", digest="d"), tenant=f"T-{day}")
    answered, failed, retried, cancelled, late, suspect, given_up, left, _ = await scene.fetch(worker)
    await scene.complete(answered)
    await scene.complete(failed, failed=True)
    await scene.retry(retried)
    await scene.retry(given_up, errors_max=1)
    await scene.cancel(cancelled.id)
    await scene.pass_deadline(late.id)
    await scene.release(worker, left)
    await scene.crash(worker, suspect)
    await scene.come_due(retried.id)
    survivor = f"s-{day}"
    await scene.beat(survivor)
    while held := await scene.fetch(survivor) or await scene.fetch_alone(survivor):
        await scene.compute(survivor, *held)
        await scene.complete(*held)
    await work.leave(scene.c, scene.queue, survivor)
    await letters.purge(scene.c, scene.queue, [letter.entry_id for letter in await scene.letters()])
    await scene.audit()
    await requests.forget(scene.c, scene.queue, gateway, [*ids, f"{day}-job"], read_up_to="9999999999999-0")
    for key in await scene.c.call("KEYS", "*"):
        if await scene.c.call("PTTL", key) != -1:  # its time has come
            await scene.c.call("DEL", key)


async def size(scene: Scene) -> dict[str, int]:
    """How much there is of each key."""
    found = {}
    for key in await scene.c.call("KEYS", "*"):
        kind = (await scene.c.call("TYPE", key)).decode()
        found[key.decode()] = int(await scene.c.call(LENGTH_OF[kind], key))
    return found


async def test_nothing_grows_with_the_number_of_requests(scene: Scene) -> None:
    """After a day as after ten: what has no time to live has a bound (row 29: bullmq #3087, #366)."""
    await a_day(scene, 0)
    after_one = await size(scene)
    for day in range(1, 10):
        await a_day(scene, day)
    assert await size(scene) == after_one
    assert await leftovers(scene.c, scene.queue) == []
    for lane in (*scene.queue.lanes, scene.queue.suspects):
        assert await scene.c.call("XINFO", "CONSUMERS", lane, GROUP) == []


@pytest.mark.parametrize("redis_server", NAMES[:1], indirect=True)
async def test_what_others_hold_makes_no_script_slow(scene: Scene) -> None:
    """A hundred thousand entries, pending at a live worker, slow nobody down (row 9: docket #463; complaint 50)."""
    text = "for i = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'r', i) end"
    await scene.c.call("EVAL", text, 1, scene.queue.lanes[NORMAL], HELD_BY_OTHERS)
    text = "return #redis.call('XREADGROUP', 'GROUP', ARGV[1], 'busy', 'COUNT', ARGV[2], 'STREAMS', KEYS[1], '>')[1][2]"
    assert await scene.c.call("EVAL", text, 1, scene.queue.lanes[NORMAL], GROUP, HELD_BY_OTHERS) == HELD_BY_OTHERS
    await scene.beat("busy")

    async with config(scene.c, slowlog_log_slower_than="0", slowlog_max_len="10000"):
        await scene.c.call("SLOWLOG", "RESET")
        for i in range(20):
            await scene.accept(f"a-{i}", f"b-{i}", f"c-{i}")
            a, b, c = await scene.fetch("w-1")
            await scene.retry(b)
            await scene.release("w-1", c)
            await scene.beat("w-1", a)
            await scene.complete(a, *await scene.fetch("w-1"))
            await scene.come_due(b.id)
            await scene.fetch(f"dies-{i}")
            await scene.die(f"dies-{i}")
            await scene.tick()
            await scene.audit()
            await scene.cancel(b.id)
        calls = await scene.c.call("SLOWLOG", "GET", 10_000)
    took_us: dict[bytes, list[int]] = {}
    for _, _, us, words, *_ in calls:
        if words[0].upper() == b"EVALSHA":
            took_us.setdefault(words[1], []).append(us)
    names = ("accept", "fetch", "retry", "release", "beat", "complete", "tick", "audit", "cancel")
    at_best = {name: min(took_us[scripts.sha(name).encode()]) for name in names}
    assert max(at_best.values()) < SLOW_US, at_best
