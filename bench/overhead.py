"""What serving costs beside the model: mlp requests by wrk, tailrace and the bare floors in turns. See README.md."""

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop
from rich.table import Table

from bench import cells, redis_floor
from bench.cells import Cell
from bench.floor import floor
from bench.stack import Serving, serving
from bench.wrk import check_wrk, warm, wrk
from forensics.load import Logs
from forensics.report import print_to, segment_table
from forensics.requests import rows
from shared import humanlog
from shared.events import Req

TAILRACE, BARE, REDIS = "tailrace", "bare aiohttp", "bare Redis"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--rounds", type=int, default=3, help="each round measures every cell of every server once")
    parser.add_argument("--seconds", type=int, default=5, help="length of one measurement")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the JSON; default: nowhere")
    arguments = parser.parse_args()
    check_wrk()
    humanlog.configure("bench", level="warning")
    uvloop.run(_measure(arguments))


async def _measure(a: argparse.Namespace) -> None:
    console = cells.console()
    found: list[Cell] = []
    with TemporaryDirectory(prefix="tailrace-bench-") as folder:
        async with serving(Path(folder), workers=a.workers, gateways=a.gateways) as stack, floor() as bare_url:
            await warm(stack.url, bare_url)
            for number in range(a.rounds):
                found.append(await _redis(stack, a.seconds) | {"round": number})
                console.print(f"round {number + 1}: {REDIS}: {found[-1]['messages_per_s']:.0f} messages/s")
                for connections in a.connections:
                    for cell in await beside(stack, bare_url, connections, a.seconds):
                        found.append(cell | {"round": number})
                        console.print(f"round {number + 1}: {shown(cell)}")
            told = stack.told()
        logs = Logs.load([stack.log_dir], [Req])
    console.print(table(found))
    console.print(_redis_line(found))
    console.print("Where the time of tailrace's requests went, all cells together:")
    print_to(console, segment_table(rows(logs)))
    told |= {"seconds": a.seconds, "rounds": a.rounds, "load": "wrk, 1 thread, on the same cores"}
    cells.finish(console, a.out, "bench.overhead", told, found)


async def beside(stack: Serving, bare_url: str, connections: int, seconds: int) -> list[Cell]:
    """The same closed loop at tailrace and at the bare floor, one after the other."""
    before = stack.cpu_s()
    ours = await wrk(stack.url, connections, seconds)
    ours |= stack.cost(before, ours["requests"])
    bare = await wrk(bare_url, connections, seconds)
    return [{"server": name, "connections": connections} | cell for name, cell in ((TAILRACE, ours), (BARE, bare))]


async def _redis(stack: Serving, seconds: int) -> Cell:
    """What one client gets from the stack's own Redis, append-only file and all, while nobody else asks it."""
    cell: Cell = {"server": REDIS}
    return cell | await asyncio.to_thread(redis_floor.measure, stack.stack.redis_url, seconds)


def table(found: list[Cell]) -> Table:
    """A line for each server and number of connections: medians, and of the rates their spread."""
    made = cells.table("server", "connections", "requests/s", "p50 ms", "p99 ms", "CPU s / 1000", "errors")
    for server in (TAILRACE, BARE):
        for connections in sorted({c["connections"] for c in cells.of(found, server=server)}):
            own = cells.of(found, server=server, connections=connections)
            figures = [cells.shown(own, key) for key in ("p50_ms", "p99_ms", "cpu_s_per_1000")]
            made.add_row(
                server, str(connections), cells.spread(own, "per_s"), *figures, str(cells.total(own, "errors"))
            )
    return made


def _redis_line(found: list[Cell]) -> str:
    own = cells.of(found, server=REDIS)
    return (
        f"{REDIS}, one client: PING p50 {cells.spread(own, 'ping_us_p50')} us, p99 {cells.shown(own, 'ping_us_p99')}; "
        f"{redis_floor.PIPELINE} messages at once through a stream: {cells.spread(own, 'messages_per_s')} messages/s, "
        f"{cells.shown(own, 'message_us')} us each"
    )


def shown(c: Cell) -> str:
    """One cell in a line."""
    text = f"{c['server']}, {c['connections']} connections: {c['per_s']:.0f}/s"
    text += f", p50 {c['p50_ms']:.2f} ms, p99 {c['p99_ms']:.2f} ms"
    return text + (f", {c['errors']} ERRORS" if c["errors"] else "")


if __name__ == "__main__":
    main()
