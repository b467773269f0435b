"""A slow link between the workers and Redis: a helper that passes bytes on, late if told so, never out of order."""

import asyncio
import random
import threading
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
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def serve(self, at: str, upstream: str) -> None:
        """Listen on a unix socket, and pass on to another."""
        server = self._loop.create_unix_server(lambda: _End(self, upstream), at)
        asyncio.run_coroutine_threadsafe(server, self._loop).result()

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
        self._latest_ns = 0
        self.other: Any = None
        self.early: list[bytes] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early.append(data)
            return
        now_ns = clock.now_ns()
        due_ns = max(now_ns + int(self._links.draw_s() * 1e9), self._latest_ns)
        if due_ns <= now_ns:
            self.other.write(data)
            return
        self._latest_ns = due_ns
        asyncio.get_running_loop().call_later((due_ns - now_ns) / 1e9, self.other.write, data)

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
