"""After very many requests everything is as it was after the first ones: streams, keys, memory."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from chaos_stack import ECHO, MODELS, answer_to, breaches
from e2e import e2e_stack
from e2e.e2e_stack import Process
from support.audit import leftovers

from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from tailrace.supervise import die_with_parent

CONNECTIONS = 64
GROWTH_MAX = 0.05
MIB = 1 << 20
SETTLED_WITHIN_S = 35.0


async def one_client(port: int, numbers: Iterator[int]) -> None:
    """Ask on one connection until the numbers are used up, by hand: a client library costs more than the gateway."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in numbers:
        body = e2e_stack.infer_json("n", "INT64", [1, 2], [number, 0]).encode()
        writer.write(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
        text = await reader.readexactly(length)
        assert head.startswith(b"HTTP/1.1 200"), text
        assert json.loads(text)["outputs"][0]["data"] == [answer_to(number)]
    writer.close()
    await writer.wait_closed()


async def ask(port: int, count: int) -> None:
    """So many requests, each answered right."""
    numbers = iter(range(count))
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(one_client(port, numbers))


async def memory(c: Connection, processes: dict[str, int]) -> dict[str, float]:
    """MiB of Redis' data and of each process."""
    used = dict(line.split(b":") for line in (await c.call("INFO", "memory")).split(b"\r\n") if b":" in line)
    own = {name: psutil.Process(pid).memory_info().rss / MIB for name, pid in processes.items()}
    return {"redis": int(used[b"used_memory"]) / MIB, **own}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [6_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_memory_and_streams_are_back_where_they_were(short_dir: Path, count: int) -> None:
    """Every key is empty, bounded or expires; Redis, gateway and worker as large as before (complaints 49, 69)."""
    server = EmbeddedRedis(short_dir / "r", appendonly=False, preexec=die_with_parent)
    await server.start()
    repository = e2e_stack.make_repository(short_dir / "models", {"echo": MODELS / "echo"})
    common = ("--log-dir", short_dir / "logs", "--redis", server.url)
    worker = Process("worker", *common, "--model-repository", repository, directory=short_dir)
    gateway = Process("gateway", *common, "--port", "0", directory=short_dir)
    pids = {"gateway": gateway.pid, "worker": worker.pid}
    try:
        await asyncio.to_thread(worker.says, "event=serving")
        url = (await asyncio.to_thread(gateway.says, r"url=(http://\S+)"))[1]
        await asyncio.to_thread(
            e2e_stack.eventually,
            lambda: e2e_stack.ask(url, "/v2/health/ready").status == 200,
            within_s=10,
            what="ready",
        )
        port = int(url.rpartition(":")[2])
        async with Connection(server.url, "look", quiet=True) as c:
            await c.wait_connected()
            await ask(port, count // 3)
            before = await memory(c, pids)
            await ask(port, count)

            async def grown() -> list[str]:
                now = await memory(c, pids)
                print({name: f"{before[name]:.1f} -> {now[name]:.1f} MiB" for name in now})
                return [name for name in now if now[name] > before[name] * (1 + GROWTH_MAX)]

            async def is_settled() -> bool:
                return not await leftovers(c, ECHO) and not await grown()

            await e2e_stack.soon(is_settled, within_s=SETTLED_WITHIN_S, what="everything is as it was")
            lengths = [await c.call("XLEN", lane) for lane in (*ECHO.lanes, ECHO.suspects)]
    finally:
        await asyncio.gather(*(asyncio.to_thread(p.stop) for p in (worker, gateway)))
        await server.stop()

    assert lengths == [0] * 5
    assert not breaches(short_dir / "logs")
