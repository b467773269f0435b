"""The generator's connections: kept alive, as many as are needed and allowed, one request at a time on each.

Made of callbacks and without a task for each request, since tasks cost more than the rest of the client. An exchange
ends exactly once, by `ended`: with a response, or with a `Failure`.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from bench.errors import CannotMeasure
from bench.responses import BadResponse, Response, ResponseReader
from shared import clock

IDLE_MAX_NS = 1_500_000_000
"""An idle connection is not used any more after this: servers close theirs after 2 s and more, and a request that
meets the closing is lost without anybody's fault."""
SWEEP_S = 0.05
"""How exactly a request's limit of time is kept."""


class Target(NamedTuple):
    """Where the server listens; `base` is what comes before `/v2` in every path."""

    host: str
    port: int
    tls: bool
    base: str

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address for people."""
        return f"http{'s' if self.tls else ''}://{self.authority}{self.base}"


def target_of(url: str) -> Target:
    """Read `http://HOST:PORT/BASE`; http when there is no scheme. Raises CannotMeasure."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("it has no host, or more than a host, a port and a path")
        if parts.username or parts.password:
            raise ValueError("credentials belong into a --header")
        tls = parts.scheme == "https"
        return Target(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))
    except ValueError as e:
        raise CannotMeasure(f"{url!r} is no URL of a server ({e}); say for example http://127.0.0.1:8000") from None


class FailureKind(StrEnum):
    """Why a request has no response."""

    CONNECT = "no connection"
    LOST = "connection lost"
    MALFORMED = "not HTTP"
    TIMEOUT = "no answer in time"
    UNSENT = "not sent"


class Failure(NamedTuple):
    """A request without a response, and what is known of it."""

    kind: FailureKind
    message: str


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what became of it. Instants in ns of `clock.now_ns`; 0 = not reached.

    It was to be sent at `intended_ns`; the generator took it up at `taken_ns`, a connection took its bytes at
    `sent_ns`, and the last byte of the response was here at `done_ns`.
    """

    intended_ns: int
    message: bytes
    rows: int = 1
    taken_ns: int = 0
    sent_ns: int = 0
    done_ns: int = 0
    outcome: Response | Failure | None = None
    connection: "Connection | None" = field(default=None, repr=False)


class Connection(asyncio.Protocol):
    """One connection to the server."""

    __slots__ = ("_exchange", "_pool", "_reader", "_transport", "idle_since_ns")

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._reader = ResponseReader()
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self.idle_since_ns = 0

    def send(self, exchange: Exchange) -> None:
        """Send a request; its end is told to the pool."""
        assert self._transport is not None and self._exchange is None
        self._exchange = exchange
        exchange.connection = self
        exchange.sent_ns = clock.now_ns()
        self._transport.write(exchange.message)

    def abort(self) -> None:
        """Drop the connection and the request on it, without a word to anybody."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are, but do not say so
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """A piece of a response."""
        if self._exchange is None:  # nobody asked
            self.abort()
            return
        try:
            response = self._reader.feed(data)
        except BadResponse as e:
            self._end(Failure(FailureKind.MALFORMED, str(e)), reusable=False)
            return
        if response is not None:
            self._end(response, response.reusable)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, with or without a reason."""
        outcome: Response | Failure | None = None
        if self._exchange is not None:
            try:
                outcome = self._reader.eof()
            except BadResponse as e:
                outcome = Failure(FailureKind.LOST, str(e))
            reason = f": {exc}" if exc else ""
            outcome = outcome or Failure(FailureKind.LOST, f"the server closed the connection without a word{reason}")
        self._pool.closed(self)
        if outcome is not None:
            self._end(outcome, reusable=False)

    def _end(self, outcome: Response | Failure, reusable: bool) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.done_ns = clock.now_ns()
        self._exchange = None
        if not reusable:
            self.abort()
        self._pool.answered(exchange, outcome, self if reusable else None)


class Pool:
    """At most `connections_max` connections to `target`. Close it in the end; it cannot be used after that."""

    def __init__(
        self, target: Target, connections_max: int, timeout_ns: int, ended: Callable[[Exchange], None]
    ) -> None:
        self._target = target
        self._connections_max = connections_max
        self._timeout_ns = timeout_ns
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._tls = ssl.create_default_context() if target.tls else None
        self.open_most = 0
        """So many connections were open at the most."""
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._dials: set[asyncio.Task[None]] = set()
        self._waiting: deque[Exchange] = deque()
        self._live: dict[Exchange, None] = {}
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_late)
        self._all_closed: asyncio.Future[None] | None = None

    @property
    def live_count(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def start(self, exchange: Exchange) -> None:
        """Send a request as soon as there is a connection for it."""
        exchange.taken_ns = now_ns = clock.now_ns()
        self._live[exchange] = None
        while self._idle:
            connection = self._idle.pop()  # the one used last: the others may age, and go
            if now_ns - connection.idle_since_ns < IDLE_MAX_NS:
                connection.send(exchange)
                return
            connection.abort()
        self._waiting.append(exchange)
        self._dial()

    async def close(self) -> None:
        """Drop everything; what has not ended stays without an outcome."""
        self._sweep.cancel()
        self._waiting.clear()
        self._live.clear()
        for task in self._dials:
            task.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        if self._open:
            self._all_closed = self._loop.create_future()
            for connection in list(self._open):
                connection.abort()
            await self._all_closed

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        self._open.add(connection)
        self.open_most = max(self.open_most, len(self._open))
        self._give_work(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._all_closed is not None:
            if not self._open and not self._all_closed.done():
                self._all_closed.set_result(None)
            return
        self._dial()

    def answered(self, exchange: Exchange, outcome: Response | Failure, free: Connection | None) -> None:
        """A request has ended; `free` is its connection if that may carry another one."""
        if free is not None:
            self._give_work(free)
        self._end(exchange, outcome)

    def _give_work(self, connection: Connection) -> None:
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            connection.idle_since_ns = clock.now_ns()
            self._idle.append(connection)

    def _end(self, exchange: Exchange, outcome: Response | Failure) -> None:
        if exchange not in self._live:  # the pool was closed meanwhile
            return
        del self._live[exchange]
        exchange.outcome = outcome
        exchange.done_ns = exchange.done_ns or clock.now_ns()
        exchange.connection = None
        self._ended(exchange)

    def _dial(self) -> None:
        """Open as many connections as requests wait for one and the limit allows."""
        while len(self._dials) < len(self._waiting) and len(self._open) + len(self._dials) < self._connections_max:
            task = self._loop.create_task(self._connect())
            self._dials.add(task)
            task.add_done_callback(self._dialled)

    async def _connect(self) -> None:
        t = self._target
        try:
            await self._loop.create_connection(lambda: Connection(self), t.host, t.port, ssl=self._tls)
        except (OSError, UnicodeError) as e:  # of TLS and of names, too
            if self._waiting:
                reason = (e.strerror if isinstance(e, OSError) else "") or str(e) or type(e).__name__
                self._end(self._waiting.popleft(), Failure(FailureKind.CONNECT, reason))

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dials.discard(task)
        if not task.cancelled():
            task.result()
            self._dial()

    def _sweep_late(self) -> None:
        """End the requests that had their time; they were taken up in this order."""
        late_ns = clock.now_ns() - self._timeout_ns
        while self._live and (first := next(iter(self._live))).taken_ns <= late_ns:
            if first.connection is not None:
                first.connection.abort()
            elif self._waiting and self._waiting[0] is first:
                self._waiting.popleft()
            where = "of its answer" if first.connection is not None else "of a free connection"
            self._end(first, Failure(FailureKind.TIMEOUT, f"no sign {where} within {self._timeout_ns / 1e9:g} s"))
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_late)
