"""Large tensors go by the host's memory where gateway and worker share it, by Redis where not; none is left behind."""

import asyncio
import gzip
import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import e2e_stack
import numpy as np
import psutil
import pytest
import redis
from e2e_stack import ROOT, Answer, Stack, ask

from bench.oip import Tensor, infer_body
from shared.events import Wreq

NUMBERS = np.arange(1 << 19, dtype=np.float32).reshape(1, -1)
"""2 MiB."""
BODY, HEADERS = infer_body([Tensor("x", "FP32", NUMBERS.shape, NUMBERS)], binary=True)
Start = Callable[[str], Stack]


@pytest.fixture
def start(tmp_path: Path, short_directory: Path) -> Iterator[Start]:
    """Starts a system that echoes, whose folder for large tensors is the one named."""
    running: list[Stack] = []
    models = e2e_stack.make_repository(tmp_path / "models", {"echo": ROOT / "bench/models/echo"})

    def up(bulk_dir: str) -> Stack:
        # A worker that stands still here is not dead.
        env = {"TAILRACE_BULK_DIR": bulk_dir, "TAILRACE_LEASE_S": "60"}
        running.append(e2e_stack.start_up(models, env=env))
        return running[-1]

    yield up
    for stack in running:
        e2e_stack.stop_all(stack)


def echoed(answer: Answer) -> bool:
    """Whether it is what was sent."""
    head = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.body[:head])["outputs"]
    assert output["shape"] == list(NUMBERS.shape)
    return answer.body[head:] == NUMBERS.tobytes()


def echo(stack: Stack) -> Answer:
    """Send the numbers."""
    return ask(stack.url, "/v2/models/echo/infer", body=BODY, headers=HEADERS)


def files(folder: Path) -> list[str]:
    """The tensors that lie there."""
    return [file.name for file in folder.iterdir() if not file.name.startswith(".")]


def bytes_through_redis(stack: Stack) -> int:
    """What Redis has read and written."""
    with redis.from_url(stack.redis_url) as broker:
        stats = broker.info("stats")
        return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


def worker_of(stack: Stack) -> psutil.Process:
    """Its only worker."""
    return stack.main.child("worker")


def test_redis_never_sees_a_large_tensor(start: Start, tmp_path: Path) -> None:
    """There and back it is in memory that both sides share, and then gone; the log tells its size all the same."""
    stack = start(str(tmp_path / "bulk"))
    assert echoed(echo(stack))
    before = bytes_through_redis(stack)
    assert all(echoed(echo(stack)) for _ in range(5))
    assert bytes_through_redis(stack) - before < NUMBERS.nbytes
    e2e_stack.eventually(lambda: not files(tmp_path / "bulk"), within_s=5, what="the files are dropped")
    logged = stack.logged(Wreq, lambda w: w.model == "echo" and w.outcome == "DONE", count=6)
    assert all(NUMBERS.nbytes <= w.bytes_in < NUMBERS.nbytes + 100 for w in logged)


def test_a_packed_body_is_unpacked_and_goes_the_same_way(start: Start, tmp_path: Path) -> None:
    """Its tensors are what counts, not what came."""
    stack = start(str(tmp_path / "bulk"))
    assert echoed(echo(stack))
    before = bytes_through_redis(stack)
    headers = {**HEADERS, "Content-Encoding": "gzip"}
    assert echoed(ask(stack.url, "/v2/models/echo/infer", body=gzip.compress(BODY, 1), headers=headers))
    assert bytes_through_redis(stack) - before < NUMBERS.nbytes


def test_without_a_folder_it_goes_through_redis(start: Start) -> None:
    """The setting is empty, or the host has no such memory: slower, and just as right."""
    stack = start("")
    before = bytes_through_redis(stack)
    assert echoed(echo(stack))
    assert bytes_through_redis(stack) - before > 4 * NUMBERS.nbytes


def test_a_worker_that_sees_another_folder_makes_all_of_it_go_through_redis(start: Start, tmp_path: Path) -> None:
    """A request may be taken by any worker of its model, so one that cannot read there decides."""
    stack = start(str(tmp_path / "bulk"))
    elsewhere = str(tmp_path / "elsewhere")
    stack.start_worker(tmp_path / "models", "--bulk-dir", elsewhere)

    def is_known() -> bool:
        before = bytes_through_redis(stack)
        assert echoed(echo(stack))
        return bytes_through_redis(stack) - before > 4 * NUMBERS.nbytes

    e2e_stack.eventually(is_known, within_s=10, what="the gateway knows the second worker")
    e2e_stack.eventually(lambda: not files(tmp_path / "bulk"), within_s=5, what="the files are dropped")


def test_a_file_that_the_worker_does_not_find_is_sent_through_redis(start: Start, tmp_path: Path) -> None:
    """Both seemed to see the same folder: the request is handed over again, whole, and answered."""
    stack = start(str(tmp_path / "bulk"))
    (tmp_path / "copy").mkdir(mode=0o700)
    (tmp_path / "copy" / ".id").write_text((tmp_path / "bulk" / ".id").read_text())
    stack.start_worker(tmp_path / "models", "--bulk-dir", str(tmp_path / "copy"))
    os.kill(worker_of(stack).pid, signal.SIGSTOP)  # so that the other one gets everything
    try:
        first = asyncio.run(_until_both_kinds(stack))
    finally:
        os.kill(worker_of(stack).pid, signal.SIGCONT)
    assert first
    split = {w.id for w in stack.logged(Wreq, lambda w: w.outcome == "SPLIT")}
    stack.logged(Wreq, lambda w: w.outcome == "DONE" and w.id in split, count=len(split))
    e2e_stack.eventually(lambda: not files(tmp_path / "bulk"), within_s=5, what="the files are dropped")


async def _until_both_kinds(stack: Stack) -> bool:
    """Several at once: what the worker that stands still had taken waits; all others are answered right."""
    asked = [asyncio.create_task(asyncio.to_thread(echo, stack)) for _ in range(3)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    right = all(echoed(task.result()) for task in done)
    os.kill(worker_of(stack).pid, signal.SIGCONT)
    return right and all(echoed(answer) for answer in await asyncio.gather(*asked))


def test_a_client_that_leaves_takes_its_file_with_it(start: Start, tmp_path: Path) -> None:
    """Nobody will ask for it."""
    stack = start(str(tmp_path / "bulk"))
    assert echoed(echo(stack))
    worker = worker_of(stack)
    worker.suspend()
    try:
        connection: http.client.HTTPConnection = e2e_stack.connect(stack.url)
        connection.request("POST", "/v2/models/echo/infer", BODY, dict(HEADERS))
        e2e_stack.eventually(lambda: files(tmp_path / "bulk"), within_s=10, what="the request lies there")
        connection.close()
        e2e_stack.eventually(lambda: not files(tmp_path / "bulk"), within_s=10, what="its file is dropped")
    finally:
        worker.resume()
    assert echoed(echo(stack))
