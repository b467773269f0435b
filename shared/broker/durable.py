"""Whether what Redis has said yes to is on a replica, or on disk, too.

WAIT and WAITAOF answer for the writes of their own connection, and block it. So a write of our own goes before them, on
a connection that does nothing else: the replication stream is one, hence whoever has this write has all before it. The
records are looked at in between, on the same server: after a failover the new primary may never have had them. All of
it leaves in one write on one connection, so an answer is about one server, and every other outcome is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.broker.connection import Argument, Connection, ReplyError
from shared.keys import DURABLE_MARK

MARK_TTL_MS = 60_000


@dataclass(frozen=True, slots=True)
class Durability:
    """Who must have a write before it counts: so many replicas, and the primary's disk."""

    replicas: int = 0
    disk: bool = False

    def __str__(self) -> str:
        who = (["a replica"] if self.replicas else []) + (["the disk"] if self.disk else [])
        return " and ".join(who)


class NotSupported(Exception):
    """The server cannot confirm this, whatever the time."""


async def confirm(c: Connection, records: Sequence[str], want: Durability, *, within_ms: int) -> list[bool]:
    """Wait until the records are where they are wanted, at most so long; false where they may not be.

    Raises NotSupported, BrokerError.
    """
    wait: tuple[Argument, ...] = ("WAIT", want.replicas, within_ms)
    if want.disk:
        wait = ("WAITAOF", 1, want.replicas, within_ms)
    marked = c.call("SET", DURABLE_MARK, "", "PX", MARK_TTL_MS)
    looked = [c.call("EXISTS", record) for record in records]
    waited = c.call(*wait)
    await marked
    there = [bool(await look) for look in looked]
    try:
        reply = await waited
    except ReplyError as e:
        if e.code in ("ERR", "WAITAOF"):
            raise NotSupported(str(e).removeprefix("ERR ")) from e
        raise
    disk, replicas = reply if want.disk else (1, reply)
    held = disk >= 1 and replicas >= want.replicas
    return [held and is_there for is_there in there]
