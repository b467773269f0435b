"""The work of `tailrace dlq`: finds dead letters in all queues, tells of them, runs them again, throws them away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gateway.job_ask import PLAIN
from gateway.jobs import location_of as location_of
from shared import tensors, wire
from shared.broker import letters, scripts
from shared.broker.connection import BrokerError, Connection
from shared.broker.letters import DeadLetter
from shared.keys import PREFIX, Queue

ANSWER_S = 5.0
PAGE = 100
EMBEDDED = Path(".tailrace/redis/redis.sock")
"""Where `tailrace up` in this directory has its Redis."""


@dataclass(frozen=True, slots=True)
class Found:
    """A dead letter and the queue it died in."""

    queue: Queue
    letter: DeadLetter


def run(url: str | None, work: Callable[[Connection], Coroutine[Any, Any, list[Found]]]) -> list[Found]:
    """Do some work on a connection of its own. Raises ClickException when Redis cannot be reached, or refuses."""
    where = url or (f"unix://{EMBEDDED.absolute()}" if EMBEDDED.exists() else "redis://127.0.0.1:6379/0")

    async def connected() -> list[Found]:
        async with _connect(where) as c:
            return await work(c)

    try:
        return asyncio.run(connected())
    except BrokerError as e:
        raise click.ClickException(f"Redis refused: {e}") from e


@asynccontextmanager
async def _connect(url: str) -> AsyncIterator[Connection]:
    async with Connection(url, "tailrace-dlq", on_connect=scripts.load_all) as c:
        try:
            async with asyncio.timeout(ANSWER_S):
                await c.wait_connected()
        except TimeoutError:
            raise click.ClickException(
                f"no Redis answers within {ANSWER_S:.0f} s; start `tailrace up`, or give --redis URL"
            ) from None
        yield c


async def find(c: Connection, model: str, why: str | None, ids: Sequence[str]) -> list[Found]:
    """The letters that fit. Raises ClickException for an id that has none."""
    found = []
    for queue in await _queues(c):
        if model and model not in (queue.model, str(queue)):
            continue
        after = "-"
        while page := await letters.dead_letters(c, queue, after=after, count=PAGE):
            after = page[-1].entry_id
            found += [Found(queue, letter) for letter in page if (not why or letter.why == why)]
    if not ids:
        return sorted(found, key=lambda f: f.letter.buried_ms)
    by_id = {f.letter.id: f for f in found}
    if unknown := [rid for rid in ids if rid not in by_id]:
        raise click.ClickException(f"no dead letter of {', '.join(unknown)}; `tailrace dlq list` shows all")
    return [by_id[rid] for rid in ids]


async def _queues(c: Connection) -> list[Queue]:
    names: set[bytes] = set()
    cursor: Any = 0
    while True:
        cursor, keys = await c.call("SCAN", cursor, "MATCH", f"{PREFIX}:{{*}}:dlq", "COUNT", 1000)
        names.update(keys)
        if int(cursor) == 0:
            break
    queues = []
    for name in sorted(names):
        tag = name.decode().partition("{")[2].partition("}")[0]
        model, _, rest = tag.partition("/")
        version, _, shard = rest.partition("|")
        queues.append(Queue(model, version, int(shard)))
    return queues


async def replay(c: Connection, found: Found, *, deadline_s: float, keep_s: float, alone: bool) -> str:
    """Run a letter again as a job whose result is kept for `keep_s`. Returns OK, LIVE or GONE, as `letters.replay`."""
    budget_us, ttl_ms = int(deadline_s * 1e6), int(keep_s * 1000)
    status, _ = await letters.replay(
        c, found.queue, found.letter.entry_id, budget_us=budget_us, ttl_ms=ttl_ms, ask=PLAIN, alone=alone
    )
    return status


async def purge(c: Connection, found: Found) -> None:
    """Throw a letter away."""
    await letters.purge(c, found.queue, [found.letter.entry_id])


def request_of(found: Found) -> wire.RequestBody:
    """What was asked."""
    return wire.decode_request(found.letter.payload)


def facts_of(found: Found) -> dict[str, Any]:
    """What is known of a letter, by name; plain values."""
    letter = found.letter
    error = wire.decode_reply(letter.answer).body if letter.answer else wire.ReplyBody()
    parts = letter.traceparent.split("-")
    return {
        "id": letter.id,
        "model": found.queue.model,
        "version": found.queue.version,
        "why": letter.why,
        "attempts": letter.attempts,
        "errors": letter.errors,
        "crashes": letter.crashes,
        "losses": letter.losses,
        "worker": letter.worker,
        "tenant": letter.tenant,
        "trace_id": parts[1] if len(parts) > 1 else "",
        "given_up_at": datetime.fromtimestamp(letter.buried_ms / 1000, UTC).isoformat(" ", "seconds")[:19],
        "bytes": len(letter.payload),
        "error": error.error,
    }


def values_of(tensor: wire.Tensor) -> list[Any]:
    """The elements of a tensor, flat; bytes as text."""
    array = tensors.from_bytes(tensor.data, tensor.datatype, tensor.shape, name=tensor.name).ravel()
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in array.tolist()]


def infer_body_of(request: wire.RequestBody) -> dict[str, Any]:
    """A request as the JSON body of infer."""
    inputs = [{"name": t.name, "shape": t.shape, "datatype": t.datatype, "data": values_of(t)} for t in request.inputs]
    body: dict[str, Any] = {"inputs": inputs}
    if request.outputs:
        body["outputs"] = [{"name": name} for name in request.outputs]
    if request.parameters:
        body["parameters"] = request.parameters
    return body
