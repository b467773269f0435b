"""The listening sockets. All who knock are let in at once.

uvloop's own server accepts one connection a turn of the loop. On a busy loop a turn takes milliseconds, so of a
thousand clients that come together (a deployment, a neighbour that died) the last would stand before the door for
seconds.
"""

import asyncio
import socket
from collections.abc import Callable

from shared import humanlog

BACKLOG = 4096
ACCEPT_MAX = 256
"""So many are let in before those who are in are served again."""
PAUSE_S = 0.5
"""Without a file descriptor left nobody can be let in; others may leave meanwhile."""


class Listener:
    """Listens on all addresses of a host. `protocol` makes the protocol of each connection."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol], host: str, port: int, *, reuse_port: bool) -> None:
        self._protocol = protocol
        self._host = host
        self._port = port
        self._reuse_port = reuse_port
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.TimerHandle] = set()
        self.sockets: list[socket.socket] = []

    async def start(self) -> int:
        """Listen; the port. Raises OSError."""
        found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._listen(family, kind, protocol, address)
        except OSError:
            self.close()
            raise
        port: int = self.sockets[0].getsockname()[1]
        return port

    def accept(self) -> None:
        """Let in whoever stands before the door now."""
        for listening in self.sockets:
            self._accept(listening)

    def close(self) -> None:
        """Listen no more. Who stands before the door is turned away."""
        for pause in self._pauses:
            pause.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = []

    # -- inside --------------------------------------------------------------------------------------------------

    def _listen(self, family: int, kind: int, protocol: int, address: object) -> None:
        listening = socket.socket(family, kind, protocol)
        self.sockets.append(listening)
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        listening.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        listening.listen(BACKLOG)
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_MAX):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                humanlog.get().error("cannot accept connections; trying again", reason=e.strerror or str(e))
                self._loop.remove_reader(listening)
                self._pauses.add(self._loop.call_later(PAUSE_S, self._accept_again, listening))
                return
            connection.setblocking(False)
            task = asyncio.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        self._pauses = {pause for pause in self._pauses if pause.when() > self._loop.time()}
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()  # it has gone already
