"""`tailrace bench`: load a server and measure how it answers. The work is in `bench`, loaded when it is needed."""

import asyncio
import json
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tailrace.bench_model_command import INTERRUPTED, CannotBegin, bench_model_command

if TYPE_CHECKING:
    from bench.measure import Settings
    from bench.results import Results

SECONDS = click.FloatRange(0, min_open=True)


class _Bench(click.Command):
    """`bench URL`; but `bench model NAME` is a command of its own, since no URL is called that."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["model"]:
            return bench_model_command.make_context(f"{info_name} model", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command(name="bench", cls=_Bench, short_help="Load a server and measure how it answers.")
@click.argument("url", metavar="URL")
@click.option("--model", default="", metavar="NAME", help="The model.  [default: the only one; with --replay, all]")
@click.option("--version", default="", metavar="V", help="Its version.  [default: the server's choice]")
@click.option(
    "--connections",
    type=click.IntRange(1, 60_000),
    help="Closed loop: how many clients. Open loop: connections at most.  [default: 16; open 1024]",
)
@click.option("--duration", type=SECONDS, metavar="S", help="How long.  [default: 10; with --replay, all of it]")
@click.option("--warmup", default=1.0, type=click.FloatRange(0), metavar="S", show_default=True,
              help="Before that, not counted; none with --replay.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="R", help="Open loop: requests a second.")
@click.option(
    "--arrivals",
    default="poisson",
    show_default=True,
    type=click.Choice(["poisson", "bursty", "uniform"]),
    help="Open loop: how requests come.",
)
@click.option("--burst", default=10.0, show_default=True, type=click.FloatRange(1), metavar="N",
              help="How many come at once on average when they are bursty.")  # fmt: skip
@click.option(
    "--replay",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="LOGS",
    help="Open loop: send again what the gateways' logs in this folder or file recorded, with its gaps, models, rows "
    "and priorities. The logs hold no payloads, so inputs are made up of about the recorded size. May be repeated.",
)
@click.option(
    "--since", metavar="WHEN", help="Of the logs only what came since: 30s, 10m, 2h, 1d or an ISO time (UTC)."
)
@click.option("--speed", default=1.0, show_default=True, type=SECONDS, metavar="X", help="Replay so much faster.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE.jsonl",
    help='Inputs from lines of {"inputs": [...]} or {"text": "..."} in turns, instead of made-up ones.',
)
@click.option("--binary", is_flag=True, help="Send and receive binary tensors instead of JSON.")
@click.option("--rows", default=1, show_default=True, type=click.IntRange(1), help="Rows of each request.")
@click.option("--dim", default=16, show_default=True, type=click.IntRange(1),
              help="Made-up size of a dimension that the model leaves open, beside the batch.")  # fmt: skip
@click.option("--words", default=12.0, show_default=True, type=click.FloatRange(1),
              help="Made-up texts: median of their log-normal numbers of words; p99 is 17 times that.")  # fmt: skip
@click.option("--integers-below", default=100, show_default=True, type=click.IntRange(1), metavar="N",
              help="Made-up integers are 0 to N - 1.")  # fmt: skip
@click.option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Send this header, too.")
@click.option(
    "--timeout", default=60.0, show_default=True, type=SECONDS, metavar="S", help="A later answer is a failure."
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of inputs and arrivals.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write all figures, with commit, machine and settings.")  # fmt: skip
def bench_command(url: str, json_file: Path | None, **given: Any) -> None:
    """Load a server of the Open Inference Protocol and measure how it answers.

    Without --rate and --replay a closed loop: each client sends its next request when the last one is answered, so a
    server that stalls is asked less, and the stall hardly shows. With --rate or --replay an open loop: requests are
    sent when they are due, and latency counts from then.

    Latencies are those of requests answered 2xx, to the last byte. What the server itself says in Server-Timing is
    set against them. Ctrl-C ends early and reports all the same. Exit status 0: all were answered; 1: some were not;
    2: nothing could be measured.

    `tailrace bench model NAME` measures a model on this machine without any server; see its --help.

    \b
    Example:
      tailrace bench http://127.0.0.1:8000 --model mlp --connections 64
      tailrace bench http://127.0.0.1:8000 --model minilm --rate 20 --duration 60
      tailrace bench http://127.0.0.1:8000 --replay .tailrace/logs --since 10m --speed 2
    """
    from bench.errors import CannotMeasure

    try:
        settings = _settings(url, given)
        if json_file is not None and not json_file.absolute().parent.is_dir():
            raise CannotMeasure(f"--json: there is no folder {json_file.parent}")
        results = _run(settings)
    except CannotMeasure as e:
        raise CannotBegin(str(e)) from e
    except asyncio.CancelledError:
        sys.exit(INTERRUPTED)
    from rich.console import Console

    from bench.report import print_report

    print_report(Console(), results)
    if json_file is not None:
        _write(json_file, settings, results)
        click.echo(f"\nwritten to {json_file}")
    sys.exit(results.exit_status)


def _settings(url: str, given: dict[str, Any]) -> "Settings":
    """The options as settings. Raises CannotMeasure, click.UsageError."""
    from bench.arrivals import Arrivals
    from bench.measure import Settings
    from bench.workload import Shape
    from forensics.requests import parse_since
    from shared import clock

    if given["replay"]:
        for name in ("rate", "data"):
            if given[name]:
                raise click.UsageError(f"--replay has its own requests and instants; leave --{name} out")
    elif given["since"] or given["speed"] != 1.0:
        raise click.UsageError("--since and --speed belong to --replay")
    try:
        since_us = parse_since(given["since"], now_us=clock.wall_us()) if given["since"] else 0
    except ValueError as e:
        raise click.UsageError(f"--since: {e}") from e
    return Settings(
        url=url,
        model=given["model"],
        version=given["version"],
        connections=given["connections"] or 0,
        duration_s=given["duration"] or 0.0,
        warm_up_s=given["warmup"],
        rate_per_s=given["rate"] or 0.0,
        arrivals=Arrivals(given["arrivals"]),
        burst_mean=given["burst"],
        replay=given["replay"],
        since_us=since_us,
        speed=given["speed"],
        data=given["data"],
        shape=Shape(
            rows=given["rows"],
            free=given["dim"],
            words_median=given["words"],
            integers_below=given["integers_below"],
        ),
        binary=given["binary"],
        headers=dict(map(_header, given["headers"])),
        timeout_s=given["timeout"],
        seed=given["seed"],
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable() or not text.isascii():
        raise click.UsageError(f"--header {text!r}: write 'name: value' in printable ASCII")
    return name.strip(), value.strip()


def _run(settings: "Settings") -> "Results":
    """Measure; the first Ctrl-C ends a run that has begun early, any other ends everything."""
    import uvloop

    from bench.load import Progress
    from bench.measure import measure
    from bench.report import progress_line
    from bench.tally import Tally

    async def work() -> "Results":
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        has_begun = False
        whole = asyncio.current_task()
        assert whole is not None

        def interrupted() -> None:
            if stop.is_set() or not has_begun:
                whole.cancel()
            stop.set()

        @contextmanager
        def watch(progress: Progress, tally: Tally) -> Iterator[None]:
            nonlocal has_begun
            has_begun = True
            with progress_line(sys.stdout, progress, tally):
                yield

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupted)
        return await measure(settings, stop, watch)

    return uvloop.run(work())


def _write(path: Path, settings: "Settings", results: "Results") -> None:
    from bench.about import about

    # Headers may hold keys.
    told = asdict(settings) | {"headers": list(settings.headers)}
    figures = {
        "about": about(_command(sys.argv), packages=("uvloop", "numpy")),
        "settings": told,
        "results": results.to_json(),
    }
    text = json.dumps(figures, indent=1, default=str)
    # A line for each bucket of the histogram is enough.
    text = re.sub(r"\[\s+(\d+),\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2, \3]", text)
    try:
        path.write_text(text + "\n")
    except OSError as e:
        raise CannotBegin(f"--json {path} cannot be written: {e.strerror}") from e


def _command(argv: Sequence[str]) -> str:
    """The command line as it was typed, without the values of headers."""
    words = [f"tailrace {shlex.join(argv[1:2])}"] if len(argv) > 1 else ["tailrace"]
    before = ""
    for word in argv[2:]:
        is_header = before in ("-H", "--header") or word.startswith(("--header=", "-H"))
        words.append(shlex.quote(f"{word.partition(':')[0]}: ..." if is_header and ":" in word else word))
        before = word
    return " ".join(words)
