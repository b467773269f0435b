"""The two loops against a server in the same process: what is sent when, and what counts as what."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from aiohttp import web
from bench_server import FakeServer, KeepingTally, endless, infer_request, well

from bench import load
from bench.alarm import Alarm
from bench.connections import FailureKind, target_of
from bench.load import ClosedLoop, OpenLoop, Progress
from bench.tally import Tally
from bench.workload import Request
from shared import clock

MS = 1_000_000
TIMEOUT_S = 30.0
NEVER = asyncio.Event


def every_ms(count: int, request: Request) -> Iterator[tuple[int, Request]]:
    """So many requests, one a millisecond."""
    return ((i * MS, request) for i in range(count))


def open_loop(server: FakeServer, count: int, tally: Tally, *, connections_max: int = 8) -> OpenLoop:
    plan = every_ms(count, infer_request(server.target))
    begin_ns = clock.now_ns()
    return OpenLoop(
        server.target, plan, tally, endless(),
        begin_ns=begin_ns, connections_max=connections_max, timeout_s=TIMEOUT_S,
    )  # fmt: skip


def closed_loop(
    server: FakeServer, tally: Tally, *, connections: int = 2, timeout_s: float = TIMEOUT_S, progress: Progress
) -> ClosedLoop:
    requests = itertools.repeat(infer_request(server.target))
    return ClosedLoop(server.target, requests, tally, progress, connections=connections, timeout_s=timeout_s)


async def test_a_stall_shows_in_every_request_that_was_due_meanwhile() -> None:
    """No coordinated omission: two connections, and a server that answers nobody until the last of 20 requests is due.

    A closed loop would have sent two requests and measured two stalls.
    """
    tally = KeepingTally()
    async with FakeServer() as server:
        loop = open_loop(server, 20, tally, connections_max=2)

        async def stalled(request: web.Request) -> web.StreamResponse:
            while loop.progress.taken_count < 20:
                await asyncio.sleep(0)
            return await well(request)

        server.answer = stalled
        assert await loop.finish(NEVER()) == 0

    exchanges = sorted(tally.exchanges, key=lambda x: x.intended_ns)
    last_due_ns = exchanges[-1].intended_ns
    assert tally.ok_count == tally.latency.count == 20
    for i, x in enumerate(exchanges):
        assert x.done_ns - x.intended_ns >= last_due_ns - x.intended_ns == (19 - i) * MS
    # What waited for one of the two connections was sent late, and is known to have waited for that.
    assert tally.connecting.quantile(0.5) > 0
    assert all(x.sent_ns >= last_due_ns for x in exchanges[2:])
    assert tally.latency.max_ns >= 19 * MS


async def test_no_request_is_sent_before_it_is_due() -> None:
    """Early would be as wrong as late."""
    tally = KeepingTally()
    async with FakeServer() as server:
        await open_loop(server, 30, tally).finish(NEVER())
    assert len(tally.exchanges) == 30
    assert all(x.intended_ns <= x.taken_ns <= x.sent_ns <= x.done_ns for x in tally.exchanges)


async def test_a_closed_loop_has_as_many_requests_on_their_way_as_it_has_clients() -> None:
    """Each client waits for its answer; a client keeps its connection."""
    tally, stop = Tally(), asyncio.Event()
    here = most = 0

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal here, most
        here += 1
        most = max(most, here)
        await asyncio.sleep(0)
        here -= 1
        if len(server.bodies) >= 60:
            stop.set()
        return await well(request)

    async with FakeServer(counted) as server:
        unfinished = await closed_loop(server, tally, connections=3, progress=endless()).finish(stop)
        assert unfinished == 0
        assert most <= 3
        assert len(server.peers) == 3
        assert tally.ok_count == len(server.bodies) >= 60


async def test_a_closed_loop_ends_when_its_time_is_over() -> None:
    """With no time at all nothing is sent."""
    tally = Tally()
    async with FakeServer() as server:
        loop = closed_loop(server, tally, progress=Progress(0, 0))
        assert await loop.finish(NEVER()) == 0
    assert (tally.ok_count, server.bodies) == (0, [])


async def test_warm_up_requests_are_sent_and_not_counted() -> None:
    """The first half of a schedule lies before the time that counts."""
    tally = Tally()
    async with FakeServer() as server:
        loop = open_loop(server, 20, tally)
        tally.from_ns = loop._begin_ns + 10 * MS
        await loop.finish(NEVER())
    assert (tally.warm_up_count, tally.ok_count, len(server.bodies)) == (10, 10, 20)


async def test_errors_are_counted_by_status_with_the_first_message_of_each() -> None:
    """Here 429 and 500 in turns; latencies are only those of answers."""
    tally, number = Tally(), itertools.count()

    async def failing(request: web.Request) -> web.StreamResponse:
        i = next(number)
        status = (200, 429, 500)[i % 3]
        return web.json_response({"error": f"message {i}"}, status=status) if i % 3 else await well(request)

    async with FakeServer(failing) as server:
        await open_loop(server, 9, tally, connections_max=1).finish(NEVER())
    assert {kind: (e.count, e.first) for kind, e in tally.errors.items()} == {
        "429": (3, "message 1"),
        "500": (3, "message 2"),
    }
    assert (tally.ok_count, tally.failed_count, tally.latency.count, tally.late.count) == (3, 6, 3, 9)


async def test_a_connection_that_the_server_drops_is_one_failed_request() -> None:
    """The next request goes on a connection of its own."""
    tally = Tally()

    async def dropping(request: web.Request) -> web.StreamResponse:
        if len(server.bodies) == 1:
            assert request.transport is not None
            request.transport.abort()
        return await well(request)

    async with FakeServer(dropping) as server:
        await open_loop(server, 5, tally, connections_max=1).finish(NEVER())
        assert len(server.peers) == 2
    assert (tally.ok_count, tally.failed_count) == (4, 1)
    assert list(tally.errors) == [FailureKind.LOST.value]


async def test_a_server_that_says_close_is_obeyed() -> None:
    """A connection each, and no failure."""
    tally = Tally()

    async def closing(request: web.Request) -> web.StreamResponse:
        response = web.json_response({"outputs": []})
        response.force_close()
        return response

    async with FakeServer(closing) as server:
        await open_loop(server, 5, tally, connections_max=1).finish(NEVER())
        assert len(server.peers) == 5
    assert (tally.ok_count, tally.failed_count) == (5, 0)


async def test_an_answer_that_takes_too_long_is_a_failure() -> None:
    """The limit is kept although the server says nothing; the time a closed client waits is bounded so."""
    tally, stop = Tally(), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        if len(server.bodies) > 1:
            stop.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with FakeServer(silent) as server:
        loop = closed_loop(server, tally, connections=1, timeout_s=0.01, progress=endless())
        await loop.finish(stop)
    assert tally.errors[FailureKind.TIMEOUT.value].count >= 1
    assert "within 0.01 s" in tally.errors[FailureKind.TIMEOUT.value].first


async def test_breaking_off_leaves_what_had_not_ended_uncounted() -> None:
    """Ctrl-C while the server is silent: nothing is invented about those requests."""
    tally, stop = Tally(), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        if len(server.bodies) == 2:
            stop.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with FakeServer(silent) as server:
        unfinished = await closed_loop(server, tally, connections=2, progress=endless()).finish(stop)
    assert unfinished == 2
    assert (tally.ok_count, tally.failed_count) == (0, 0)


async def test_requests_that_the_generator_is_hopelessly_late_for_are_not_sent() -> None:
    """A schedule that began ten seconds ago with a limit of one: ten thousand requests in arrears help nobody."""
    tally = Tally()
    async with FakeServer() as server:
        loop = OpenLoop(
            server.target, every_ms(100, infer_request(server.target)), tally, endless(),
            begin_ns=clock.now_ns() - 10_000 * MS, connections_max=4, timeout_s=1.0,
        )  # fmt: skip
        await loop.finish(NEVER())
        assert server.bodies == []
    assert tally.errors[FailureKind.UNSENT.value].count == 100


async def test_no_more_than_a_bounded_number_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stands still would otherwise fill the generator's memory."""
    monkeypatch.setattr(load, "LIVE_MAX", 5)
    tally = Tally()
    async with FakeServer() as server:
        loop = open_loop(server, 20, tally)

        async def stalled(request: web.Request) -> web.StreamResponse:
            while loop.progress.taken_count < 20:
                await asyncio.sleep(0)
            return await well(request)

        server.answer = stalled
        await loop.finish(NEVER())
    assert (tally.ok_count, tally.errors[FailureKind.UNSENT.value].count) == (5, 15)


@pytest.mark.parametrize("host", ["a..b", "nobody.invalid"])
async def test_a_name_that_means_nothing_is_told(host: str) -> None:
    """Whether it is badly written or unknown."""
    tally = Tally()
    target = target_of(f"http://{host}:1")
    loop = OpenLoop(
        target, every_ms(1, infer_request(target)), tally, endless(),
        begin_ns=clock.now_ns(), connections_max=1, timeout_s=TIMEOUT_S,
    )  # fmt: skip
    await loop.finish(NEVER())
    assert tally.errors[FailureKind.CONNECT.value].count == 1


async def test_nobody_listens() -> None:
    """Each request fails with what the system said; an open loop goes on."""
    tally = Tally()
    async with FakeServer() as server:
        target = server.target
    loop = OpenLoop(
        target, every_ms(3, infer_request(target)), tally, endless(),
        begin_ns=clock.now_ns(), connections_max=4, timeout_s=TIMEOUT_S,
    )  # fmt: skip
    await loop.finish(NEVER())
    assert tally.errors[FailureKind.CONNECT.value].count == 3


async def test_another_protocol_is_told() -> None:
    """Whatever listens there, it speaks no HTTP."""
    tally = Tally()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n\r\n")
        await reader.read()  # until the other side has gone
        writer.close()

    mail = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with mail:
        host, port = mail.sockets[0].getsockname()[:2]
        target = target_of(f"http://{host}:{port}")
        loop = OpenLoop(
            target, every_ms(1, infer_request(target)), tally, endless(),
            begin_ns=clock.now_ns(), connections_max=1, timeout_s=TIMEOUT_S,
        )  # fmt: skip
        await loop.finish(NEVER())
    (kind,) = tally.errors
    assert kind == FailureKind.MALFORMED.value


async def test_an_alarm_rings_when_it_is_time_and_not_before() -> None:
    """What was set last counts; what has passed rings at once."""
    rung = asyncio.Event()
    alarm = Alarm(rung.set)
    try:
        at_ns = clock.now_ns() + 3 * MS
        alarm.set(clock.now_ns() + 3_600_000 * MS)
        alarm.set(at_ns)
        await rung.wait()
        assert clock.now_ns() >= at_ns
        rung.clear()
        alarm.set(at_ns)
        await rung.wait()
    finally:
        alarm.close()
