"""How a gateway comes and goes without a client noticing.

Theory of operation. A new gateway listens only when it has looked at the fleet once: before that it would refuse what
it can serve a moment later. One that is told to stop first closes its listening socket: a refused connection is the one
failure that every client and every proxy may answer by trying elsewhere (nothing was sent). Connections that are open
stay so for a while, and each response says `Connection: close` (RFC 9112, 9.6), so that a busy client leaves by itself
after its next answer. Only what was idle all that time is closed under its client, which may be about to write to it
just then; `docs/architecture.md` says who may repeat what.
"""

import asyncio
import contextlib
import ctypes
import socket
import struct

from aiohttp import web

from gateway.directory import Directory
from gateway.listen import Listener
from shared import clock
from shared.broker.connection import BrokerError, Connection

FIRST_LOOK_S = 5.0
"""Without Redis a gateway listens all the same, and tells its clients."""
LAST_REQUEST_S = 1.0
"""So long an open connection may bring one more request after the gateway was told to stop."""
ACCEPT_S = 0.05
"""Time enough to accept what the kernel has let in."""
_LOOK_AGAIN_S = 0.02

_SO_ATTACH_FILTER = 26
"""Linux. Elsewhere this option is refused, and some may be reset."""
_PROGRAM = ctypes.create_string_buffer(
    b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x30, 0, 0, 13),  # load the byte of the TCP header with the flags
            (0x45, 0, 1, 0x02),  # is it a SYN?
            (0x06, 0, 0, 0),  # then drop it
            (0x06, 0, 0, 0xFFFFFFFF),
        )
    )
)
_NO_SYN = struct.pack("@HP", 4, ctypes.addressof(_PROGRAM))
"""A `struct sock_fprog`: a packet filter (classic BPF, see socket(7)) that lets no new connection in."""


async def know_the_fleet(connection: Connection, directory: Directory) -> None:
    """Look at the fleet before the first client comes."""
    try:
        async with asyncio.timeout(FIRST_LOOK_S):
            await connection.wait_connected()
            await directory.survey()
    except (BrokerError, TimeoutError):
        pass  # the directory goes on trying


async def close_the_door(listener: Listener) -> None:
    """Listen no more, without resetting those that the kernel has let in and nobody has accepted yet.

    First the kernel is told to overlook whoever knocks (his next try, a second later, is refused); then those who are
    in are accepted; then nobody is left whom closing could reset.
    """
    for listening in listener.sockets:
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _NO_SYN)
    await asyncio.sleep(ACCEPT_S)
    listener.accept()
    listener.close()


async def let_clients_leave(server: web.Server) -> None:
    """Return when every connection has ended, or has had the time for a last request."""
    until_ns = clock.now_ns() + int(LAST_REQUEST_S * 1e9)
    while server.connections and clock.now_ns() < until_ns:  # noqa: ASYNC110  aiohttp tells nobody when one ends
        await asyncio.sleep(_LOOK_AGAIN_S)
