"""A connection straight into a model of Redis: no network, no faults; a read that would block finds nothing."""

import asyncio
from typing import Any

import hiredis
from simulation.redis_model import RedisModel

from shared import clock
from shared.broker.connection import Argument, Connection, ReplyError


class DirectConnection(Connection):
    """Stands in for a Connection wherever only `call` is wanted. By default it has a model of its own."""

    def __init__(self, model: RedisModel | None = None) -> None:
        self.model = model or RedisModel(clock.wall_us)
        self._replies: list[bytes] = []
        self._client = self.model.connect(self._replies.append)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self.client_id = self._client.id

    @property
    def connected(self) -> bool:
        return True

    async def wait_connected(self) -> None:
        return

    def call(self, *command: Argument, in_place: bool = False) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply = self.now(*command)
        if isinstance(reply, ReplyError):
            future.set_exception(reply)
            future.exception()
        else:
            future.set_result(reply)
        return future

    def now(self, *command: Argument) -> Any:
        """The reply to a command; an error is returned, not raised."""
        self.model.receive(self._client, [[_word(argument) for argument in command]])
        self._reader.feed(self._replies.pop())
        return self._reader.gets()


def _word(argument: Argument) -> bytes:
    return bytes(argument) if isinstance(argument, bytes | memoryview) else str(argument).encode()
