"""Is Redis there? A PING ten times a second: it reads and writes nothing, so it tells a server that stands still, and a
slow way to it, from one that is slow to write."""

import asyncio

from shared import clock
from shared.broker.connection import BrokerError, Connection
from shared.eventlog import EventLog
from shared.events import Evt

INTERVAL_S = 0.1
LATE_NS = 15_000_000
"""An answer that took longer is worth a line."""


class RedisWatch:
    """Pings, and writes a `redis_lag` for an answer that came late though the loop was on time."""

    def __init__(self, connection: Connection, log: EventLog) -> None:
        self._connection = connection
        self._log = log
        self._longest_ns = 0

    async def run(self) -> None:
        """Ping for ever."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            asked_ns = clock.now_ns()
            try:
                await self._connection.call("PING")
            except BrokerError:
                continue
            now = clock.now_ns()
            self._longest_ns = max(self._longest_ns, now - asked_ns)
            if now - asked_ns >= LATE_NS:
                self._log.write(Evt("redis_lag", asked_ns, now))

    def take_longest_ns(self) -> int:
        """The longest round trip since the last call."""
        longest, self._longest_ns = self._longest_ns, 0
        return longest
