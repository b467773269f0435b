"""More comes than can be served: exactly the overflow is refused, at once, with a reason and a time to come back."""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import e2e_stack
from e2e_stack import Reply, Stack

from shared import clock, wire
from shared.events import Req
from shared.keys import LOW

AT_ONCE_NS = 500_000_000
"""A refusal takes some milliseconds; this leaves room for hundreds of clients on a busy machine."""


@contextmanager
def gateway(stack: Stack, *args: str) -> Iterator[str]:
    """A gateway with bounds of its own, and its URL."""
    process, url = stack.start_gateway(*args)
    try:
        yield url
        assert "Traceback" not in process.text, process.text
    finally:
        process.stop()


@contextmanager
def worker_stands_still(stack: Stack) -> Iterator[None]:
    """For less than its lease: what comes meanwhile stays in the queue."""
    worker = stack.main.child("worker")
    worker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGCONT)


async def ask_while_nobody_works(stack: Stack, url: str, count: int, refused: int) -> list[Reply]:
    """Ask so often at once; the worker goes on when so many have been refused."""
    replies: list[Reply] = []

    async def one(session: aiohttp.ClientSession, n: int) -> None:
        reply = await e2e_stack.ask_slow(session, url, n)
        replies.append(reply)

    async with e2e_stack.clients() as session, asyncio.TaskGroup() as group:
        with worker_stands_still(stack):
            for n in range(count):
                group.create_task(one(session, n))
            await e2e_stack.soon(lambda: len(replies) >= refused, within_s=20, what=f"{refused} refusals")
        assert {reply.status for reply in replies} == {429}
    return replies


def told_to_come_back(replies: list[Reply], *reasons: str) -> None:
    """Each names its reason and says when to try again, in the header and in the text."""
    for reply in replies:
        after = int(reply.headers["Retry-After"])
        assert after >= 1
        assert f"retry after {after} s" in reply.text
        for reason in reasons:
            assert reason in reply.text


async def test_exactly_the_overflow_of_a_full_queue_is_refused(stack: Stack) -> None:
    """complaints 24, 30: room for 100, 500 at once: 400 times 429 with Retry-After, 100 answers, and no 5xx."""
    with gateway(stack, "--queue-max", "100") as url:
        replies = await ask_while_nobody_works(stack, url, 500, 400)

    assert Counter(reply.status for reply in replies) == {200: 100, 429: 400}
    refused = [reply for reply in replies if reply.status == 429]
    told_to_come_back(refused, "the queue of slow/1 is full", "100 requests")
    assert not e2e_stack.wrong(reply for reply in replies if reply.status == 200)


async def test_a_queue_is_bounded_in_bytes_too(stack: Stack) -> None:
    """Of 40 at once only those come in whose payloads fit together; the others get 429."""
    tensor = wire.Tensor("n", "INT64", [1, 1], memoryview(bytes(8)))
    fit = 500 // len(wire.encode_request(wire.RequestBody([tensor])))
    with gateway(stack, "--queue-bytes-max", "500") as url:
        replies = await ask_while_nobody_works(stack, url, 40, 40 - fit)

    assert Counter(reply.status for reply in replies) == {200: fit, 429: 40 - fit}
    told_to_come_back([reply for reply in replies if reply.status == 429], "bytes of payloads")


async def test_a_gateway_is_bounded_by_itself(stack: Stack) -> None:
    """What one gateway holds is bounded before Redis is asked."""
    with gateway(stack, "--inflight-max", "10") as url:
        replies = await ask_while_nobody_works(stack, url, 30, 20)

    assert Counter(reply.status for reply in replies) == {200: 10, 429: 20}
    told_to_come_back([reply for reply in replies if reply.status == 429], "this gateway holds")


async def pace_is_known(stack: Stack) -> None:
    """A worker says with its next heartbeat how fast it can be; it learns that from whole batches."""
    replies = await e2e_stack.ask_at_once(stack.url, range(64))
    assert not e2e_stack.wrong(replies)

    async def is_known() -> bool:
        async with e2e_stack.clients() as session:
            backlog = [
                asyncio.create_task(e2e_stack.ask_slow(session, stack.url, n, headers={"x-tenant": "pace"}))
                for n in range(64)
            ]
            await asyncio.sleep(0)
            probe = await e2e_stack.ask_slow(session, stack.url, 1, headers={"x-request-timeout-ms": "200"})
            await asyncio.gather(*backlog)
            return "overloaded" in probe.text or "best pace" in probe.text

    await e2e_stack.soon(is_known, within_s=30, what="the pace of the worker is known")


async def test_a_hopeless_request_is_refused_at_once_and_not_at_its_deadline(stack: Stack) -> None:
    """Behind a backlog of seconds a request with a deadline of 900 ms hears in milliseconds that it would be late."""
    await pace_is_known(stack)
    async with e2e_stack.clients() as session:
        backlog = [asyncio.create_task(e2e_stack.ask_slow(session, stack.url, n)) for n in range(200)]
        async with e2e_stack.broker_of(stack) as broker:

            async def long_queue() -> bool:
                return await e2e_stack.live(broker, "slow") >= 150

            await e2e_stack.soon(long_queue, within_s=10, what="a long queue")
        asked_ns = clock.now_ns()
        refused = await e2e_stack.ask_slow(session, stack.url, 1, headers={"x-request-timeout-ms": "900"})
        took_ns = refused.at_ns - asked_ns
        replies = await asyncio.gather(*backlog)

    assert refused.status == 503
    assert "it would be late for certain" in refused.text
    told_to_come_back([refused])
    assert took_ns < AT_ONCE_NS
    assert not e2e_stack.wrong(replies)
    (record,) = stack.logged(Req, lambda r: r.id == refused.headers["x-tailrace-request-id"])
    assert record.error_code == "overloaded"


async def test_under_overload_the_low_priorities_are_shed_first(stack: Stack) -> None:
    """complaints 29: of three classes, twice what can be served in time, the high are answered and the low are shed."""
    await pace_is_known(stack)
    deadline = {"x-request-timeout-ms": "1500"}
    got: dict[str, list[Reply]] = {}

    async def ask_class(session: aiohttp.ClientSession, name: str) -> None:
        headers = {**deadline, "x-request-priority": name}
        got[name] = await asyncio.gather(
            *(e2e_stack.ask_slow(session, stack.url, n, headers=headers) for n in range(80))
        )

    async with e2e_stack.clients() as session:
        await asyncio.gather(*(ask_class(session, name) for name in ("low", "normal", "high")))

    answered = {name: sum(reply.status == 200 for reply in replies) for name, replies in got.items()}
    assert all(reply.status in (200, 503, 504) for replies in got.values() for reply in replies)
    assert answered["high"] >= 70, answered
    # They came first, and the lanes below have their turns: how many come in all the same depends on the machine.
    assert answered["low"] < min(80, answered["high"]), answered
    refused = {reply.headers["x-tailrace-request-id"] for reply in got["low"] if reply.status != 200}
    records = stack.logged(Req, lambda r: r.id in refused, count=len(refused))
    assert {record.priority for record in records} == {LOW}, "the log tells the class of each"
    told_to_come_back([reply for reply in got["low"] if reply.status == 503])


async def test_a_high_priority_overtakes_a_backlog(stack: Stack) -> None:
    """8 urgent requests behind 120 others are answered before most of them."""
    async with e2e_stack.clients() as session, e2e_stack.broker_of(stack) as broker:
        backlog = [
            asyncio.create_task(e2e_stack.ask_slow(session, stack.url, n, headers={"x-request-priority": "low"}))
            for n in range(120)
        ]

        async def long_queue() -> bool:
            return await e2e_stack.live(broker, "slow") >= 100

        await e2e_stack.soon(long_queue, within_s=10, what="a long queue")
        urgent = await asyncio.gather(
            *(e2e_stack.ask_slow(session, stack.url, n, headers={"x-request-priority": "1"}) for n in range(8))
        )
        replies = await asyncio.gather(*backlog)

    assert not e2e_stack.wrong([*urgent, *replies])
    last = max(reply.at_ns for reply in urgent)
    assert sum(reply.at_ns > last for reply in replies) >= 60
