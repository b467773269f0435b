"""Nothing is computed for nobody: late requests and those of clients that left reach no model, and that is told."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp
import e2e_stack
import pytest
from e2e_stack import Stack, ask
from support.audit import leftovers

from shared import clock
from shared.broker.connection import Connection
from shared.events import Batch, Req
from shared.keys import Queue

NAP, SLOW = Queue("nap", "1"), Queue("slow", "1")
NOTHING = {"cancelled_before_compute": 0, "expired_before_compute": 0, "dead": 0, "orphaned": 0}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Stack]:
    """A system whose worker's pace nobody knows yet, so that nothing is refused because the queue is long."""
    running = e2e_stack.start_up(e2e_stack.make_repository(tmp_path, {"nap": e2e_stack.OWN_MODELS / "nap"}))
    try:
        yield running
    finally:
        e2e_stack.stop_all(running)


def saved(stack: Stack) -> dict[str, int]:
    """What the statistics tell of compute that was saved."""
    (entry,) = ask(stack.url, "/v2/models/nap/stats").json["model_stats"]
    told: dict[str, int] = entry["tailrace"]
    return told


def computed(stack: Stack) -> set[str]:
    """The requests that came to a pass, by the worker's log."""
    return {rid for batch in stack.records(Batch) for rid in batch.members}


def ids_by_label(stack: Stack, prefix: str, count: int) -> dict[str, str]:
    """The ids of requests by their labels, once there are so many in the gateway's log."""
    return {r.label: r.id for r in stack.logged(Req, lambda r: r.label.startswith(prefix), count=count)}


async def nap(session: aiohttp.ClientSession, stack: Stack, ms: int, headers: Mapping[str, str]) -> int:
    """Ask for a pass of so long; the status."""
    body = e2e_stack.infer_json("ms", "INT64", [1, 1], [ms])
    async with session.post(f"{stack.url}/v2/models/nap/infer", data=body, headers=headers) as response:
        await response.read()
        return response.status


async def begin_a_long_pass(session: aiohttp.ClientSession, stack: Stack, ms: int) -> "asyncio.Task[int]":
    """The device is busy for so long from now on."""
    asking = asyncio.create_task(nap(session, stack, ms, {}))
    async with e2e_stack.broker_of(stack) as broker:

        async def runs() -> bool:
            return bool(await broker.hvals(NAP.running))

        await e2e_stack.soon(runs, within_s=10, what="the pass has begun")
    return asking


async def test_late_requests_never_reach_the_model(fresh: Stack) -> None:
    """complaints 27: 100 requests with deadlines of 50 ms behind a long pass: none is computed, 100 are saved."""
    async with e2e_stack.clients() as session:
        first = await begin_a_long_pass(session, fresh, 2000)
        late = await asyncio.gather(
            *(nap(session, fresh, 0, {"x-request-id": f"late-{n}", "x-request-timeout-ms": "50"}) for n in range(100))
        )
        assert not first.done(), "the pass was too short: this proves nothing"
        assert await first == 200

    assert set(late) == {504}
    ids = ids_by_label(fresh, "late-", 100)
    e2e_stack.eventually(lambda: len(computed(fresh)) == 1, within_s=5, what="the long pass in the log")
    assert not computed(fresh) & set(ids.values())
    # On a busy machine one may be late before it comes to the queue at all.
    queued = len([r for r in fresh.records(Req) if r.label.startswith("late-") and r.g3])
    e2e_stack.eventually(lambda: saved(fresh)["expired_before_compute"] >= queued, within_s=5, what="passes are saved")
    assert saved(fresh) == {**NOTHING, "expired_before_compute": queued}


async def test_a_deadline_is_kept_while_the_worker_is_busy(fresh: Stack) -> None:
    """complaints 26: behind a pass of 3 s a request with one second to live is answered after that second."""
    async with e2e_stack.clients() as session:
        first = await begin_a_long_pass(session, fresh, 3000)
        asked_ns = clock.now_ns()
        status = await nap(session, fresh, 0, {"x-request-id": "late", "x-request-timeout-ms": "1000"})
        took_s = (clock.now_ns() - asked_ns) / 1e9
        assert await first == 200

    assert status == 504
    assert 1.0 <= took_s < 1.25
    ids = ids_by_label(fresh, "late", 1)
    e2e_stack.eventually(lambda: saved(fresh)["expired_before_compute"] == 1, within_s=5, what="one pass saved")
    assert not computed(fresh) & set(ids.values())


async def test_requests_of_clients_that_left_are_never_computed(fresh: Stack) -> None:
    """complaints 35: of 100 queued clients 50 disconnect: exactly theirs are never computed, and nothing is left."""
    leave = set(random.Random(35).sample(range(100), 50))
    async with e2e_stack.clients() as session, e2e_stack.broker_of(fresh) as broker:
        first = await begin_a_long_pass(session, fresh, 3000)
        asking = [asyncio.create_task(nap(session, fresh, 0, {"x-request-id": f"one-{n}"})) for n in range(100)]

        async def live(count: int) -> bool:
            return await e2e_stack.live(broker, "nap") == count

        await e2e_stack.soon(lambda: live(101), within_s=10, what="all are queued")
        for n in leave:
            asking[n].cancel()
        await e2e_stack.soon(lambda: live(51), within_s=10, what="half of them are withdrawn")
        assert not first.done(), "the pass was too short: this proves nothing"
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert await first == 200

    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [200] * 50
    ids = ids_by_label(fresh, "one-", 100)
    e2e_stack.eventually(lambda: len(computed(fresh)) >= 51, within_s=5, what="all passes in the log")
    ran = computed(fresh)
    assert {n for n in range(100) if ids[f"one-{n}"] not in ran} == leave
    e2e_stack.eventually(lambda: saved(fresh)["cancelled_before_compute"] >= 50, within_s=5, what="50 passes saved")
    assert saved(fresh) == {**NOTHING, "cancelled_before_compute": 50}
    async with Connection(fresh.redis_url, "audit") as c:
        await c.wait_connected()
        assert await leftovers(c, NAP) == []


async def test_clients_that_leave_at_any_moment_do_no_harm(stack: Stack) -> None:
    """complaints 38: 1000 random aborts: no process dies, nothing stays in Redis, and the next request is answered."""
    chance, said_before = random.Random(38), len(stack.main.text)
    family = {child.pid for child in stack.main.children()}
    port = int(stack.url.rpartition(":")[2])
    body = e2e_stack.slow_body(1).encode()
    whole = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def abort_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # Half of them in the middle of their request, half while they wait, or when they are answered.
        sent = chance.randrange(len(whole)) if chance.random() < 0.5 else len(whole)
        writer.write(whole[:sent])
        try:
            async with asyncio.timeout(chance.random() * 0.3):
                await reader.read(1)
        except (TimeoutError, ConnectionError):
            pass
        writer.transport.abort()

    gate = asyncio.Semaphore(50)

    async def one() -> None:
        async with gate:
            await abort_one()

    await asyncio.gather(*(one() for _ in range(1000)))

    answer = await asyncio.to_thread(ask, stack.url, "/v2/models/slow/infer", body=body)
    assert answer.status == 200
    assert {child.pid for child in stack.main.children()} == family, stack.main.text
    async with Connection(stack.redis_url, "audit") as c:
        await c.wait_connected()

        async def clean() -> bool:
            return await leftovers(c, SLOW) == [] and not await c.call("HGETALL", f"{SLOW.tag}:c")

        await e2e_stack.soon(clean, within_s=15, what="nothing is left in Redis")
    assert "Traceback" not in stack.main.text[said_before:]
