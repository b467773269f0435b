"""The floor of the queue: what one client gets from Redis with plain commands, without any of our protocol.

The client blocks: it has no event loop, and nobody to share the connection with. What it waits for is Redis, the
kernel, and the parsing by hiredis.
"""

import socket
import statistics
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import hiredis

from shared import clock

PIPELINE = 32
MESSAGE = b"x" * 350
"""About what a request of `mlp` is as an entry."""
STREAM, GROUP = "bench:floor", "g"

Command = tuple[str | bytes | int, ...]


class Client:
    """One blocking connection to the server at a unix:// or redis:// URL. Use it as a context manager."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(parts.path)
        else:
            self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send them in one write; their replies. Raises hiredis.HiredisError for the first that is an error."""
        packed = [hiredis.pack_command(c) for c in commands]  # type: ignore[arg-type]  # any length
        self._socket.sendall(b"".join(packed))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 16))
                continue
            if isinstance(reply, Exception):
                raise reply
            replies.append(reply)
        return replies


def measure(url: str, seconds: float) -> dict[str, Any]:
    """Half the time PING, one at a time; half of it messages through a stream, `PIPELINE` at a time."""
    with Client(url) as client:
        [info] = client.ask([("INFO", "server")])
        pings_us = timed(lambda: client.ask([("PING",)]), seconds / 2)
        client.ask([("DEL", STREAM), ("XGROUP", "CREATE", STREAM, GROUP, "$", "MKSTREAM")])
        try:
            cycles_us = timed(lambda: cycle(client), seconds / 2)
        finally:
            client.ask([("DEL", STREAM)])
    return {
        "redis": info.decode().partition("redis_version:")[2].split()[0],
        "ping_us_p50": statistics.median(pings_us),
        "ping_us_p99": statistics.quantiles(pings_us, n=100)[98],
        "pings_per_s": len(pings_us) * 1e6 / sum(pings_us),
        "pipeline": PIPELINE,
        "messages_per_s": PIPELINE * len(cycles_us) * 1e6 / sum(cycles_us),
        "message_us": sum(cycles_us) / len(cycles_us) / PIPELINE,
    }


def cycle(client: Client) -> None:
    """`PIPELINE` messages enter a stream, a group's reader takes, acknowledges and deletes them: three round trips."""
    client.ask([("XADD", STREAM, "*", "d", MESSAGE)] * PIPELINE)
    [[[_, entries]]] = client.ask([("XREADGROUP", "GROUP", GROUP, "c", "COUNT", PIPELINE, "STREAMS", STREAM, ">")])
    ids = [entry[0] for entry in entries]
    client.ask([("XACK", STREAM, GROUP, *ids), ("XDEL", STREAM, *ids)])


def timed(once: Callable[[], object], seconds: float) -> list[float]:
    """How long each call took, us; at least two calls, and as many as begin within the time."""
    until_ns = clock.now_ns() + int(seconds * 1e9)
    took_us: list[float] = []
    while (began_ns := clock.now_ns()) < until_ns or len(took_us) < 2:
        once()
        took_us.append((clock.now_ns() - began_ns) / 1e3)
    return took_us
