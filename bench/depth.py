"""What a request costs Redis with so many queued before it: accept, fetch and complete, in Redis' own time.

    python -m bench.depth --queued 100 10000 1000000 --out bench/results/NAME.json

An embedded Redis is filled to each depth with requests of 350 bytes; then batches of 16 are accepted, fetched and
completed, so that the depth stays, and Redis says what its scripts took (INFO commandstats). Depths take turns in
`--rounds` rounds only for what is measured; filling goes upwards. Each figure is the median of its batches.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench.about import about
from shared.broker import requests, scripts, work
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from shared.keys import Queue

QUEUE = Queue("bench", "1")
GATEWAY, WORKER = "gw-bench-1-00000000", "worker-bench-1-00000000"
PAYLOAD, ANSWER = b"x" * 350, b"=" * 560
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BATCH = 16
FILL = 256
LONG_US = 3_600_000_000
LIMITS = requests.Limits(requests_max=10_000_000, bytes_max=1 << 40, tenant_max=10_000_000)


class Depths:
    """One Redis, filled up step by step."""

    def __init__(self, connection: Connection) -> None:
        self._c = connection
        self._next = 0

    async def fill(self, count: int) -> None:
        """Queue so many more."""
        for begin in range(0, count, FILL):
            await self._accept(min(FILL, count - begin))

    async def measure(self, batches: int) -> dict[str, float]:
        """Median us a request, by script."""
        took: dict[str, list[float]] = {"accept": [], "fetch": [], "complete": []}
        for _ in range(batches):
            before = await self._script_us()
            await self._accept(BATCH)
            accepted = await self._script_us()
            deliveries = await work.fetch(self._c, QUEUE, WORKER, want=BATCH, lease_us=LONG_US)
            assert len(deliveries) == BATCH
            fetched = await self._script_us()
            answers = [work.Answer(d.id, d.attempt, False, ANSWER) for d in deliveries]
            assert set(await work.complete(self._c, QUEUE, answers)) == {"OK"}
            completed = await self._script_us()
            await requests.forget(self._c, QUEUE, GATEWAY, [d.id for d in deliveries])
            await self._c.call("XTRIM", QUEUE.replies(GATEWAY), "MAXLEN", 0)
            for name, us in zip(took, (accepted - before, fetched - accepted, completed - fetched), strict=True):
                took[name].append(us / BATCH)
        return {name: round(statistics.median(values), 1) for name, values in took.items()}

    async def _accept(self, count: int) -> None:
        ids = [f"r-{self._next + i:09d}" for i in range(count)]
        self._next += count
        await requests.listen(self._c, QUEUE, GATEWAY)
        submissions = [requests.Submission(rid, LONG_US, PAYLOAD, TRACE, "", 123_456_789_012) for rid in ids]
        outcomes = await requests.accept(self._c, QUEUE, submissions, gateway=GATEWAY, limits=LIMITS)
        assert {status for status, _ in outcomes} == {"OK"}, outcomes[0]

    async def _script_us(self) -> int:
        stats = (await self._c.call("INFO", "commandstats")).decode()
        line = next((line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:")), "usec=0,")
        return int(line.partition("usec=")[2].partition(",")[0])


async def run(depths: list[int], batches: int) -> dict[str, Any]:
    """Measure at each depth, the least first."""
    with tempfile.TemporaryDirectory(prefix="tr-depth-") as name:
        server = EmbeddedRedis(Path(name) / "r", appendonly=False)
        await server.start()
        try:
            async with Connection(server.url, "bench", on_connect=scripts.load_all, read_limit_s=60) as connection:
                await connection.wait_connected()
                await work.ensure_groups(connection, QUEUE)
                queue, filled, cells = Depths(connection), 0, {}
                for depth in sorted(depths):
                    await queue.fill(depth - filled)
                    filled = depth
                    cells[depth] = await queue.measure(batches)
                    total = sum(cells[depth].values())
                    print(f"{depth:>9} queued: {total:6.1f} us a request, {cells[depth]}", flush=True)
                return {str(depth): cell for depth, cell in cells.items()}
        finally:
            await server.stop()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cells = asyncio.run(run(args.queued, args.batches))
    if args.out:
        args.out.write_bytes(
            msgspec.json.format(
                msgspec.json.encode({**about("python -m bench.depth"), "us_per_request": cells}), indent=2
            )
        )


if __name__ == "__main__":
    main()
