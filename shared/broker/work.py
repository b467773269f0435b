"""What workers do with requests: take them, answer them, hand them back, and prove that they live.

As in `requests`, each call is one script (but the reads that block), and may be repeated after `OutcomeUnknown`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from shared.broker import scripts
from shared.broker.connection import Argument, Connection, ReplyError
from shared.broker.pipe import LARGE_BYTES
from shared.keys import GROUP, Queue

INLINE_BYTES_MAX = 16 * 1024
"""A longer answer is not copied into the reply stream; the gateway reads it from the record."""
ERRORS_MAX = 3
"""Attempts of a request that fails in a way that may pass."""
FETCH_BYTES_MAX = 8 << 20


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


class Entry(NamedTuple):
    """An entry that a blocking read delivered. `fields`: names and values, flat."""

    lane: str
    id: str
    request_id: str
    fields: list[bytes]


async def fetch(
    c: Connection,
    queue: Queue,
    consumer: str,
    *,
    want: int,
    lease_us: int,
    given: Sequence[Entry] = (),
    alone: bool = False,
    begins: bool = False,
    bytes_max: int = FETCH_BYTES_MAX,
) -> list[Delivery]:
    """Take up to `want` requests, the `given` entries first. Registers the worker's lease as a side effect.

    `alone`: one of the suspects and nothing else; only the worker that `beat` told to run them gets one. `begins`: the
    worker will compute all of it at once, and needs no `note_running` for that.
    """
    args: list[Argument] = [queue.tag, consumer, want, bytes_max, lease_us, int(alone), int(begins)]
    for entry in given:
        args += (entry.lane, entry.id, entry.request_id)
    try:
        reply = await scripts.run(c, "fetch", (queue.leases,), args)
    except ReplyError as e:
        if "NOGROUP" not in str(e):
            raise
        await ensure_groups(c, queue)
        reply = await scripts.run(c, "fetch", (queue.leases,), args)
    # Entry ids are unique within a lane only, and one blocking read may bring an entry of each lane.
    known = {(entry.lane, entry.id): entry.fields for entry in given}
    return [_delivery(item, known) for item in reply]


def _delivery(item: list[Any], known: Mapping[tuple[str, str], list[bytes]]) -> Delivery:
    lane_name, sid, attempt, left, lost, waited, gateway, payload, fields = item
    lane, entry_id = lane_name.decode(), sid.decode()
    if len(fields) == 2:
        fields = known[lane, entry_id]
    headers = dict(zip(fields[::2], fields[1::2], strict=True))
    return Delivery(
        id=headers[b"r"].decode(),
        lane=lane,
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
    for lane in (*queue.lanes, queue.suspects):
        try:
            await c.call("XGROUP", "CREATE", lane, GROUP, "0", "MKSTREAM")
        except ReplyError as e:
            if e.code != "BUSYGROUP":
                raise


class Withdrawn(NamedTuple):
    """A request that a worker holds and need not run any more: its deadline has passed, or nobody waits for it."""

    id: str
    expired: bool


async def ring(
    c: Connection, queues: Sequence[Queue], consumer: str, *, block_ms: int, listen: bool, controls: dict[Queue, str]
) -> tuple[list[Withdrawn], bool]:
    """Wait until requests this worker holds need not run any more, an entry arrives, or `block_ms` passed.

    Takes nothing: idle workers go first. `listen`: entries matter. `controls` is the last control entry read by queue,
    kept up to date here. Returns (what need not run, an entry arrived).
    """
    streams = {queue.control(consumer): queue for queue in queues}
    after = {name: controls.get(queue, "0") for name, queue in streams.items()}
    if listen:
        after |= dict.fromkeys((lane for queue in queues for lane in queue.lanes), "$")
    reply = await c.call("XREAD", "COUNT", 1000, "BLOCK", block_ms, "STREAMS", *after, *after.values())
    ended: list[Withdrawn] = []
    arrived = False
    for name, entries in reply or ():
        if control := streams.get(name.decode()):
            controls[control] = entries[-1][0].decode()
            ended += [Withdrawn(fields[1].decode(), b"EXPIRED" in fields[3:]) for _, fields in entries]
        else:
            arrived = True
    return ended, arrived


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
    by_lane = {lane.encode(): (queue, lane) for lane in (*queue.lanes, queue.suspects)}
    command: list[Argument] = [
        "XREADGROUP",
        "GROUP",
        GROUP,
        consumer,
        "COUNT",
        1000,
        "STREAMS",
        *by_lane,
        *["0"] * len(by_lane),
    ]
    try:
        reply = await c.call(*command)
    except ReplyError as e:
        if e.code != "NOGROUP":
            raise
        # One lane may have lost its group, and the others hold something.
        await ensure_groups(c, queue)
        reply = await c.call(*command)
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
    args: list[Argument] = [queue.tag, inline_max]
    for a in answers:
        args += (a.id, a.attempt, "FAILED" if a.failed else "DONE", a.answer)
    in_place = any(len(a.answer) >= LARGE_BYTES for a in answers)
    statuses = await scripts.run(c, "complete", (queue.deadlines,), args, in_place=in_place)
    return [status.decode() for status in statuses]


async def retry(
    c: Connection, queue: Queue, answers: Sequence[tuple[Answer, int]], *, errors_max: int = ERRORS_MAX
) -> list[str]:
    """Try failed attempts again, each after so many us. Returns RETRY, or what `complete` returns, for each."""
    args: list[Argument] = [queue.tag, errors_max]
    for a, delay_us in answers:
        args += (a.id, a.attempt, delay_us, a.answer)
    return [status.decode() for status in await scripts.run(c, "retry", (queue.deadlines,), args)]


async def release(c: Connection, queue: Queue, consumer: str, held: Iterable[tuple[str, int]]) -> int:
    """Hand requests back (id, attempt) that were not computed. Returns how many; the others were not ours any more."""
    args: list[Argument] = [queue.tag, consumer]
    for rid, attempt in held:
        args += (rid, attempt)
    return int(await scripts.run(c, "release", (queue.leases,), args))


@dataclass(frozen=True, slots=True)
class Beat:
    """What Redis says to a worker's heartbeat.

    `live`: the lease was still its own; `alone`: it shall run the suspects; `ended`: ids that are not its own any more.
    """

    live: bool
    alone: bool
    ended: list[str]


async def beat(
    c: Connection, queue: Queue, consumer: str, held: Iterable[tuple[str, int]], *, lease_us: int, pace_us: int = 0
) -> Beat:
    """Renew a lease. `held` are ids and attempts; `pace_us`: what a request takes at best, 0 while unknown."""
    args: list[Argument] = [queue.tag, consumer, lease_us, pace_us]
    for rid, attempt in held:
        args += (rid, attempt)
    reply = await scripts.run(c, "beat", (queue.leases,), args)
    return Beat(reply[0] == b"LIVE", reply[1] == b"1", [rid.decode() for rid in reply[2:]])


async def leave(c: Connection, queue: Queue, consumer: str) -> int:
    """Give up a queue. Returns how many entries were still held; the next tick hands those on."""
    return int(await scripts.run(c, "leave", (queue.leases,), (queue.tag, consumer)))


def note_running(c: Connection, queue: Queue, consumer: str, ids: Iterable[str]) -> None:
    """Say what the device computes now, in case it ends this process. Not waited for: it is only a hint to the tick."""
    c.call("HSET", queue.running, consumer, " ".join(ids)).add_done_callback(_ignore)


def _ignore(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()


async def count(c: Connection, queue: Queue, increments: Mapping[str, int], *, at_ms: int) -> None:
    """Add to the cumulative counters of a queue. Not idempotent: after OutcomeUnknown the increments are given up.

    `at_ms`: when it inferred last, 0 if it did not.
    """
    futures = [c.call("HINCRBY", queue.stats, name, n) for name, n in increments.items()]
    if at_ms:
        futures.append(c.call("HSET", queue.stats, "last_inference_ms", at_ms))
    for future in futures:
        await future
