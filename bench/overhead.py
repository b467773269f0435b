"""What serving costs beside the model: mlp requests by wrk, tailrace and the bare floor in turns. See README.md."""

import argparse
import asyncio
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.about import about
from forensics.load import Logs
from forensics.report import print_to, segment_table
from forensics.requests import rows
from shared import humanlog
from shared.events import Req
from tailrace.up import UpOptions, running

HERE = Path(__file__).parent


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--rounds", type=int, default=3, help="each round measures every cell of every server once")
    parser.add_argument("--seconds", type=int, default=5, help="length of one measurement")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the JSON; default: nowhere")
    arguments = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("the load generator wrk is missing: apt-get install wrk")
    humanlog.configure("bench", level="warning")
    asyncio.run(_measure(arguments))


async def _measure(a: argparse.Namespace) -> None:
    console = Console()
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
        options = UpOptions(port=0, workers=a.workers, data_dir=Path(directory))
        async with running(options) as stack, _floor() as floor_port:
            processes = _processes(*stack.gateways, *stack.workers)
            targets = {"tailrace": stack.url, "bare aiohttp": f"http://127.0.0.1:{floor_port}"}
            for url in targets.values():
                await _wrk(url, 8, 1)  # warm
            for number in range(a.rounds):
                for connections in a.connections:
                    for name, url in targets.items():
                        before = _cpu_s(processes)
                        result = await _wrk(url, connections, a.seconds)
                        result |= {"server": name, "connections": connections, "round": number}
                        if name == "tailrace":
                            result["cpu_s_per_1000"] = (_cpu_s(processes) - before) / result["requests"] * 1000
                        cells.append(result)
                        console.print(f"round {number + 1}: {name}, {connections} connections: {_shown(result)}")
        logs = Logs.load([stack.log_dir], [Req])
        console.print(_table(cells))
        console.print("Where the time of tailrace's requests went, all cells together:")
        print_to(console, segment_table(rows(logs)))
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(json.dumps({"about": _about(a), "cells": cells}, indent=1) + "\n")
        console.print(f"written to {a.out}")


async def _wrk(url: str, connections: int, seconds: int) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(HERE / "mlp.lua"), url, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    line = next(line for line in output.decode().splitlines() if line.startswith("RESULT "))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result | {"per_s": result["requests"] / result["seconds"]}


@contextlib.asynccontextmanager
async def _floor() -> AsyncIterator[int]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.floor", str(port), cwd=HERE.parent)
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield port
    finally:
        process.kill()
        await process.wait()


def _processes(*children: Any) -> list[psutil.Process]:
    """The stack's processes and the embedded Redis, which is a child of ours as well."""
    own = psutil.Process()
    redis = [p for p in own.children() if "redis-server" in " ".join(p.cmdline())]
    return [psutil.Process(c.process.pid) for c in children] + redis


def _cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(sum(p.cpu_times()[:2]) for p in processes))


def _shown(r: dict[str, Any]) -> str:
    text = f"{r['per_s']:.0f}/s, p50 {r['p50_ms']:.2f} ms, p99 {r['p99_ms']:.2f} ms"
    return text + (f", {r['errors']} ERRORS" if r["errors"] else "")


def _table(cells: list[dict[str, Any]]) -> Table:
    table = Table("server", "connections", "requests/s", "p50 ms", "p99 ms", "CPU s / 1000", "errors")
    keys = sorted({(c["server"], c["connections"]) for c in cells}, key=lambda k: (k[0] != "tailrace", k[1]))
    for server, connections in keys:
        own = [c for c in cells if (c["server"], c["connections"]) == (server, connections)]
        rate = [c["per_s"] for c in own]
        spread = f"{statistics.median(rate):.0f} ({min(rate):.0f} to {max(rate):.0f})"
        cpu = f"{statistics.median(c['cpu_s_per_1000'] for c in own):.2f}" if server == "tailrace" else ""
        p50, p99 = (f"{statistics.median(c[key] for c in own):.2f}" for key in ("p50_ms", "p99_ms"))
        table.add_row(server, str(connections), spread, p50, p99, cpu, str(sum(c["errors"] for c in own)))
    return table


def _about(a: argparse.Namespace) -> dict[str, Any]:
    return about("python -m bench.overhead " + " ".join(sys.argv[1:])) | {
        "workers": a.workers,
        "seconds": a.seconds,
        "rounds": a.rounds,
        "load": "wrk, 1 thread, on the same cores",
    }


if __name__ == "__main__":
    main()
