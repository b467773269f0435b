"""Whoever knocks is let in at once, also when a thousand do; and what goes wrong at the door ends nothing."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest
import uvloop
from support.waiting import eventually

from gateway.listen import Listener

CROWD = 500


class Greeter(asyncio.Protocol):
    """Says hello to everybody, and counts them."""

    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport | uvloop.loop.TCPTransport)
        Greeter.count += 1
        transport.write(b"hello")


@pytest.fixture(autouse=True)
def nobody_yet() -> None:
    """The count begins."""
    Greeter.count = 0


@contextlib.contextmanager
def crowd(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many clients that knock and wait."""
    clients = [socket.socket() for _ in range(count)]
    for client in clients:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(("127.0.0.1", port))
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def test_a_crowd_is_let_in_within_a_few_turns_of_the_loop() -> None:
    """With uvloop, whose own server takes one a turn."""

    async def scene() -> int:
        listener = Listener(Greeter, "127.0.0.1", 0, reuse_port=False)
        port = await listener.start()
        turns = 0
        with crowd(port, CROWD):
            while Greeter.count < CROWD:
                await asyncio.sleep(0)
                turns += 1
        listener.close()
        return turns

    assert uvloop.run(scene()) < CROWD / 10


async def test_a_port_in_use_is_told() -> None:
    """As the OSError that it is; nothing stays open."""
    first = Listener(Greeter, "127.0.0.1", 0, reuse_port=False)
    port = await first.start()
    second = Listener(Greeter, "127.0.0.1", port, reuse_port=False)
    with pytest.raises(OSError) as raised:
        await second.start()
    assert raised.value.errno == errno.EADDRINUSE
    assert second.sockets == []
    first.close()


async def test_two_may_share_a_port() -> None:
    """Both listen."""
    first = Listener(Greeter, "127.0.0.1", 0, reuse_port=True)
    port = await first.start()
    second = Listener(Greeter, "127.0.0.1", port, reuse_port=True)
    assert await second.start() == port
    for listener in (first, second):
        listener.close()


async def test_nobody_is_lost_when_there_are_no_descriptors_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stands before the door is let in a little later."""
    listener = Listener(Greeter, "127.0.0.1", 0, reuse_port=False)
    port = await listener.start()
    real, refusals = listener.sockets[0], [OSError(errno.EMFILE, "Too many open files")]

    class Short:
        """The socket, out of descriptors once."""

        def accept(self) -> object:
            if refusals:
                raise refusals.pop()
            return real.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    loop = asyncio.get_running_loop()
    loop.remove_reader(real)
    listener.sockets = [Short()]  # type: ignore[list-item]
    loop.add_reader(real, listener._accept, listener.sockets[0])
    with crowd(port, 3):
        await eventually(lambda: Greeter.count == 3, "all are in")
    assert not refusals
    listener.close()


async def test_who_has_gone_again_harms_nobody() -> None:
    """A client that knocks and leaves."""
    listener = Listener(Greeter, "127.0.0.1", 0, reuse_port=False)
    port = await listener.start()
    with crowd(port, 5) as clients:
        for client in clients[:4]:
            client.close()
        await eventually(lambda: Greeter.count >= 1, "the last is in")
    listener.close()
