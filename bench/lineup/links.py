"""A slow link between the workers and Redis: a helper that passes bytes on, late if told so, never out of order."""

import asyncio
import random
import threading
from collections import deque
from typing import Any

import uvloop

from bench.lineup.inside import Inside
from shared import clock


class Links:
    """All links of one helper, on an event loop of their own."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.jitter_s = 0.0
        """Mean of an exponential time on top."""
        self._rng = random.Random(0)
        self._loop = uvloop.new_event_loop()
        self._servers: list[asyncio.AbstractServer] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def serve(self, at: str, upstream: str) -> None:
        """Listen on a unix socket, and pass on to another."""
        server = self._loop.create_unix_server(lambda: _End(self, upstream), at)
        self._servers.append(asyncio.run_coroutine_threadsafe(server, self._loop).result())

    def close(self) -> None:
        """Listen no more; the connections must have ended."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            await asyncio.sleep(0)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join()
        self._loop.close()

    def seeded(self, seed: int) -> None:
        """Let chance begin anew."""
        self._rng = random.Random(seed)

    def draw_s(self) -> float:
        """How late the next piece is."""
        if not self.delay_s:
            return 0.0
        return self.delay_s + (self._rng.expovariate(1 / self.jitter_s) if self.jitter_s else 0.0)


class _Half(asyncio.Protocol):
    """One of the two ends of a connection; `other` is where its bytes go."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._late: deque[tuple[int, bytes]] = deque()
        """What waits, by when it is due."""
        self.other: Any = None
        self.early: list[bytes] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early.append(data)
            return
        delay_s = self._links.draw_s()
        if not delay_s and not self._late:
            self.other.write(data)
            return
        # Behind what is late already: a stream has no gaps.
        due_ns = max(clock.now_ns() + int(delay_s * 1e9), self._late[-1][0] if self._late else 0)
        self._late.append((due_ns, data))
        if len(self._late) == 1:
            self._wait()

    def _wait(self) -> None:
        left_s = max(0, self._late[0][0] - clock.now_ns()) / 1e9
        asyncio.get_running_loop().call_later(left_s, self._write_late)

    def _write_late(self) -> None:
        self.other.write(self._late.popleft()[1])
        while self._late and self._late[0][0] <= clock.now_ns():
            self.other.write(self._late.popleft()[1])
        if self._late:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class _End(_Half):
    """The worker's end."""

    def __init__(self, links: Links, upstream: str) -> None:
        super().__init__(links)
        self._upstream = upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        back = _Half(self._links)
        self.other, _ = await asyncio.get_running_loop().create_unix_connection(lambda: back, self._upstream)
        back.other = self.transport
        for data in self.early:
            self.other.write(data)


def serve_link(inside: Inside, *, at: str, upstream: str) -> None:
    """In a helper: open one more link."""
    links = inside.state.setdefault("links", None) or Links()
    inside.state["links"] = links
    links.serve(at, upstream)


def set_delay(inside: Inside, *, delay_ms: float, jitter_ms: float, seed: int) -> None:
    """In a helper: everything that passes in either direction is so late from now on."""
    links = inside.state["links"]
    links.seeded(seed)
    links.jitter_s, links.delay_s = jitter_ms / 1000, delay_ms / 1000
