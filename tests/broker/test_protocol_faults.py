"""A lost reply, a lost request and a repeated call end in the state of a run in which nothing went wrong."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.audit import comparable, leftovers, pending_of, snapshot
from support.proxy import Fault, Proxy
from support.scene import MINUTE_US, Scene, blocked, config
from support.servers import NAMES
from support.waiting import eventually, soon

from shared.broker import fleet, housekeeping, letters, requests, work
from shared.broker.connection import Connection, NotConnected, OutcomeUnknown
from shared.broker.embedded import EmbeddedRedis
from shared.broker.scripts import READY_MAX
from shared.broker.work import Answer, Beat
from shared.keys import NORMAL, Queue

Act = Callable[[Scene], Awaitable[Any]]

ANSWERS = [Answer("a", 1, False, b"=1"), Answer("b", 1, True, b"=2"), Answer("nobody", 1, False, b"=3")]


async def nothing(scene: Scene) -> None:
    pass


async def queued(scene: Scene) -> None:
    await scene.accept("a", "b")


async def running(scene: Scene) -> None:
    await scene.accept("a", "b")
    await scene.fetch("w-1")


async def ended(scene: Scene) -> None:
    await running(scene)
    await work.complete(scene.c, scene.queue, ANSWERS)


async def trouble(scene: Scene) -> None:
    """One is overdue, one due again, two lost their worker while it ran one of them, one lost its last worker."""
    await scene.accept("poison")
    await scene.crash("w-1", *await scene.fetch("w-1"))
    await scene.beat("w-2")
    await scene.crash("w-2", *await scene.fetch_alone("w-2"))
    await scene.accept("running", "held", "again")
    running, _, again = await scene.fetch("w-4")
    await scene.retry(again, delay_us=1)
    await scene.beat("w-3")
    await scene.compute("w-3", *await scene.fetch_alone("w-3"))
    await scene.compute("w-4", running)
    await scene.die("w-3")
    await scene.die("w-4")
    await scene.accept("late")
    await scene.pass_deadline("late")


async def crowded(scene: Scene) -> None:
    """A backlog: who comes now waits for its turn."""
    await scene.accept(*(f"r-{i}" for i in range(READY_MAX + 2)))


async def buried(scene: Scene) -> None:
    await scene.accept("a", "b")
    await scene.retry(*await scene.fetch(), errors_max=1)


async def replay(scene: Scene) -> None:
    for letter in await scene.letters():
        await letters.replay(scene.c, scene.queue, letter.entry_id, budget_us=MINUTE_US, ttl_ms=1000)


async def purge(scene: Scene) -> None:
    await letters.purge(scene.c, scene.queue, [d.entry_id for d in await scene.letters()])


async def damaged(scene: Scene) -> None:
    """An operator has deleted a lane and the delays."""
    await scene.accept("a", "b", "c")
    await scene.retry(*await scene.fetch(want=1))
    await scene.c.call("DEL", scene.queue.lanes[NORMAL], f"{scene.queue.tag}:delay")


async def announced(scene: Scene) -> None:
    await fleet.announce(scene.c, "w-1", b"one", lease_us=MINUTE_US)
    await fleet.announce(scene.c, "w-2", b"two", lease_us=MINUTE_US)
    await fleet.offer(scene.c, "bert", offered=False)


DEEDS: dict[str, tuple[Act, Act]] = {
    "accept": (nothing, lambda s: s.accept("a", "b", "c")),
    "accept into a full queue": (queued, lambda s: s.accept("c", "a", "d", limits=requests.Limits(3))),
    "complete": (running, lambda s: work.complete(s.c, s.queue, ANSWERS)),
    "accept jobs": (nothing, lambda s: s.accept("a", "b", job=requests.Job(ttl_ms=9000, key="k", digest="d"))),
    "accept into the waiting room": (crowded, lambda s: s.accept("c", "d", tenant="T", weight=3)),
    "retry": (running, lambda s: work.retry(s.c, s.queue, [(a, 1_000_000) for a in ANSWERS])),
    "retry for the last time": (running, lambda s: work.retry(s.c, s.queue, [(a, 1) for a in ANSWERS], errors_max=1)),
    "release": (running, lambda s: work.release(s.c, s.queue, "w-1", [("a", 1), ("b", 7), ("nobody", 1)])),
    "attach": (queued, lambda s: requests.attach(s.c, s.queue, "a", "gw-2")),
    "replay": (buried, replay),
    "purge": (buried, purge),
    "audit": (damaged, lambda s: s.audit()),
    "cancel waiting": (crowded, lambda s: s.cancel("r-1", f"r-{READY_MAX + 1}")),
    "cancel queued": (queued, lambda s: requests.cancel(s.c, s.queue, ["a", "nobody"])),
    "cancel running": (running, lambda s: requests.cancel(s.c, s.queue, ["b"], expired=True)),
    "beat": (running, lambda s: work.beat(s.c, s.queue, "w-1", [("a", 1), ("b", 7)], lease_us=MINUTE_US)),
    "beat of the dead": (nothing, lambda s: work.beat(s.c, s.queue, "w-9", [], lease_us=MINUTE_US)),
    "tick": (trouble, lambda s: housekeeping.tick(s.c, s.queue, "leader", grace_us=MINUTE_US)),
    "leave": (ended, lambda s: work.leave(s.c, s.queue, "w-1")),
    "leave with work": (running, lambda s: work.leave(s.c, s.queue, "w-1")),
    "peek": (ended, lambda s: requests.peek(s.c, s.queue, ["a", "nobody"])),
    "listen": (nothing, lambda s: requests.listen(s.c, s.queue, "gw-2")),
    "forget": (ended, lambda s: requests.forget(s.c, s.queue, s.gateway, ["a", "b"], read_up_to="9999999999999-0")),
    "ensure groups": (nothing, lambda s: work.ensure_groups(s.c, s.queue)),
    "announce": (nothing, lambda s: fleet.announce(s.c, "w-1", b"descriptor", lease_us=MINUTE_US)),
    "announce another": (announced, lambda s: fleet.announce(s.c, "w-1", b"other", lease_us=MINUTE_US)),
    "withdraw": (announced, lambda s: fleet.announce(s.c, "w-1", b"", lease_us=0)),
    "survey": (announced, lambda s: fleet.survey(s.c, "")),
    "unload": (announced, lambda s: fleet.offer(s.c, "resnet", offered=False)),
    "load": (announced, lambda s: fleet.offer(s.c, "bert", offered=True)),
}
"""What leads up to each call of the protocol, and the call. Fetch has tests of its own: it starts what it finds."""


@pytest.mark.parametrize("deed", DEEDS)
async def test_doing_it_twice_is_doing_it_once(scene: Scene, deed: str) -> None:
    """f(f(x)) == f(x): whoever does not know whether a call was heard may repeat it."""
    prepare, act = DEEDS[deed]
    await prepare(scene)
    await act(scene)
    once = await snapshot(scene.c)
    await act(scene)
    assert await snapshot(scene.c) == once


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.CUT_MID_REQUEST, Fault.CUT_MID_REPLY])
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("redis_server", NAMES[:1], indirect=True)  # what breaks is the network
async def test_a_call_that_was_disturbed_and_repeated_ends_as_if_nothing_had_been(
    scene: Scene, through: Connection, proxy: Proxy, deed: str, fault: Fault
) -> None:
    """Whatever the network did to the request or its reply, the repetition leads to the fault-free state (row 41:
    redis-py #977, #261, #3559)."""
    prepare, act = DEEDS[deed]
    await prepare(scene)
    await act(scene)
    undisturbed = comparable(await snapshot(scene.c))

    await scene.c.call("FLUSHALL")
    await scene.open()
    await prepare(scene)
    disturbed = Scene(through, scene.queue)
    proxy.set(fault)
    with pytest.raises(OutcomeUnknown):
        await soon(act(disturbed))
    await soon(through.wait_connected())
    await act(disturbed)
    assert comparable(await snapshot(scene.c)) == undisturbed


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.CUT_MID_REPLY])
async def test_a_worker_adopts_what_a_lost_reply_had_brought(
    scene: Scene, through: Connection, proxy: Proxy, fault: Fault
) -> None:
    """Redis has delivered and started it; the worker finds it among its own and runs it as one more attempt."""
    await scene.accept("a", "b")
    disturbed = Scene(through, scene.queue)
    proxy.set(fault)
    with pytest.raises(OutcomeUnknown):
        await disturbed.fetch("w-1")
    await soon(through.wait_connected())
    assert await disturbed.fetch("w-1") == []
    own = await work.own_entries(through, scene.queue, "w-1")
    assert [e.request_id for e in own] == ["a", "b"]
    adopted = await disturbed.start(own, "w-1")
    assert [(d.id, d.attempt, d.payload) for d in adopted] == [
        ("a", 2, b"payload of a"),
        ("b", 2, b"payload of b"),
    ]
    assert adopted[0].traceparent
    assert await scene.beat("w-1", *adopted) == Beat(True, False, [])
    assert await scene.complete(*adopted) == ["OK", "OK"]
    assert await scene.rung() == ["a", "b"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_fetch_that_redis_never_heard_of_took_nothing(scene: Scene, through: Connection, proxy: Proxy) -> None:
    """There is nothing to adopt, and the next fetch brings the first attempt."""
    await scene.accept("a")
    disturbed = Scene(through, scene.queue)
    proxy.set(Fault.LOSE_REQUEST)
    with pytest.raises(OutcomeUnknown):
        await disturbed.fetch("w-1")
    await soon(through.wait_connected())
    assert await work.own_entries(through, scene.queue, "w-1") == []
    assert [d.attempt for d in await disturbed.fetch("w-1")] == [1]


async def test_an_entry_lost_with_a_blocking_read_is_adopted(scene: Scene, through: Connection, proxy: Proxy) -> None:
    """Delivered while the worker's connection was breaking: it is among its own, not started yet."""
    reading = asyncio.create_task(work.wait_for_entries(through, [scene.queue], "w-1", block_ms=20_000))
    await eventually(lambda: blocked(scene.c), "the worker blocks")
    proxy.set(Fault.LOSE_REPLY)
    await scene.accept("a")
    with pytest.raises(OutcomeUnknown):
        await soon(reading)
    own = await work.own_entries(scene.c, scene.queue, "w-1")
    assert [(d.id, d.attempt) for d in await scene.start(own, "w-1")] == [("a", 1)]


async def test_what_ended_is_not_adopted(scene: Scene) -> None:
    """A lost reply of `complete` leaves nothing among the worker's own entries."""
    await scene.accept("a", "b")
    a, _ = await scene.fetch("w-1")
    await scene.complete(a)
    own = await work.own_entries(scene.c, scene.queue, "w-1")
    assert [e.request_id for e in own] == ["b"]
    # An entry that an operator deleted is still on the worker's list, without its fields on old servers.
    await scene.c.call("XDEL", own[0].lane, own[0].id)
    assert await work.own_entries(scene.c, scene.queue, "w-1") == []


async def test_starting_twice_is_one_more_attempt_of_one_request(scene: Scene) -> None:
    """A start whose reply was lost is repeated: the entry stays one, the attempt number tells the two apart."""
    await scene.accept("a")
    given = await scene.block("w-1")
    (first,) = await scene.start(given, "w-1")
    (second,) = await scene.start(given, "w-1")
    assert (first.attempt, second.attempt) == (1, 2)
    assert len(await pending_of(scene.c, scene.queue, "w-1")) == 1
    assert await scene.complete(first) == ["STALE"]
    assert await scene.complete(second) == ["OK"]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_refused_script_changed_nothing(scene: Scene) -> None:
    """Under OOM a refusal is whole: repeated when there is memory again, the request is as if never refused."""
    before = await snapshot(scene.c)
    async with config(scene.c, maxmemory="1"):
        assert await scene.accept("a", "b") == [("OOM", "")] * 2
    assert await snapshot(scene.c) == before
    assert [status for status, _ in await scene.accept("a", "b")] == ["OK", "OK"]


async def test_a_lost_connection_is_one_error_and_not_a_heap_of_them(
    scene: Scene, through: Connection, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Of commands sent together the caller awaits the first to fail; the others once filled the log with tracebacks
    of exceptions "never retrieved"."""
    with caplog.at_level(logging.ERROR, "asyncio"):
        proxy.set(Fault.LOSE_REPLY)
        for _ in range(2):  # first lost in flight, then not sent at all
            with pytest.raises((OutcomeUnknown, NotConnected)):
                await soon(requests.depths(through, [scene.queue, Queue("bert", "1")]))
        gc.collect()
    assert caplog.records == []


async def test_a_restarted_redis_goes_on_where_it_was(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Requests, leases, entries and delays survive a kill of Redis; the worker's answer still counts, what is due is
    due at the first tick (row 23: dramatiq #527), and nothing that has ended runs again (redis #7105)."""
    server = EmbeddedRedis(tmp_path_factory.mktemp("r"))
    await server.start()
    try:
        async with Connection(server.url, "test") as c:
            await soon(c.wait_connected())
            scene = Scene(c)
            await scene.open()
            await scene.accept("again", "a", "b", "c")
            again, a, b = await scene.fetch("w-1", want=3)
            await scene.retry(again, delay_us=1)
            await scene.complete(a)
            assert server.process is not None
            server.process.kill()
            await soon(server.process.wait())
            await eventually(lambda: not c.connected, "the loss is noticed")
            await server.start()
            await soon(c.wait_connected())
            assert await scene.states("a", "b", "c") == ["DONE", "RUNNING", "QUEUED"]
            assert await scene.beat("w-1", b) == Beat(True, False, [])
            assert await scene.complete(a, b) == ["OKDUP", "OK"]
            assert (await scene.tick()).due == ("again",)
            assert [(d.id, d.attempt) for d in await scene.fetch("w-2")] == [("again", 2), ("c", 1)]
            assert await scene.rung() == ["a", "b"]
    finally:
        await server.stop()
