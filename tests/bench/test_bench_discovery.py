"""What is asked before anything is measured, and how each disappointment is told."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from bench_logs import log_line, write_log
from bench_server import FakeServer, X

from bench import measure as measuring
from bench.connections import Target, target_of
from bench.errors import CannotMeasure
from bench.load import Progress
from bench.measure import Settings, measure
from bench.results import Results
from bench.tally import Tally
from bench.workload import Shape

UNTIL = 40


@pytest.fixture(autouse=True)
def nobody_else_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own process keeps its garbage collector and its limits."""
    monkeypatch.setattr(measuring, "calm_gc", lambda: None)
    monkeypatch.setattr(measuring, "allow_files", lambda count: None)


async def measured(server: FakeServer, settings: Settings) -> Results:
    """Measure until the server has had a few requests."""
    stop = asyncio.Event()
    answer = server.answer

    async def counted(request: web.Request) -> web.StreamResponse:
        if len(server.bodies) >= UNTIL:
            stop.set()
        return await answer(request)

    @contextlib.contextmanager
    def watch(progress: Progress, tally: Tally) -> Iterator[None]:
        yield

    server.answer = counted
    return await measure(settings, stop, watch)


def settings(server: FakeServer, **more: object) -> Settings:
    return dataclasses.replace(Settings(url=server.url, duration_s=3600, warm_up_s=0), **more)


async def test_a_closed_loop_measures_the_only_model_of_a_server() -> None:
    """No --model is needed there; the ledger of each answer is read."""
    async with FakeServer() as server:
        r = await measured(server, settings(server, connections=2))
        assert all(json.loads(body)["inputs"][0]["shape"] == [1, 4] for body in server.bodies)
    assert (r.server, r.models, r.is_open, r.connections_most) == ({"name": "fake", "version": "7"}, ("m",), False, 2)
    assert r.tally.ok_count == r.request_count >= UNTIL - 1
    assert (r.exit_status, r.broken_off, r.has_ledger) == (0, True, True)
    assert r.tally.parts["compute"].max_ns == 2_000_000
    assert r.tally.slowest[0].id == "id-1"


async def test_an_open_loop_keeps_its_rate() -> None:
    """1,000 a second, so that the test is short; the headers asked for are sent."""
    async with FakeServer() as server:
        r = await measured(server, settings(server, rate_per_s=1000, headers={"x-tenant": "t"}))
        assert server.headers[-1]["x-tenant"] == "t"
    assert r.is_open
    assert r.tally.late.count == r.tally.ok_count + r.tally.failed_count >= UNTIL - 1


async def test_a_recorded_log_is_sent_again_to_the_models_that_it_names(tmp_path: Path) -> None:
    """All of it, each request to its own model, with its rows; nothing is left out to warm up."""
    logs = write_log(
        tmp_path, *(log_line(i, model="ab"[i % 2], rows=1 + i % 2) for i in range(10)), log_line(4, model="", rows=0)
    )
    async with FakeServer(models={"a": [X], "b": [X]}) as server:
        plan = dataclasses.replace(Settings(url=server.url), replay=(logs,), speed=4.0)
        r = await measured(server, plan)
        rows = [json.loads(body)["inputs"][0]["shape"][0] for body in server.bodies]
    assert (r.request_count, r.tally.ok_rows, r.models) == (10, 15, ("a", "b"))
    assert sorted(rows[1:]) == [1] * 5 + [2] * 5  # the very first only asked whether it works
    assert not r.broken_off


async def test_a_server_of_another_kind_is_told() -> None:
    """It answers, but not to GET /v2."""
    async with FakeServer() as server:
        target = server.target
        elsewhere = dataclasses.replace(settings(server), url=f"http://{target.host}:{target.port}/not/here")
        with pytest.raises(CannotMeasure, match=r"no server of the Open Inference Protocol: GET /v2 gave 404"):
            await measured(server, elsewhere)


async def test_an_unknown_model_is_told_with_those_there_are() -> None:
    """So that a slip of the pen is seen at once."""
    async with FakeServer(models={"mlp": [X], "minilm": [X]}) as server:
        with pytest.raises(CannotMeasure, match=r"has no model 'mpl' .*it serves minilm, mlp"):
            await measured(server, settings(server, model="mpl"))
        with pytest.raises(CannotMeasure, match="name the model with --model: it serves minilm, mlp"):
            await measured(server, settings(server))


async def test_nobody_there_is_told() -> None:
    """With the system's reason, and without a traceback."""
    async with FakeServer() as server:
        nowhere = settings(server)
    with pytest.raises(CannotMeasure, match="Connect"):
        await measured(server, nowhere)


async def test_a_model_that_refuses_what_we_make_is_told_once() -> None:
    """One request asks; not a thousand failures later."""

    async def refusing(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "x must be\npositive"}, status=400)

    async with FakeServer(refusing) as server:
        with pytest.raises(CannotMeasure, match="does not answer a first request: 400: x must be positive"):
            await measured(server, settings(server))
        assert len(server.bodies) == 1


async def test_an_answer_that_is_no_inference_is_told() -> None:
    """A proxy may answer 200 to anything."""

    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<h1>Welcome</h1>", content_type="text/html")

    async with FakeServer(page) as server:
        with pytest.raises(CannotMeasure, match="no infer response: <h1>Welcome</h1>"):
            await measured(server, settings(server))


async def test_rows_that_a_model_cannot_take_are_told_beforehand() -> None:
    """The configuration says how many there may be; this server has none, so its model decides."""
    async with FakeServer() as server:
        r = await measured(server, settings(server, shape=Shape(rows=5), connections=1))
        assert json.loads(server.bodies[0])["inputs"][0]["shape"] == [5, 4]
    assert r.tally.ok_rows == 5 * r.tally.ok_count


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h", Target("h", 80, False, "")),
        ("h:8000", Target("h", 8000, False, "")),
        ("https://h/v1/", Target("h", 443, True, "/v1")),
        ("http://[::1]:8000", Target("::1", 8000, False, "")),
    ],
)
def test_a_url_is_read(url: str, target: Target) -> None:
    """With and without scheme, port and path."""
    assert target_of(url) == target
    assert target_of(target.url) == target


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h:port", "http://h?x=1", "http://me:secret@h"])
def test_what_is_no_url_is_told(url: str) -> None:
    """And an example is given."""
    with pytest.raises(CannotMeasure, match="is no URL of a server"):
        target_of(url)
