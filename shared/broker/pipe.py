"""The bytes of one connection: the commands of an event-loop tick leave in one write, replies match them in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from shared import clock
from shared.broker.broker_errors import BrokerError, Busy, NotConnected, OutcomeUnknown, ReplyError

Argument = bytes | str | int | memoryview

UNANSWERED_MAX = 20_000
LARGE_BYTES = 64 * 1024
"""A longer argument is written from where it lies; packing would copy it."""


class Pipe(asyncio.Protocol):
    """One connection's bytes. `on_error` hears of every error that Redis replies, before its caller does."""

    def __init__(
        self,
        lost: "asyncio.Future[None]",
        on_lost: Callable[["Pipe"], None],
        on_error: Callable[["Pipe", ReplyError], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._on_lost = on_lost
        self._on_error = on_error
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=BrokerError)
        self.waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes | memoryview] = []
        self._unsent_calls = 0
        self.heard_at_ns = clock.now_ns()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not say so themselves

    def send(self, command: Sequence[Argument], *, in_place: bool = False) -> "asyncio.Future[Any]":
        """Send a command with this tick's others. `in_place`: it has an argument of `LARGE_BYTES` or more."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            return fail(future, NotConnected("the connection to Redis is closing"))
        if len(self.waiting) >= UNANSWERED_MAX:
            return fail(future, Busy(f"{UNANSWERED_MAX} commands are unanswered by Redis already"))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        if not self.waiting:
            self.heard_at_ns = clock.now_ns()  # silence counts from when an answer became due
        if in_place:
            self._unsent += _parts(command)
        else:
            self._unsent.append(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]  # any length
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
            if isinstance(reply, ReplyError):
                self._on_error(self, reply)
            if future.done():
                continue  # its caller was cancelled
            if isinstance(reply, ReplyError):
                fail(future, reply)
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        unsent = len(self.waiting) - self._unsent_calls
        for i, future in enumerate(self.waiting):
            if future.done():
                continue
            if i >= unsent:
                fail(future, NotConnected("the connection to Redis was lost before the command left"))
            else:
                fail(future, OutcomeUnknown("the connection to Redis was lost while the command was in flight"))
        self.waiting.clear()
        self._unsent, self._unsent_calls = [], 0
        if not self._lost.done():
            self._lost.set_result(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _parts(command: Sequence[Argument]) -> list[bytes | memoryview]:
    """A command as Redis reads it, its long arguments in place. A memoryview must be of bytes."""
    parts: list[bytes | memoryview] = [b"*%d\r\n" % len(command)]
    for argument in command:
        if isinstance(argument, int):
            argument = b"%d" % argument
        elif isinstance(argument, str):
            argument = argument.encode()
        parts += (b"$%d\r\n" % len(argument), argument, b"\r\n")
    return parts


def fail(future: "asyncio.Future[Any]", error: BrokerError) -> "asyncio.Future[Any]":
    """The future, failed."""
    future.set_exception(error)
    # Of commands sent together a caller awaits only the first to fail: the others are no forgotten errors.
    future.exception()
    return future
