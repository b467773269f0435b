"""What gateways do with requests: hand them over, look them up, end them, hear of their end.

Each call is one script, so it either happened whole or did not happen. Durations are microseconds of Redis' clock where
they go over the wire. Every call raises BrokerError; after `OutcomeUnknown` it may be repeated as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import msgspec

from shared.broker import scripts
from shared.broker.connection import Argument, Connection
from shared.broker.pipe import LARGE_BYTES
from shared.keys import NORMAL, Queue, rate_limit
from shared.wire import SCHEMA_VERSION

RECORD_TTL_MS = 120_000
"""How long a record outlives its deadline; longer than a reconcile interval, or it would look lost."""
REPLY_STREAM_TTL_MS = 30_000


class Job(msgspec.Struct, frozen=True, gc=False):
    """What makes a request a job: its result is kept for `ttl_ms`, whoever waits or not.

    `ask` is how to render the result (opaque here). `key` is the client's idempotency key and `digest` what it covers;
    `sync`: this gateway waits for the end, and is rung; `hook`: the address that its end is told to.
    """

    ttl_ms: int
    ask: bytes = b""
    key: str = ""
    digest: str = ""
    sync: bool = False
    hook: str = ""


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A request as its gateway hands it over. `budget_us`: what is left of its deadline.

    `priority` is HIGH, NORMAL or LOW. A `tenant` of more `weight` gets more turns while there is a backlog; it may have
    `tenant_max` live requests (0: as many as any). More than 1 of `requests` make a parcel, whose
    payload is `wire.encode_parcel`.
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
    requests: int = 1


class Limits(NamedTuple):
    """How much of a queue may be taken up: live requests, bytes of their payloads, live requests of one tenant."""

    requests_max: int = 10_000
    bytes_max: int = 1 << 30
    tenant_max: int = 10_000


async def accept(
    c: Connection, queue: Queue, submissions: Sequence[Submission], *, gateway: str, limits: Limits
) -> list[tuple[str, str]]:
    """Hand over requests. Returns a status and a detail each, as accept.lua says."""
    args: list[Argument] = [queue.tag, gateway, *limits, RECORD_TTL_MS, SCHEMA_VERSION]
    args.append(REPLY_STREAM_TTL_MS)
    for s in submissions:
        args += (
            s.id, s.budget_us, s.payload, s.priority, s.tenant, str(s.weight), s.tenant_max,
            s.traceparent, s.tracestate, s.sent_ns, _packed(s.job) if s.job else b"", s.requests,
        )  # fmt: skip
    in_place = any(len(s.payload) >= LARGE_BYTES for s in submissions)
    reply = await scripts.run(c, "accept", (queue.deadlines,), args, in_place=in_place)
    return [(reply[i].decode(), reply[i + 1].decode()) for i in range(0, len(reply), 2)]


def _packed(job: Job) -> bytes:
    fields: dict[str, Any] = {"ttl": job.ttl_ms, "ask": job.ask}
    if job.sync:
        fields["sync"] = 1
    if job.hook:
        fields["hook"] = job.hook
    if job.key:
        fields |= {"key": job.key, "hash": job.digest}
    # Redis' reader of msgpack is older than the type for bytes: all texts are `raw`, as they were then.
    packed: bytes = msgpack.packb(fields, use_bin_type=False)
    return packed


async def cancel(c: Connection, queue: Queue, ids: Sequence[str], *, expired: bool = False) -> list[str]:
    """End requests nobody waits for. Returns the state before, GONE where there was no record."""
    args = (queue.tag, "EXPIRED" if expired else "CANCELLED", *ids)
    return [state.decode() for state in await scripts.run(c, "cancel", (queue.deadlines,), args)]


async def peek(c: Connection, queue: Queue, ids: Sequence[str]) -> list[tuple[str, bytes]]:
    """The state and the answer of each request; GONE where there is no record."""
    reply = await scripts.run(c, "peek", (queue.deadlines,), (queue.tag, *ids))
    return [(reply[i].decode(), reply[i + 1]) for i in range(0, len(reply), 2)]


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


async def throttle(c: Connection, tenant: str, *, interval_us: int, burst: int, requests: int) -> int:
    """Use up some of a tenant's rate. Returns 0, or the us after which that would be allowed, and then uses nothing."""
    return int(await scripts.run(c, "throttle", (rate_limit(tenant),), (interval_us, burst, requests)))


async def depths(c: Connection, queues: Sequence[Queue]) -> dict[str, int]:
    """Live requests by queue: waiting, queued, delayed and running."""
    live = [(str(queue), c.call("HMGET", queue.counts, "l1", "l2", "l3")) for queue in queues]
    return {name: sum(int(n or 0) for n in await future) for name, future in live}


async def counters(c: Connection, queue: Queue) -> dict[str, int]:
    """The cumulative counters of a queue."""
    reply = await c.call("HGETALL", queue.stats)
    return {reply[i].decode(): int(reply[i + 1]) for i in range(0, len(reply), 2)}
