"""The ends of jobs that webhooks must hear of: a stream a queue, whose list of pending entries is the schedule.

All gateways read as one consumer. An entry is taken by reading it, or by claiming it once it has been idle for
`CLAIM_IDLE_MS`: because its gateway died, or because it was put off and set back its idle time accordingly. So retries
need no memory anywhere, and a gateway's death no special care. How often an entry was taken, Redis counts.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from shared.broker.connection import Argument, Connection, ReplyError
from shared.keys import Queue

GROUP = "hooks"
CONSUMER = "gateways"
CLAIM_IDLE_MS = 60_000
"""Longer than any attempt; also the longest that an entry can be put off."""


class Due(NamedTuple):
    """The end of a job that must be told now, for the `tries`th time."""

    queue: Queue
    entry_id: str
    request_id: str
    tries: int


class Ended(NamedTuple):
    """How a job ended, and who wants to hear of it."""

    state: str
    answer: bytes
    url: str


async def wait_for_ends(c: Connection, queues: Sequence[Queue], *, count: int, block_ms: int) -> list[Due]:
    """Take new entries, on a connection that may block."""
    by_name = {queue.hooks.encode(): queue for queue in queues}
    group: list[Argument] = ["GROUP", GROUP, CONSUMER, "COUNT", count, "BLOCK", block_ms]
    try:
        reply = await c.call("XREADGROUP", *group, "STREAMS", *by_name, *[">"] * len(by_name))
    except ReplyError as e:
        if e.code not in ("NOGROUP", "UNBLOCKED"):
            raise
        for queue in queues:
            await _ensure_group(c, queue)
        return []
    return [
        Due(by_name[name], sid.decode(), fields[1].decode(), 1)
        for name, entries in reply or ()
        for sid, fields in entries
    ]


async def _ensure_group(c: Connection, queue: Queue) -> None:
    try:
        await c.call("XGROUP", "CREATE", queue.hooks, GROUP, "0", "MKSTREAM")
    except ReplyError as e:
        if e.code != "BUSYGROUP":
            raise


async def claim(c: Connection, queue: Queue, *, after: str, count: int) -> tuple[str, list[Due]]:
    """Take entries whose time has come, looking from an id on. Returns (where to go on, the entries)."""
    try:
        reply = await c.call("XAUTOCLAIM", queue.hooks, GROUP, CONSUMER, CLAIM_IDLE_MS, after, "COUNT", count)
    except ReplyError as e:
        if e.code != "NOGROUP":
            raise
        return "0-0", []
    found = [(entry[0], entry[1][1].decode()) for entry in reply[1] if entry and entry[1]]
    looked = [c.call("XPENDING", queue.hooks, GROUP, sid, sid, 1) for sid, _ in found]
    due = []
    for (sid, rid), look in zip(found, looked, strict=True):
        pending = await look
        due.append(Due(queue, sid.decode(), rid, int(pending[0][3]) if pending else 1))
    return reply[0].decode(), due


def put_off(c: Connection, due: Due, *, delay_ms: int, taken: int) -> "asyncio.Future[Any]":
    """Let an entry be claimed after a while, as if it had been taken so often. Sent at once, awaited or not."""
    idle_ms = CLAIM_IDLE_MS - min(delay_ms, CLAIM_IDLE_MS)
    how: tuple[Argument, ...] = ("IDLE", idle_ms, "RETRYCOUNT", taken, "JUSTID")
    sent = c.call("XCLAIM", due.queue.hooks, GROUP, CONSUMER, 0, due.entry_id, *how)
    sent.add_done_callback(lambda f: f.cancelled() or f.exception())  # whoever does not await it need not know
    return sent


async def settle(c: Connection, due: Due) -> None:
    """It has been told, or given up."""
    done: list[Any] = [
        c.call("XACK", due.queue.hooks, GROUP, due.entry_id),
        c.call("XDEL", due.queue.hooks, due.entry_id),
    ]
    for future in done:
        await future


async def look(c: Connection, due: Due) -> Ended | None:
    """The job; None if it was forgotten meanwhile."""
    record, payload = (
        c.call("HMGET", due.queue.record(due.request_id), "st", "hook"),
        c.call("GET", due.queue.payload(due.request_id)),
    )
    state, url = await record
    answer = await payload
    return Ended(state.decode(), answer or b"", url.decode()) if state and url else None
