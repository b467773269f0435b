"""`tailrace dlq`: look at the requests that were given up, run them again, throw them away.

What changes something says first what it would do, and does it only with --yes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gateway.job_ask import PLAIN
from shared import tensors, wire
from shared.broker import letters, scripts
from shared.broker.connection import BrokerError, Connection
from shared.broker.letters import DeadLetter
from shared.keys import PREFIX, Queue

ANSWER_S = 5.0
PAGE = 100
PREVIEW_CHARS = 200
EMBEDDED = Path(".tailrace/redis/redis.sock")

redis_option = click.option(
    "--redis",
    "url",
    envvar="TAILRACE_REDIS",
    help=f"URL of the Redis.  [default: that of `tailrace up` here, {EMBEDDED}, else redis://127.0.0.1:6379/0]",
)
model_option = click.option("--model", default="", metavar="NAME[/VERSION]", help="Of this model only.")
why_option = click.option(
    "--why", type=click.Choice(["crashed", "lost", "errors"]), help="Given up for this reason only."
)
yes_option = click.option("--yes", is_flag=True, help="Do it. Without this it only says what it would do.")
ids_argument = click.argument("ids", nargs=-1, metavar="[ID]...")
all_option = click.option("--all", "everything", is_flag=True, help="All that --model and --why leave.")


@dataclass(frozen=True, slots=True)
class Found:
    """A dead letter and the queue it died in."""

    queue: Queue
    letter: DeadLetter


@click.group(name="dlq", short_help="Look at requests that were given up, run them again, throw them away.")
def dlq_command() -> None:
    """Look at the requests that were given up (dead letters), run them again, throw them away.

    A request is given up when it ended its worker three times (crashed), failed three times in a way that might have
    passed (errors), or was held by ten workers that were lost (lost). It is kept whole, payload included; of each
    model's version the last 1,000, or 256 MiB.
    """


@dlq_command.command(name="list")
@redis_option
@model_option
@why_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_command(url: str | None, model: str, why: str | None, as_json: bool) -> None:
    """List the dead letters, the oldest first."""
    found = _run(url, lambda c: _find(c, model, why, ()))
    if as_json:
        for f in found:
            click.echo(json.dumps(_facts(f)))
        return
    if not found:
        click.echo("no dead letters")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("id", "model", "why", "attempts", "given up at (UTC)", "tenant", "bytes", "its client was told"):
        table.add_column(title, justify="right" if title in ("attempts", "bytes") else "left", overflow="fold")
    for f in found:
        facts = _facts(f)
        table.add_row(
            f.letter.id, str(f.queue), f.letter.why, str(f.letter.attempts), facts["given_up_at"], f.letter.tenant,
            str(len(f.letter.payload)), facts["error"][:80],
        )  # fmt: skip
    Console().print(table)


@dlq_command.command(name="show")
@click.argument("request_id", metavar="ID")
@redis_option
@click.option("--body", is_flag=True, help="Print the request as the JSON body of an infer request, and nothing else.")
def show_command(request_id: str, url: str | None, body: bool) -> None:
    """Show one dead letter: why it was given up, and what was asked."""
    for f in _run(url, lambda c: _find(c, "", None, (request_id,))):
        request = wire.decode_request(f.letter.payload)
        if body:
            click.echo(json.dumps(_infer_body(request)))
            continue
        for name, value in _facts(f).items():
            click.echo(f"{name:12} {value}")
        for tensor in request.inputs:
            preview = str(_values(tensor))
            shown = preview if len(preview) <= PREVIEW_CHARS else f"{preview[:PREVIEW_CHARS]}..."
            click.echo(f"input        {tensor.name} {tensor.datatype} {tensor.shape}: {shown}")


@dlq_command.command(name="replay")
@ids_argument
@redis_option
@model_option
@why_option
@all_option
@yes_option
@click.option("--together", is_flag=True, help="In the common queue; without this each runs alone, as a suspect.")
@click.option("--deadline-s", default=3600.0, show_default=True, type=click.FloatRange(0.001), help="Time to end in.")
@click.option("--keep-s", default=86400.0, show_default=True, type=click.FloatRange(1), help="Time to keep the result.")
def replay_command(
    ids: tuple[str, ...],
    url: str | None,
    model: str,
    why: str | None,
    everything: bool,
    yes: bool,
    together: bool,
    deadline_s: float,
    keep_s: float,
) -> None:
    """Run dead letters again, as jobs with their old ids.

    The result is then at GET /v2/models/NAME/versions/VERSION/jobs/ID.
    """
    _some(ids, everything, model, why)

    async def work(c: Connection) -> list[Found]:
        found = await _find(c, model, why, ids)
        for f in found:
            job = f"/v2/models/{f.queue.model}/versions/{f.queue.version}/jobs/{f.letter.id}"
            if not yes:
                click.echo(f"would run {f.letter.id} of {f.queue} again ({f.letter.why}); result: {job}")
                continue
            status, _ = await letters.replay(
                c, f.queue, f.letter.entry_id,
                budget_us=int(deadline_s * 1e6), ttl_ms=int(keep_s * 1000), ask=PLAIN, alone=not together,
            )  # fmt: skip
            told = {"OK": f"runs again; result: {job}", "LIVE": "is in the queue already", "GONE": "is gone"}
            click.echo(f"{f.letter.id} {told[status]}")
        return found

    _conclude(_run(url, work), yes)


@dlq_command.command(name="purge")
@ids_argument
@redis_option
@model_option
@why_option
@all_option
@yes_option
def purge_command(
    ids: tuple[str, ...], url: str | None, model: str, why: str | None, everything: bool, yes: bool
) -> None:
    """Throw dead letters away, for good."""
    _some(ids, everything, model, why)

    async def work(c: Connection) -> list[Found]:
        found = await _find(c, model, why, ids)
        for f in found:
            if yes:
                await letters.purge(c, f.queue, [f.letter.entry_id])
            click.echo(f"{'threw away' if yes else 'would throw away'} {f.letter.id} of {f.queue} ({f.letter.why})")
        return found

    _conclude(_run(url, work), yes)


def _some(ids: Sequence[str], everything: bool, model: str, why: str | None) -> None:
    if not ids and not everything:
        raise click.UsageError("name the requests, or say --all (with --model and --why to narrow it)")
    if ids and (everything or model or why):
        raise click.UsageError("give ids, or --all with --model and --why, not both")


def _conclude(found: Sequence[Found], yes: bool) -> None:
    if not found:
        click.echo("no dead letters")
    elif not yes:
        click.echo(f"nothing was changed; say --yes to do it ({len(found)} requests)")


def _run(url: str | None, work: Callable[[Connection], Coroutine[Any, Any, list[Found]]]) -> list[Found]:
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


async def _find(c: Connection, model: str, why: str | None, ids: Sequence[str]) -> list[Found]:
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


def _facts(found: Found) -> dict[str, Any]:
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


def _values(tensor: wire.Tensor) -> list[Any]:
    array = tensors.from_bytes(tensor.data, tensor.datatype, tensor.shape, name=tensor.name).ravel()
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in array.tolist()]


def _infer_body(request: wire.RequestBody) -> dict[str, Any]:
    inputs = [{"name": t.name, "shape": t.shape, "datatype": t.datatype, "data": _values(t)} for t in request.inputs]
    body: dict[str, Any] = {"inputs": inputs}
    if request.outputs:
        body["outputs"] = [{"name": name} for name in request.outputs]
    if request.parameters:
        body["parameters"] = request.parameters
    return body
