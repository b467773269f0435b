"""Blocked reads: what the model does to a waiting client is what a real server does to it."""

import itertools
import re
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import hiredis
import pytest
from simulation.redis_model import RedisModel

from shared import clock
from shared.broker.connection import ReplyError
from shared.broker.embedded import EmbeddedRedis

Words = tuple[str, ...]
_ENTRY_ID = re.compile(rb"\d{13}-\d+")


class Client(Protocol):
    """A connection that may block."""

    id: int

    def send(self, *words: str) -> None: ...

    def receive(self) -> Any: ...

    def call(self, *words: str) -> Any: ...


class _Real:
    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(path)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self.id: int = self.call("CLIENT", "ID")

    def close(self) -> None:
        self._socket.close()

    def send(self, *words: str) -> None:
        self._socket.sendall(hiredis.pack_command(words))  # type: ignore[arg-type]  # any length

    def receive(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 16))
        return reply

    def call(self, *words: str) -> Any:
        self.send(*words)
        return self.receive()


class _Never:
    def cancel(self) -> None:
        pass


class _Modelled:
    def __init__(self, model: RedisModel) -> None:
        self._model = model
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._client = model.connect(self._reader.feed)
        self.id = self._client.id

    def send(self, *words: str) -> None:
        self._model.receive(self._client, [[word.encode() for word in words]])

    def receive(self) -> Any:
        reply = self._reader.gets()
        assert reply is not False, "still blocked"
        return reply

    def call(self, *words: str) -> Any:
        self.send(*words)
        return self.receive()


def _tell(clients: Sequence[Client], reads: Sequence[Words], commands: Sequence[Words]) -> list[Any]:
    """Let the readers block one after the other, give the commands, and unblock who is left. Returns all replies."""
    actor, *readers = clients
    for waiting, (reader, read) in enumerate(zip(readers, reads, strict=True), 1):
        reader.send(*read)
        while f"blocked_clients:{waiting}" not in actor.call("INFO", "clients").decode():
            pass
    told = [actor.call(*words) for words in commands]
    left = [actor.call("CLIENT", "UNBLOCK", str(reader.id)) for reader in readers]
    return [told, left, [reader.receive() for reader in readers], actor.call("XPENDING", "s", "g", "-", "+", "10")]


def _comparable(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return _ENTRY_ID.sub(b"an entry", reply)
    if isinstance(reply, list):
        if len(reply) == 4 and isinstance(reply[2], int):  # of XPENDING: how long is not compared
            reply = [reply[0], reply[1], "idle", reply[3]]
        return [_comparable(item) for item in reply]
    return str(reply) if isinstance(reply, ReplyError) else reply


@pytest.fixture
def clients(oldest_server: EmbeddedRedis) -> Iterator[tuple[list[_Real], list[_Modelled]]]:
    """Three clients of an empty real server, and three of an empty model."""
    real = [_Real(str(oldest_server.socket)) for _ in range(3)]
    model = RedisModel(clock.wall_us, schedule=lambda *_: _Never())
    modelled = [_Modelled(model) for _ in range(3)]
    for actor in (real[0], modelled[0]):
        actor.call("FLUSHALL")
        actor.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        actor.call("XGROUP", "CREATE", "t", "g", "0", "MKSTREAM")
    yield real, modelled
    real[0].call("FLUSHALL")
    for client in real:
        client.close()


TAKE = ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "BLOCK", "0", "STREAMS", "s", "t", ">", ">")
TAKE_OTHER = ("XREADGROUP", "GROUP", "g", "d", "BLOCK", "0", "STREAMS", "s", ">")
LISTEN = ("XREAD", "COUNT", "2", "BLOCK", "0", "STREAMS", "s", "t", "$", "$")
ADD = ("XADD", "s", "*", "a", "1")
ADD_TWO = ("EVAL", "redis.call('XADD', 's', '*', 'a', '1') return redis.call('XADD', 't', '*', 'b', '2')", "0")
ADD_AND_DROP = ("EVAL", "return redis.call('XDEL', 's', redis.call('XADD', 's', '*', 'a', '1'))", "0")
STORIES: dict[str, tuple[Words, ...]] = {
    "an entry comes": (ADD,),
    "an entry comes in the other stream": (("XADD", "t", "*", "a", "1"),),
    "two come": (ADD, ADD),
    "a script adds two": (ADD_TWO,),
    "nothing comes": (),
    "a stream vanishes": (("DEL", "s"),),
    "a stream vanishes and another takes its place": (("DEL", "s"), ADD),
    "everything vanishes and an entry comes": (("FLUSHALL",), ADD),
    "the group is destroyed": (("XGROUP", "DESTROY", "s", "g"),),
    "the stream becomes something else": (("DEL", "s"), ("SET", "s", "x"), ("DEL", "s")),
    "a consumer is deleted": (("XGROUP", "DELCONSUMER", "s", "g", "c"), ADD),
    "an entry comes and goes at once": (ADD_AND_DROP,),
    "an entry with an id of long ago": (("XADD", "s", "1-1", "a", "1"),),
}
READERS = {"one takes": (TAKE,), "two take": (TAKE, TAKE_OTHER), "one listens": (LISTEN,), "both": (LISTEN, TAKE)}


@pytest.mark.parametrize(("story", "readers"), list(itertools.product(STORIES, READERS)))
def test_a_blocked_read(clients: tuple[list[_Real], list[_Modelled]], story: str, readers: str) -> None:
    """Who is served, with what, and who goes on waiting."""
    real, modelled = clients
    count = len(READERS[readers]) + 1
    expected = _comparable(_tell(real[:count], READERS[readers], STORIES[story]))
    assert _comparable(_tell(modelled[:count], READERS[readers], STORIES[story])) == expected
