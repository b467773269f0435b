"""The command `correlate`: business outcomes against latency. The work is in `outcomes.py` and `correlate.py`."""

from itertools import pairwise
from pathlib import Path

import click

from forensics.log_commands import DEFAULT, logs_argument, opened


@click.command(name="correlate", short_help="Business outcomes (conversion, revenue) against latency.")
@logs_argument
@click.option(
    "--outcomes", "file", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=True,
    help="CSV with a header, or JSON lines: a column that names the request, and outcomes.",
)  # fmt: skip
@click.option(
    "--key", default="", metavar="COLUMN", help="The column that names the request.  [default: id, label, ...]"
)
@click.option("--outcome", "wanted", multiple=True, metavar="COLUMN", help="An outcome; repeat it.  [default: all]")
@click.option("--edges", default="", metavar="MS,MS,...", help="Borders of the bands of latency.  [default: deciles]")
@click.option("--model", default="", metavar="NAME", help="Only requests of this model.")
@click.option(
    "--several", type=click.Choice(["out", "first", "last", "slowest"]), default="out", show_default=True,
    help="Where a name belongs to several requests: leave it out, or the one that counts.",
)  # fmt: skip
@click.option("--with-failed", is_flag=True, help="Also requests that failed or whose client left.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in ns.")
def correlate_command(
    logs: tuple[Path, ...],
    file: Path,
    key: str,
    wanted: tuple[str, ...],
    edges: str,
    model: str,
    several: str,
    with_failed: bool,
    as_json: bool,
) -> None:
    """Set business outcomes against latency: does conversion fall where requests take longer?

    Each row of the file names a request by its id, by the x-request-id that the client gave it, or by the id in the
    body of an infer request; every other column is an outcome, boolean (true, false, yes, no, 1, 0) or number. Bands of
    latency are compared, plainly and after adjusting for size, hour and model.

    What is shown is an association, never a cause: who asks, and why, is not in the logs.

    \b
    Example:
      tailrace correlate --outcomes orders.csv .tailrace/logs
      tailrace correlate --outcomes sessions.jsonl --key session --several slowest --edges 50,100,200,500
    """
    from forensics import correlate, correlate_report
    from forensics.outcomes import OutcomeError, join, read_outcomes

    edges_ns = _edges_ns(edges)
    try:
        outcomes = read_outcomes(file, key=key, wanted=wanted)
    except OutcomeError as e:
        raise click.UsageError(str(e)) from e
    with opened(logs or (DEFAULT,)) as store:
        joined = join(store, outcomes, model=model, several=several, failed=with_failed)
    found, too_few = [], []
    for name, values in outcomes.values.items():
        try:
            found.append(correlate.respond(name, values, joined, boolean=name in outcomes.booleans, edges_ns=edges_ns))
        except ValueError as e:
            too_few.append(str(e))
    if not found:
        matching = "\n".join(correlate_report.matching_lines(outcomes, joined))
        raise click.UsageError(f"{'; '.join(too_few)}.\n{matching}")
    if as_json:
        from msgspec import json

        click.echo(json.encode(correlate_report.to_json(outcomes, joined, found, too_few)))
        return
    for line in correlate_report.lines(outcomes, joined, found, too_few):
        click.echo(line)


def _edges_ns(text: str) -> list[int]:
    """Borders in ms as ns. Ends the command when they are none."""
    try:
        edges = [round(float(part) * 1e6) for part in text.split(",")] if text.strip() else []
    except (ValueError, OverflowError):
        edges = [0]
    if any(edge <= 0 for edge in edges) or any(b <= a for a, b in pairwise(edges)):
        raise click.BadParameter(
            f"{text!r}: expected rising numbers of ms with commas between, such as 50,100,200", param_hint="--edges"
        )
    return edges
