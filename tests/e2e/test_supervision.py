"""`up` keeps its processes alive, health checks tell the truth meanwhile, and what cannot live ends with a reason."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import e2e_stack
import pytest
import redis.asyncio
from e2e_stack import Process, Reply, Stack

from shared import clock
from shared.broker.embedded import EmbeddedRedis
from shared.keys import NORMAL, Queue
from tailrace import up
from tailrace.supervise import GaveUp

LEASE_S = 1.0
LANE = Queue("slow", "1").lanes[NORMAL]


@pytest.fixture(scope="module")
def stack(slow_repository: Path) -> Iterator[Stack]:
    """`up` with one worker, which is taken for dead soon."""
    running = e2e_stack.start_up(slow_repository, env={"TAILRACE_LEASE_S": str(LEASE_S)})
    yield running
    e2e_stack.stop_all(running)


def status(stack: Stack, probe: str) -> int:
    """What a load balancer sees."""
    return e2e_stack.ask(stack.url, f"/v2/health/{probe}").status


def test_ready_turns_400_soon_after_the_only_worker_died_and_comes_back_with_the_next(stack: Stack) -> None:
    """A dead worker, and health says OK (complaint 57: pytorch/serve#2357, LitServe#532): ready follows its lease."""
    assert (status(stack, "ready"), status(stack, "live")) == (200, 200)
    worker = stack.main.child("worker")
    worker.send_signal(signal.SIGKILL)
    killed_ns = clock.now_ns()

    e2e_stack.eventually(lambda: status(stack, "ready") != 200, within_s=LEASE_S + 2, what="ready turns 400")
    noticed_s = (clock.now_ns() - killed_ns) / 1e9
    assert status(stack, "ready") == 400
    lives = {status(stack, "live")}

    def is_ready_again() -> bool:
        lives.add(status(stack, "live"))
        return status(stack, "ready") == 200

    e2e_stack.eventually(is_ready_again, within_s=e2e_stack.START_S, what="ready again")
    assert noticed_s < LEASE_S + 2
    assert lives == {200}
    assert stack.main.child("worker").pid != worker.pid
    assert not e2e_stack.wrong(asyncio.run(e2e_stack.ask_many(stack.url, range(8))))


async def test_a_gateway_that_dies_is_started_again_on_its_port(stack: Stack) -> None:
    """Its clients lose their connections, ask again, and are answered."""
    gateway = stack.main.child("gateway")
    async with e2e_stack.clients() as session:
        asking = [asyncio.create_task(e2e_stack.ask_slow(session, stack.url, n)) for n in range(16)]
        await e2e_stack.soon(lambda: any(task.done() for task in asking), within_s=10, what="the first answer")
        gateway.send_signal(signal.SIGKILL)
        await asyncio.gather(*asking, return_exceptions=True)

    await e2e_stack.soon(lambda: status(stack, "ready") == 200, within_s=e2e_stack.START_S, what="ready again")
    assert stack.main.child("gateway").pid != gateway.pid
    assert not e2e_stack.wrong(await e2e_stack.ask_many(stack.url, range(16)))
    assert "which=gateway" in stack.main.text
    audited = e2e_stack.run_tailrace("audit", stack.log_dir)
    assert audited.returncode == 0, audited.stdout


async def test_redis_is_started_again_even_while_everything_stops(slow_repository: Path) -> None:
    """A signal for the whole control group stops Redis first: what the gateway still holds once waited in vain."""
    stack = await asyncio.to_thread(e2e_stack.start_up, slow_repository)
    try:
        replies: list[Reply] = []
        asking = asyncio.create_task(e2e_stack.ask_many(stack.url, range(64), at_once=64, replies=replies))
        async with redis.asyncio.from_url(stack.redis_url) as broker:

            async def all_accepted() -> bool:
                return await broker.xlen(LANE) + len(replies) >= 64

            await e2e_stack.soon(all_accepted, within_s=10, what="all requests are accepted")
        stack.main.signal(signal.SIGTERM)
        await e2e_stack.soon(lambda: "event=stopping" in stack.main.text, within_s=5, what="it stops")
        stack.main.child("redis").send_signal(signal.SIGTERM)
        answered_before = len(replies)
        await asking
        ended = await asyncio.to_thread(stack.main.wait_ended)

        assert answered_before < 56, "too late: this proves nothing"
        assert not e2e_stack.wrong(replies)
        assert len(replies) == 64
        assert ended == 0, stack.main.text
    finally:
        e2e_stack.stop_all(stack)


def test_a_crash_loop_ends_with_the_reason_and_status_1(slow_repository: Path, short_directory: Path) -> None:
    """A model whose native code aborts takes its worker along at every start: who, how, what it said, what to do."""
    repository = e2e_stack.make_repository(short_directory / "models", {"slow": slow_repository / "slow"})
    model = repository / "slow" / "1" / "model.py"
    model.write_text('import os\nos.write(2, b"terminate called: no kernel image\\n")\nos.abort()\n')

    loop = Process(
        "up", "--port", "0", "--data-dir", short_directory / "d", "--model-repository", repository,
        directory=short_directory,
    )  # fmt: skip
    try:
        assert loop.wait_ended(within_s=250) == 1
        verdict = loop.text[loop.text.index("died 5 times in a row") :]
        assert "worker 1 died 5 times in a row, the last time with signal SIGABRT; the last it said:" in loop.text
        assert "terminate called: no kernel image" in verdict
        assert "then start again" in verdict
        assert loop.text.count('event="a process died"') == 4
        assert not loop.children()
    finally:
        loop.stop()


async def test_a_redis_that_dies_again_and_again_is_given_up(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was once started again without end, and given up at once when it died while it started."""
    monkeypatch.setattr(up, "BACKOFF_FIRST_S", 0.01)
    server = EmbeddedRedis(short_directory / "r")
    await server.start()
    stack = up.Stack(up.UpOptions(data_dir=short_directory))
    keeping = asyncio.create_task(stack._keep_redis(server))
    try:
        killed = set()
        while not stack.failed.done():
            assert server.process is not None
            if server.process.pid not in killed:
                killed.add(server.process.pid)
                server.process.kill()
            await asyncio.sleep(0.001)
        with pytest.raises(GaveUp, match=r"died 5 times in a row, the last time with signal SIGKILL; see .*redis\.log"):
            stack.failed.result()
        assert len(killed) == 5
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await server.stop()
