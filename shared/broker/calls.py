"""The queue protocol as typed calls: each is one script, so each either happened whole or did not happen.

Durations are microseconds of Redis' clock where they go over the wire. Every call raises BrokerError; after
`OutcomeUnknown` it may be repeated as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from shared.broker import scripts
from shared.broker.connection import Argument, Connection, ReplyError
from shared.keys import FLEET_LEASES, FLEET_UNLOADED, FLEET_VERSION, FLEET_WORKERS, GROUP, Queue
from shared.wire import CONTENT_TYPE, SCHEMA_VERSION

RECORD_TTL_MS = 120_000
"""How long a record outlives its deadline; longer than a reconcile interval, or it would look lost."""
REPLY_STREAM_TTL_MS = 30_000
INLINE_BYTES_MAX = 16 * 1024
"""A longer answer is not copied into the reply stream; the gateway reads it from the record."""
MAX_ATTEMPTS = 3
TICK_LIMIT = 100
LEADER_TTL_MS = 2_000
FETCH_BYTES_MAX = 8 << 20


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A request as its gateway hands it over. `budget_us`: what is left of its deadline."""

    id: str
    budget_us: int
    payload: bytes
    traceparent: str
    tracestate: str
    sent_ns: int


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A request as a worker gets it, once per attempt.

    `left_us`: until its deadline; `lost_us`: since its first start; `waited_us`: since it was accepted.
    """

    id: str
    lane: str
    entry_id: str
    attempt: int
    left_us: int
    lost_us: int
    waited_us: int
    gateway: str
    schema: int
    content_type: str
    traceparent: str
    tracestate: str
    sent_ns: int
    payload: bytes


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A finished attempt. `answer` is `wire.encode_reply`."""

    id: str
    attempt: int
    failed: bool
    answer: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """What a tick did; `lost` are the workers whose lease ran out."""

    overdue: int
    requeued: int
    dead: int
    stood_still_us: int
    lost: tuple[str, ...]


class Entry(NamedTuple):
    """An entry that a blocking read delivered. `fields`: names and values, flat."""

    lane: str
    id: str
    request_id: str
    fields: list[bytes]


async def accept(
    c: Connection, queue: Queue, submissions: Sequence[Submission], *, gateway: str, queue_max: int
) -> list[tuple[str, str]]:
    """Hand over requests. Returns a pair each: OK and the entry id, DUP and the state, FULL and the length, or OOM."""
    args: list[Argument] = [queue.records, queue.payloads, gateway, queue_max, RECORD_TTL_MS]
    for s in submissions:
        args += (s.id, s.budget_us, s.payload, SCHEMA_VERSION, CONTENT_TYPE, s.traceparent, s.tracestate, s.sent_ns)
    reply = await scripts.run(c, "accept", (queue.lanes[1], queue.deadlines), args)
    return [(reply[i].decode(), reply[i + 1].decode()) for i in range(0, len(reply), 2)]


async def fetch(
    c: Connection,
    queue: Queue,
    consumer: str,
    *,
    want: int,
    lease_us: int,
    given: Sequence[Entry] = (),
    bytes_max: int = FETCH_BYTES_MAX,
) -> list[Delivery]:
    """Take up to `want` requests, the `given` entries first. Registers the worker's lease as a side effect."""
    args: list[Argument] = [GROUP, consumer, want, bytes_max, lease_us, queue.records, queue.payloads]
    for entry in given:
        args += (entry.lane, entry.id, entry.request_id)
    try:
        reply = await scripts.run(c, "fetch", (queue.leases, *queue.lanes), args)
    except ReplyError as e:
        if "NOGROUP" not in str(e):
            raise
        await ensure_groups(c, queue)
        reply = await scripts.run(c, "fetch", (queue.leases, *queue.lanes), args)
    known = {entry.id: entry.fields for entry in given}
    return [_delivery(item, known) for item in reply]


def _delivery(item: list[Any], known: Mapping[str, list[bytes]]) -> Delivery:
    lane, sid, attempt, left, lost, waited, gateway, payload, fields = item
    entry_id = sid.decode()
    if len(fields) == 2:
        fields = known[entry_id]
    headers = dict(zip(fields[::2], fields[1::2], strict=True))
    return Delivery(
        id=headers[b"r"].decode(),
        lane=lane.decode(),
        entry_id=entry_id,
        attempt=int(attempt),
        left_us=int(left),
        lost_us=int(lost),
        waited_us=int(waited),
        gateway=gateway.decode(),
        schema=int(headers[b"v"]),
        content_type=headers[b"ct"].decode(),
        traceparent=headers[b"tp"].decode(),
        tracestate=headers[b"ts"].decode(),
        sent_ns=int(headers[b"g3"]),
        payload=payload,
    )


async def ensure_groups(c: Connection, queue: Queue) -> None:
    """Create the lanes with their consumer group, from the first entry on, so that no backlog is skipped."""
    for lane in queue.lanes:
        try:
            await c.call("XGROUP", "CREATE", lane, GROUP, "0", "MKSTREAM")
        except ReplyError as e:
            if e.code != "BUSYGROUP":
                raise


async def ring(c: Connection, queues: Sequence[Queue], *, block_ms: int) -> None:
    """Return when an entry arrives in some queue, or `block_ms` passed, and take nothing: idle workers go first."""
    lanes = [lane for queue in queues for lane in queue.lanes]
    await c.call("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *lanes, *["$"] * len(lanes))


async def wait_for_entries(
    c: Connection, queues: Sequence[Queue], consumer: str, *, block_ms: int
) -> dict[Queue, list[Entry]]:
    """Block on a connection of its own until some queue has work, or `block_ms` passed. The entries are then ours."""
    by_lane = {lane.encode(): (queue, lane) for queue in queues for lane in queue.lanes}
    lanes = list(by_lane)
    group: list[Argument] = ["GROUP", GROUP, consumer, "COUNT", 1, "BLOCK", block_ms]
    try:
        reply = await c.call("XREADGROUP", *group, "STREAMS", *lanes, *[">"] * len(lanes))
    except ReplyError as e:
        # The group is gone (a wiped Redis), or the read was unblocked by a failover: the caller just asks again.
        if e.code not in ("NOGROUP", "UNBLOCKED"):
            raise
        for queue in queues:
            await ensure_groups(c, queue)
        return {}
    return _entries(reply, by_lane)


async def own_entries(c: Connection, queue: Queue, consumer: str) -> list[Entry]:
    """What Redis holds for this worker: after a lost reply, some of it may be news."""
    by_lane = {lane.encode(): (queue, lane) for lane in queue.lanes}
    try:
        reply = await c.call(
            "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1000, "STREAMS", *by_lane, *["0"] * len(by_lane)
        )
    except ReplyError as e:
        if e.code != "NOGROUP":
            raise
        return []
    return [entry for entries in _entries(reply, by_lane).values() for entry in entries]


def _entries(reply: Any, by_lane: dict[bytes, tuple[Queue, str]]) -> dict[Queue, list[Entry]]:
    found: dict[Queue, list[Entry]] = {}
    for lane_name, entries in reply or ():
        queue, lane = by_lane[lane_name]
        for sid, fields in entries:
            if fields:  # None: deleted meanwhile, still on our list; the fetch of its id would find nothing
                found.setdefault(queue, []).append(Entry(lane, sid.decode(), fields[1].decode(), fields))
    return found


async def complete(
    c: Connection, queue: Queue, answers: Sequence[Answer], *, inline_max: int = INLINE_BYTES_MAX
) -> list[str]:
    """Hand in answers. Returns OK, OKDUP, STALE or GONE for each."""
    args: list[Argument] = [GROUP, queue.records, queue.payloads, queue.reply_prefix, inline_max]
    for a in answers:
        args += (a.id, a.attempt, "FAILED" if a.failed else "DONE", a.answer)
    return [status.decode() for status in await scripts.run(c, "complete", (queue.deadlines,), args)]


async def count(c: Connection, queue: Queue, increments: Mapping[str, int], *, at_ms: int) -> None:
    """Add to the cumulative counters of a queue. Not idempotent: after OutcomeUnknown the increments are given up."""
    futures = [c.call("HINCRBY", queue.stats, name, n) for name, n in increments.items()]
    futures.append(c.call("HSET", queue.stats, "last_inference_ms", at_ms))
    for future in futures:
        await future


async def cancel(c: Connection, queue: Queue, ids: Sequence[str], *, expired: bool = False) -> list[str]:
    """End requests nobody waits for. Returns the state before, GONE where there was no record."""
    args = (GROUP, queue.records, queue.payloads, "EXPIRED" if expired else "CANCELLED", *ids)
    return [state.decode() for state in await scripts.run(c, "cancel", (queue.deadlines,), args)]


async def beat(
    c: Connection, queue: Queue, consumer: str, held: Iterable[tuple[str, int]], *, lease_us: int
) -> tuple[bool, list[str]]:
    """Renew a lease. Returns (it was still alive, ids of `held` that are not this worker's any more)."""
    args: list[Argument] = [consumer, lease_us, queue.records]
    for rid, attempt in held:
        args += (rid, attempt)
    reply = await scripts.run(c, "beat", (queue.leases,), args)
    return reply[0] == b"LIVE", [rid.decode() for rid in reply[1:]]


async def tick(c: Connection, queue: Queue, me: str, *, grace_us: int) -> Tick | None:
    """Run the housekeeping of a queue, if this process leads. None: another one does."""
    keys = (queue.leases, queue.deadlines, queue.tick, queue.leader, *queue.lanes)
    args = (
        GROUP,
        queue.records,
        queue.payloads,
        queue.reply_prefix,
        me,
        LEADER_TTL_MS,
        grace_us,
        TICK_LIMIT,
        MAX_ATTEMPTS,
    )
    reply = await scripts.run(c, "tick", keys, args)
    if reply[0] != b"LEAD":
        return None
    overdue, requeued, dead, gap = (int(n) for n in reply[1:5])
    return Tick(overdue, requeued, dead, gap, tuple(w.decode() for w in reply[5:]))


async def leave(c: Connection, queue: Queue, consumer: str) -> int:
    """Give up a queue. Returns how many entries were still held; the next tick hands those on."""
    return int(await scripts.run(c, "leave", (queue.leases, *queue.lanes), (GROUP, consumer)))


async def peek(c: Connection, queue: Queue, ids: Sequence[str]) -> list[tuple[str, bytes]]:
    """The state and the answer of each request; GONE where there is no record."""
    reply = await scripts.run(c, "peek", (queue.leases,), (queue.records, queue.payloads, *ids))
    return [(reply[i].decode(), reply[i + 1]) for i in range(0, len(reply), 2)]


async def forget(c: Connection, queue: Queue, gateway: str, ids: Sequence[str], *, read_up_to: str = "") -> None:
    """Delete finished records, and the reply stream up to an entry. Only for requests whose end is known."""
    futures = (
        [c.call("UNLINK", *(prefix + rid for rid in ids for prefix in (queue.records, queue.payloads)))] if ids else []
    )
    if read_up_to:
        futures.append(c.call("XTRIM", queue.replies(gateway), "MINID", "=", read_up_to))
    for future in futures:
        await future


async def listen(c: Connection, queue: Queue, gateway: str) -> bool:
    """Keep a gateway's reply stream alive. True when it had to be created."""
    return bool(await scripts.run(c, "listen", (queue.replies(gateway),), (REPLY_STREAM_TTL_MS,)))


async def read_replies(
    c: Connection, streams: dict[Queue, str], gateway: str, *, block_ms: int, count: int = 512
) -> list[tuple[Queue, str, list[tuple[str, bytes]]]]:
    """Block until answers come, or `block_ms` passed.

    `streams` is the last entry read, by queue. Returns (queue, entry id, answers by request id).
    """
    names = {queue.replies(gateway).encode(): queue for queue in streams}
    reply = await c.call("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", *names, *streams.values())
    found = []
    for name, entries in reply or ():
        for sid, fields in entries:
            answers = [(fields[i].decode(), fields[i + 1]) for i in range(0, len(fields), 2)]
            found.append((names[name], sid.decode(), answers))
    return found


async def announce(c: Connection, worker: str, descriptor: bytes, *, lease_us: int) -> None:
    """Enter a worker in the fleet's directory, or renew it. A lease of 0 takes it out."""
    await scripts.run(c, "announce", (FLEET_WORKERS, FLEET_LEASES, FLEET_VERSION), (worker, lease_us, descriptor))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet's directory: descriptors by worker, and the models withdrawn from the clients."""

    version: str
    workers: dict[str, bytes]
    unloaded: frozenset[str]


async def survey(c: Connection, known: str) -> Fleet | None:
    """Who is there. None when the version `known` is still right."""
    keys = (FLEET_WORKERS, FLEET_LEASES, FLEET_VERSION, FLEET_UNLOADED)
    reply = await scripts.run(c, "survey", keys, (known,))
    if len(reply) == 1:
        return None
    version, unloaded, workers = reply
    return Fleet(
        version.decode(),
        {workers[i].decode(): workers[i + 1] for i in range(0, len(workers), 2)},
        frozenset(m.decode() for m in unloaded),
    )


async def offer(c: Connection, model: str, *, offered: bool) -> None:
    """Withdraw a model from the clients of all gateways, or offer it again."""
    await scripts.run(c, "offer", (FLEET_UNLOADED, FLEET_VERSION), (model, int(offered)))


async def depths(c: Connection, queues: Sequence[Queue]) -> dict[str, int]:
    """Queued and running requests by queue: exact, because an answered entry is deleted."""
    calls = [(str(q), c.call("XLEN", lane)) for q in queues for lane in q.lanes]
    total: dict[str, int] = {}
    for name, future in calls:
        total[name] = total.get(name, 0) + int(await future)
    return total


async def counters(c: Connection, queue: Queue) -> dict[str, int]:
    """The cumulative counters of a queue."""
    reply = await c.call("HGETALL", queue.stats)
    return {reply[i].decode(): int(reply[i + 1]) for i in range(0, len(reply), 2)}
