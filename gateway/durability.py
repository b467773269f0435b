"""Jobs that are accepted only once they are safe: on a replica, on the primary's disk, or both.

Jobs that come while a confirmation is awaited share the next one, so they wait for two rounds at most.
"""

import asyncio
from collections.abc import Mapping

from shared import humanlog
from shared.broker.connection import BrokerError, Connection
from shared.broker.durable import Durability, NotSupported, confirm
from shared.errors import BadRequest, ErrorKind, TailraceError

KINDS = {
    "none": None,
    "replica": Durability(replicas=1),
    "fsync": Durability(disk=True),
    "both": Durability(replicas=1, disk=True),
}
CONNECT_S = 3.0


def durability_of(headers: Mapping[str, str], default: str) -> Durability | None:
    """What x-durability asks for; None: nothing. Raises BadRequest."""
    header = headers.get("x-durability")
    if header is None:
        return KINDS[default]
    try:
        return KINDS[header.strip().lower()]
    except KeyError:
        raise BadRequest(f"x-durability is '{header[:40]}'; send none, replica, fsync or both") from None


class Confirmations:
    """Asks Redis, on a connection of its own that is made when it is first needed."""

    def __init__(self, url: str, name: str, wait_s: float) -> None:
        self._wait_s = wait_s
        self._connection = Connection(url, f"{name}-durable", read_limit_s=wait_s + 3, quiet=True)
        self._started = False
        self._knows_disk = 0
        """The connection whose server was found to be able to speak for its disk."""
        self._waiting: dict[Durability, list[tuple[str, asyncio.Future[bool]]]] = {}
        self._working: asyncio.Task[None] | None = None

    async def check(self, want: Durability) -> None:
        """Raises UNSUPPORTED if the server can never confirm this, UNAVAILABLE if it does not answer."""
        await self._connected()
        if not want.disk or self._knows_disk == self._connection.client_id:
            return
        try:
            await confirm(self._connection, (), want, within_ms=1)
            self._knows_disk = self._connection.client_id
        except NotSupported as e:
            text = f"this server's Redis cannot confirm that ({e}); send another x-durability, or none"
            raise TailraceError(ErrorKind.UNSUPPORTED, text) from e
        except BrokerError as e:
            raise _unavailable(str(e)) from e

    async def is_safe(self, record: str, want: Durability) -> bool:
        """Wait until a record is where it is wanted; false if that could not be confirmed in time."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(want, []).append((record, future))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="confirm")
        return await future

    async def _work(self) -> None:
        while self._waiting:
            want = next(iter(self._waiting))
            asked = self._waiting.pop(want)
            try:
                within_ms = max(1, int(self._wait_s * 1000))
                safe = await confirm(self._connection, [record for record, _ in asked], want, within_ms=within_ms)
            except (BrokerError, NotSupported) as e:
                humanlog.get().warning("jobs could not be confirmed", jobs=len(asked), reason=str(e))
                safe = [False] * len(asked)
            for (_, future), is_safe in zip(asked, safe, strict=True):
                if not future.done():
                    future.set_result(is_safe)

    async def _connected(self) -> None:
        if not self._started:
            self._started = True
            self._connection.start()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connection.wait_connected()
        except TimeoutError as e:
            raise _unavailable("there is no connection") from e

    async def close(self) -> None:
        """Stop; who still waits hears that nothing was confirmed."""
        if self._working:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        if self._started:
            await self._connection.close()


def _unavailable(why: str) -> TailraceError:
    return TailraceError(ErrorKind.UNAVAILABLE, f"Redis does not answer: {why}; retry after 1 s", retry_after_s=1)
