"""The answers' way back: one reader on this gateway's reply streams, and what keeps those streams alive."""

import asyncio
import contextlib
from collections.abc import Iterator

from gateway.pending import Pending
from gateway.submit import Submitter
from shared import clock, wire
from shared.broker import requests
from shared.broker.connection import BrokerError, Connection
from shared.events import PeerOffset
from shared.keys import Queue

BLOCK_MS = 1_000
LISTEN_INTERVAL_S = 1.0
RETRY_S = 0.05
FORGET_AFTER_S = 0.05
"""Finished records are deleted so much later, many in one call: the deletion of each would cost a round trip."""


class Replies:
    """Reads answers and gives them to the submitter."""

    def __init__(self, connection: Connection, reading: Connection, submitter: Submitter) -> None:
        self._connection = connection
        self._reading = reading
        self._submitter = submitter
        self._own_clock = clock.clock_id()
        self._streams: dict[Queue, str] = {}
        self._offsets: dict[str, _Offset] = {}
        self._followers: dict[str, list[asyncio.Future[None]]] = {}
        self._answered: dict[Queue, list[str]] = {}
        """Requests whose records can be forgotten."""

    async def add(self, queue: Queue) -> None:
        """Open the reply stream of a queue. Raises BrokerError."""
        await requests.listen(self._connection, queue, self._submitter.gateway)
        self._streams[queue] = "0"
        # The running read does not know the new stream yet.
        await self._connection.call("CLIENT", "UNBLOCK", self._reading.client_id)

    @contextlib.contextmanager
    def following(self, request_id: str) -> Iterator["asyncio.Future[None]"]:
        """A future that is done once this gateway has been rung for a request (`requests.attach` asks for that)."""
        follower: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers.setdefault(request_id, []).append(follower)
        try:
            yield follower
        finally:
            left = self._followers.get(request_id, [])
            if follower in left:
                left.remove(follower)
            if not left:
                self._followers.pop(request_id, None)

    async def keep_alive(self) -> None:
        """Renew the streams' time to live, for ever; a wiped Redis gets them back."""
        while True:
            for queue in list(self._streams):
                try:
                    await requests.listen(self._connection, queue, self._submitter.gateway)
                except BrokerError:
                    break
            await asyncio.sleep(LISTEN_INTERVAL_S)

    async def run(self) -> None:
        """Read for ever."""
        while True:
            try:
                if not self._streams:
                    await asyncio.sleep(RETRY_S)
                    continue
                found = await requests.read_replies(
                    self._reading, self._streams, self._submitter.gateway, block_ms=BLOCK_MS
                )
            except BrokerError:
                # A new primary's clock may be behind, and its entry ids lower than the last one read. What was read is
                # trimmed, and what comes twice finds nobody waiting.
                self._streams = dict.fromkeys(self._streams, "0")
                await asyncio.sleep(RETRY_S)
                continue
            g5 = clock.now_ns()
            for queue, entry_id, answers in found:
                self._streams[queue] = entry_id
                if not self._answered:
                    self._submitter.own(self._forget())
                self._deliver(queue, answers, self._answered.setdefault(queue, []), g5)

    def _deliver(self, queue: Queue, answers: list[tuple[str, bytes]], ids: list[str], g5: int) -> None:
        elsewhere: list[Pending] = []
        for rid, data in answers:
            for follower in self._followers.pop(rid, ()):
                if not follower.done():
                    follower.set_result(None)
            p = self._submitter.find(rid)
            if p is None:
                continue  # the stream's greeting, a second copy, or the client has gone
            if not data:
                elsewhere.append(p)
                continue
            stamps = self._submitter.resolve(p, data, g5)
            if stamps and stamps.clock != self._own_clock:
                self._note_offset(stamps, p.g3, g5)
            # A job's result is kept; a request that goes on has a new record under the same id.
            if p.job is None and not self._submitter.is_open(p):
                ids.append(rid)
        if elsewhere:
            self._submitter.own(self._read_records(queue, elsewhere))

    async def _read_records(self, queue: Queue, ps: list[Pending]) -> None:
        """Answers too long for the reply stream lie in the records."""
        while ps := [p for p in ps if self._submitter.is_open(p)]:
            try:
                await self._submitter.look_up(queue, ps)
                return
            except BrokerError:
                await asyncio.sleep(RETRY_S)

    async def _forget(self) -> None:
        await asyncio.sleep(FORGET_AFTER_S)
        answered, self._answered = self._answered, {}
        for queue, ids in answered.items():
            try:
                await requests.forget(
                    self._connection, queue, self._submitter.gateway, ids, read_up_to=self._streams[queue]
                )
            except BrokerError:
                pass  # the records have a time to live, and the stream is trimmed after the next read

    def _note_offset(self, s: wire.WorkerStamps, g3: int, g5: int) -> None:
        """Bound the offset of another host's clock; our own needs no bounds."""
        offset = self._offsets.get(s.worker)
        if offset is None:
            offset = self._offsets[s.worker] = _Offset(s.clock)
        offset.lo = max(offset.lo, s.w8 - g5)
        offset.hi = min(offset.hi, s.w1 - g3)
        offset.n += 1

    def take_offsets(self) -> list[PeerOffset]:
        """Bounds of each worker's clock against ours since the last call: nothing arrives before it was sent."""
        taken = [PeerOffset(worker, o.clock, o.lo, o.hi, o.n) for worker, o in self._offsets.items()]
        self._offsets.clear()
        return taken


class _Offset:
    __slots__ = ("clock", "hi", "lo", "n")

    def __init__(self, clock_name: str) -> None:
        self.clock = clock_name
        self.lo = -(1 << 62)
        self.hi = 1 << 62
        self.n = 0
