"""Processes come and go: work is shared, nothing is lost when one leaves, and nothing is left behind in the end."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import e2e_stack
import psutil
import pytest
import redis.asyncio
from e2e_stack import Process, Reply, Stack

from forensics.load import Logs
from shared import clock
from shared.broker.embedded import EmbeddedRedis
from shared.events import Batch, Evt, Req
from shared.keys import NORMAL, Queue

LANE = Queue("slow", "1").lanes[NORMAL]


@pytest.fixture(scope="module")
def pair(slow_repository: Path) -> Iterator[Stack]:
    """`up --workers 2`, serving `slow` alone; both are ready."""
    running = e2e_stack.start_up(slow_repository, "--workers", "2")
    try:
        e2e_stack.eventually(lambda: len(serving(running)) == 2, within_s=e2e_stack.START_S, what="two workers serve")
        yield running
    finally:
        e2e_stack.stop_all(running)


def serving(stack: Stack) -> set[int]:
    """The processes of the workers that have said that they serve, and live."""
    said = {line.partition("worker=")[2].split()[0] for line in stack.main.text.splitlines() if "event=serving" in line}
    return {int(name.rsplit("-", 2)[1]) for name in said} & {worker.pid for worker in workers(stack)}


def workers(stack: Stack) -> list[psutil.Process]:
    """The living workers of an `up`."""
    return stack.main.children_like("worker")


def batches_of(stack: Stack, since_ns: int) -> dict[int, int]:
    """Requests that each worker process has run since then."""
    ran: dict[int, int] = {}
    for line in Logs.load([stack.log_dir], (Batch,)).of(Batch):
        if line.record.w3 >= since_ns:
            ran[line.envelope.pid] = ran.get(line.envelope.pid, 0) + line.record.requests
    return ran


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that nobody has waited for yet is dead, too."""
    running = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
        except psutil.NoSuchProcess:
            continue
    return running


async def test_two_workers_share_the_load(pair: Stack) -> None:
    """Both run batches, each at least a quarter of all requests; all answers are right."""
    began_ns = clock.now_ns()

    replies = await e2e_stack.ask_many(pair.url, range(128))

    assert len(replies) == 128
    assert not e2e_stack.wrong(replies)
    e2e_stack.eventually(
        lambda: sum(batches_of(pair, began_ns).values()) == 128, within_s=5, what="128 requests in the workers' logs"
    )
    ran = batches_of(pair, began_ns)
    assert len(ran) == 2
    assert min(ran.values()) >= 32, ran


async def test_a_worker_started_by_hand_joins_and_leaves_under_load_without_an_error(
    pair: Stack, slow_repository: Path
) -> None:
    """A third worker takes work at once; told to stop under load it hands everything in or on, and exits with 0."""
    third = await asyncio.to_thread(pair.start_worker, slow_repository)
    began_ns = clock.now_ns()
    replies: list[Reply] = []
    asking = asyncio.create_task(e2e_stack.ask_many(pair.url, range(256), replies=replies))
    await e2e_stack.soon(
        lambda: third.pid in batches_of(pair, began_ns), within_s=10, what="the third one runs batches"
    )

    third.signal(signal.SIGTERM)
    told_at = len(replies)
    status = await asyncio.to_thread(third.wait_ended)
    left_at = len(replies)
    await asking

    assert status == 0, third.text
    assert told_at < 192, "too late: this proves nothing"
    assert left_at < 256, "the load was over before it left: this proves nothing"
    assert len(replies) == 256
    assert not e2e_stack.wrong(replies)
    assert "event=stopped" in third.text


async def test_a_dead_worker_is_started_again(pair: Stack) -> None:
    """kill -9 of one of two workers under load: nobody sees an error, and soon there are two again."""
    before = {worker.pid for worker in workers(pair)}
    replies: list[Reply] = []
    asking = asyncio.create_task(e2e_stack.ask_many(pair.url, range(128), replies=replies))
    await e2e_stack.soon(lambda: len(replies) >= 16, within_s=10, what="some answers")

    killed = workers(pair)[0]
    killed.kill()
    await asking

    assert not e2e_stack.wrong(replies)
    await e2e_stack.soon(
        lambda: len(serving(pair) - {killed.pid}) == 2, within_s=e2e_stack.START_S, what="two workers serve again"
    )
    assert len({worker.pid for worker in workers(pair)} - before) == 1
    assert "signal SIGKILL" in pair.main.text
    pair.logged(Evt, lambda e: e.kind == "worker_lost", within_s=10)


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
async def test_one_signal_stops_everything_in_order(slow_repository: Path, how: str) -> None:
    """`up` finishes the requests in flight, exits with 0, and leaves no process and no lock behind."""
    stack = await asyncio.to_thread(e2e_stack.start_up, slow_repository)
    try:
        family = stack.main.children()
        replies: list[Reply] = []
        asking = asyncio.create_task(e2e_stack.ask_many(stack.url, range(64), at_once=64, replies=replies))
        async with redis.asyncio.from_url(stack.redis_url) as broker:

            async def all_accepted() -> bool:
                return await broker.xlen(LANE) + len(replies) >= 64

            await e2e_stack.soon(all_accepted, within_s=10, what="all requests are accepted")
        answered_before = len(replies)
        stack.main.signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
        await asking
        status = await asyncio.to_thread(stack.main.wait_ended)

        assert answered_before < 48, "too late: this proves nothing"
        assert len(replies) == 64
        assert not e2e_stack.wrong(replies)
        assert status == 0, stack.main.text
        assert len(family) == 3
        assert not alive(family)
        assert "Traceback" not in stack.main.text
    finally:
        e2e_stack.stop_all(stack)


def test_a_killed_up_leaves_no_process_behind(slow_repository: Path) -> None:
    """kill -9 of the supervisor: gateway, worker and Redis notice, and end by themselves."""
    stack = e2e_stack.start_up(slow_repository)
    family = stack.main.children()
    try:
        stack.main.signal(signal.SIGKILL)

        assert len(family) == 3
        e2e_stack.eventually(lambda: not alive(family), within_s=20, what="no process is left")
    finally:
        for process in alive(family):
            process.kill()
        e2e_stack.stop_all(stack)


def test_a_port_in_use_is_told_clearly_and_fails(short_directory: Path) -> None:
    """Both `gateway` and `up` say which address and why, and exit with an error instead of trying for ever."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        up = e2e_stack.run_tailrace("up", "--workers", "0", "--port", port, "--data-dir", short_directory / "u")
        gateway = e2e_stack.run_tailrace(
            "gateway", "--port", port, "--redis", "unix:///nonexistent.sock", "--log-dir", short_directory / "l"
        )

    for ended in (up, gateway):
        assert ended.returncode != 0
        assert port in ended.stderr
        assert "in use" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_two_systems_on_the_same_data_are_refused(stack: Stack) -> None:
    """The second `up` says who is in the way and what to do."""
    second = e2e_stack.run_tailrace("up", "--port", "0", "--data-dir", stack.directory)

    assert second.returncode == 1
    assert "another tailrace" in second.stderr
    assert "--data-dir" in second.stderr
    assert e2e_stack.ask(stack.url, "/v2/health/ready").status == 200


@pytest.mark.parametrize("kind", ["gateway", "worker"])
def test_wrong_settings_are_refused_by_name_all_at_once(kind: str, short_directory: Path) -> None:
    """An unknown variable (with the nearest name), a bad value and one out of bounds, in one message."""
    environment = {"TAILRACE_PROT": "1", "TAILRACE_LEASE_S": "0.1", "TAILRACE_DRAIN_S": "long"}

    ended = e2e_stack.run_tailrace(kind, "--log-dir", short_directory / "logs", env=environment)

    assert ended.returncode != 0
    for words in ("TAILRACE_PROT", "TAILRACE_PORT", "TAILRACE_LEASE_S", "0.5", "TAILRACE_DRAIN_S", "number"):
        assert words in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (short_directory / "logs").exists()


def test_up_gives_up_at_once_when_the_settings_are_wrong(short_directory: Path) -> None:
    """A mistake in the environment stops all of it: trying again cannot help, so the message stands there once."""
    ended = e2e_stack.run_tailrace(
        "up", "--workers", "0", "--port", "0", "--data-dir", short_directory, env={"TAILRACE_PROT": "1"}
    )

    assert ended.returncode != 0
    assert ended.stderr.count("TAILRACE_PROT: there is no such setting") == 1, ended.stderr
    assert "Traceback" not in ended.stderr


async def test_ready_is_400_until_a_worker_is_warm(slow_repository: Path, short_directory: Path) -> None:
    """A gateway alone is live but not ready; it becomes ready only once the worker's models are loaded and warm."""
    server = EmbeddedRedis(short_directory / "r")
    await server.start()
    common = ("--redis", server.url, "--log-dir", short_directory / "logs")
    started = [Process("gateway", *common, "--port", "0", directory=short_directory)]
    try:
        url = started[0].says(r"url=(http://\S+)")[1]
        assert e2e_stack.ask(url, "/v2/health/live").status == 200
        not_ready = e2e_stack.ask(url, "/v2/health/ready")
        unknown = e2e_stack.ask(url, "/v2/models/slow/infer", body=e2e_stack.slow_body(1))
        assert not_ready.status == 400
        assert unknown.status == 503
        assert "tailrace worker" in unknown.error

        worker = Process("worker", *common, "--model-repository", slow_repository, directory=short_directory)
        started.append(worker)

        def is_ready() -> bool:
            ready = e2e_stack.ask(url, "/v2/health/ready").status == 200
            assert not ready or "model ready" in worker.text, "ready before the model was"
            return ready

        await e2e_stack.soon(is_ready, within_s=e2e_stack.START_S, what="ready")
        answer = e2e_stack.ask(url, "/v2/models/slow/infer", body=e2e_stack.slow_body(1))
        assert answer.status == 200
        events = [line.record for line in Logs.load([short_directory / "logs"], (Evt,)).of(Evt)]
        loaded_ns = max(e.end for e in events if e.kind == "model_load")
        found_ns = min(e.start for e in events if e.kind == "worker_found")
        assert found_ns > loaded_ns
    finally:
        for process in reversed(started):
            process.stop()
        await server.stop()


def test_help_and_version_need_neither_redis_nor_torch() -> None:
    """`tailrace --help` names every command, and starts without loading what takes seconds."""
    code = "import json, sys, tailrace.cli; print(json.dumps(sorted(sys.modules)))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=e2e_stack.ROOT)
    modules = json.loads(listed.stdout)

    shown = e2e_stack.run_tailrace("--help")

    assert shown.returncode == 0
    for command in ("up", "demo", "gateway", "worker", "explain", "requests", "audit"):
        assert command in shown.stdout
    assert "torch" not in modules
    assert "aiohttp" not in modules


async def test_two_gateways_share_a_port_and_its_connections(slow_repository: Path) -> None:
    """`up --gateways 2`: the kernel deals the connections out, and either answers for the whole fleet."""
    running = e2e_stack.start_up(slow_repository, "--gateways", "2")
    try:
        gateways = running.main.children_like("gateway")
        assert len(gateways) == 2
        # Each asks on a connection of its own: that all of 64 fall to one gateway is a chance of one in 2^63.
        replies = await e2e_stack.ask_many(running.url, range(64), at_once=64)
        assert not e2e_stack.wrong(replies)

        def both_answered() -> bool:
            answered = {line.envelope.pid for line in Logs.load([running.log_dir], (Req,)).of(Req)}
            return answered == {gateway.pid for gateway in gateways}

        await e2e_stack.soon(both_answered, within_s=5, what="both have logged requests")
    finally:
        e2e_stack.stop_all(running)
