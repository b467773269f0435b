"""What Redis holds: whether anything was left behind, and whether two ways led to the same state."""

import re
from typing import Any

from shared.broker.connection import Connection
from shared.keys import FLEET_LEASES, FLEET_UNLOADED, FLEET_VERSION, FLEET_WORKERS, GROUP, Queue

_MAY_STAY = re.compile(r"tailrace:\{[^}]*\}:(q:[0-4]|dl|hb|stats|c|vt|pace|run|dlq|hooks)")
"""Keys of a queue that live as long as the queue does; their size is bounded by what is queued and who works."""
_FLEET = {FLEET_WORKERS, FLEET_LEASES, FLEET_VERSION, FLEET_UNLOADED}
_ENTRY_ID = re.compile(r"\d{13}-\d+")
_INSTANT = re.compile(r"\b\d{16}\b")


async def leftovers(c: Connection, *finished: Queue) -> list[str]:
    """What should not be there: keys that would stay for ever, and work in the queues that are `finished`."""
    found = []
    lives = [(key, c.call("PTTL", key)) for key in await _keys(c)]
    for key, left in lives:
        if await left == -1 and not _MAY_STAY.fullmatch(key) and key not in _FLEET:
            found.append(f"{key} has no time to live")
    for queue in finished:
        for lane in queue.lanes:
            if length := await c.call("XLEN", lane):
                found.append(f"{lane} holds {length} entries")
            if await c.call("EXISTS", lane):
                groups = [_named(group) for group in await c.call("XINFO", "GROUPS", lane)]
                found += [f"{lane} has {g['pending']} entries pending" for g in groups if g["pending"]]
        if late := await c.call("ZRANGE", queue.deadlines, 0, -1):
            found.append(f"{queue.deadlines} still has {late}")
    return found


async def snapshot(c: Connection) -> dict[str, Any]:
    """Everything in Redis, by key. Two snapshots are equal when nothing changed but lease clocks."""
    found: dict[str, Any] = {}
    for key in await _keys(c):
        kind = await c.call("TYPE", key)
        value: Any
        if kind == b"string":
            value = None if key.endswith(":tick") else await c.call("GET", key)
        elif kind == b"hash":
            flat = await c.call("HGETALL", key)
            value = dict(zip(flat[::2], flat[1::2], strict=True))
        elif kind == b"zset":
            leases = key.endswith(":hb") or key == FLEET_LEASES
            value = await c.call("ZRANGE", key, 0, -1, *([] if leases else ["WITHSCORES"]))
        elif kind == b"set":
            value = sorted(await c.call("SMEMBERS", key))
        else:
            value = [await c.call("XRANGE", key, "-", "+"), await _pending(c, key)]
        found[key] = (value, await c.call("PTTL", key) != -1)
    return found


def comparable(found: dict[str, Any]) -> str:
    """A snapshot as text without entry ids and instants, so two runs of the same story compare equal."""
    return _INSTANT.sub("INSTANT", _ENTRY_ID.sub("ENTRY", repr(sorted(found.items()))))


async def pending_of(c: Connection, queue: Queue, consumer: str) -> list[bytes]:
    """Ids of the entries that Redis has delivered to a worker and that are not ended."""
    found = []
    for lane in queue.lanes:
        found += [e[0] for e in await c.call("XPENDING", lane, GROUP, "-", "+", 10_000, consumer)]
    return found


async def _keys(c: Connection) -> list[str]:
    return sorted(key.decode() for key in await c.call("KEYS", "*"))


async def _pending(c: Connection, stream: str) -> list[Any]:
    found: list[Any] = []
    for group in await c.call("XINFO", "GROUPS", stream):
        entries = await c.call("XPENDING", stream, _named(group)["name"], "-", "+", 10_000)
        found += [entry[:2] for entry in entries]  # the rest tells how long and how often
    return found


def _named(flat: list[Any]) -> dict[str, Any]:
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
