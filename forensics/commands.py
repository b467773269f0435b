"""The commands that read logs: `explain` one request, list the `requests`, `audit` them all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

import click
import msgspec
from rich.console import Console

from forensics import audit_report, report
from forensics import explain as explaining
from forensics import requests as listing
from forensics.audit import audit
from forensics.explain import Explanation, explain
from forensics.files import log_files
from forensics.load import PIECE_CHARS_MIN, AmbiguousId, Logs
from forensics.requests import RequestRow, recent
from shared import clock
from shared.events import Clk, Req, Wreq

MARGIN_US = 70_000_000
"""So far around a request its surroundings are read: all of the minute that bounds its clocks
(`forensics/offsets.py`)."""
FRESH_US = 2_000_000
"""A request that ended this short ago may still miss lines that are about to be written."""
NEAR_MAX = 5


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to look again for lines not written yet (a flush is every 50 ms). Tests bring their own clock."""

    for_ns: int = 1_000_000_000
    pause_s: float = 0.1
    now_ns: Callable[[], int] = field(default=clock.now_ns)
    now_us: Callable[[], int] = field(default=clock.wall_us)
    sleep: Callable[[float], None] = field(default=sleep)


log_dir_option = click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    default=Path(".tailrace/logs"),
    envvar="TAILRACE_LOG_DIR",
    show_default=True,
    show_envvar=True,
    help="Folder with the logs of gateways and workers.",
)


def json_option(what: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The --json option, which prints one object a line."""
    return click.option("--json", "as_json", is_flag=True, help=f"One JSON object a line for each {what}; times in ns.")


@click.command(name="explain")
@click.argument("request_id", metavar="ID")
@log_dir_option
@json_option("request found")
@click.pass_context
def explain_command(ctx: click.Context, request_id: str, log_dir: Path, as_json: bool) -> None:
    """Account for every nanosecond of one request.

    ID is the id that the server gave (or at least 6 characters of its beginning or end), your own x-request-id, the
    id in the body of the request, or a trace id. Where several requests bear it, all are shown.

    \b
    Example:
      tailrace explain order-1138
      tailrace explain 01JE8Z --json | jq '.classes'
    """
    if not log_dir.is_dir():
        raise click.ClickException(f"there is no log folder {log_dir}; say --log-dir or set TAILRACE_LOG_DIR")
    patience = ctx.find_object(Patience) or Patience()
    try:
        found = find(log_dir, request_id, patience)
    except AmbiguousId as several:
        ids = "\n  ".join(report.visible(i) for i in several.ids[-NEAR_MAX:])
        text = f"{len(several.ids)} requests fit {request_id!r}; name one, for example\n  {ids}"
        raise click.ClickException(text) from several
    if not found:
        raise click.ClickException(not_found(log_dir, request_id))
    if as_json:
        _print_json([explaining.to_json(e) for e in found])
        return
    console = _console()
    for i, e in enumerate(found):
        if i:
            console.print()
        report.print_to(console, report.render_explanation(e))


@click.command(name="requests")
@log_dir_option
@click.option("--slowest", type=click.IntRange(min=1), metavar="N", help="The N slowest, the slowest first.")
@click.option("--since", metavar="WHEN", help="Begun since then: 30s, 10m, 2h, 1d or an ISO time (UTC).")
@click.option("--model", metavar="NAME", help="Of this model (NAME or NAME/VERSION).")
@click.option("--status", metavar="STATUS", help="A number (500), a hundred (5xx), ok (below 400) or error.")
@click.option("--limit", type=click.IntRange(min=1), default=None, help="At most so many.  [default: 20]")
@json_option("request")
@click.pass_context
def requests_command(
    ctx: click.Context,
    log_dir: Path,
    slowest: int | None,
    since: str | None,
    model: str | None,
    status: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List requests, the newest first, with where their time went.

    \b
    Example:
      tailrace requests --slowest 10 --since 10m
      tailrace requests --status error --model minilm
    """
    if not log_dir.is_dir():
        raise click.ClickException(f"there is no log folder {log_dir}; say --log-dir or set TAILRACE_LOG_DIR")
    patience = ctx.find_object(Patience) or Patience()
    try:
        now_us = patience.now_us()
        since_us = listing.parse_since(since, now_us=now_us) if since else 0
        logs = Logs.load([log_dir], (Req, Clk), since_us=since_us)
        default = 20 if slowest is None else None
        rows = recent(
            logs, now_us=now_us, slowest=slowest, since=since_us, model=model, status=status, limit=limit or default
        )
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    if as_json:
        _print_json([listing.to_json(row) for row in rows])
        return
    if not rows:
        click.echo(f"no request fits, of {len(logs.of(Req))} in {log_dir}", err=True)
        return
    report.print_to(_console(), report.render_requests(rows))


@click.command(name="audit")
@click.argument("logs", metavar="[LOGS]...", nargs=-1, type=click.Path(path_type=Path), envvar="TAILRACE_LOG_DIR")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in us of the wall clock.")
@click.pass_context
def audit_command(ctx: click.Context, logs: tuple[Path, ...], as_json: bool) -> None:
    """Check from the logs alone that every request ended, and ended once.

    LOGS are files or folders; without any, the folder in TAILRACE_LOG_DIR, or else .tailrace/logs. To audit several
    machines, name the logs of all of them.

    \b
    Exits with 0 when nothing in the logs breaks the promise, with 1 when something does, with 2 when there are no
    logs. A request whose gateway died before it could log its end is listed as "cannot be told", which is no breach.

    \b
    Example:
      tailrace audit .tailrace/logs
      tailrace audit gateway-logs/ worker-logs/ --json | jq '.breaches'
    """
    paths = logs or (Path(".tailrace/logs"),)
    missing = [str(path) for path in paths if not path.exists()]
    if missing or not log_files(paths):
        what = (
            f"there is no {', '.join(missing)}" if missing else f"no log (*.jsonl) lies in {', '.join(map(str, paths))}"
        )
        raise click.UsageError(f"{what}; name the folder with the logs of the gateways and workers")
    patience = ctx.find_object(Patience) or Patience()
    found = audit(paths, now_us=patience.now_us())
    if not found.load.lines or found.load.bad == found.load.lines:
        raise click.UsageError(f"none of the {found.load.lines} lines in {', '.join(map(str, paths))} is a record")
    if as_json:
        _print_json([audit_report.to_json(found)])
    else:
        console = _console()
        for line in audit_report.audit_lines(found):
            console.print(line, soft_wrap=True)
    ctx.exit(0 if found.ok else 1)


def find(log_dir: Path, query: str, patience: Patience) -> list[Explanation]:
    """Explain what `query` names; look again for a while when nothing is found, or lines may still be under way.

    Raises AmbiguousId.
    """
    give_up_at_ns = patience.now_ns() + patience.for_ns
    while True:
        found = explain(surroundings(log_dir, query), query)
        under_way = any(not e.complete and patience.now_us() - e.ended_us < FRESH_US for e in found)
        if (found and not under_way) or patience.now_ns() >= give_up_at_ns:
            return found
        patience.sleep(patience.pause_s)


def surroundings(log_dir: Path, query: str) -> Logs:
    """The lines about the requests that `query` names, and all that was logged around them."""
    about = Logs.load([log_dir], (Req, Wreq), needle=query)
    ids = set(about.find(query))
    if not ids:
        return Logs([])
    reqs = [line for line in about.of(Req) if line.record.id in ids]
    ended_us = [line.envelope.wall_us for line in reqs]
    ended_us += [line.envelope.wall_us for line in about.of(Wreq) if line.record.id in ids]
    took_us = max((_took_ns(r) // 1_000 for _, r in reqs), default=0)
    return Logs.load([log_dir], since_us=min(ended_us) - took_us - MARGIN_US, until_us=max(ended_us) + MARGIN_US)


def _took_ns(r: Req) -> int:
    return max(r.g8, r.g5) - r.g0


def not_found(log_dir: Path, query: str) -> str:
    """What was searched, and what could have been meant."""
    logs = Logs.load([log_dir], (Req,))
    newest: Sequence[RequestRow] = recent(logs, now_us=0, limit=NEAR_MAX)
    counts = logs.report
    text = [
        f"no request is named {query!r}: searched ids, x-request-ids, body ids and trace ids of "
        f"{len(logs.of(Req))} requests in {counts.files} files under {log_dir}"
    ]
    if len(query) < PIECE_CHARS_MIN:
        text.append(f"(A part of an id needs at least {PIECE_CHARS_MIN} characters.)")
    if newest:
        text.append("The latest are:")
        text += [f"  {report.visible(r.id)}  {report.visible(r.label)}".rstrip() for r in newest]
    else:
        text.append("No request has been logged there: is it the folder of the running gateway?")
    if counts.torn or counts.bad:
        text.append(f"({counts.torn} torn and {counts.bad} unreadable lines were skipped)")
    return "\n".join(text)


def _console() -> Console:
    return Console(markup=False, highlight=False, emoji=False)


def _print_json(objects: Sequence[object]) -> None:
    for value in objects:
        click.echo(msgspec.json.encode(value))
