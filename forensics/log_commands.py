"""The commands about logs as a whole: `logs compact` archives them, `logs check` says what they cannot tell, `sql` asks
them anything. The work is in modules that each command loads for itself, since DuckDB takes its time to load."""

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shared import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forensics.store import Store

DEFAULT = Path(".tailrace/logs")

logs_argument = click.argument(
    "logs", metavar="[LOGS]...", nargs=-1, type=click.Path(path_type=Path), envvar="TAILRACE_LOG_DIR"
)


@click.group(name="logs", short_help="Archive logs, and check what they can tell.")
def logs_command() -> None:
    """Archive logs, and check what they can tell.

    LOGS are files or folders: JSON lines, plain or compressed with zstd (*.jsonl.zst), and archives made by `logs
    compact`. Without any, the folder in TAILRACE_LOG_DIR, or else .tailrace/logs. Name the logs of all machines.
    """


@logs_command.command(name="compact")
@logs_argument
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the archives."
)
@click.option("--remove", is_flag=True, help="Remove the logs that are archived and that nobody writes any more.")
def compact_command(logs: tuple[Path, ...], out: Path, remove: bool) -> None:
    """Archive logs as Parquet, a file for each type of record and hour.

    An archive is a tenth of the size and read in a tenth of the time. All commands read it as they read logs. It can be
    made again and again: only what is new is added. The logs stay; with --remove those go that were rotated or
    compressed, or that end with a goodbye.

    \b
    Example:
      tailrace logs compact .tailrace/logs -o archive/
    """
    from forensics.compact import compact
    from forensics.store import LogError

    try:
        done = compact(logs or (DEFAULT,), out, remove=remove)
    except LogError as e:
        raise click.UsageError(str(e)) from e
    except OSError as e:
        raise click.ClickException(f"the archives cannot be written: {e}") from e
    click.echo(f"{done.added:,} lines added, {len(done.written)} archives written in {out}")
    if remove:
        click.echo(f"{len(done.removed)} logs removed")
        for file, why in done.held_back:
            click.echo(f"kept {file}: {why}")


@logs_command.command(name="check")
@logs_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each finding.")
@click.pass_context
def check_command(ctx: click.Context, logs: tuple[Path, ...], as_json: bool) -> None:
    """Say what the logs cannot tell, and why: lines, mates and processes that are missing, clocks that contradict.

    Exits with 0 when nothing stands against what they tell, with 1 when something does, with 2 when there are no logs.

    \b
    Example:
      tailrace logs check gateway-logs/ worker-logs/
    """
    from forensics.quality import Severity, check
    from forensics.report import visible

    with opened(logs or (DEFAULT,)) as store:
        found = check(store, now_us=clock.wall_us())
        requests, processes = store.value("SELECT count(*) FROM raw.req"), store.value("SELECT count(*) FROM raw.lives")
        load = store.report()
    if as_json:
        from msgspec import json

        for finding in found:
            click.echo(json.encode(finding.to_json()))
    else:
        click.echo(f"{load.lines:,} lines of {processes} processes in {load.files} files, {requests:,} requests")
        for finding in found:
            click.echo(f"\n{finding.severity.value.upper()}  {visible(finding.what)}.")
            click.echo(f"  Cannot say {visible(finding.cannot)}.")
        if not found:
            click.echo("Nothing is missing, and nothing contradicts.")
    ctx.exit(1 if any(finding.severity is not Severity.NOTE for finding in found) else 0)


@click.command(name="sql")
@logs_argument
@click.argument("query")
@click.option(
    "--format", "shape", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True,
    help="json: one object a line.",
)  # fmt: skip
def sql_command(logs: tuple[Path, ...], query: str, shape: str) -> None:
    """Ask logs a question in SQL (DuckDB's), read-only.

    QUERY is one SELECT over the views requests, attempts, batches, events, resources, processes, clock_offsets and
    unread_lines; docs/sql.md tells their columns, and so does `DESCRIBE requests`. Without LOGS, the folder in
    TAILRACE_LOG_DIR, or else .tailrace/logs.

    \b
    Example:
      tailrace sql "SELECT model, count(*), quantile_cont(e2e_ns, 0.99) / 1e6 AS p99_ms FROM requests GROUP BY model"
      tailrace sql archive/ "FROM events WHERE kind = 'gc' ORDER BY duration_ns DESC LIMIT 10" --format json
    """
    from forensics.sql import SqlError, ask, print_to

    with opened(logs or (DEFAULT,)) as store:
        try:
            print_to(sys.stdout, ask(store, query), shape)
        except SqlError as e:
            raise click.UsageError(str(e)) from e


@contextmanager
def opened(logs: "Sequence[Path]") -> "Iterator[Store]":
    """A store of these logs; what is wrong with them ends the command with status 2."""
    from forensics.store import LogError, open_store

    try:
        with open_store(logs) as store:
            yield store
    except LogError as e:
        raise click.UsageError(str(e)) from e
