"""`tailrace diagnose`: why the tail is slow."""

from pathlib import Path

import click

from forensics.log_commands import DEFAULT, logs_argument, opened
from shared import clock

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@click.command(name="diagnose")
@logs_argument
@click.option("--since", metavar="WHEN", help="Requests begun since then: 30s, 10m, 2h, 1d or an ISO time (UTC).")
@click.option("--until", metavar="WHEN", help="Requests begun before then.")
@click.option(
    "--baseline", metavar="A..B", help="What is normal: the time from A to B, each as in --since. [default: all of it]"
)
@click.option("--slo", metavar="pNN=MS", help="The quantile that is asked about, and what it should be: p99=100ms.")
@click.option("--model", default="", metavar="NAME", help="Requests of this model only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--format", "shape", type=click.Choice(["text", "markdown"]), default="text", show_default=True)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report that opens offline.")
@click.pass_context
def diagnose_command(
    ctx: click.Context,
    logs: tuple[Path, ...],
    since: str | None,
    until: str | None,
    baseline: str | None,
    slo: str | None,
    model: str,
    as_json: bool,
    shape: str,
    html: Path | None,
) -> None:
    """Say why p99 is high: what the tail spends its time on, since when, and which cause would give most of it back.

    The answer is in milliseconds: by how much p99 would be lower without the cause, by a replay of the logged requests.
    Each finding names its evidence, the query that shows it, the cure, and what would show that it is wrong. Where
    nothing fits, it says so, and where the time is lost.

    Exits with 0, or with 1 when --slo is given and not met.

    \b
    Example:
      tailrace diagnose --since 10m
      tailrace diagnose logs/ --slo p99=100ms --format markdown > incident.md
      tailrace diagnose logs/ --baseline 2026-11-30T10:00..2026-11-30T10:30 --since 2026-11-30T10:30
    """
    from msgspec import json

    from forensics.diagnose import diagnosis as diagnosing
    from forensics.diagnose import report_text

    now_us = clock.wall_us()
    since_us, until_us = _instant(since, "--since", now_us), _instant(until, "--until", now_us)
    baseline_us = _baseline(baseline, now_us)
    quantile, limit_ms = _objective(slo)
    with opened(logs or (DEFAULT,)) as store:
        try:
            found = diagnosing.diagnose(
                store,
                now_us=now_us,
                quantile=quantile,
                since_us=since_us,
                until_us=until_us,
                baseline_us=baseline_us,
                model=model,
            )
        except diagnosing.NothingToDiagnose as e:
            raise click.ClickException(str(e)) from e
        if html is not None:
            from forensics.diagnose.report_html import write_html

            try:
                write_html(html, found, logs=logs)
            except OSError as e:
                raise click.ClickException(f"the report cannot be written: {e}") from e
            click.echo(f"report: {html}", err=True)
    if as_json:
        click.echo(json.encode(found.to_json()))
    else:
        click.echo(report_text.render(found, markdown=shape == "markdown", logs=logs), nl=False)
    if limit_ms is not None:
        met = found.value_ms <= limit_ms
        click.echo(f"SLO {slo}: {'met' if met else 'not met'} ({found.value_ms:.1f} ms)", err=True)
        ctx.exit(0 if met else 1)


def _instant(text: str | None, option: str, now_us: int) -> int | None:
    from forensics.requests import parse_since

    if text is None:
        return None
    try:
        return parse_since(text, now_us=now_us)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint=option) from e


def _baseline(text: str | None, now_us: int) -> tuple[int, int] | None:
    if text is None:
        return None
    start, dots, end = text.partition("..")
    if not dots:
        raise click.BadParameter(
            f"'{text}' is no stretch of time; write A..B, for example 30m..10m", param_hint="--baseline"
        )
    from_us, to_us = _instant(start, "--baseline", now_us), _instant(end, "--baseline", now_us)
    assert from_us is not None and to_us is not None
    if from_us >= to_us:
        raise click.BadParameter(f"'{text}' ends before it begins", param_hint="--baseline")
    return from_us, to_us


def _objective(text: str | None) -> tuple[float, float | None]:
    """The quantile, and what it should be at most in ms."""
    if text is None:
        return 0.99, None
    name, _, limit = text.partition("=")
    try:
        quantile = QUANTILES[name.strip().lower()]
        limit_ms = _milliseconds(limit.strip().lower()) if limit else None
    except (KeyError, ValueError):
        known = ", ".join(QUANTILES)
        raise click.BadParameter(
            f"'{text}' is no objective; write one of {known}, = and a time: p99=100ms", param_hint="--slo"
        ) from None
    return quantile, limit_ms


def _milliseconds(text: str) -> float:
    for unit, factor in (("ms", 1.0), ("s", 1000.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)
