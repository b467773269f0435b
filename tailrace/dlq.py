"""`tailrace dlq`: look at the requests that were given up, run them again, throw them away.

What changes something says first what it would do, and does it only with --yes. The work is in `dead_letters.py`, which
each command loads for itself: it needs Redis' client and numpy, and the other commands need not wait for those.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shared.broker.connection import Connection
    from tailrace.dead_letters import Found

PREVIEW_CHARS = 200

redis_option = click.option(
    "--redis",
    "url",
    envvar="TAILRACE_REDIS",
    help="URL of the Redis.  [default: that of `tailrace up` in this directory, else redis://127.0.0.1:6379/0]",
)
model_option = click.option("--model", default="", metavar="NAME[/VERSION]", help="Of this model only.")
why_option = click.option(
    "--why", type=click.Choice(["crashed", "lost", "errors"]), help="Given up for this reason only."
)
yes_option = click.option("--yes", is_flag=True, help="Do it. Without this it only says what it would do.")
ids_argument = click.argument("ids", nargs=-1, metavar="[ID]...")
all_option = click.option("--all", "everything", is_flag=True, help="All that --model and --why leave.")


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
    from tailrace import dead_letters as module

    found = module.run(url, lambda c: module.find(c, model, why, ()))
    if as_json:
        for f in found:
            click.echo(json.dumps(module.facts_of(f)))
        return
    if not found:
        click.echo("no dead letters")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("id", "model", "why", "attempts", "given up at (UTC)", "tenant", "bytes", "its client was told"):
        table.add_column(title, justify="right" if title in ("attempts", "bytes") else "left", overflow="fold")
    for f in found:
        facts = module.facts_of(f)
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
    from tailrace import dead_letters as module

    for f in module.run(url, lambda c: module.find(c, "", None, (request_id,))):
        request = module.request_of(f)
        if body:
            click.echo(json.dumps(module.infer_body_of(request)))
            continue
        for name, value in module.facts_of(f).items():
            click.echo(f"{name:12} {value}")
        for tensor in request.inputs:
            preview = str(module.values_of(tensor))
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
    from tailrace import dead_letters as module

    _some(ids, everything, model, why)

    async def work(c: "Connection") -> "list[Found]":
        found = await module.find(c, model, why, ids)
        for f in found:
            job = module.location_of(f.queue, f.letter.id)
            if not yes:
                click.echo(f"would run {f.letter.id} of {f.queue} again ({f.letter.why}); result: {job}")
                continue
            status = await module.replay(c, f, deadline_s=deadline_s, keep_s=keep_s, alone=not together)
            told = {"OK": f"runs again; result: {job}", "LIVE": "is in the queue already", "GONE": "is gone"}
            click.echo(f"{f.letter.id} {told[status]}")
        return found

    _conclude(module.run(url, work), yes)


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
    from tailrace import dead_letters as module

    _some(ids, everything, model, why)

    async def work(c: "Connection") -> "list[Found]":
        found = await module.find(c, model, why, ids)
        for f in found:
            if yes:
                await module.purge(c, f)
            click.echo(f"{'threw away' if yes else 'would throw away'} {f.letter.id} of {f.queue} ({f.letter.why})")
        return found

    _conclude(module.run(url, work), yes)


def _some(ids: Sequence[str], everything: bool, model: str, why: str | None) -> None:
    if not ids and not everything:
        raise click.UsageError("name the requests, or say --all (with --model and --why to narrow it)")
    if ids and (everything or model or why):
        raise click.UsageError("give ids, or --all with --model and --why, not both")


def _conclude(found: "Sequence[Found]", yes: bool) -> None:
    if not found:
        click.echo("no dead letters")
    elif not yes:
        click.echo(f"nothing was changed; say --yes to do it ({len(found)} requests)")
