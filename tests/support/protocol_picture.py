"""What Redis holds of a queue, in the words of `protocol_model.Model.picture`."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from support.audit import counted
from support.protocol_model import LANES, PRIORITIES
from support.scene import Scene

from shared.keys import GROUP
from shared.lifecycle import State, is_terminal

FIELDS = ("st", "a", "er", "cr", "lo", "own", "gw")


async def picture(scene: Scene, ids: list[str], tenants: Iterable[str]) -> dict[str, Any]:
    """All asked for in one go, so that a step of the state machine costs one round trip."""
    c, tag = scene.c, scene.queue.tag
    lanes = (*scene.queue.lanes, scene.queue.suspects)
    places = [(priority, tenant) for priority in PRIORITIES for tenant in tenants]
    # All calls leave together; futures, since a task each would cost more than Redis does.
    records = [c.call("HMGET", scene.queue.record(rid), *FIELDS) for rid in ids]
    entries = [c.call("XRANGE", lane, "-", "+") for lane in lanes]
    pending = [c.call("XPENDING", lane, GROUP, "-", "+", 10_000) for lane in lanes]
    rooms = [c.call("LRANGE", f"{tag}:w:{p}:{tenant}", 0, -1) for p, tenant in places]
    rings = [c.call("ZRANGE", f"{tag}:ring:{p}", 0, -1, "WITHSCORES") for p in PRIORITIES]
    rest = [
        c.call("ZRANGE", f"{tag}:delay", 0, -1),
        c.call("ZRANGE", scene.queue.deadlines, 0, -1),
        c.call("ZRANGE", scene.queue.leases, 0, -1),
        c.call("HGETALL", scene.queue.running),
        c.call("GET", f"{tag}:solo"),
    ]
    records, entries, pending, rooms, rings, rest = [
        [await future for future in futures] for futures in (records, entries, pending, rooms, rings, rest)
    ]
    counters, letters, *rung = await asyncio.gather(
        counted(c, scene.queue), scene.letters(), *(scene.rung(gateway) for gateway in ("gw-1", "gw-2"))
    )
    delayed, deadlines, leases, notes, solo = rest
    records = [[(value or b"").decode() for value in record] for record in records]
    states = {rid: r[0] for rid, r in zip(ids, records, strict=True)}
    live = {rid: r for rid, r in zip(ids, records, strict=True) if r[0] and not is_terminal(State(r[0]))}
    at_entry = {
        (lane, entry_id): fields[1].decode()
        for lane, found in zip(LANES, entries, strict=True)
        for entry_id, fields in found
    }
    return {
        "states": states,
        "counts": {rid: tuple(int(n or 0) for n in r[1:5]) for rid, r in zip(ids, records, strict=True)},
        "owners": {rid: r[5] for rid, r in live.items() if r[0] == "RUNNING"},
        "gateways": {rid: r[6].split(",") if r[6] else [] for rid, r in live.items()},
        "lanes": {
            lane: [fields[1].decode() for _, fields in found] for lane, found in zip(LANES, entries, strict=True)
        },
        "held": {
            at_entry.get((lane, e[0]), f"an entry that is gone: {e}"): e[1].decode()
            for lane, found in zip(LANES, pending, strict=True)
            for e in found
        },
        "rooms": {place: _texts(room) for place, room in zip(places, rooms, strict=True) if room},
        "rings": {
            p: {ring[i].decode(): float(ring[i + 1]) for i in range(0, len(ring), 2)}
            for p, ring in zip(PRIORITIES, rings, strict=True)
        },
        "delayed": sorted(_texts(delayed)),
        "deadlines": sorted(_texts(deadlines)),
        "counters": counters,
        "leases": sorted(_texts(leases)),
        "notes": {notes[i].decode(): notes[i + 1].decode().split() for i in range(0, len(notes), 2)},
        "solo": (solo or b"").decode(),
        "letters": [(letter.id, letter.why) for letter in letters],
        "rung": dict(Counter((f"gw-{i + 1}", rid) for i, ids_rung in enumerate(rung) for rid in ids_rung)),
    }


def _texts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]
