"""What a request in flight costs the gateway's memory: so many are parked at a worker that stands still. See README.md.

The resident size of the gateway's process is read three times: fresh (it has answered a few requests), with as many
idle connections as there will be requests, and with a request waiting on each of them. The worker is stopped (SIGSTOP)
while they wait, with a lease that outlasts it; then it goes on, and all must be answered.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import uvloop
from rich.table import Table

from bench import cells
from bench.cells import Cell
from bench.connections import Target, target_of
from bench.measure import FILES_BESIDE, allow_files
from bench.oip import Tensor, infer_body
from bench.responses import request_bytes
from bench.stack import ECHO, Serving, repository, serving
from forensics.load import Logs
from shared import humanlog
from shared.events import Res

MODEL = "echo"
WAIT_S = 120.0
LOOK_AGAIN_S = 0.2
SETTLE_S = 1.0
AT_ONCE = 100
STEP_S = 0.05
LONG_S = 600
"""Nothing may end while requests are parked: neither they nor the worker's lease."""
SETTINGS = {"LEASE_S": LONG_S, "REQUEST_TIMEOUT_S": LONG_S, "QUEUE_MAX": 100_000, "TENANT_MAX": 100_000}
WARM_COUNT = 64
TARGET_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    """The gateway's resident size, bytes: fresh, with idle connections, with requests in flight, after the answers."""

    fresh: int
    connected: int
    parked: int
    answered: int

    def cell(self, count: int, payload_bytes: int) -> Cell:
        """What that is for each of `count` connections and requests with a body of `payload_bytes`."""
        return {
            "requests": count,
            "payload_bytes": payload_bytes,
            "connection_bytes": (self.connected - self.fresh) / count,
            "request_bytes": (self.parked - self.connected) / count - payload_bytes,
            "both_bytes": (self.parked - self.fresh) / count - payload_bytes,
            "kept_bytes": (self.answered - self.connected) / count,
            "rss_bytes": [self.fresh, self.connected, self.parked, self.answered],
        }


class Client(asyncio.Protocol):
    """One connection. `answered` counts all responses, by their first lines."""

    answered = 0

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # A response begins a piece: each connection has one request at a time.
        if data.startswith(b"HTTP/1.1 200"):
            Client.answered += 1

    def send(self, message: bytes) -> None:
        """Send a request."""
        assert self.transport is not None
        self.transport.write(message)

    def close(self) -> None:
        """Leave."""
        assert self.transport is not None
        self.transport.abort()


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--payloads", type=int, nargs="+", default=[1 << 10, 64 << 10], help="bytes of the tensor")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the JSON; default: nowhere")
    a = parser.parse_args()
    allow_files(max(a.requests) + FILES_BESIDE)  # the gateway inherits it
    os.environ |= {f"TAILRACE_{name}": str(value) for name, value in SETTINGS.items()}
    humanlog.configure("bench", level="warning")
    uvloop.run(_measure(a))


async def _measure(a: argparse.Namespace) -> None:
    console = cells.console()
    found: list[Cell] = []
    with TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        models = repository(folder / "models", {MODEL: ECHO})
        for number in range(a.rounds):
            for count in a.requests:
                for payload in a.payloads:
                    async with serving(folder / f"{number}-{count}-{payload}", models) as stack:
                        sizes = await _park(stack, count, payload)
                    found.append(sizes.cell(count, len(_infer(payload)[0])) | {"round": number})
                    console.print(f"round {number + 1}: {count} requests of {payload} bytes")
    console.print(_table(found))
    console.print(f"Bytes each, beyond the body. The target is {TARGET_BYTES:,} for a request.")
    cells.finish(console, a.out, "bench.memory", {"rounds": a.rounds} | SETTINGS, found)


async def _park(stack: Serving, count: int, payload_bytes: int) -> Sizes:
    """Connect, park and let go; the sizes on the way. Raises TimeoutError."""
    target = target_of(stack.url)
    [gateway], workers = stack.processes["gateway"], stack.processes["worker"]
    body, headers = _infer(payload_bytes)
    infer = _message(target, "POST", "/v2/models/echo/infer", body, headers)
    hello = _message(target, "GET", "/v2/health/live")
    clients = await _connected(target, WARM_COUNT)
    await _answered(clients, infer)
    await asyncio.sleep(SETTLE_S)
    fresh = gateway.memory_info().rss
    clients += await _connected(target, count - len(clients))
    for i in range(0, count, AT_ONCE):
        await _answered(clients[i : i + AT_ONCE], hello)
    await asyncio.sleep(SETTLE_S)
    connected = gateway.memory_info().rss
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    try:
        goal = Client.answered + count
        for i, client in enumerate(clients, 1):
            client.send(infer)
            if i % AT_ONCE == 0:
                await asyncio.sleep(STEP_S)  # as requests come, and not all in one tick
        await _until(lambda: _inflight(stack.log_dir) == count, f"{count} requests in flight")
        await asyncio.sleep(SETTLE_S)
        parked = gateway.memory_info().rss
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGCONT)
    await _until(lambda: Client.answered >= goal, f"{count} answers")
    await asyncio.sleep(SETTLE_S)
    answered = gateway.memory_info().rss
    for client in clients:
        client.close()
    return Sizes(fresh, connected, parked, answered)


async def _connected(target: Target, count: int) -> list[Client]:
    """So many connections, a few at a time, since a listener's queue is not endless."""
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    while len(clients) < count:
        few = min(AT_ONCE, count - len(clients))
        opened = await asyncio.gather(*(loop.create_connection(Client, target.host, target.port) for _ in range(few)))
        clients += [client for _, client in opened]
    return clients


async def _answered(clients: Iterable[Client], message: bytes) -> None:
    """Send a request on each, and wait for all answers."""
    goal = Client.answered
    for client in clients:
        client.send(message)
        goal += 1
    await _until(lambda: Client.answered >= goal, "answers")


async def _until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                if condition():
                    return
                await asyncio.sleep(LOOK_AGAIN_S)
    except TimeoutError:
        raise TimeoutError(f"no {what} within {WAIT_S:.0f} s") from None


def _inflight(log_dir: Path) -> int:
    """What the gateway said last of how many requests it holds."""
    samples = [line for line in Logs.load([log_dir], [Res]).of(Res) if line.envelope.proc == "gateway"]
    return max(samples, key=lambda line: line.envelope.mono).record.inflight if samples else 0


def _message(
    target: Target, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    return request_bytes(method, path, {"Host": target.authority, **(headers or {})}, body)


def _infer(payload_bytes: int) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request with one tensor of so many bytes."""
    numbers = np.zeros((1, payload_bytes // 4), np.float32)
    return infer_body([Tensor("x", "FP32", numbers.shape, numbers)], binary=True)


def _table(found: list[Cell]) -> Table:
    table = cells.table("requests in flight", "body", "idle connection", "request in it", "both", "kept afterwards")
    for count, payload in dict.fromkeys((c["requests"], c["payload_bytes"]) for c in found):
        own = cells.of(found, requests=count, payload_bytes=payload)
        keys = ("connection_bytes", "request_bytes", "both_bytes", "kept_bytes")
        table.add_row(f"{count:,}", f"{payload:,}", *(f"{cells.median(own, key):,.0f}" for key in keys))
    return table


if __name__ == "__main__":
    main()
