"""What lies between the processes and the model of Redis: connections with latencies, and all that goes wrong on them.

The real `Connection` runs over it, byte for byte: a transport here is what a socket is there. Commands and replies of a
connection keep their order. A fault strikes a write as a whole or in the middle; which write, and how, is drawn from
the seed.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis
from simulation.redis_model import Client, RedisModel, Saved
from simulation.virtual_time import START_NS, Handle, Process, VirtualLoop, current

EPOCH_US = 1_700_000_000_000_000
"""What Redis' clock shows at the start."""


@dataclass(slots=True)
class Weather:
    """How likely each fault is, a write."""

    cut: float = 0.0
    """The connection breaks: before the bytes arrive, within them, or after."""
    delay: float = 0.0
    """The bytes are late, by up to `delay_max_s`."""
    delay_max_s: float = 1.0
    vanish: float = 0.0
    """From now on nothing passes, and nobody is told."""


class Network:
    """The only way to the server, which can stand still, be away, and forget."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, observe: Callable[[Client, list[bytes], bytes], None]):
        self.loop = loop
        self.weather = Weather()
        self.rng = rng
        self.context = contextvars.copy_context()
        self.model = RedisModel(self.now_us, schedule=self._schedule, observe=observe)
        self.links: dict[_Link, None] = {}
        self.down = False
        self._stalls = 0
        self._backlog: list[tuple[_Link, bytes | None]] = []
        loop.connector = self.connect

    def now_us(self) -> int:
        """The server's clock."""
        return EPOCH_US + (self.loop.now_ns - START_NS) // 1000

    def after(self, delay_s: float, callback: Callable[..., None], *args: Any) -> Handle:
        """Do something later, on behalf of no process."""
        return self.loop.call_later(delay_s, callback, *args, context=self.context)

    def _schedule(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        return self.after(delay_s, callback)

    def latency_s(self) -> float:
        """How long bytes are on their way."""
        return 0.00005 + self.rng.random() * 0.0003

    async def connect(self, make: Callable[[], asyncio.Protocol], _path: str) -> Any:
        """Open a connection. Raises ConnectionRefusedError."""
        process = current()
        await asyncio.sleep(2 * self.latency_s())
        if self.down or (process is not None and not process.alive):
            raise ConnectionRefusedError("simulated: nobody listens")
        protocol = make()
        link = _Link(self, process, protocol)
        self.links[link] = None
        if process is not None:
            process.on_death.append(link.abort)
        protocol.connection_made(link)
        return link, protocol

    def arrive(self, link: "_Link", data: bytes | None) -> None:
        """Bytes of a client, or None: it has gone."""
        if self._stalls:
            self._backlog.append((link, data))
        elif data is None:
            self.model.disconnect(link.client)
        else:
            link.reader.feed(data)
            commands = []
            while (command := link.reader.gets()) is not False:
                commands.append(command)
            self.model.receive(link.client, commands)

    def stall(self, seconds: float) -> None:
        """The server stands still for a while: it is there and does nothing."""
        self._stalls += 1
        self.after(seconds, self._resume)

    def _resume(self) -> None:
        self._stalls -= 1
        if not self._stalls:
            backlog, self._backlog = self._backlog, []
            for link, data in backlog:
                self.arrive(link, data)

    def restart(self, away_s: float, data: Saved | None = None) -> None:
        """The server is killed, and back after a while with the same data, or with that of a `save`."""
        self.down = True
        self._backlog.clear()
        for link in list(self.links):
            link.cut()
        self.model.restart(data)
        self.after(away_s, self._back)

    def _back(self) -> None:
        self.down = False

    def cut(self, process: Process) -> None:
        """Break every connection of a process."""
        for link in list(self.links):
            if link.process is process:
                link.cut()

    def vanish(self, process: Process) -> None:
        """From now on nothing passes on the connections a process has, and nobody is told."""
        for link in self.links:
            if link.process is process:
                link.vanished = True


class _Link(asyncio.Transport):
    """One connection; the client's transport."""

    def __init__(self, network: Network, process: Process | None, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.process = process
        self.client = network.model.connect(self._down)
        self.reader = hiredis.Reader()
        self.vanished = False
        self._network = network
        self._loop = network.loop
        self._protocol = protocol
        self._context = process.context if process is not None else network.context
        self._closed = False
        self._up_at_ns = 0
        self._down_at_ns = 0

    # -- the client's end ----------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closed

    def write(self, data: Any) -> None:
        self._up(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self._up(b"".join(list_of_data))

    def abort(self) -> None:
        if self._closed:
            return
        self._close()
        # The server hears of it behind what is on its way; never, if nothing passes any more: then it gives up itself.
        self._later_up(5.0 * self._network.rng.random() if self.vanished else 0.0, None)

    def close(self) -> None:
        self.abort()

    def _close(self) -> None:
        self._closed = True
        self._network.links.pop(self, None)
        self._loop.call_soon(self._protocol.connection_lost, None, context=self._context)

    # -- on the way ----------------------------------------------------------------------------------------------------

    def cut(self, server_notices_s: float = 0.0) -> None:
        """Break it; the client hears of it at once, the server perhaps later."""
        if not self._closed:
            self._close()
            if server_notices_s:
                self._network.after(server_notices_s, self._network.arrive, self, None)
            else:
                self._network.model.disconnect(self.client)

    def _up(self, data: bytes) -> None:
        if self._closed or self.vanished:
            return
        delay_s = self._late()
        if self._strikes(self._network.weather.cut):
            # All of it, some of it or nothing arrives, and no reply comes back.
            arriving = data[: self._portion(len(data))]
            if arriving:
                self._later_up(delay_s, arriving)
            self._network.after(0.001 + delay_s, self.cut, self._unnoticed_s())
            self.vanished = True
            return
        self._later_up(delay_s, data)

    def _later_up(self, delay_s: float, data: bytes | None) -> None:
        arrives_ns = self._loop.now_ns + int((self._network.latency_s() + delay_s) * 1e9)
        self._up_at_ns = max(self._up_at_ns, arrives_ns)
        self._network.after((self._up_at_ns - self._loop.now_ns) / 1e9, self._network.arrive, self, data)

    def _down(self, data: bytes) -> None:
        if self._closed or self.vanished:
            return
        delay_s = self._late()
        if self._strikes(self._network.weather.cut):
            data = data[: self._portion(len(data))]
            self._network.after(0.001 + delay_s, self.cut, self._unnoticed_s())
            self.vanished = True
        arrives_ns = self._loop.now_ns + int((self._network.latency_s() + delay_s) * 1e9)
        self._down_at_ns = max(self._down_at_ns, arrives_ns)
        self._loop.call_later((self._down_at_ns - self._loop.now_ns) / 1e9, self._receive, data, context=self._context)

    def _receive(self, data: bytes) -> None:
        if data and not self._closed:
            self._protocol.data_received(data)

    def _late(self) -> float:
        weather = self._network.weather
        if self._strikes(weather.vanish):
            self.vanished = True
        return self._network.rng.random() * weather.delay_max_s if self._strikes(weather.delay) else 0.0

    def _strikes(self, likelihood: float) -> bool:
        return likelihood > 0 and self._network.rng.random() < likelihood

    def _portion(self, length: int) -> int:
        return self._network.rng.choice((0, self._network.rng.randrange(length + 1), length))

    def _unnoticed_s(self) -> float:
        return self._network.rng.choice((0.0, 0.0, self._network.rng.random() * 3))
