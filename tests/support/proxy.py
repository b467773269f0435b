"""A proxy between a client and Redis that does to their bytes what networks and dying servers do."""

import asyncio
import contextlib
from enum import StrEnum
from pathlib import Path
from typing import Any


class Fault(StrEnum):
    """What happens to the bytes. The first four end the connection as soon as they have struck."""

    NONE = "none"
    LOSE_REQUEST = "lose_request"  # Redis never hears of the command
    LOSE_REPLY = "lose_reply"  # the command is executed, and nobody learns of it
    CUT_MID_REPLY = "cut_mid_reply"  # half of the reply comes
    CUT_MID_REQUEST = "cut_mid_request"  # half of the command goes
    DROP_REQUESTS = "drop_requests"  # the connection stays up, the bytes vanish
    DROP_REPLIES = "drop_replies"
    BLACKHOLE = "blackhole"
    DELAY = "delay"
    HALF_CLOSE = "half_close"  # Redis says that it is done; what the client sends still arrives
    STALL = "stall"  # nothing passes until the fault is lifted, and then everything does


_ON_REQUESTS = {Fault.LOSE_REQUEST, Fault.CUT_MID_REQUEST, Fault.DROP_REQUESTS, Fault.BLACKHOLE}
_ON_REPLIES = {Fault.LOSE_REPLY, Fault.CUT_MID_REPLY, Fault.DROP_REPLIES, Fault.BLACKHOLE, Fault.HALF_CLOSE}
_ENDS = {Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.CUT_MID_REPLY, Fault.CUT_MID_REQUEST}
_VANISH = {Fault.DROP_REQUESTS, Fault.DROP_REPLIES, Fault.BLACKHOLE}
_HALVES = {Fault.CUT_MID_REPLY, Fault.CUT_MID_REQUEST}


class Proxy:
    """Listens on a unix socket, or on a TCP port of 127.0.0.1. `fault` may be set at any time; `set` lifts a stall.

    A fault that ends the connection strikes once: `fault` is NONE again afterwards. A connection that bytes of vanished
    carries none of the later ones: no network closes a gap in a stream.
    """

    def __init__(self, upstream: Path, socket: Path | None = None) -> None:
        self.fault = Fault.NONE
        self.delay_s = 0.0
        self.struck = asyncio.Event()
        """Set when a fault has met its first bytes."""
        self.connections = 0
        """How many were accepted."""
        self._upstream = upstream
        self._socket = socket
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._stalled: list[tuple[Any, bytes]] = []

    async def __aenter__(self) -> "Proxy":
        loop = asyncio.get_running_loop()
        if self._socket:
            self._server = await loop.create_unix_server(lambda: _Link(self, self._upstream), self._socket)
        else:
            self._server = await loop.create_server(lambda: _Link(self, self._upstream), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        links = list(self._links)
        self.cut()
        for link in links:
            await link.ended()

    @property
    def url(self) -> str:
        """The URL of the proxy, for clients."""
        if self._socket:
            return f"unix://{self._socket}"
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def set(self, fault: Fault) -> None:
        """Let `fault` strike from now on."""
        self.fault = fault
        self.struck.clear()
        for link in [link for link in self._links if link.has_gap]:
            link.cut()
        if fault is not Fault.STALL:
            stalled, self._stalled = self._stalled, []
            for write, data in stalled:
                write(data)

    def cut(self) -> None:
        """End every connection at once."""
        for link in list(self._links):
            link.cut()


class _Link(asyncio.Protocol):
    """The client's end of one connection through the proxy."""

    def __init__(self, proxy: Proxy, upstream: Path) -> None:
        self._proxy = proxy
        self._upstream_path = upstream
        self._client: Any = None
        self._upstream: Any = None
        self._early: list[bytes] = []
        self._is_half_closed = False
        self._late = 0
        self.has_gap = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = transport
        self._proxy.connections += 1
        self._proxy._links.add(self)
        self._opening = asyncio.get_running_loop().create_task(self._open(), name="proxy opens")

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._upstream, _ = await loop.create_unix_connection(lambda: _Back(self), str(self._upstream_path))
        except OSError:
            self.cut()
            return
        early, self._early = self._early, []
        for data in early:
            self._upstream.write(data)

    async def ended(self) -> None:
        await asyncio.gather(self._opening, return_exceptions=True)
        if self._upstream:
            self._upstream.abort()
        await asyncio.sleep(0)

    def data_received(self, data: bytes) -> None:
        self._pass_on(data, self._to_upstream, _ON_REQUESTS)

    def reply_received(self, data: bytes) -> None:
        if not self._is_half_closed:
            self._pass_on(data, self._client.write, _ON_REPLIES)

    def _to_upstream(self, data: bytes) -> None:
        if self._upstream is None:
            self._early.append(data)
        else:
            self._upstream.write(data)

    def _pass_on(self, data: bytes, write: Any, struck_by: set[Fault]) -> None:
        fault = self._proxy.fault
        if fault is Fault.DELAY or self._late:  # what comes after something late is late, too
            self._proxy.struck.set()
            self._late += 1
            asyncio.get_running_loop().call_later(self._proxy.delay_s, self._write_late, write, data)
            return
        if fault is Fault.STALL:
            self._proxy._stalled.append((write, data))
            self._proxy.struck.set()
            return
        if fault not in struck_by:
            write(data)
            return
        self._proxy.struck.set()
        self.has_gap |= fault in _VANISH
        if fault in _HALVES:
            write(data[: max(1, len(data) // 2)])
        if fault is Fault.HALF_CLOSE:
            self._proxy.fault = Fault.NONE
            self._is_half_closed = True
            self._client.write_eof()
        if fault in _ENDS:
            self._proxy.fault = Fault.NONE
            # `close` and not `abort`: the half that was written still arrives.
            for transport in (self._client, self._upstream):
                with contextlib.suppress(AttributeError):
                    transport.close()

    def _write_late(self, write: Any, data: bytes) -> None:
        self._late -= 1
        write(data)

    def cut(self) -> None:
        for transport in (self._client, self._upstream):
            if transport is not None:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy._links.discard(self)
        self._opening.cancel()
        if self._upstream:
            self._upstream.close()


class _Back(asyncio.Protocol):
    """Redis' end."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def data_received(self, data: bytes) -> None:
        self._link.reply_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._link._client:
            self._link._client.close()
