"""What Redis holds: whether anything was left behind or lost sight of, and whether two ways led to the same state."""

import asyncio
import re
from collections import Counter
from typing import Any

from shared.broker.connection import Connection
from shared.keys import FLEET_LEASES, FLEET_SURVEYED, FLEET_UNLOADED, FLEET_VERSION, FLEET_WORKERS, GROUP, Queue
from shared.lifecycle import State, is_terminal

_STAYS = r"q:[0-4]|dl|hb|stats|c|vt|pace|run|dlq|hooks"
"""Keys of a queue that live as long as the queue does; their size is bounded by what is queued and who works."""
_WHILE_LIVE = r"delay|ring:[1-3]|w:[1-3]:.*"
"""Keys that must go with the last request that is live."""
_MAY_STAY = re.compile(rf"tailrace:\{{[^}}]*\}}:({_STAYS}|{_WHILE_LIVE})")
_MUST_GO = re.compile(rf"tailrace:\{{[^}}]*\}}:(c|{_WHILE_LIVE})")
_RECORD = re.compile(r"(tailrace:\{[^}]*\}):r:(.*)")
_BOOKS = re.compile(r"(tailrace:\{[^}]*\}):(c|dl)")
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
        found += [f"{key} is still there" for key, _ in lives if key.startswith(queue.tag) and _MUST_GO.fullmatch(key)]
        for lane in (*queue.lanes, queue.suspects):
            if length := await c.call("XLEN", lane):
                found.append(f"{lane} holds {length} entries")
            if await c.call("EXISTS", lane):
                groups = [_named(group) for group in await c.call("XINFO", "GROUPS", lane)]
                found += [f"{lane} has {g['pending']} entries pending" for g in groups if g["pending"]]
        if late := await c.call("ZRANGE", queue.deadlines, 0, -1):
            found.append(f"{queue.deadlines} still has {late}")
    return found


async def counted(c: Connection, queue: Queue) -> dict[str, int]:
    """What counts against the limits: requests by priority (l1 l2 l3) and tenant (t:NAME), bytes of payload (b)."""
    flat = await c.call("HGETALL", f"{queue.tag}:c")
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}


async def disorder(c: Connection) -> list[str]:
    """What contradicts itself: live requests that nothing leads to or that are not counted, and the reverse."""
    keys = await _keys(c)
    matches = [match for key in keys if (match := _RECORD.fullmatch(key))]
    flats = await asyncio.gather(*(c.call("HGETALL", match[0]) for match in matches))
    live: dict[str, dict[str, dict[str, str]]] = {}
    for match, flat in zip(matches, flats, strict=True):
        texts = [part.decode("latin1") for part in flat]
        record = dict(zip(texts[::2], texts[1::2], strict=True))
        if not is_terminal(State(record["st"])):
            live.setdefault(match[1], {})[match[2]] = record
    tags = {match[1] for key in keys if (match := _BOOKS.fullmatch(key))} | set(live)
    return [text for tag in sorted(tags) for text in await _disorder_of(c, tag, live.get(tag, {}))]


async def _disorder_of(c: Connection, tag: str, live: dict[str, dict[str, str]]) -> list[str]:
    found = []
    sums: Counter[str] = Counter()
    for r in live.values():
        sums.update({f"l{r['pr']}": 1, f"t:{r['tn']}": 1, "b": int(r["n"])})
    leads = await asyncio.gather(*(_leads_to(c, tag, rid, r) for rid, r in live.items()))
    found += [
        f"{tag} {rid}: nothing leads to it: {live[rid]}" for rid, there in zip(live, leads, strict=True) if not there
    ]
    flat = await c.call("HGETALL", f"{tag}:c")
    books = {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
    if books != +sums:
        found.append(f"{tag}:c says {books}, the records say {dict(+sums)}")
    due = {rid.decode() for rid in await c.call("ZRANGE", f"{tag}:dl", 0, -1)}
    if due != set(live):
        found.append(f"{tag}:dl lacks {set(live) - due}, and has {due - set(live)} which are not live")
    return found


async def _leads_to(c: Connection, tag: str, rid: str, r: dict[str, str]) -> bool:
    match State(r["st"]):
        case State.WAITING:
            waiting = await c.call("LRANGE", f"{tag}:w:{r['pr']}:{r['tn']}", 0, -1)
            in_ring = await c.call("ZSCORE", f"{tag}:ring:{r['pr']}", r["tn"])
            return rid.encode() in waiting and in_ring is not None
        case State.DELAYED:
            return await c.call("ZSCORE", f"{tag}:delay", rid) is not None
        case State.RUNNING:
            return any(e[0].decode() == r["sid"] for e in await _pending(c, r["q"]))
    return bool(await c.call("XRANGE", r["q"], r["sid"], r["sid"]))


async def snapshot(c: Connection) -> dict[str, Any]:
    """Everything in Redis, by key. Two snapshots are equal when nothing changed but the clocks."""
    keys = [key for key in await _keys(c) if not key.endswith(":lead")]  # which ends by itself after two seconds
    return dict(zip(keys, await asyncio.gather(*(_value(c, key) for key in keys)), strict=True))


async def _value(c: Connection, key: str) -> tuple[Any, bool]:
    """What a key holds, and whether it has a time to live."""
    lives = c.call("PTTL", key)
    value: Any
    match await c.call("TYPE", key):
        case b"string":
            value = None if key.endswith(":tick") or key == FLEET_SURVEYED else await c.call("GET", key)
        case b"hash":
            flat = await c.call("HGETALL", key)
            value = dict(sorted(zip(flat[::2], flat[1::2], strict=True)))
        case b"zset":
            leases = key.endswith(":hb") or key == FLEET_LEASES
            value = await c.call("ZRANGE", key, 0, -1, *([] if leases else ["WITHSCORES"]))
        case b"set":
            value = sorted(await c.call("SMEMBERS", key))
        case b"list":
            value = await c.call("LRANGE", key, 0, -1)
        case _:
            value = [await c.call("XRANGE", key, "-", "+"), await _pending(c, key)]
    return value, await lives != -1


def comparable(found: dict[str, Any]) -> str:
    """A snapshot as text without entry ids and instants, so two runs of the same story compare equal."""
    return _INSTANT.sub("INSTANT", _ENTRY_ID.sub("ENTRY", repr(sorted(found.items()))))


async def pending_of(c: Connection, queue: Queue, consumer: str) -> list[bytes]:
    """Ids of the entries that Redis has delivered to a worker and that are not ended."""
    found = []
    for lane in (*queue.lanes, queue.suspects):
        found += [e[0] for e in await c.call("XPENDING", lane, GROUP, "-", "+", 10_000, consumer)]
    return found


async def _keys(c: Connection) -> list[str]:
    return sorted(key.decode() for key in await c.call("KEYS", "*"))


async def _pending(c: Connection, stream: str) -> list[Any]:
    found: list[Any] = []
    if not await c.call("EXISTS", stream):
        return found
    for group in await c.call("XINFO", "GROUPS", stream):
        entries = await c.call("XPENDING", stream, _named(group)["name"], "-", "+", 10_000)
        found += [entry[:2] for entry in entries]  # the rest tells how long and how often
    return found


def _named(flat: list[Any]) -> dict[str, Any]:
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
