"""What PINGs tell of Redis."""

import asyncio
from pathlib import Path

from support.scene import frozen
from support.waiting import eventually, soon

from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from shared.broker.probe import LATE_NS, RedisWatch
from shared.events import Evt


class Noted(list[Evt]):
    """Takes the place of a log."""

    def write(self, record: Evt) -> None:
        """Keep it."""
        self.append(record)


async def test_a_redis_that_stands_still_is_told_with_its_length(short_dir: Path) -> None:
    """An answer that came late is an event, and the longest round trip is in the sample."""
    server = EmbeddedRedis(short_dir / "redis")
    await server.start()
    noted = Noted()
    try:
        async with Connection(server.url, "test") as c:
            await soon(c.wait_connected())
            watch = RedisWatch(c, noted)  # type: ignore[arg-type]  # what it needs of a log
            watching = asyncio.create_task(watch.run())
            await eventually(lambda: watch._longest_ns > 0, "a PING was answered")
            assert not [e for e in noted if e.end - e.start > 1_000_000_000]
            with frozen(server):
                await asyncio.sleep(0.3)
            await eventually(lambda: bool(noted), "the late answer is told")
            watching.cancel()
            assert noted[-1].kind == "redis_lag"
            assert noted[-1].end - noted[-1].start >= LATE_NS
            assert watch.take_longest_ns() >= LATE_NS
            assert watch.take_longest_ns() == 0
    finally:
        await server.stop()
