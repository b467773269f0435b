"""The recorder's end of the back doors: each process connects to one socket, says who it is, and answers calls."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALL_S = 60.0


class CallFailed(Exception):
    """A function of a scenario failed in the process that it was called in; the text is its traceback."""


@dataclass(slots=True)
class Link:
    """A connection to a process. `role` and `number` are what the recorder called it."""

    role: str
    number: int
    pid: int
    writer: asyncio.StreamWriter
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _calls: dict[int, "asyncio.Future[Any]"] = field(default_factory=dict)

    async def call(self, function: str, **arguments: Any) -> Any:
        """Run a function of the scenario's file there, and return what it returns. Raises CallFailed, TimeoutError."""
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        message = {"call": number, "function": function, "arguments": arguments}
        self.writer.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(CALL_S):
            return await future

    def heard(self, message: dict[str, Any]) -> None:
        """Take what the process says."""
        if message.get("ready"):
            self.ready.set()
            return
        future = self._calls.pop(message["call"])
        if future.done():
            return
        if "error" in message:
            future.set_exception(CallFailed(f"in {self.role} {self.number}:\n{message['error']}"))
        else:
            future.set_result(message["result"])

    def lost(self) -> None:
        """The process has ended; what was asked of it has failed."""
        self.gone.set()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(CallFailed(f"{self.role} {self.number} has ended"))


class Switchboard:
    """Listens for the processes of one run. Use as an async context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server: asyncio.Server | None = None
        self._waiting: dict[int, asyncio.Future[Link]] = {}
        self._reading: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Switchboard":
        self._server = await asyncio.start_unix_server(self._connected, str(self._path), limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    def expect(self, pid: int) -> "asyncio.Future[Link]":
        """The link of a process, once it has connected."""
        return self._waiting.setdefault(pid, asyncio.get_running_loop().create_future())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        try:
            first = json.loads(await reader.readline())
            link = Link(first["role"], first["number"], first["pid"], writer)
            self.expect(link.pid).set_result(link)
            try:
                while line := await reader.readline():
                    link.heard(json.loads(line))
            finally:
                link.lost()
        except (ConnectionError, ValueError):
            pass  # it was killed: `lost` has been told
        finally:
            writer.close()
