"""Processes are killed under load, Redis loses everything, clients leave: no request pays with its answer."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import e2e_stack
import psutil
import pytest
import redis.asyncio
from e2e_stack import Process, Reply, Stack

from shared import clock
from shared.broker.embedded import EmbeddedRedis
from shared.events import Evt, Req, Wreq
from shared.keys import GROUP, NORMAL, Queue

LEASE_S = 1.5
SLOW = Queue("slow", "1")
LANE = SLOW.lanes[NORMAL]


@pytest.fixture
async def broker(stack: Stack) -> AsyncIterator[redis.asyncio.Redis]:
    """The Redis of the shared system."""
    async with redis.asyncio.from_url(stack.redis_url) as client:
        yield client


def count_done(records: list[Wreq], ids: set[str]) -> Counter[str]:
    """How often the workers' logs say of a request that its answer was taken."""
    return Counter(w.id for w in records if w.id in ids and w.outcome == "DONE")


def request_ids(replies: list[Reply]) -> set[str]:
    """The servers' ids of what was answered; equal ids count once."""
    return {reply.headers["x-tailrace-request-id"] for reply in replies}


async def test_requests_of_a_killed_worker_are_answered_by_the_next_one(
    slow_repository: Path, short_directory: Path
) -> None:
    """kill -9 of the only worker with 64 requests in flight: all are answered, none twice, and soon."""
    directory = short_directory
    server = EmbeddedRedis(directory / "r")
    await server.start()
    common = ("--redis", server.url, "--log-dir", directory / "logs", "--lease-s", LEASE_S)
    work = ("worker", *common, "--model-repository", slow_repository)
    gateway = Process("gateway", *common, "--port", "0", directory=directory)
    first = Process(*work, directory=directory)
    started = [gateway, first]
    try:
        url = gateway.says(r"url=(http://\S+)")[1]
        first.says("event=serving")
        stack = Stack(url, server.url, directory / "logs", directory, gateway)
        e2e_stack.eventually(lambda: e2e_stack.ask(url, "/v2/health/ready").status == 200, within_s=5, what="ready")
        replies: list[Reply] = []
        asking = asyncio.create_task(e2e_stack.ask_many(url, range(64), at_once=64, replies=replies))
        async with redis.asyncio.from_url(server.url) as client:

            async def is_held() -> bool:
                return await client.xlen(LANE) >= 48 and (await client.xpending(LANE, GROUP))["pending"] >= 8

            await e2e_stack.soon(is_held, within_s=10, what="the worker holds a batch and the rest is queued")
        answered_before = len(replies)
        first.signal(signal.SIGKILL)
        second = Process(*work, directory=directory)
        started.append(second)
        await e2e_stack.soon(lambda: "event=serving" in second.text, within_s=e2e_stack.START_S, what="a new worker")
        serving_ns = clock.now_ns()
        await asking

        assert answered_before <= 16, "too late a kill proves nothing"
        assert len(replies) == 64
        assert not e2e_stack.wrong(replies)
        assert max(reply.at_ns for reply in replies) - serving_ns < (LEASE_S + 2) * 1e9
        ids = request_ids(replies)
        assert len(ids) == 64
        stack.logged(Wreq, lambda w: w.outcome == "DONE" and w.id in ids, count=64 - answered_before)
        assert max(count_done(stack.records(Wreq), ids).values()) == 1
        retried = stack.logged(Req, lambda r: r.id in ids and r.attempt == 2, count=8)
        assert all(r.lost_us > 0 for r in retried)
        explained = e2e_stack.run_tailrace("explain", retried[0].id, "--json", "--log-dir", stack.log_dir)
        told = json.loads(explained.stdout)
        assert {s["name"]: s["ns"] for s in told["segments"]}["lost_attempt"] > 0
        assert sum(s["ns"] for s in told["segments"]) == told["e2e_ns"] == retried[0].g8 - retried[0].g0
    finally:
        for process in reversed(started):
            process.stop()
        await server.stop()


async def test_a_killed_redis_comes_back_and_no_answer_is_lost(stack: Stack) -> None:
    """kill -9 of the embedded Redis under load: `up` starts it again, and everybody gets the right answer."""
    (killed,) = stack.main.children_like("redis")
    restarts = len([e for e in stack.records(Evt) if e.kind == "redis_restart"])
    replies: list[Reply] = []
    asking = asyncio.create_task(e2e_stack.ask_many(stack.url, range(256), replies=replies))
    await e2e_stack.soon(lambda: len(replies) >= 24, within_s=10, what="some answers")

    killed.kill()
    killed_ns = clock.now_ns()
    await asking

    assert len(replies) == 256
    assert not e2e_stack.wrong(replies)
    assert len(request_ids(replies)) == 256
    assert max(reply.at_ns for reply in replies) - killed_ns < 20e9
    assert stack.main.child("redis").pid != killed.pid
    stack.logged(Evt, lambda e: e.kind == "redis_restart", count=restarts + 1)


async def test_a_wiped_redis_loses_no_synchronous_request(stack: Stack, broker: redis.asyncio.Redis) -> None:
    """FLUSHALL under load: the gateway still has the requests, hands them over again, and all are answered right."""
    replies: list[Reply] = []
    asking = asyncio.create_task(e2e_stack.ask_many(stack.url, range(256), replies=replies))
    await e2e_stack.soon(lambda: len(replies) >= 24, within_s=10, what="some answers")

    await broker.flushall()
    await asking

    assert len(replies) == 256
    assert not e2e_stack.wrong(replies)
    assert len(request_ids(replies)) == 256
    await e2e_stack.soon(
        lambda: e2e_stack.ask(stack.url, "/v2/models/slow/ready").status == 200, within_s=5, what="the model is ready"
    )
    await e2e_stack.soon(lambda: is_empty(broker), within_s=5, what="nothing is left in the queue")


async def is_empty(broker: redis.asyncio.Redis) -> bool:
    """True when nothing is queued, running or waiting for a deadline."""
    lanes = [await broker.xlen(lane) for lane in SLOW.lanes]
    return not any(lanes) and not await broker.zcard(SLOW.deadlines)


async def test_a_client_that_leaves_while_queued_takes_its_request_with_it(
    stack: Stack, broker: redis.asyncio.Redis
) -> None:
    """Its record ends as CANCELLED, its entry leaves the queue, and no worker ever computes it."""
    async with e2e_stack.clients() as session:
        ahead = [asyncio.create_task(e2e_stack.ask_slow(session, stack.url, n)) for n in range(64)]
        await e2e_stack.soon(lambda: any(t.done() for t in ahead), within_s=10, what="the first answer")
        leaving = asyncio.create_task(e2e_stack.ask_slow(session, stack.url, 999, label="leaves"))

        async def queued_id() -> str:
            for _, fields in await broker.xrevrange(LANE, count=8):
                request_id = fields[b"r"].decode()
                payload = await broker.get(SLOW.payload(request_id))
                if payload and (999).to_bytes(8, "little") in payload:
                    return request_id
            return ""

        request_id = await e2e_stack.soon(queued_id, within_s=2, what="the request is queued")
        unfinished = sum(not task.done() for task in ahead)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)

        async def is_over() -> bool:
            return await broker.hget(SLOW.record(request_id), "st") in (b"CANCELLED", None)

        await e2e_stack.soon(is_over, within_s=2, what="the record has ended")
        assert not await broker.exists(SLOW.payload(request_id))
        assert request_id.encode() not in [fields[b"r"] for _, fields in await broker.xrange(LANE)]
        replies = await asyncio.gather(*ahead)

    assert unfinished > 16, "it would have been its turn anyway: this proves nothing"
    assert not e2e_stack.wrong(replies)
    (left,) = stack.logged(Req, lambda r: r.id == request_id)
    assert left.label == "leaves"
    assert left.status == 499
    assert left.error_code == "cancelled"
    ids = request_ids(replies)
    stack.logged(Wreq, lambda w: w.id in ids, count=64)
    assert not [w for w in stack.records(Wreq) if w.id == request_id and w.batch_id]


async def test_a_gateway_told_to_stop_answers_what_it_has_accepted(stack: Stack, broker: redis.asyncio.Redis) -> None:
    """SIGTERM under load: every request that was accepted is answered right, new ones are refused, it exits 0."""
    process, url = stack.start_gateway()
    replies: list[Reply] = []
    asking = asyncio.create_task(e2e_stack.ask_many(url, range(64), at_once=64, replies=replies))

    async def all_accepted() -> bool:
        return await broker.xlen(LANE) + len(replies) >= 64

    await e2e_stack.soon(all_accepted, within_s=10, what="all requests are accepted")
    answered_before = len(replies)
    process.signal(signal.SIGTERM)
    await asking
    status = await asyncio.to_thread(process.wait_ended)

    assert answered_before < 48, "too late: this proves nothing"
    assert len(replies) == 64
    assert not e2e_stack.wrong(replies)
    assert status == 0, process.text
    async with e2e_stack.clients() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await e2e_stack.ask_slow(session, url, 1)


async def test_a_gateway_that_is_killed_leaves_no_work_behind_for_ever(
    stack: Stack, broker: redis.asyncio.Redis
) -> None:
    """kill -9 of a gateway: its clients lose their connection, the queue empties, and other gateways serve on."""
    process, url = stack.start_gateway()
    async with e2e_stack.clients() as session:
        asking = [asyncio.create_task(e2e_stack.ask_slow(session, url, n)) for n in range(24)]
        await e2e_stack.soon(lambda: any(t.done() for t in asking), within_s=10, what="the first answer")
        process.signal(signal.SIGKILL)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)

    assert any(isinstance(outcome, aiohttp.ClientError) for outcome in outcomes)
    assert not e2e_stack.wrong(outcome for outcome in outcomes if isinstance(outcome, Reply))
    await e2e_stack.soon(lambda: is_empty(broker), within_s=10, what="the queue is empty")
    assert not e2e_stack.wrong(await e2e_stack.ask_many(stack.url, range(8), at_once=8))


def test_a_worker_that_stands_still_for_less_than_its_lease_costs_no_answer(stack: Stack) -> None:
    """SIGSTOP for a moment (a debugger, a swapping machine): the requests wait, and nobody sees an error."""
    worker: psutil.Process = stack.main.child("worker")

    async def scenario() -> list[Reply]:
        asking = asyncio.create_task(e2e_stack.ask_many(stack.url, range(32), at_once=32))
        worker.send_signal(signal.SIGSTOP)
        try:
            stopped_ns = clock.now_ns()
            await e2e_stack.soon(lambda: clock.now_ns() - stopped_ns > 1e9, within_s=3, what="a second passes")
            assert not asking.done()
        finally:
            worker.send_signal(signal.SIGCONT)
        return await asking

    replies = asyncio.run(scenario())

    assert len(replies) == 32
    assert not e2e_stack.wrong(replies)
