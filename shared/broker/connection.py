"""One connection to Redis, multiplexed: the commands of one event-loop tick leave in one write.

Theory of operation. `call` appends the packed command to a buffer and a future to a queue; the first append of a tick
schedules one flush. Replies match futures in order. Cancelling a call only forgets its future, so it can never shift
the replies of others. A command that was in flight when the connection broke fails with `OutcomeUnknown`: it may or
may not have been executed, and is never sent again from here; our scripts are idempotent, so the caller can repeat
them. A command not yet written fails with `NotConnected`: certainly not executed. The queue of unanswered commands is
bounded. A silent connection is probed, and given up when the probe stays unanswered. Measured against a pool of
redis-py connections: 20 times the commands per second at 64 callers (docs/decisions.md).

redis-py reads the URL and names the error classes; hiredis packs and parses.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import parse_url

from shared import clock, humanlog

Argument = bytes | str | int | memoryview

CONNECT_TIMEOUT_S = 2.0
PROBE_AFTER_S = 1.0
DEAD_AFTER_S = 3.0
UNANSWERED_MAX = 20_000
BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 0.5
TELL_AGAIN_S = 10.0


class BrokerError(Exception):
    """Redis could not do what was asked."""


class NotConnected(BrokerError):
    """The command was certainly not executed: there is no connection."""


class OutcomeUnknown(BrokerError):
    """The connection broke while the command was in flight: it may or may not have been executed."""


class Busy(BrokerError):
    """Too many commands are unanswered already; this one was not sent."""


class ReplyError(BrokerError):
    """Redis answered with an error."""

    @property
    def code(self) -> str:
        """The first word of the error: NOSCRIPT, NOGROUP, OOM, LOADING ..."""
        return str(self).split(" ", 1)[0]


class Connection:
    """A self-healing connection. Use as an async context manager, or `start` and `close` it.

    `on_connect` runs after each (re)connection: its commands go before everybody else's, and the connection counts as
    connected only when it has returned. `quiet`: leave it to the process' main connection to tell people of trouble.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        on_connect: Callable[["Connection"], Awaitable[None]] | None = None,
        on_change: Callable[[bool], None] | None = None,
        read_limit_s: float = DEAD_AFTER_S,
        quiet: bool = False,
    ) -> None:
        self.url = url
        self._name = name
        self._on_connect = on_connect
        self._on_change = on_change
        self._quiet = quiet
        self._read_limit_ns = int(read_limit_s * 1e9)
        self._options: dict[str, Any] = dict(parse_url(url))
        self._protocol: _Protocol | None = None
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.client_id = 0
        """Redis' number of this connection (CLIENT ID), for CLIENT UNBLOCK; new after each reconnection."""

    async def __aenter__(self) -> "Connection":
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to connect, in the background, for ever."""
        self._keeper = asyncio.create_task(self._keep_connected(), name=f"redis {self._name}")

    async def close(self) -> None:
        """Stop; commands still unanswered fail."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._protocol:
            self._protocol.abort()

    @property
    def connected(self) -> bool:
        """True while commands can be sent."""
        return self._ready.is_set()

    async def wait_connected(self) -> None:
        """Return once commands can be sent."""
        await self._ready.wait()

    def call(self, *command: Argument) -> "asyncio.Future[Any]":
        """Send a command with this tick's others. The future gives the reply, or raises a BrokerError."""
        if self._protocol is None:
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            return _fail(failed, NotConnected(f"no connection to Redis at {_without_password(self.url)}"))
        return self._protocol.send(command)

    async def _keep_connected(self) -> None:
        backoff_s, told_at_ns = BACKOFF_FIRST_S, 0
        while True:
            try:
                lost = await self._connect()
                backoff_s = BACKOFF_FIRST_S
            except (OSError, BrokerError, TimeoutError) as e:
                if not self._quiet and (not told_at_ns or clock.now_ns() - told_at_ns > TELL_AGAIN_S * 1e9):
                    told_at_ns = clock.now_ns()
                    reason = str(e) or type(e).__name__
                    humanlog.get().warning(
                        "cannot reach Redis; trying on", url=_without_password(self.url), reason=reason
                    )
                await asyncio.sleep(backoff_s)
                backoff_s = min(BACKOFF_MAX_S, backoff_s * 2)
                continue
            if self._on_change:
                self._on_change(True)
            try:
                await self._watch(lost)
            finally:
                self._ready.clear()
                if self._protocol:
                    self._protocol.abort()
                self._protocol = None
            if self._on_change:
                self._on_change(False)

    async def _connect(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        o = self._options
        lost: asyncio.Future[None] = loop.create_future()

        def make() -> _Protocol:
            return _Protocol(lost, self._not_connected)

        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if "path" in o:
                _, protocol = await loop.create_unix_connection(make, o["path"])
            else:
                tls = ssl.create_default_context() if self.url.startswith("rediss://") else None
                _, protocol = await loop.create_connection(
                    make, o.get("host", "localhost"), o.get("port", 6379), ssl=tls
                )
            try:
                await self._greet(protocol)
                self._protocol = protocol
                if self._on_connect:
                    await self._on_connect(self)
            except BaseException:
                self._protocol = None
                protocol.abort()
                raise
        self._ready.set()
        return lost

    async def _greet(self, protocol: "_Protocol") -> None:
        o = self._options
        if o.get("password"):
            user = [o["username"]] if o.get("username") else []
            await protocol.send(("AUTH", *user, o["password"]))
        if o.get("db"):
            await protocol.send(("SELECT", o["db"]))
        await protocol.send(("CLIENT", "SETNAME", self._name))
        self.client_id = await protocol.send(("CLIENT", "ID"))
        # A server that still loads its data answers LOADING: not connected yet.
        await protocol.send(("PING",))

    def _not_connected(self, protocol: "_Protocol") -> None:
        # Before those who wait for a reply hear of the loss: they must not find us still connected.
        if protocol is self._protocol:
            self._ready.clear()

    async def _watch(self, lost: "asyncio.Future[None]") -> None:
        """Return when the connection is gone, or has been silent for too long with something unanswered."""
        protocol = self._protocol
        assert protocol is not None
        while not lost.done():
            await asyncio.wait([lost], timeout=PROBE_AFTER_S)
            silent_ns = clock.now_ns() - protocol.heard_at_ns
            if protocol.waiting and silent_ns > self._read_limit_ns:
                return
            if not protocol.waiting and silent_ns > PROBE_AFTER_S * 1e9:
                protocol.send(("PING",)).add_done_callback(_ignore)


def _fail(future: "asyncio.Future[Any]", error: BrokerError) -> "asyncio.Future[Any]":
    future.set_exception(error)
    # Of commands sent together a caller awaits only the first to fail: the others are no forgotten errors.
    future.exception()
    return future


def _ignore(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


class _Protocol(asyncio.Protocol):
    def __init__(self, lost: "asyncio.Future[None]", on_lost: Callable[["_Protocol"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=BrokerError)
        self.waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._unsent_calls = 0
        self.heard_at_ns = clock.now_ns()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not say so themselves

    def send(self, command: Sequence[Argument]) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            return _fail(future, NotConnected("the connection to Redis is closing"))
        if len(self.waiting) >= UNANSWERED_MAX:
            return _fail(future, Busy(f"{UNANSWERED_MAX} commands are unanswered by Redis already"))
        packed = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub means any length
        if not self._unsent:
            self._loop.call_soon(self._flush)
        if not self.waiting:
            self.heard_at_ns = clock.now_ns()  # silence counts from when an answer became due
        self._unsent.append(packed)
        self._unsent_calls += 1
        self.waiting.append(future)
        return future

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.writelines(self._unsent)
            self._unsent = []
            self._unsent_calls = 0

    def data_received(self, data: bytes) -> None:
        self.heard_at_ns = clock.now_ns()
        self._reader.feed(data)
        while True:
            try:
                reply = self._reader.gets()
            except BrokerError:
                self.abort()
                return
            if reply is False:
                return
            if not self.waiting:
                self.abort()
                return
            future = self.waiting.popleft()
            if future.done():
                continue  # its caller was cancelled
            if isinstance(reply, ReplyError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        unsent = len(self.waiting) - self._unsent_calls
        for i, future in enumerate(self.waiting):
            if future.done():
                continue
            if i >= unsent:
                _fail(future, NotConnected("the connection to Redis was lost before the command left"))
            else:
                _fail(future, OutcomeUnknown("the connection to Redis was lost while the command was in flight"))
        self.waiting.clear()
        self._unsent, self._unsent_calls = [], 0
        if not self._lost.done():
            self._lost.set_result(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
