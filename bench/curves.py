"""How tailrace scales: `python -m bench.curves workers|gateways|payload|connections`, a curve each. See README.md.

    workers      minilm with real lengths, closed loop, by workers
    gateways     mlp, closed loop by wrk, by gateways
    payload      binary tensors there and back, closed loop, by size
    connections  mlp, closed loop by wrk, beside bare aiohttp, by connections

All points of a curve are measured in each round, in turns; where a point needs another stack, it is started anew.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop
from rich.table import Table

from bench import cells, overhead, texts
from bench.cells import Cell
from bench.floor import floor
from bench.measure import Settings, measure
from bench.stack import ECHO, MINILM, repository, serving
from bench.workload import Shape
from bench.wrk import check_wrk, warm, wrk
from shared import humanlog

POINTS = {
    "workers": [1, 2, 3, 4],
    "gateways": [1, 2, 3],
    "payload": [1_000, 10_000, 100_000, 1_000_000, 10_000_000],
    "connections": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000],
}
CONNECTIONS = {"workers": 64, "gateways": 64, "payload": 4}
COLUMNS = {
    "workers": ["per_s", "tokens_per_s", "p50_ms", "p99_ms", "errors"],
    "gateways": ["per_s", "p50_ms", "p99_ms", "cpu_s_per_1000", "errors"],
    "payload": [
        "per_s", "mb_per_s", "p50_ms", "p99_ms",
        "gateway_s_per_1000", "worker_s_per_1000", "redis_s_per_1000", "errors",
    ],
    "connections": ["per_s", "p50_ms", "p99_ms", "cpu_s_per_1000", "errors"],
}  # fmt: skip
TITLES = {
    "per_s": "requests/s", "tokens_per_s": "tokens/s", "mb_per_s": "MB/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms",
    "cpu_s_per_1000": "CPU s / 1000", "gateway_s_per_1000": "gateway", "worker_s_per_1000": "worker",
    "redis_s_per_1000": "Redis", "errors": "errors",
}  # fmt: skip


def main() -> None:
    """Measure a curve, print and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curve", choices=POINTS)
    parser.add_argument("--points", type=int, nargs="+", help="instead of the usual ones; payloads in bytes")
    parser.add_argument("--connections", type=int, help="64; of the curve of payloads 4")
    parser.add_argument("--workers", type=int, default=1, help="not of their own curve")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="length of one measurement")
    parser.add_argument(
        "--data", type=Path, default=texts.TEXTS, help='of the curve of workers: lines of {"text": "..."}'
    )
    parser.add_argument("--out", type=Path, help="where to write the JSON; default: nowhere")
    a = parser.parse_args()
    a.points = a.points or POINTS[a.curve]
    a.connections = a.connections or CONNECTIONS.get(a.curve, 0)
    if a.curve in ("gateways", "connections"):
        check_wrk()
    humanlog.configure("bench", level="warning")
    uvloop.run(_measure(a))


async def _measure(a: argparse.Namespace) -> None:
    console = cells.console()
    found: list[Cell] = []
    curve = {"workers": _workers, "gateways": _gateways, "payload": _payload, "connections": _connections}[a.curve]
    with TemporaryDirectory(prefix="tailrace-bench-") as folder:
        async with contextlib.aclosing(curve(a, Path(folder))) as measured:
            async for cell in measured:
                found.append(cell)
                console.print(f"round {cell['round'] + 1}: {a.curve} {cell[a.curve]}: {cell['per_s']:.1f}/s")
    console.print(table(a.curve, found))
    if a.curve == "payload":
        console.print("gateway, worker, Redis: their CPU seconds for 1,000 requests. MB/s: there and back.")
    cells.print_warnings(console, found)
    told = {key: getattr(a, key) for key in ("connections", "workers", "rounds", "seconds")}
    cells.finish(console, a.out, "bench.curves", {"curve": a.curve} | told, found)


async def _workers(a: argparse.Namespace, folder: Path) -> AsyncGenerator[Cell, None]:
    models = repository(folder / "models", {texts.MODEL: MINILM})
    for number, workers in turns(a):
        async with serving(folder / f"{number}-{workers}", models, workers=workers, threads=1) as stack:
            await texts.load(stack, a.data, connections=a.connections, seconds=a.seconds)  # learns how long passes take
            cell = await texts.load(stack, a.data, connections=a.connections, seconds=a.seconds)
        texts.add_tokens([cell], stack.log_dir)
        yield {"workers": workers, "round": number} | cell


async def _gateways(a: argparse.Namespace, folder: Path) -> AsyncGenerator[Cell, None]:
    for number, gateways in turns(a):
        async with serving(folder / f"{number}-{gateways}", workers=a.workers, gateways=gateways) as stack:
            await warm(stack.url)
            before = stack.cpu_s()
            cell = await wrk(stack.url, a.connections, a.seconds)
            yield {"gateways": gateways, "round": number} | cell | stack.cost(before, cell["requests"])


async def _payload(a: argparse.Namespace, folder: Path) -> AsyncGenerator[Cell, None]:
    models = repository(folder / "models", {"echo": ECHO})
    async with serving(folder / "data", models, workers=a.workers) as stack:
        for number, size_bytes in turns(a):
            settings = Settings(
                url=stack.url, model="echo", connections=a.connections, duration_s=a.seconds,
                shape=Shape(free=max(1, size_bytes // 4)), binary=True,
            )  # fmt: skip
            before = stack.cpu_s()
            results = await measure(settings, asyncio.Event(), lambda progress, tally: contextlib.nullcontext())
            cell = cells.of_results(results.to_json())
            cell["mb_per_s"] = 2 * size_bytes * cell["per_s"] / 1e6
            cost = stack.cost(before, results.request_count + results.tally.warm_up_count)
            yield {"payload": size_bytes, "round": number} | cell | cost


async def _connections(a: argparse.Namespace, folder: Path) -> AsyncGenerator[Cell, None]:
    async with serving(folder / "data", workers=a.workers) as stack, floor() as bare_url:
        await warm(stack.url, bare_url)
        for number, connections in turns(a):
            for cell in await overhead.beside(stack, bare_url, connections, a.seconds):
                yield cell | {"round": number}


def turns(a: argparse.Namespace) -> list[tuple[int, int]]:
    """Every point once in each round; back in every other round, so that a drift of the machine favours none."""
    return [
        (number, point) for number in range(a.rounds) for point in (a.points if number % 2 == 0 else reversed(a.points))
    ]


def table(curve: str, found: list[Cell]) -> Table:
    """A line for each point, and each server where there are two: medians, and of the rates their spread."""
    columns = COLUMNS[curve]
    servers = list(dict.fromkeys(c.get("server") for c in found))
    made = cells.table(*(["server"] if servers != [None] else []), curve, *(TITLES[key] for key in columns))
    for server in servers:
        for point in sorted({c[curve] for c in found}):
            own = [c for c in cells.of(found, **{curve: point}) if c.get("server") == server]
            row = [cells.spread(own, key) if key == "per_s" else cells.shown(own, key) for key in columns[:-1]]
            made.add_row(*([server] if server else []), f"{point:,}", *row, str(cells.total(own, "errors")))
    return made


if __name__ == "__main__":
    main()
