"""The queue protocol as typed calls: each is one script, so each either happened whole or did not happen.

Durations are microseconds of Redis' clock where they go over the wire. Every call raises BrokerError; after
`OutcomeUnknown` it may be repeated as it is.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import msgspec

from shared.broker import scripts
from shared.broker.connection import Argument, Connection, ReplyError
from shared.keys import (
    FLEET_LEASES,
    FLEET_SURVEYED,
    FLEET_UNLOADED,
    FLEET_VERSION,
    FLEET_WORKERS,
    GROUP,
    NORMAL,
    RETRY,
    SUSPECTS,
    Queue,
    rate_limit,
)
from shared.wire import CONTENT_TYPE, SCHEMA_VERSION

RECORD_TTL_MS = 120_000
"""How long a record outlives its deadline; longer than a reconcile interval, or it would look lost."""
REPLY_STREAM_TTL_MS = 30_000
INLINE_BYTES_MAX = 16 * 1024
"""A longer answer is not copied into the reply stream; the gateway reads it from the record."""
CRASHES_MAX = 3
"""A request whose worker ended so often while it ran is dead: once in company, then alone."""
LOSSES_MAX = 10
"""A request that so many lost workers held without running it is dead: something is wrong with the fleet."""
ERRORS_MAX = 3
"""Attempts of a request that fails in a way that may pass."""
TICK_LIMIT = 100
LEADER_TTL_MS = 2_000
FETCH_BYTES_MAX = 8 << 20
SURVEY_GRACE_US = 5_000_000


class Job(msgspec.Struct, frozen=True, gc=False):
    """What makes a request a job: its result is kept for `ttl_ms`, whoever waits or not.

    `ask` is how to render the result (opaque here). `key` is the client's idempotency key and `digest` what it covers;
    `sync`: this gateway waits for the end, and is rung; `hook`: its end is told to a webhook.
    """

    ttl_ms: int
    ask: bytes = b""
    key: str = ""
    digest: str = ""
    sync: bool = False
    hook: bool = False


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A request as its gateway hands it over. `budget_us`: what is left of its deadline.

    `priority` is HIGH, NORMAL or LOW. A `tenant` of more `weight` gets more turns while there is a backlog; it may have
    `tenant_max` live requests (0: as many as any).
    """

    id: str
    budget_us: int
    payload: bytes
    traceparent: str
    tracestate: str
    sent_ns: int
    priority: int = NORMAL
    tenant: str = "-"
    weight: float = 1
    tenant_max: int = 0
    job: Job | None = None


class Limits(NamedTuple):
    """How much of a queue may be taken up: live requests, bytes of their payloads, live requests of one tenant."""

    requests_max: int = 10_000
    bytes_max: int = 1 << 30
    tenant_max: int = 10_000


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
    """What a tick did: ids of requests, but `lost` are the workers whose lease ran out.

    `due` are tried again after a delay, `requeued` were held by a lost worker, `suspects` were running when theirs ended.
    """

    stood_still_us: int
    overdue: tuple[str, ...]
    due: tuple[str, ...]
    requeued: tuple[str, ...]
    suspects: tuple[str, ...]
    dead: tuple[str, ...]
    lost: tuple[str, ...]


class Entry(NamedTuple):
    """An entry that a blocking read delivered. `fields`: names and values, flat."""

    lane: str
    id: str
    request_id: str
    fields: list[bytes]


async def accept(
    c: Connection, queue: Queue, submissions: Sequence[Submission], *, gateway: str, limits: Limits
) -> list[tuple[str, str]]:
    """Hand over requests. Returns a status and a detail each, as accept.lua says."""
    args: list[Argument] = [queue.tag, gateway, *limits, RECORD_TTL_MS, SCHEMA_VERSION, CONTENT_TYPE, REPLY_STREAM_TTL_MS]
    for s in submissions:
        args += (
            s.id, s.budget_us, s.payload, s.priority, s.tenant, str(s.weight), s.tenant_max,
            s.traceparent, s.tracestate, s.sent_ns, _packed(s.job) if s.job else b"",
        )  # fmt: skip
    reply = await scripts.run(c, "accept", (queue.deadlines,), args)
    return [(reply[i].decode(), reply[i + 1].decode()) for i in range(0, len(reply), 2)]


def _packed(job: Job) -> bytes:
    fields: dict[str, Any] = {"ttl": job.ttl_ms, "ask": job.ask}
    if job.sync:
        fields["sync"] = 1
    if job.hook:
        fields["hook"] = 1
    if job.key:
        fields |= {"key": job.key, "hash": job.digest}
    packed: bytes = msgpack.packb(fields)
    return packed


async def fetch(
    c: Connection,
    queue: Queue,
    consumer: str,
    *,
    want: int,
    lease_us: int,
    given: Sequence[Entry] = (),
    alone: bool = False,
    bytes_max: int = FETCH_BYTES_MAX,
) -> list[Delivery]:
    """Take up to `want` requests, the `given` entries first. Registers the worker's lease as a side effect.

    `alone`: one of the suspects and nothing else; only the worker that `beat` told to run them gets one.
    """
    args: list[Argument] = [queue.tag, consumer, want, bytes_max, lease_us, int(alone)]
    for entry in given:
        args += (entry.lane, entry.id, entry.request_id)
    try:
        reply = await scripts.run(c, "fetch", (queue.leases,), args)
    except ReplyError as e:
        if "NOGROUP" not in str(e):
            raise
        await ensure_groups(c, queue)
        reply = await scripts.run(c, "fetch", (queue.leases,), args)
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
    for lane in (*queue.lanes, queue.suspects):
        try:
            await c.call("XGROUP", "CREATE", lane, GROUP, "0", "MKSTREAM")
        except ReplyError as e:
            if e.code != "BUSYGROUP":
                raise


async def ring(
    c: Connection, queues: Sequence[Queue], consumer: str, *, block_ms: int, listen: bool, controls: dict[Queue, str]
) -> tuple[list[str], bool]:
    """Wait until requests this worker holds need not run any more, an entry arrives, or `block_ms` passed.

    Takes nothing: idle workers go first. `listen`: entries matter. `controls` is the last control entry read by queue,
    kept up to date here. Returns (ids that need not run, an entry arrived).
    """
    streams = {queue.control(consumer): queue for queue in queues}
    after = {name: controls.get(queue, "0") for name, queue in streams.items()}
    if listen:
        after |= dict.fromkeys((lane for queue in queues for lane in queue.lanes), "$")
    reply = await c.call("XREAD", "COUNT", 1000, "BLOCK", block_ms, "STREAMS", *after, *after.values())
    ended: list[str] = []
    arrived = False
    for name, entries in reply or ():
        if control := streams.get(name.decode()):
            controls[control] = entries[-1][0].decode()
            ended += [fields[1].decode() for _, fields in entries]
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
    args: list[Argument] = [queue.tag, inline_max]
    for a in answers:
        args += (a.id, a.attempt, "FAILED" if a.failed else "DONE", a.answer)
    return [status.decode() for status in await scripts.run(c, "complete", (queue.deadlines,), args)]


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


def note_running(c: Connection, queue: Queue, consumer: str, ids: Iterable[str]) -> None:
    """Say what the device computes now, in case it ends this process. Not waited for: it is only a hint to the tick."""
    c.call("HSET", queue.running, consumer, " ".join(ids)).add_done_callback(_ignore)


def _ignore(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()


async def count(c: Connection, queue: Queue, increments: Mapping[str, int], *, at_ms: int) -> None:
    """Add to the cumulative counters of a queue. Not idempotent: after OutcomeUnknown the increments are given up."""
    futures = [c.call("HINCRBY", queue.stats, name, n) for name, n in increments.items()]
    futures.append(c.call("HSET", queue.stats, "last_inference_ms", at_ms))
    for future in futures:
        await future


async def cancel(c: Connection, queue: Queue, ids: Sequence[str], *, expired: bool = False) -> list[str]:
    """End requests nobody waits for. Returns the state before, GONE where there was no record."""
    args = (queue.tag, "EXPIRED" if expired else "CANCELLED", *ids)
    return [state.decode() for state in await scripts.run(c, "cancel", (queue.deadlines,), args)]


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


async def tick(c: Connection, queue: Queue, me: str, *, grace_us: int) -> Tick | None:
    """Run the housekeeping of a queue, if this process leads. None: another one does."""
    keys = (queue.leases, queue.deadlines, queue.tick, queue.leader)
    args = (queue.tag, me, LEADER_TTL_MS, grace_us, TICK_LIMIT, CRASHES_MAX, LOSSES_MAX)
    reply = await scripts.run(c, "tick", keys, args)
    if reply[0] != b"LEAD":
        return None
    return Tick(int(reply[1]), *(tuple(rid.decode() for rid in ids) for ids in reply[2:]))


async def audit(c: Connection, queue: Queue, *, start: int = 0, limit: int = 200) -> tuple[int, list[str]]:
    """Look at live requests from a rank on for such that nothing leads to any more, and enqueue those again.

    Returns (the next rank, or 0 after the last; ids that were enqueued).
    """
    following, mended = await scripts.run(c, "audit", (queue.deadlines,), (queue.tag, start, limit))
    return int(following), [rid.decode() for rid in mended]


async def leave(c: Connection, queue: Queue, consumer: str) -> int:
    """Give up a queue. Returns how many entries were still held; the next tick hands those on."""
    return int(await scripts.run(c, "leave", (queue.leases,), (queue.tag, consumer)))


async def throttle(c: Connection, tenant: str, *, interval_us: int, burst: int, requests: int) -> int:
    """Use up some of a tenant's rate. Returns 0, or the us after which that would be allowed, and then uses nothing."""
    return int(await scripts.run(c, "throttle", (rate_limit(tenant),), (interval_us, burst, requests)))


@dataclass(frozen=True, slots=True)
class Attached:
    """A request found by its id; `state` is GONE without one, `answer` empty while there is none."""

    state: str
    answer: bytes
    ask: bytes
    tenant: str
    accepted_us: int


async def attach(c: Connection, queue: Queue, request_id: str, gateway: str = "") -> Attached:
    """Look at a request; with a `gateway`, that one is rung at its end too."""
    state, answer, ask, tenant, accepted = await scripts.run(
        c, "attach", (queue.deadlines,), (queue.tag, request_id, gateway)
    )
    return Attached(state.decode(), answer, ask, tenant.decode(), int(accepted))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A request that was given up. `why`: crashed, lost, errors; `buried_ms` by Redis' clock."""

    entry_id: str
    id: str
    why: str
    attempts: int
    errors: int
    crashes: int
    losses: int
    worker: str
    tenant: str
    traceparent: str
    accepted_us: int
    payload: bytes

    @property
    def buried_ms(self) -> int:
        """When it was given up, by Redis' clock (Unix, ms)."""
        return int(self.entry_id.partition("-")[0])


async def dead_letters(c: Connection, queue: Queue, *, after: str = "-", count: int = 100) -> list[DeadLetter]:
    """Dead letters, the oldest first, from after an entry id on."""
    start = after if after == "-" else f"({after}"
    found = []
    for entry_id, flat in await c.call("XRANGE", queue.dead_letters, start, "+", "COUNT", count):
        f = dict(zip(flat[::2], flat[1::2], strict=True))
        found.append(
            DeadLetter(
                entry_id=entry_id.decode(),
                id=f[b"r"].decode(),
                why=f[b"why"].decode(),
                attempts=int(f[b"a"]),
                errors=int(f[b"er"]),
                crashes=int(f[b"cr"]),
                losses=int(f[b"lo"]),
                worker=f[b"own"].decode(),
                tenant=f[b"tn"].decode(),
                traceparent=f[b"tp"].decode(),
                accepted_us=int(f[b"enq"]),
                payload=f[b"p"],
            )
        )
    return found


async def replay(
    c: Connection, queue: Queue, entry_id: str, *, budget_us: int, ttl_ms: int, alone: bool = True
) -> tuple[str, str]:
    """Run a dead letter again, as a job with its old id. Returns OK, LIVE (it is queued already) or GONE, and the id."""
    lane = SUSPECTS if alone else RETRY
    reply = await scripts.run(c, "replay", (queue.deadlines,), (queue.tag, entry_id, budget_us, ttl_ms, lane))
    return reply[0].decode(), reply[1].decode()


async def purge(c: Connection, queue: Queue, entry_ids: Sequence[str]) -> int:
    """Throw dead letters away. Returns how many there were."""
    return int(await scripts.run(c, "purge", (queue.dead_letters, queue.stats), entry_ids))


async def peek(c: Connection, queue: Queue, ids: Sequence[str]) -> list[tuple[str, bytes]]:
    """The state and the answer of each request; GONE where there is no record."""
    reply = await scripts.run(c, "peek", (queue.deadlines,), (queue.tag, *ids))
    return [(reply[i].decode(), reply[i + 1]) for i in range(0, len(reply), 2)]


async def forget(c: Connection, queue: Queue, gateway: str, ids: Sequence[str], *, read_up_to: str = "") -> None:
    """Delete finished records, and the reply stream up to an entry. Only for requests whose end is known."""
    futures = [c.call("UNLINK", *map(queue.record, ids), *map(queue.payload, ids))] if ids else []
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
    keys = (FLEET_WORKERS, FLEET_LEASES, FLEET_VERSION, FLEET_UNLOADED, FLEET_SURVEYED)
    reply = await scripts.run(c, "survey", keys, (known, SURVEY_GRACE_US))
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
    """Live requests by queue: waiting, queued, delayed and running."""
    live = [(str(queue), c.call("ZCARD", queue.deadlines)) for queue in queues]
    return {name: int(await future) for name, future in live}


async def counters(c: Connection, queue: Queue) -> dict[str, int]:
    """The cumulative counters of a queue."""
    reply = await c.call("HGETALL", queue.stats)
    return {reply[i].decode(): int(reply[i + 1]) for i in range(0, len(reply), 2)}
